//! The grid as a whole: programmatic dependent launch and the device clock.

/// Waits until the grids this one depends on have finished and their writes are visible (`griddepcontrol.wait`).
///
/// Every kernel executes it before its first global access, so that it may be launched with programmatic edges.
#[inline(always)]
pub fn dependency_wait() {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: waits only.
    unsafe {
        crate::device::dependency_wait();
    }
}

/// Lets dependent grids start their prologue (`griddepcontrol.launch_dependents`).
#[inline(always)]
pub fn dependency_launch() {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: a hint to the scheduler.
    unsafe {
        crate::device::dependency_launch();
    }
}

/// The device's nanosecond clock; it steps by 32 ns. The simulator counts lane switches instead.
#[inline(always)]
pub fn globaltimer() -> u64 {
    #[cfg(target_arch = "nvptx64")]
    {
        crate::device::globaltimer()
    }
    #[cfg(not(target_arch = "nvptx64"))]
    crate::simulate::clock()
}
