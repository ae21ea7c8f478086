//! How the cache holds its elements: bf16 as they are, or e4m3 with a factor a row, widened on the way to the products.
use super::layout::Layout;
use cuda_std::mma::uniform;
use cuda_std::{convert, prelude::*};

/// An element type of the cache. Products are of bf16 whatever it is.
///
/// `ldmatrix` moves pairs of bytes: a pair is one bf16 or two e4m3, so that with e4m3 one load brings twice the elements in
/// an order of their own. Queries are loaded, and results written, in that order.
pub trait Element: Copy {
    /// What is known of it on the host.
    const KIND: Kind;
    /// Keys or values, 16 keys by 16 elements, as they are loaded.
    type Loaded: Copy;
    /// None loaded yet.
    const NOTHING: Self::Loaded;

    /// Where a lane reads keys from, relative to the tile.
    fn keys_offset(layout: Layout) -> u32;

    /// Where a lane reads values from, relative to a column of the tile.
    fn values_offset(layout: Layout) -> u32;

    /// Loads 16 elements of the 16 keys of a tile, lane addresses as [`keys_offset`](Self::keys_offset) says.
    ///
    /// # Safety
    /// Whole warps come here; the tile is complete.
    unsafe fn load_keys(from: Shared<Bf16>) -> Self::Loaded;

    /// The same as values: transposed.
    ///
    /// # Safety
    /// As there.
    unsafe fn load_values(from: Shared<Bf16>) -> Self::Loaded;

    /// Fragments B of two products with keys: those of the first eight keys, those of the last.
    fn keys(loaded: Self::Loaded) -> [u32; 4];

    /// Fragments B of two products with values: two times eight of the 16 elements.
    fn values(loaded: Self::Loaded) -> [u32; 4];

    /// The factors of keys 2t, 2t + 1, 2t + 8, 2t + 9 of the tile, for lane t of a quad.
    ///
    /// # Safety
    /// The tile is complete.
    unsafe fn factors(tile: Shared<Bf16>, layout: Layout) -> [f32; 4];
}

/// Numbers that follow from the element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Two bytes, no factor.
    Bf16,
    /// One byte; an f32 factor a row in the row's padding.
    E4m3,
}

impl Kind {
    /// Bytes of an element.
    pub const fn bytes(self) -> u32 {
        match self {
            Self::Bf16 => 2,
            Self::E4m3 => 1,
        }
    }
}

impl Element for Bf16 {
    const KIND: Kind = Kind::Bf16;
    type Loaded = [u32; 4];
    const NOTHING: [u32; 4] = [0; 4];

    #[inline(always)]
    fn keys_offset(layout: Layout) -> u32 {
        let lane = thread::thread_idx_x() % 32;
        (lane / 16 * 8 + lane % 8) * layout.row + lane / 8 % 2 * 16
    }

    #[inline(always)]
    fn values_offset(layout: Layout) -> u32 {
        let lane = thread::thread_idx_x() % 32;
        lane % 16 * layout.row + lane / 16 * 16
    }

    #[inline(always)]
    unsafe fn load_keys(from: Shared<Bf16>) -> [u32; 4] {
        // SAFETY: the caller's contract.
        unsafe { uniform::ldmatrix_x4(from) }
    }

    #[inline(always)]
    unsafe fn load_values(from: Shared<Bf16>) -> [u32; 4] {
        // SAFETY: the caller's contract.
        unsafe { uniform::ldmatrix_x4_trans(from) }
    }

    #[inline(always)]
    fn keys(loaded: [u32; 4]) -> [u32; 4] {
        loaded
    }

    #[inline(always)]
    fn values(loaded: [u32; 4]) -> [u32; 4] {
        loaded
    }

    #[inline(always)]
    unsafe fn factors(_: Shared<Bf16>, _: Layout) -> [f32; 4] {
        [1.0; 4]
    }
}

/// fp8 e4m3 with a factor a row.
#[derive(Clone, Copy, Debug)]
pub struct E4m3;

impl E4m3 {
    /// The even (in the lower bytes) or odd bytes of a word as a pair of bf16, exactly.
    ///
    /// Exponent and mantissa go where bf16 has its own, whose bias is 120 more; the product puts that right and makes normal
    /// numbers of subnormal ones. NaN (0x7f, 0xff) becomes 480: a cache holds none.
    #[inline(always)]
    fn widened(word: u32, odd: bool) -> u32 {
        let (magnitude, sign) = if odd { (word >> 4, word) } else { (word << 4, word << 8) };
        convert::bf16x2_fma((magnitude & 0x07f0_07f0) | (sign & 0x8000_8000), 0x7b80_7b80, 0x8000_8000)
    }
}

impl Element for E4m3 {
    const KIND: Kind = Kind::E4m3;
    type Loaded = [u32; 2];
    const NOTHING: [u32; 2] = [0; 2];

    #[inline(always)]
    fn keys_offset(layout: Layout) -> u32 {
        thread::thread_idx_x() % 16 * layout.row
    }

    #[inline(always)]
    fn values_offset(layout: Layout) -> u32 {
        thread::thread_idx_x() % 16 * layout.row
    }

    #[inline(always)]
    unsafe fn load_keys(from: Shared<Bf16>) -> [u32; 2] {
        // SAFETY: the caller's contract.
        unsafe { uniform::ldmatrix_x2(from) }
    }

    #[inline(always)]
    unsafe fn load_values(from: Shared<Bf16>) -> [u32; 2] {
        // SAFETY: the caller's contract.
        unsafe { uniform::ldmatrix_x2_trans(from) }
    }

    #[inline(always)]
    fn keys([first, last]: [u32; 2]) -> [u32; 4] {
        [Self::widened(first, false), Self::widened(first, true), Self::widened(last, false), Self::widened(last, true)]
    }

    #[inline(always)]
    fn values([first, last]: [u32; 2]) -> [u32; 4] {
        [Self::widened(first, false), Self::widened(last, false), Self::widened(first, true), Self::widened(last, true)]
    }

    #[inline(always)]
    unsafe fn factors(tile: Shared<Bf16>, layout: Layout) -> [f32; 4] {
        let at = tile.byte_add(thread::thread_idx_x() % 4 * 2 * layout.row + layout.width).cast::<f32>();
        // SAFETY: inside the tile.
        [0, 1, 8, 9].map(|key| unsafe { at.byte_add(key * layout.row).read() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_e4m3_is_widened_exactly() {
        for byte in 0..=255u8 {
            if byte & 0x7f == 0x7f {
                continue;
            }
            let exact = convert::F16(convert::e4m3x2_to_f16x2(byte.into()) as u16).to_f32();
            for place in 0..4 {
                // The other bytes must not matter.
                let word = 0x3355_3355 & !(0xff << (8 * place)) | u32::from(byte) << (8 * place);
                let value = convert::bf16x2_to_f32(E4m3::widened(word, place % 2 == 1))[place / 2];
                assert_eq!(value.to_bits(), exact.to_bits(), "{byte:#x}, place {place}");
            }
        }
    }
}
