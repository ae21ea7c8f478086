//! Typed addresses in the block's dynamic shared memory. Global memory has its own types in `global`.
use crate::DeviceCopy;
use core::marker::PhantomData;

/// Address of a `T` in shared memory: 32 bits, as the hardware's shared window has it.
///
/// Reads and writes of 16-byte types are one vector access and need 16-byte alignment. In the simulator every access is
/// checked for bounds, alignment, data never written, copies still in flight and races between barriers.
#[repr(transparent)]
pub struct Shared<T>(u32, PhantomData<*mut T>);

impl<T> Clone for Shared<T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Shared<T> {}

/// First address of the dynamic shared memory the kernel was launched with; aligned to 128 bytes.
#[inline(always)]
pub fn dynamic_shared_mem<T>() -> Shared<T> {
    #[cfg(target_arch = "nvptx64")]
    let base = crate::device::shared_base();
    #[cfg(not(target_arch = "nvptx64"))]
    let base = crate::simulate::SHARED_BASE;
    Shared(base, PhantomData)
}

impl<T> Shared<T> {
    /// The element `index` elements further on.
    #[inline(always)]
    #[allow(clippy::should_implement_trait)]
    pub fn add(self, index: u32) -> Self {
        Self(self.0.wrapping_add(index.wrapping_mul(size_of::<T>() as u32)), PhantomData)
    }

    /// The address `bytes` bytes further on.
    #[inline(always)]
    pub fn byte_add(self, bytes: u32) -> Self {
        Self(self.0.wrapping_add(bytes), PhantomData)
    }

    /// The same address, seen as another type.
    #[inline(always)]
    pub fn cast<U>(self) -> Shared<U> {
        Shared(self.0, PhantomData)
    }

    /// The address in the shared window, bytes.
    #[inline(always)]
    pub fn address(self) -> u32 {
        self.0
    }
}

impl<T: DeviceCopy> Shared<T> {
    /// Reads the value.
    ///
    /// # Safety
    /// The address must be aligned to the size of `T`, lie inside the block's shared memory and hold data that no thread
    /// writes at the same time.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn read(self) -> T {
        #[cfg(target_arch = "nvptx64")]
        // SAFETY: the caller's contract.
        unsafe {
            crate::device::load_shared(self.0)
        }
        #[cfg(not(target_arch = "nvptx64"))]
        crate::simulate::shared_read(self.0)
    }

    /// Writes the value.
    ///
    /// # Safety
    /// The address must be aligned to the size of `T`, lie inside the block's shared memory, and no thread may use the
    /// place at the same time.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn write(self, value: T) {
        #[cfg(target_arch = "nvptx64")]
        // SAFETY: the caller's contract.
        unsafe {
            crate::device::store_shared(self.0, value);
        }
        #[cfg(not(target_arch = "nvptx64"))]
        crate::simulate::shared_write(self.0, value);
    }
}
