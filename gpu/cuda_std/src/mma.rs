//! Tensor-core tiles: `ldmatrix` fragments and `mma.sync` products. Nothing here loops over a matrix.
//!
//! There is no f16 product: its LLVM intrinsic takes vectors of f16, which rustc cannot pass on this target, and a
//! collective must not be inline assembly. bf16 serves.
//!
//! Fragments of m16n8k16, lane = 4 g + t: A holds rows g and g + 8, columns 2t, 2t+1 and 2t+8, 2t+9, in the order (g, low),
//! (g+8, low), (g, high), (g+8, high); B holds rows 2t, 2t+1 and 2t+8, 2t+9 of column g; C holds (g, 2t), (g, 2t+1),
//! (g+8, 2t), (g+8, 2t+1). m16n8k32 is the same with four bytes where m16n8k16 has two halves.
use crate::Shared;
#[cfg(not(target_arch = "nvptx64"))]
use crate::{simulate::Collective, warp::FULL_MASK};

/// Fragment of a 16 x 16 (or 16 x 32 byte) A tile.
pub type FragmentA = [u32; 4];
/// Fragment of a 16 x 8 (or 32 x 8 byte) B tile.
pub type FragmentB = [u32; 2];
/// Fragment of a 16 x 8 f32 accumulator.
pub type FragmentC = [f32; 4];

macro_rules! product {
    ($($(#[$doc:meta])* $name:ident = $device:ident, $kind:ident;)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// All 32 lanes must reach it together.
            #[inline(always)]
            #[track_caller]
            pub unsafe fn $name(a: FragmentA, b: FragmentB, c: FragmentC) -> FragmentC {
                #[cfg(target_arch = "nvptx64")]
                // SAFETY: the caller's contract.
                unsafe {
                    let d = crate::device::$device(
                        a[0], a[1], a[2], a[3], b[0], b[1], c[0], c[1], c[2], c[3],
                    );
                    [d.0, d.1, d.2, d.3]
                }
                #[cfg(not(target_arch = "nvptx64"))]
                {
                    let c = c.map(f32::to_bits);
                    let operands = [a[0], a[1], a[2], a[3], b[0], b[1], c[0], c[1], c[2], c[3]];
                    crate::simulate::collective(Collective::$kind, FULL_MASK, &operands).map(f32::from_bits)
                }
            }
        )*
    };
}
product! {
    /// D = A x B + C, bf16 operands, f32 accumulation.
    m16n8k16_bf16 = mma_bf16, MmaBf16;
    /// D = A x B + C, fp8 e4m3 operands, f32 accumulation (sm_89 and later).
    m16n8k32_e4m3 = mma_e4m3, MmaE4m3;
}

macro_rules! ldmatrix {
    ($($(#[$doc:meta])* $name:ident($count:literal, $trans:literal) = $device:ident, |$r:ident| $parts:expr;)*) => {
        $(
            $(#[$doc])*
            /// Lane i gives the address of row i % 8 of tile i / 8; lane 4 g + t receives elements 2t and 2t+1 of row g of
            /// each tile, or of column g where transposed.
            ///
            /// # Safety
            /// All 32 lanes must reach it together; the addresses must be 16-byte aligned shared memory.
            #[inline(always)]
            #[track_caller]
            pub unsafe fn $name<T>(row: Shared<T>) -> [u32; $count] {
                #[cfg(target_arch = "nvptx64")]
                // SAFETY: the caller's contract.
                unsafe {
                    let $r = crate::device::$device(crate::device::shared_to_generic(row.address()));
                    $parts
                }
                #[cfg(not(target_arch = "nvptx64"))]
                {
                    let kind = Collective::Ldmatrix { tiles: $count, transposed: $trans };
                    let result = crate::simulate::collective(kind, FULL_MASK, &[row.address()]);
                    core::array::from_fn(|i| result[i])
                }
            }
        )*
    };
}
ldmatrix! {
    /// One 8 x 8 tile of 16-bit elements.
    ldmatrix_x1(1, false) = ldmatrix_x1, |r| [r];
    /// Two 8 x 8 tiles of 16-bit elements.
    ldmatrix_x2(2, false) = ldmatrix_x2, |r| [r.0, r.1];
    /// Four 8 x 8 tiles of 16-bit elements.
    ldmatrix_x4(4, false) = ldmatrix_x4, |r| [r.0, r.1, r.2, r.3];
    /// One 8 x 8 tile of 16-bit elements, transposed.
    ldmatrix_x1_trans(1, true) = ldmatrix_x1_trans, |r| [r];
    /// Two 8 x 8 tiles of 16-bit elements, transposed.
    ldmatrix_x2_trans(2, true) = ldmatrix_x2_trans, |r| [r.0, r.1];
    /// Four 8 x 8 tiles of 16-bit elements, transposed.
    ldmatrix_x4_trans(4, true) = ldmatrix_x4_trans, |r| [r.0, r.1, r.2, r.3];
}

/// `ldmatrix` for code that the whole warp executes, never under a condition that differs between its lanes.
///
/// Same results as the functions above, one instruction less for most: the address stays 32 bits wide, so that constant
/// offsets become part of the access. They are inline assembly, which LLVM may duplicate across divergent branches; in
/// warp-uniform code a duplicate is harmless.
pub mod uniform {
    use crate::Shared;
    #[cfg(not(target_arch = "nvptx64"))]
    use crate::{simulate::Collective, warp::FULL_MASK};

    macro_rules! ldmatrix {
        ($($(#[$doc:meta])* $name:ident($count:literal, $trans:literal) = $device:ident;)*) => {
            $(
                $(#[$doc])*
                ///
                /// # Safety
                /// As the function of that name above; the code around it is uniform over the warp.
                #[inline(always)]
                #[track_caller]
                pub unsafe fn $name<T>(row: Shared<T>) -> [u32; $count] {
                    #[cfg(target_arch = "nvptx64")]
                    // SAFETY: the caller's contract.
                    unsafe {
                        crate::device::$device(row.address())
                    }
                    #[cfg(not(target_arch = "nvptx64"))]
                    {
                        let kind = Collective::Ldmatrix { tiles: $count, transposed: $trans };
                        let result = crate::simulate::collective(kind, FULL_MASK, &[row.address()]);
                        core::array::from_fn(|i| result[i])
                    }
                }
            )*
        };
    }
    ldmatrix! {
        /// Two 8 x 8 tiles of 16-bit elements.
        ldmatrix_x2(2, false) = ldmatrix_x2_at;
        /// Two 8 x 8 tiles of 16-bit elements, transposed.
        ldmatrix_x2_trans(2, true) = ldmatrix_x2_trans_at;
        /// Four 8 x 8 tiles of 16-bit elements.
        ldmatrix_x4(4, false) = ldmatrix_x4_at;
        /// Four 8 x 8 tiles of 16-bit elements, transposed.
        ldmatrix_x4_trans(4, true) = ldmatrix_x4_trans_at;
    }
}
