//! How the next token is chosen.

/// Sampling parameters of a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// Softmax temperature; 0 is greedy.
    pub temperature: f32,
    /// Keep the k most probable tokens; 0: all.
    pub top_k: usize,
    /// Keep the smallest set of most probable tokens whose probability reaches p; 1: all.
    pub top_p: f32,
    /// Drop tokens below this share of the best one's probability; 0: none.
    pub min_p: f32,
    /// Key of the random numbers.
    pub seed: u64,
}
