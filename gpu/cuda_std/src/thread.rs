//! Who am I: indices and sizes of the launch, the block barrier, memory fences. Named barriers live in `barrier`.

macro_rules! special {
    ($($(#[$doc:meta])* $name:ident = $device:ident, $part:ident[$axis:literal];)*) => {
        $(
            $(#[$doc])*
            #[inline(always)]
            pub fn $name() -> u32 {
                #[cfg(target_arch = "nvptx64")]
                // SAFETY: reads a special register.
                unsafe {
                    crate::device::$device()
                }
                #[cfg(not(target_arch = "nvptx64"))]
                crate::simulate::special().$part[$axis]
            }
        )*
    };
}
special! {
    /// Index of the thread in its block, x axis.
    thread_idx_x = tid_x, thread[0];
    /// Index of the thread in its block, y axis.
    thread_idx_y = tid_y, thread[1];
    /// Index of the thread in its block, z axis.
    thread_idx_z = tid_z, thread[2];
    /// Index of the block in the grid, x axis.
    block_idx_x = ctaid_x, block[0];
    /// Index of the block in the grid, y axis.
    block_idx_y = ctaid_y, block[1];
    /// Index of the block in the grid, z axis.
    block_idx_z = ctaid_z, block[2];
    /// Threads of a block, x axis.
    block_dim_x = ntid_x, block_dim[0];
    /// Threads of a block, y axis.
    block_dim_y = ntid_y, block_dim[1];
    /// Threads of a block, z axis.
    block_dim_z = ntid_z, block_dim[2];
    /// Blocks of the grid, x axis.
    grid_dim_x = nctaid_x, grid_dim[0];
    /// Blocks of the grid, y axis.
    grid_dim_y = nctaid_y, grid_dim[1];
    /// Blocks of the grid, z axis.
    grid_dim_z = nctaid_z, grid_dim[2];
}

/// Index of the thread in a one-dimensional grid of one-dimensional blocks.
#[inline(always)]
pub fn index_1d() -> u32 {
    block_idx_x() * block_dim_x() + thread_idx_x()
}

/// Waits until all threads of the block are here; memory accesses before it are seen by all after it (`barrier.sync 0`).
///
/// # Safety
/// All threads of the block must reach it together; a thread that exited earlier leaves the others waiting for ever.
#[inline(always)]
#[track_caller]
pub unsafe fn sync_threads() {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the caller's contract.
    unsafe {
        crate::device::barrier_sync_all(0);
    }
    #[cfg(not(target_arch = "nvptx64"))]
    crate::simulate::barrier(0, None, true);
}

macro_rules! fence {
    ($($(#[$doc:meta])* $name:ident = $device:ident;)*) => {
        $(
            $(#[$doc])*
            #[inline(always)]
            pub fn $name() {
                #[cfg(target_arch = "nvptx64")]
                // SAFETY: orders memory accesses only.
                unsafe {
                    crate::device::$device();
                }
            }
        )*
    };
}
fence! {
    /// Orders this thread's memory accesses as seen by its block. The simulator is sequentially consistent: nothing to do.
    block_fence = fence_block;
    /// Orders this thread's memory accesses as seen by the device (`__threadfence`).
    device_fence = fence_device;
    /// Orders this thread's memory accesses as seen by device and host.
    system_fence = fence_system;
}

/// Gives up the processor for about `nanoseconds`. In the simulator other threads get their turn.
#[inline(always)]
pub fn nanosleep(nanoseconds: u32) {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: waits only.
    unsafe {
        crate::device::nanosleep(nanoseconds);
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        let _ = nanoseconds;
        crate::simulate::spin();
    }
}
