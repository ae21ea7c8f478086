//! Largest values a configuration may state: far above any model, low enough that no product of sizes that the
//! program forms (elements of a tensor, bytes of a cache) leaves 63 bits.

/// Vocabulary.
pub(super) const VOCAB: usize = 1 << 24;
/// Hidden and intermediate widths.
pub(super) const WIDTH: usize = 1 << 20;
/// Low-rank widths.
pub(super) const RANK: usize = 1 << 14;
/// Attention heads.
pub(super) const HEADS: usize = 1 << 12;
/// Width of a head.
pub(super) const HEAD_WIDTH: usize = 1 << 12;
/// Layers.
pub(super) const LAYERS: usize = 1 << 10;
/// Routed experts.
pub(super) const EXPERTS: usize = 1 << 14;
/// Shared experts.
pub(super) const SHARED_EXPERTS: usize = 1 << 8;
/// Positions.
pub(super) const POSITIONS: usize = 1 << 32;
/// Slots of a draft block.
pub(super) const BLOCK: usize = 1 << 10;
