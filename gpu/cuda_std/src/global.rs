//! Typed addresses in global memory: what kernels take as pointer arguments. Shared memory has its own type in `shared`.
use crate::DeviceCopy;

/// Address of read-only `T`s in global memory. The layout is that of `*const T`.
#[repr(transparent)]
pub struct Global<T>(*const T);

/// Address of `T`s in global memory that the kernel may write. The layout is that of `*mut T`.
#[repr(transparent)]
pub struct GlobalMut<T>(*mut T);

macro_rules! pointer {
    ($name:ident, $raw:ty) => {
        impl<T> Clone for $name<T> {
            #[inline(always)]
            fn clone(&self) -> Self {
                *self
            }
        }
        impl<T> Copy for $name<T> {}

        impl<T> $name<T> {
            /// Wraps a device address.
            #[inline(always)]
            pub const fn from_raw(pointer: $raw) -> Self {
                Self(pointer)
            }

            /// The device address.
            #[inline(always)]
            pub const fn as_raw(self) -> $raw {
                self.0
            }

            /// The element `index` elements further on.
            #[inline(always)]
            #[allow(clippy::should_implement_trait)]
            pub fn add(self, index: usize) -> Self {
                Self(self.0.wrapping_add(index))
            }

            /// The address `bytes` bytes further on.
            #[inline(always)]
            pub fn byte_add(self, bytes: usize) -> Self {
                Self(self.0.wrapping_byte_add(bytes))
            }

            /// The same address, seen as another type.
            #[inline(always)]
            pub fn cast<U>(self) -> $name<U> {
                $name(self.0.cast())
            }
        }

        impl<T: DeviceCopy> $name<T> {
            /// Reads the value (`ld.global`); 16-byte types are one vector load.
            ///
            /// # Safety
            /// The address must be aligned to the size of `T` and lie inside a device buffer.
            #[inline(always)]
            #[track_caller]
            pub unsafe fn read(self) -> T {
                #[cfg(target_arch = "nvptx64")]
                // SAFETY: the caller's contract.
                unsafe {
                    crate::device::load_global(self.0 as u64)
                }
                #[cfg(not(target_arch = "nvptx64"))]
                crate::simulate::global_read(self.0)
            }
        }
    };
}
pointer!(Global, *const T);
pointer!(GlobalMut, *mut T);

impl<T: DeviceCopy> Global<T> {
    /// Reads the value through the read-only path (`ld.global.nc`).
    ///
    /// # Safety
    /// As [`read`](Self::read); nothing may write the place while the kernel runs.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn read_cached(self) -> T {
        #[cfg(target_arch = "nvptx64")]
        // SAFETY: the caller's contract.
        unsafe {
            crate::device::load_global_nc(self.0 as u64)
        }
        #[cfg(not(target_arch = "nvptx64"))]
        crate::simulate::global_read(self.0)
    }

    /// Reads a value that this block needs only once (`ld.global.nc.L1::no_allocate`): weights.
    ///
    /// # Safety
    /// As [`read_cached`](Self::read_cached).
    #[inline(always)]
    #[track_caller]
    pub unsafe fn read_once(self) -> T {
        #[cfg(target_arch = "nvptx64")]
        // SAFETY: the caller's contract.
        unsafe {
            crate::device::load_global_once(self.0 as u64)
        }
        #[cfg(not(target_arch = "nvptx64"))]
        crate::simulate::global_read(self.0)
    }
}

impl<T: DeviceCopy> GlobalMut<T> {
    /// Read-only view of the same address.
    #[inline(always)]
    pub fn as_const(self) -> Global<T> {
        Global(self.0)
    }

    /// Writes the value (`st.global`); 16-byte types are one vector store.
    ///
    /// # Safety
    /// The address must be aligned to the size of `T` and lie inside a writable device buffer.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn write(self, value: T) {
        #[cfg(target_arch = "nvptx64")]
        // SAFETY: the caller's contract.
        unsafe {
            crate::device::store_global(self.0 as u64, value);
        }
        #[cfg(not(target_arch = "nvptx64"))]
        crate::simulate::global_write(self.0, value);
    }

    /// Writes a value that will not be read soon (`st.global.cs`: evicted first).
    ///
    /// # Safety
    /// As [`write`](Self::write).
    #[inline(always)]
    #[track_caller]
    pub unsafe fn write_once(self, value: T) {
        #[cfg(target_arch = "nvptx64")]
        // SAFETY: the caller's contract.
        unsafe {
            crate::device::store_global_once(self.0 as u64, value);
        }
        #[cfg(not(target_arch = "nvptx64"))]
        crate::simulate::global_write(self.0, value);
    }
}
