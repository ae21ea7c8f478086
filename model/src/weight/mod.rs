//! A linear layer's weights in their stored type, and their expansion to f32 a row at a time.

mod expand;
mod fp8;

use std::marker::PhantomData;
use std::ops::{Deref, Range};
use std::sync::Arc;

use bytemuck::Pod;
use half::{bf16, f16};

pub use fp8::{E4M3, e4m3_to_f32};

/// Bytes that outlive every tensor cut from them: a memory map, an embedded file, or owned memory.
pub type SharedBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// A typed slice of [`SharedBytes`]; cloning shares the memory.
#[derive(Clone)]
pub struct Slice<T> {
    bytes: SharedBytes,
    range: Range<usize>,
    element: PhantomData<T>,
}

impl<T: Pod + Send + Sync> Slice<T> {
    /// The elements of `bytes[range]`, copied if they are misaligned there; `None` if the range is out of bounds or not a
    /// whole number of elements.
    pub fn new(bytes: &SharedBytes, range: Range<usize>) -> Option<Self> {
        let raw = (**bytes).as_ref().get(range.clone())?;
        if !raw.len().is_multiple_of(size_of::<T>()) {
            return None;
        }
        match bytemuck::try_cast_slice::<u8, T>(raw) {
            Ok(_) => Some(Self { bytes: Arc::clone(bytes), range, element: PhantomData }),
            Err(bytemuck::PodCastError::TargetAlignmentGreaterAndInputNotAligned) => {
                Some(Self::from_vec(raw.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()))
            }
            Err(_) => None,
        }
    }

    /// Owned elements.
    pub fn from_vec(values: Vec<T>) -> Self {
        struct Owned<T>(Vec<T>);
        impl<T: Pod> AsRef<[u8]> for Owned<T> {
            fn as_ref(&self) -> &[u8] {
                bytemuck::cast_slice(&self.0)
            }
        }
        let range = 0..std::mem::size_of_val(values.as_slice());
        Self { bytes: Arc::new(Owned(values)), range, element: PhantomData }
    }
}

impl<T: Pod> Deref for Slice<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        bytemuck::cast_slice(&(*self.bytes).as_ref()[self.range.clone()])
    }
}

impl<T> std::fmt::Debug for Slice<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Slice({} bytes)", self.range.len())
    }
}

/// A weight matrix `[rows, cols]` (`rows` outputs, `cols` inputs; row major) in its stored type.
#[derive(Debug, Clone)]
pub struct Weight {
    /// The tensor's name in the checkpoint.
    pub name: String,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// The elements.
    pub storage: Storage,
}

/// The stored types.
#[derive(Debug, Clone)]
pub enum Storage {
    /// IEEE single.
    F32(Slice<f32>),
    /// bfloat16.
    Bf16(Slice<bf16>),
    /// IEEE half.
    F16(Slice<f16>),
    /// fp8-e4m3; value = fp8 x `scale_inv[row / block[0], col / block[1]]`, edge blocks ragged.
    Fp8Block {
        /// e4m3 bit patterns `[rows, cols]`.
        values: Slice<u8>,
        /// f32 `[ceil(rows / block[0]), ceil(cols / block[1])]`.
        scale_inv: Slice<f32>,
        /// Rows and columns of a block.
        block: [usize; 2],
    },
    /// int4; value = (nibble - 8) x `scale[row, col / group]`.
    Int4Group {
        /// `[rows, cols / 8]`; nibble i of word j is column 8j + i, low nibble first.
        packed: Slice<u32>,
        /// bf16 `[rows, cols / group]`.
        scale: Slice<bf16>,
        /// Columns of a group.
        group: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_share_memory_or_copy_what_is_misaligned() {
        let owned: SharedBytes = Arc::new((0..20u8).collect::<Vec<u8>>());
        let base = (*owned).as_ref().as_ptr() as usize;
        for start in 0..8 {
            let slice = Slice::<u32>::new(&owned, start..start + 8).unwrap();
            let expected = [0, 4].map(|at| u32::from_le_bytes([0, 1, 2, 3].map(|i| (start + at + i) as u8)));
            assert_eq!(*slice, expected);
            let shares = slice.as_ptr() as usize == base + start;
            assert_eq!(shares, (base + start).is_multiple_of(4), "start {start}");
        }
    }

    #[test]
    fn slices_refuse_ranges_out_of_bounds_or_not_whole() {
        let bytes: SharedBytes = Arc::new(vec![0u8; 16]);
        for range in [12..20, 0..6, 1..7, 17..17] {
            assert!(Slice::<u32>::new(&bytes, range.clone()).is_none(), "{range:?}");
        }
        assert!(Slice::<u32>::new(&bytes, 16..16).unwrap().is_empty());
    }
}
