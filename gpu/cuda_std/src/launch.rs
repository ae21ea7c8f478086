//! Host side of a kernel: its name, bounds, typed arguments and launch shape, for simulator and driver alike.
use crate::{Global, GlobalMut};
use std::ffi::c_void;

/// Three extents or indices: x, y, z.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dim3(pub [u32; 3]);

impl From<u32> for Dim3 {
    fn from(x: u32) -> Self {
        Self([x, 1, 1])
    }
}
impl From<(u32, u32)> for Dim3 {
    fn from((x, y): (u32, u32)) -> Self {
        Self([x, y, 1])
    }
}
impl From<(u32, u32, u32)> for Dim3 {
    fn from((x, y, z): (u32, u32, u32)) -> Self {
        Self([x, y, z])
    }
}

impl Dim3 {
    /// Product of the three.
    pub fn volume(self) -> u64 {
        self.0.iter().map(|&n| u64::from(n)).product()
    }
}

/// How a kernel is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchShape {
    /// Blocks.
    pub grid: Dim3,
    /// Threads of a block.
    pub block: Dim3,
    /// Dynamic shared memory of a block, bytes.
    pub shared_bytes: u32,
}

impl LaunchShape {
    /// `grid` blocks of `block` threads without shared memory.
    pub fn new(grid: impl Into<Dim3>, block: impl Into<Dim3>) -> Self {
        Self { grid: grid.into(), block: block.into(), shared_bytes: 0 }
    }

    /// The same with `bytes` of dynamic shared memory a block.
    pub fn shared(self, bytes: u32) -> Self {
        Self { shared_bytes: bytes, ..self }
    }
}

/// What `#[kernel]` says about a kernel. `A` is the tuple of its arguments.
pub struct Kernel<A> {
    /// Entry point in the PTX.
    pub name: &'static str,
    /// Most threads of a block, 0 where not given.
    pub threads: u32,
    /// Blocks that must fit on a multiprocessor, 0 where not given.
    pub blocks_per_sm: u32,
    /// The kernel itself, for the simulator. The caller answers for the arguments.
    pub entry: fn(A),
}

/// One kernel argument: plain bytes.
///
/// # Safety
/// The layout must be the one that the PTX parameter has.
pub unsafe trait Argument: Copy + 'static {}
macro_rules! argument {
    ($($type:ty),*) => {
        $(
            // SAFETY: a number; host and device agree on its layout.
            unsafe impl Argument for $type {}
        )*
    };
}
argument!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);
// SAFETY: a 64-bit address.
unsafe impl<T: 'static> Argument for Global<T> {}
// SAFETY: a 64-bit address.
unsafe impl<T: 'static> Argument for GlobalMut<T> {}

/// The arguments of a kernel.
pub trait Arguments: Copy + 'static {
    /// Where each argument lies, as `cuLaunchKernel` wants them. Valid as long as `self` stays where it is.
    fn pointers(&self) -> Vec<*mut c_void>;
}
macro_rules! arguments {
    ($($name:ident)*) => {
        impl<$($name: Argument),*> Arguments for ($($name,)*) {
            #[allow(non_snake_case)]
            fn pointers(&self) -> Vec<*mut c_void> {
                let ($($name,)*) = self;
                vec![$(std::ptr::from_ref($name).cast_mut().cast()),*]
            }
        }
    };
}
arguments!(A);
arguments!(A B);
arguments!(A B C);
arguments!(A B C D);
arguments!(A B C D E);
arguments!(A B C D E F);
arguments!(A B C D E F G);
arguments!(A B C D E F G H);
arguments!(A B C D E F G H I);
arguments!(A B C D E F G H I J);
arguments!(A B C D E F G H I J K);
arguments!(A B C D E F G H I J K L);
arguments!(A B C D E F G H I J K L M);
arguments!(A B C D E F G H I J K L M N);
arguments!(A B C D E F G H I J K L M N O);
arguments!(A B C D E F G H I J K L M N O P);
