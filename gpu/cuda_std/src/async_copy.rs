//! Copies from global to shared memory that run beside the computation: `cp.async` in groups, bulk copies at an mbarrier.
use crate::barrier::Mbarrier;
use crate::{DeviceCopy, Global, Shared};

/// Starts copying one `T` of 4, 8 or 16 bytes; 16-byte copies bypass L1. Complete after [`wait_group`], and visible to
/// other threads after a barrier that follows it.
///
/// # Safety
/// Both addresses aligned to the size of `T`; no thread may use the destination until the copy is waited for.
#[inline(always)]
#[track_caller]
pub unsafe fn copy_async<T: DeviceCopy>(to: Shared<T>, from: Global<T>) {
    const { assert!(matches!(size_of::<T>(), 4 | 8 | 16), "cp.async copies 4, 8 or 16 bytes") };
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the caller's contract.
    unsafe {
        match size_of::<T>() {
            4 => crate::device::copy_async_4(to.address(), from.as_raw() as u64),
            8 => crate::device::copy_async_8(to.address(), from.as_raw() as u64),
            _ => crate::device::copy_async_16(to.address(), from.as_raw() as u64),
        }
    }
    #[cfg(not(target_arch = "nvptx64"))]
    crate::simulate::copy_async(to.address(), from.as_raw().cast(), size_of::<T>() as u32);
}

/// Closes this thread's current group of copies.
#[inline(always)]
pub fn commit_group() {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: affects only this thread's copies.
    unsafe {
        crate::device::copy_async_commit();
    }
    #[cfg(not(target_arch = "nvptx64"))]
    crate::simulate::copy_async_commit();
}

/// Waits until at most the `N` youngest groups of this thread are still running.
#[inline(always)]
#[track_caller]
pub fn wait_group<const N: u32>() {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: waits only.
    unsafe {
        crate::device::copy_async_wait::<N>();
    }
    #[cfg(not(target_arch = "nvptx64"))]
    crate::simulate::copy_async_wait(N);
}

/// Starts one copy of `bytes` bytes that reports to `barrier`, whose phase must have been told to expect them.
///
/// # Safety
/// Both addresses and `bytes` must be multiples of 16; no thread may use the destination until the phase is waited for.
#[inline(always)]
#[track_caller]
pub unsafe fn copy_bulk<T>(to: Shared<T>, from: Global<T>, bytes: u32, barrier: Mbarrier) {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the caller's contract.
    unsafe {
        crate::device::copy_bulk(to.address(), from.as_raw() as u64, bytes, barrier.address());
    }
    #[cfg(not(target_arch = "nvptx64"))]
    crate::simulate::copy_bulk(to.address(), from.as_raw().cast(), bytes, barrier.address());
}
