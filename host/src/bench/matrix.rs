//! What is measured: cases by arms.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::engine::Speculation;

/// How long prompts are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PromptLength {
    /// As they are.
    Whole,
    /// Exactly so many tokens, cut from longer texts.
    Tokens(usize),
}

impl fmt::Display for PromptLength {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => f.write_str("whole"),
            Self::Tokens(tokens) => tokens.fmt(f),
        }
    }
}

/// What the arms of one comparison share.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// Prompt tokens.
    pub prompt: PromptLength,
    /// Tokens of context that are filled before the prompt and whose time does not count.
    pub depth: usize,
    /// Tokens to generate.
    pub max_tokens: usize,
    /// Softmax temperature; 0 is greedy.
    pub temperature: f32,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { prompt, depth, max_tokens, temperature } = self;
        write!(f, "-p {prompt} -n {max_tokens} --depth {depth} --temp {temperature}")
    }
}

/// Everything that is measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Matrix {
    /// Measured one after another.
    pub cases: Vec<Case>,
    /// Measured interleaved; the first is plain decode.
    pub arms: Vec<Speculation>,
}

/// The lists that span a matrix.
#[derive(Debug, Clone, Copy)]
pub struct Lists<'a> {
    /// Prompt lengths.
    pub prompts: &'a [PromptLength],
    /// Lengths of the answer.
    pub max_tokens: &'a [usize],
    /// Depths.
    pub depths: &'a [usize],
    /// Temperatures.
    pub temperatures: &'a [f32],
    /// Ways of drafting, in any order, repetitions included.
    pub arms: &'a [Speculation],
}

impl Matrix {
    /// Every combination once, in the order of the lists; plain decode comes first, asked for or not.
    pub fn new(lists: Lists<'_>) -> Self {
        let mut cases = Vec::new();
        for prompt in lists.prompts {
            for depth in lists.depths {
                for max_tokens in lists.max_tokens {
                    for temperature in lists.temperatures {
                        let case =
                            Case { prompt: *prompt, depth: *depth, max_tokens: *max_tokens, temperature: *temperature };
                        if !cases.contains(&case) {
                            cases.push(case);
                        }
                    }
                }
            }
        }
        let mut arms = vec![Speculation::None];
        for arm in lists.arms {
            if !arms.contains(arm) {
                arms.push(*arm);
            }
        }
        Self { cases, arms }
    }

    /// The largest tree budget.
    pub fn max_budget(&self) -> usize {
        self.arms.iter().map(|arm| arm.budget()).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_decode_is_always_there_and_nothing_is_there_twice() {
        let ddtree = |budget| Speculation::Ddtree { budget };
        let lists = Lists {
            prompts: &[PromptLength::Tokens(32), PromptLength::Tokens(64)],
            max_tokens: &[16, 16],
            depths: &[0],
            temperatures: &[0.0, 0.8],
            arms: &[ddtree(8), Speculation::None, ddtree(16), ddtree(8)],
        };
        let matrix = Matrix::new(lists);
        assert_eq!(matrix.arms, [Speculation::None, ddtree(8), ddtree(16)]);
        let names: Vec<_> = matrix.cases.iter().map(Case::to_string).collect();
        let want = [
            "-p 32 -n 16 --depth 0 --temp 0",
            "-p 32 -n 16 --depth 0 --temp 0.8",
            "-p 64 -n 16 --depth 0 --temp 0",
            "-p 64 -n 16 --depth 0 --temp 0.8",
        ];
        assert_eq!(names, want);
        assert_eq!(matrix.max_budget(), 16);
        assert_eq!(Matrix::new(Lists { arms: &[], ..lists }).arms, [Speculation::None]);
    }
}
