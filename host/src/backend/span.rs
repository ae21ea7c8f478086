//! Spans of operations, for a profiler: opened by backends that run an operation where it is submitted.

use tracing::span::EnteredSpan;

use super::Op;
use crate::op;

/// A span as long as what this returns lives. Costs a branch where nobody records.
pub(super) fn enter(op: &Op) -> EnteredSpan {
    match op {
        Op::Begin { .. } => op!("begin"),
        Op::PromptRows { .. } => op!("prompt rows"),
        Op::BlockRows { .. } => op!("block rows"),
        Op::TreeRows { .. } => op!("tree rows"),
        Op::Embed { .. } => op!("embed"),
        Op::AddNorm { .. } => op!("norm"),
        Op::Linear { .. } => op!("linear"),
        Op::Mlp { .. } => op!("mlp"),
        Op::Route { .. } => op!("route"),
        Op::Experts { .. } => op!("experts"),
        Op::MlaAppend { .. } => op!("mla append"),
        Op::MlaAttention { .. } => op!("mla attention"),
        Op::DraftAppend { .. } => op!("draft append"),
        Op::DraftAttention { .. } => op!("draft attention"),
        Op::Walk { .. } => op!("walk"),
        Op::Commit { .. } => op!("commit"),
    }
}
