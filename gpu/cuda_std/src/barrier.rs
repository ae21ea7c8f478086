//! Barriers beyond `sync_threads`: named barriers over part of a block, and mbarriers that count arrivals and bytes.
use crate::Shared;

/// Waits at named barrier `id` (0 to 15) until `threads` threads have arrived or waited there.
///
/// # Safety
/// `id` and `threads` must be the same for all that take part, `threads` a multiple of 32, and whole warps must take part.
/// A constant `id` keeps the other fifteen barriers free.
#[inline(always)]
#[track_caller]
pub unsafe fn sync(id: u32, threads: u32) {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the caller's contract.
    unsafe {
        crate::device::barrier_sync(id, threads);
    }
    #[cfg(not(target_arch = "nvptx64"))]
    crate::simulate::barrier(id, Some(threads), true);
}

/// Arrives at named barrier `id` without waiting.
///
/// # Safety
/// As [`sync`].
#[inline(always)]
#[track_caller]
pub unsafe fn arrive(id: u32, threads: u32) {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the caller's contract.
    unsafe {
        crate::device::barrier_arrive(id, threads);
    }
    #[cfg(not(target_arch = "nvptx64"))]
    crate::simulate::barrier(id, Some(threads), false);
}

/// A barrier in shared memory whose phase ends when all arrivals and all expected bytes are in.
#[derive(Clone, Copy)]
pub struct Mbarrier(Shared<u64>);

impl Mbarrier {
    /// The barrier at an 8-byte aligned place in shared memory.
    #[inline(always)]
    pub fn at(place: Shared<u64>) -> Self {
        Self(place)
    }

    /// Its address in the shared window.
    #[inline(always)]
    pub fn address(self) -> u32 {
        self.0.address()
    }

    /// Sets it up for phases of `arrivals` arrivals. Call [`fence_init`] and `sync_threads` before others use it.
    ///
    /// # Safety
    /// One thread does this once; the place must be 8-byte aligned shared memory that nothing else uses.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn init(self, arrivals: u32) {
        #[cfg(target_arch = "nvptx64")]
        // SAFETY: the caller's contract.
        unsafe {
            crate::device::mbarrier_init(self.address(), arrivals);
        }
        #[cfg(not(target_arch = "nvptx64"))]
        crate::simulate::mbarrier_init(self.address(), arrivals);
    }

    /// One arrival; releases this thread's earlier accesses to those who wait.
    ///
    /// # Safety
    /// The barrier must be initialised.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn arrive(self) {
        #[cfg(target_arch = "nvptx64")]
        // SAFETY: the caller's contract.
        unsafe {
            crate::device::mbarrier_arrive(self.address());
        }
        #[cfg(not(target_arch = "nvptx64"))]
        crate::simulate::mbarrier_arrive(self.address(), 1, 0);
    }

    /// Adds `bytes` to what this phase waits for, without arriving.
    ///
    /// # Safety
    /// As [`arrive`](Self::arrive); copies of that many bytes must follow.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn expect_tx(self, bytes: u32) {
        #[cfg(target_arch = "nvptx64")]
        // SAFETY: the caller's contract.
        unsafe {
            crate::device::mbarrier_expect(self.address(), bytes);
        }
        #[cfg(not(target_arch = "nvptx64"))]
        crate::simulate::mbarrier_arrive(self.address(), 0, bytes);
    }

    /// Adds `bytes` to what this phase waits for, then arrives.
    ///
    /// # Safety
    /// As [`expect_tx`](Self::expect_tx).
    #[inline(always)]
    #[track_caller]
    pub unsafe fn arrive_expect_tx(self, bytes: u32) {
        #[cfg(target_arch = "nvptx64")]
        // SAFETY: the caller's contract.
        unsafe {
            crate::device::mbarrier_arrive_expect(self.address(), bytes);
        }
        #[cfg(not(target_arch = "nvptx64"))]
        crate::simulate::mbarrier_arrive(self.address(), 1, bytes);
    }

    /// Whether the phase of this parity (0 for the first, then alternating) is over. May wait a little.
    ///
    /// # Safety
    /// The barrier must be initialised, and the waiting thread at most one phase behind.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn try_wait(self, parity: u32) -> bool {
        #[cfg(target_arch = "nvptx64")]
        // SAFETY: the caller's contract.
        unsafe {
            crate::device::mbarrier_try_wait(self.address(), parity)
        }
        #[cfg(not(target_arch = "nvptx64"))]
        crate::simulate::mbarrier_try_wait(self.address(), parity)
    }

    /// Waits until the phase of this parity is over; acquires what the arrivals released and the bytes that were copied.
    ///
    /// # Safety
    /// As [`try_wait`](Self::try_wait).
    #[inline(always)]
    #[track_caller]
    pub unsafe fn wait(self, parity: u32) {
        // SAFETY: the caller's contract.
        while !unsafe { self.try_wait(parity) } {}
    }
}

/// Makes initialised mbarriers visible to the copy engine (`fence.mbarrier_init`).
#[inline(always)]
pub fn fence_init() {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: orders memory accesses only.
    unsafe {
        crate::device::fence_mbarrier_init();
    }
}

/// Orders ordinary accesses to shared memory before later bulk copies into it (`fence.proxy.async`).
#[inline(always)]
pub fn fence_proxy_async() {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: orders memory accesses only.
    unsafe {
        crate::device::fence_proxy_async();
    }
}
