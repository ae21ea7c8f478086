//! SIMT simulator: runs kernels on the host, thread by thread, and reports what a GPU would answer with silence or garbage.
//!
//! Every GPU thread is a stackful coroutine. Warp collectives and barriers are rendezvous; a copy started by `cp.async`
//! lands at its wait, a bulk copy when someone waits on its mbarrier: as late as the hardware may. Blocks and warps
//! interleave by a seeded random schedule, so a run can be repeated.
//!
//! Every access is checked: bounds and alignment (shared memory and [`Buffer`]s), shared memory never written, copies in
//! flight, and races in shared memory. Two accesses race when no barrier, named barrier, mbarrier or `sync_warp` orders
//! them, whatever the schedule was. Per 4-byte word the last write and the first and last read are remembered, so no
//! false race is reported, while one among three and more unordered readers may be missed. Accesses to global memory are
//! not checked for races.
mod block;
mod buffer;
mod collective;
mod fault;
mod lane;
mod order;
mod scheduler;
mod shadow;

pub use buffer::{Buffer, Registry};
pub use collective::{Collective, Shuffle};
pub use fault::{Fault, FaultKind};
pub use scheduler::{Report, Simulator};

pub(crate) use lane::{
    SHARED_BASE, barrier, clock, collective, copy_async, copy_async_commit, copy_async_wait, copy_bulk, global_read,
    global_write, lane_id, mbarrier_arrive, mbarrier_init, mbarrier_try_wait, shared_atomic, shared_read, shared_write,
    special, spin,
};

#[doc(hidden)]
pub use lane::print_line;

use crate::launch::{Arguments, Kernel, LaunchShape};

/// Runs `kernel` under the default [`Simulator`].
///
/// # Errors
/// The first fault found, naming kernel, block, thread and source line.
pub fn launch<A: Arguments>(kernel: &Kernel<A>, shape: LaunchShape, arguments: A) -> Result<Report, Fault> {
    Simulator::default().launch(kernel, shape, arguments)
}
