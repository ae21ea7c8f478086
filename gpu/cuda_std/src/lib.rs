//! Device standard library: what kernels call. Kernels themselves live elsewhere.
//!
//! One API, two implementations: NVPTX instructions when the target is `nvptx64`, and on the host the SIMT simulator of
//! [`simulate`], so that the same kernel source runs on a card and in `cargo test`. Names are rust-cuda's where rust-cuda
//! has them; tensor-core, asynchronous-copy and named-barrier operations follow in the same style.
//!
//! Rules that keep both implementations equal:
//! * memory is reached through [`shared::Shared`], [`global::Global`] and [`global::GlobalMut`], which the simulator checks;
//! * warp and block collectives are LLVM intrinsics, never `asm!`: LLVM duplicates inline assembly across divergent branches;
//! * kernels contain no `asm!` at all: it lives in the private `device` module here.
//!
//! Functions that touch memory or need convergence are `unsafe`. A warp-collective function must be reached by all lanes
//! of its mask together, a block-collective one by all threads of the block.
#![cfg_attr(target_arch = "nvptx64", no_std)]
#![cfg_attr(target_arch = "nvptx64", feature(abi_unadjusted, asm_experimental_arch, link_llvm_intrinsics))]
#![cfg_attr(target_arch = "nvptx64", allow(internal_features, improper_ctypes))]

pub mod async_copy;
pub mod atomic;
pub mod barrier;
pub mod convert;
pub mod global;
pub mod grid;
pub mod math;
pub mod mma;
pub mod shared;
pub mod thread;
pub mod warp;

#[cfg(target_arch = "nvptx64")]
mod device;
#[cfg(not(target_arch = "nvptx64"))]
pub mod launch;
#[cfg(not(target_arch = "nvptx64"))]
pub mod simulate;

pub use convert::{Bf16, F16};
pub use cuda_std_macros::kernel;
pub use global::{Global, GlobalMut};
pub use shared::Shared;

/// What kernels usually need in scope.
pub mod prelude {
    pub use crate::{Bf16, F16, Global, GlobalMut, Shared, barrier, kernel, math, mma, thread, warp};
}

/// A type that may be copied byte by byte between memories: plain data, 1, 2, 4, 8 or 16 bytes large.
///
/// # Safety
/// Every bit pattern must be a valid value, there must be no padding, and the size must be one of those above.
pub unsafe trait DeviceCopy: Copy + 'static {}

macro_rules! device_copy {
    ($($type:ty),*) => {
        $(
            // SAFETY: plain numbers without padding; any bits are valid.
            unsafe impl DeviceCopy for $type {}
        )*
    };
}
device_copy!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64, Bf16, F16);
device_copy!(
    [u32; 2], [u32; 4], [f32; 2], [f32; 4], [i32; 2], [i32; 4], [u64; 2], [u8; 4], [u16; 2], [u16; 4], [u16; 8]
);
device_copy!([Bf16; 2], [Bf16; 4], [Bf16; 8], [F16; 2], [F16; 4], [F16; 8]);

/// Prints a line from a kernel, prefixed with block and thread. In the simulator it goes to stderr; on a GPU it is nothing.
#[macro_export]
macro_rules! println {
    ($($argument:tt)*) => {{
        #[cfg(not(target_arch = "nvptx64"))]
        $crate::simulate::print_line(format_args!($($argument)*));
        #[cfg(target_arch = "nvptx64")]
        {
            let _ = || format_args!($($argument)*);
        }
    }};
}

/// Repeats a block with a constant: `unroll!(I in [0 1 2 3] { ... })`. An array that lives in registers may only be indexed
/// by constants, and the compiler does not always unroll a loop.
#[macro_export]
macro_rules! unroll {
    ($index:ident in [$($value:literal)*] $body:block) => {
        $({
            const $index: usize = $value;
            $body
        })*
    };
}
