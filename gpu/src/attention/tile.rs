//! What a block of verify attention keeps in shared memory, and the scores of a tile. The loop over tiles lives in `verify`.
use cuda_std::prelude::*;

/// Warps of a block: each scores 8 keys of a tile, then accumulates a quarter of the values.
pub const WARPS: u32 = 4;
/// Query rows of a block: one mma tile.
pub const ROWS: u32 = 16;
/// Keys of a tile.
pub const KEYS: u32 = 32;
/// Tiles in shared memory: one in use, one on its way.
pub const STAGES: u32 = 2;
/// f32 elements of a row of scores; 4 more than needed, so that rows start in different banks.
pub const SCORE_STRIDE: u32 = KEYS + 4;

/// Sizes of a head, from which everything else follows. The tile's rows lie as in the cache, padded by 16 bytes so that
/// `ldmatrix` meets no bank conflict.
#[derive(Clone, Copy)]
pub struct Layout {
    /// Elements of a query or key: latent and rope.
    pub width: u32,
    /// Bytes of a row, here and in the cache.
    pub row: u32,
    /// Offsets in shared memory, bytes.
    pub keys: u32,
    pub scores: u32,
    pub barriers: u32,
    pub total: u32,
}

impl Layout {
    pub const fn new(latent: u32, rope: u32) -> Self {
        let width = latent + rope;
        let row = 2 * width + 16;
        let keys = ROWS * row;
        let scores = keys + STAGES * KEYS * row;
        let barriers = scores + ROWS * SCORE_STRIDE * 4;
        Self { width, row, keys, scores, barriers, total: barriers + STAGES * 8 + 8 }
    }
}

/// Copies the block's query rows into shared memory, with zeros for rows that do not exist.
#[inline(always)]
pub unsafe fn load_query(to: Shared<Bf16>, query: Global<Bf16>, layout: Layout, first_row: u32, rows: u32) {
    let vectors = layout.width / 8;
    let mut i = thread::thread_idx_x();
    while i < ROWS * vectors {
        let (row, vector) = (i / vectors, i % vectors);
        // SAFETY: inside the query where the row exists, and inside the tile.
        unsafe {
            let from = query.add((first_row + row) as usize * layout.width as usize + 8 * vector as usize);
            let value = if first_row + row < rows { from.cast::<[u32; 4]>().read() } else { [0; 4] };
            to.byte_add(row * layout.row + 16 * vector).cast::<[u32; 4]>().write(value);
        }
        i += WARPS * 32;
    }
}

/// Zeros for the rows of a tile past its `present` keys: 0 x garbage might be NaN.
#[inline(always)]
pub unsafe fn clear_missing(tile: Shared<Bf16>, layout: Layout, present: u32) {
    let mut offset = present * layout.row + thread::thread_idx_x() * 16;
    while offset < KEYS * layout.row {
        // SAFETY: inside the tile, where no copy lands.
        unsafe { tile.byte_add(offset).cast::<[u32; 4]>().write([0; 4]) };
        offset += WARPS * 32 * 16;
    }
}

/// Scores of 16 rows against the warp's 8 keys of the tile, unscaled, into shared memory.
#[inline(always)]
pub unsafe fn score(query: Shared<Bf16>, keys: Shared<Bf16>, scores: Shared<f32>, layout: Layout, warp: u32) {
    // SAFETY: whole warps come here; query and tile are complete; each warp writes its own columns.
    unsafe {
        let lane = thread::thread_idx_x() % 32;
        // Query: rows 0..16 by columns 0..16 a step. Keys: 8 rows by columns 0..32, two steps a load.
        let q = query.byte_add(lane % 16 * layout.row + lane / 16 * 16);
        let k = keys.byte_add((8 * warp + lane % 8) * layout.row + lane / 8 * 16);
        let steps = layout.width / 16;
        let mut s = [0.0f32; 4];
        let mut step = 0;
        while step + 2 <= steps {
            let [b0, b1, b2, b3] = mma::ldmatrix_x4(k.byte_add(32 * step));
            s = mma::m16n8k16_bf16(mma::ldmatrix_x4(q.byte_add(32 * step)), [b0, b1], s);
            s = mma::m16n8k16_bf16(mma::ldmatrix_x4(q.byte_add(32 * step + 32)), [b2, b3], s);
            step += 2;
        }
        if step < steps {
            let k = keys.byte_add((8 * warp + lane % 8) * layout.row + lane / 8 % 2 * 16);
            let b = mma::ldmatrix_x2(k.byte_add(32 * step));
            s = mma::m16n8k16_bf16(mma::ldmatrix_x4(q.byte_add(32 * step)), b, s);
        }
        let to = scores.add(lane / 4 * SCORE_STRIDE + 8 * warp + lane % 4 * 2).cast::<[f32; 2]>();
        to.write([s[0], s[1]]);
        to.byte_add(8 * SCORE_STRIDE * 4).write([s[2], s[3]]);
    }
}
