//! Names of the engine's stages and of a backend's operations, and which stage an operation belongs to.
//!
//! The engine opens a span by [`stage!`](crate::stage) for as long as a stage lasts, a backend by [`op!`](crate::op) for as
//! long as an operation runs. Where nobody records, both are one load and one branch.

/// Target of stage spans.
pub const STAGE: &str = "coppice::stage";
/// Target of operation spans.
pub const OP: &str = "coppice::op";

/// A whole generation.
pub const REQUEST: &str = "request";
/// The prompt becomes context and the first token is chosen.
pub const PREFILL: &str = "prefill";
/// One turn of the decode loop.
pub const ROUND: &str = "round";
/// Waiting for the device.
pub const POLL: &str = "poll";
/// The drafter predicts.
pub const DRAFT: &str = "draft";
/// The tree is made.
pub const TREE: &str = "tree";
/// The target's forward pass.
pub const VERIFY: &str = "verify";
/// Tokens are chosen and the path through the tree is found: sampling.
pub const WALK: &str = "walk";
/// Accepted rows become context.
pub const COMMIT: &str = "commit";
/// The drafter's context follows.
pub const EXTEND: &str = "extend";

/// Stages in which the host submits work.
pub const SUBMITTING: &[&str] = &[DRAFT, TREE, VERIFY, WALK, COMMIT, EXTEND];

/// A span of the engine, ended when what this returns is dropped.
#[macro_export]
macro_rules! stage {
    ($name:expr) => {
        tracing::trace_span!(target: "coppice::stage", $name).entered()
    };
}

/// A span of an operation, ended when what this returns is dropped.
#[macro_export]
macro_rules! op {
    ($name:expr) => {
        tracing::trace_span!(target: "coppice::op", $name).entered()
    };
}

/// Tells operations' stages from their order on a device, which is the order of submission however much later they run.
#[derive(Debug, Clone, Copy)]
pub struct StageOfOps {
    now: &'static str,
}

impl Default for StageOfOps {
    fn default() -> Self {
        Self { now: PREFILL }
    }
}

impl StageOfOps {
    /// The stage of the operation that comes next.
    pub fn next(&mut self, op: &str) -> &'static str {
        match op {
            "begin" | "prompt rows" => self.now = PREFILL,
            "block rows" => self.now = DRAFT,
            "tree rows" => {
                self.now = VERIFY;
                return TREE;
            }
            _ if self.now == PREFILL => {}
            "walk" => self.now = WALK,
            "commit" => {
                self.now = EXTEND;
                return COMMIT;
            }
            _ => {}
        }
        self.now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stage_of_an_operation_follows_from_those_before() {
        let ops = [
            ("begin", PREFILL),
            ("prompt rows", PREFILL),
            ("linear", PREFILL),
            ("walk", PREFILL),
            ("commit", PREFILL),
            ("draft append", PREFILL),
            ("block rows", DRAFT),
            ("linear", DRAFT),
            ("tree rows", TREE),
            ("embed", VERIFY),
            ("linear", VERIFY),
            ("walk", WALK),
            ("commit", COMMIT),
            ("linear", EXTEND),
            ("draft append", EXTEND),
            ("tree rows", TREE),
            ("embed", VERIFY),
            ("prompt rows", PREFILL),
            ("embed", PREFILL),
        ];
        let mut stages = StageOfOps::default();
        for (i, (op, stage)) in ops.into_iter().enumerate() {
            assert_eq!(stages.next(op), stage, "operation {i}, {op}");
        }
    }
}
