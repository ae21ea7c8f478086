//! Drafter attention: grouped-query attention of a block's slots over the context and the whole block. First
//! [`draft_append`] prepares queries, keys and values, then [`draft_attention_128`] attends in parts, then
//! [`draft_merge_128`] puts the parts together.
mod append;
mod attend;
mod merge;

pub use append::*;
pub use attend::*;
pub use merge::*;

use cuda_std::prelude::*;

/// Elements of padding of a cached row: rows then start in different banks of shared memory.
pub const PADDING: u32 = 8;

/// Keys of a tile.
const KEYS: u32 = 64;

/// Which keys there are to see, the same in all blocks of a launch.
#[derive(Clone, Copy)]
struct Extent {
    /// Rows of the block.
    count: u32,
    /// Tokens before it.
    context: u32,
    /// A row sees context keys less than so far behind; 0: all.
    window: u32,
    /// First tile with a key that row 0 sees.
    first_tile: u32,
    /// Parts that get any tiles.
    parts: u32,
    /// Tiles from the first on.
    tiles: u32,
}

impl Extent {
    /// Reads count and start of a row set; `splits` is how many parts there may be.
    #[inline(always)]
    unsafe fn of(rows: Global<u32>, window: u32, splits: u32) -> Self {
        // SAFETY: the header belongs to the set.
        let (count, context) = unsafe {
            (
                rows.add(crate::round::RowLayout::COUNT as usize).read(),
                rows.add(crate::round::RowLayout::START as usize).read(),
            )
        };
        let extent = Self { count, context, window, first_tile: 0, parts: 0, tiles: 0 };
        let first_tile = extent.lowest(0) / KEYS;
        let tiles = extent.keys().div_ceil(KEYS) - first_tile;
        Self { first_tile, tiles, parts: if count == 0 { 0 } else { splits.min(tiles) }, ..extent }
    }

    /// Keys of context and block.
    #[inline(always)]
    fn keys(self) -> u32 {
        self.context + self.count
    }

    /// The first context key that a row sees, at most the context's end.
    #[inline(always)]
    fn lowest(self, row: u32) -> u32 {
        let behind = (self.context + row + 1).saturating_sub(self.window);
        if self.window == 0 { 0 } else { behind.min(self.context) }
    }
}
