//! What the simulator reports. Detection lives in the modules that watch each resource.
use std::panic::Location;

/// A fault of a kernel: what happened, and where.
#[derive(Debug, Clone, thiserror::Error)]
#[error("kernel {kernel}, block {block:?}, thread {thread:?}{}: {kind}", place(*.at))]
pub struct Fault {
    /// The kernel's name.
    pub kernel: &'static str,
    /// Index of the block: x, y, z.
    pub block: [u32; 3],
    /// Index of the thread in its block: x, y, z.
    pub thread: [u32; 3],
    /// Source line of the device function that was called, where one is to blame.
    pub at: Option<&'static Location<'static>>,
    /// What happened.
    pub kind: FaultKind,
}

fn place(at: Option<&Location<'_>>) -> String {
    at.map(|at| format!(", at {}:{}", at.file(), at.line())).unwrap_or_default()
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum FaultKind {
    #[error("a block has {found} threads, expected at most {expected} by the kernel's launch bounds")]
    LaunchBounds { found: u64, expected: u64 },
    #[error("a block has {found} bytes of shared memory, expected at most {expected}")]
    SharedTooLarge { found: u32, expected: u32 },
    #[error("an access of {bytes} bytes at byte {offset} of shared memory leaves its {size} bytes")]
    SharedOutOfBounds { offset: i64, bytes: u32, size: u32 },
    #[error("an access of {bytes} bytes at byte {offset} of shared memory is not aligned to {expected} bytes")]
    SharedMisaligned { offset: u32, bytes: u32, expected: u32 },
    #[error("a read of {bytes} bytes at byte {offset} of shared memory finds bytes that were never written")]
    Uninitialised { offset: u32, bytes: u32 },
    #[error("an access of {bytes} bytes at byte {offset} of shared memory meets a copy that was not waited for")]
    CopyInFlight { offset: u32, bytes: u32 },
    #[error("{access} byte {offset} of shared memory races with the {other} by thread {thread}{}", other_place(at))]
    Race { access: &'static str, offset: u32, other: &'static str, thread: u32, at: Option<String> },
    #[error("an access of {bytes} bytes at byte {offset} of buffer {buffer} leaves its {size} bytes")]
    GlobalOutOfBounds { buffer: String, offset: i64, bytes: u32, size: u64 },
    #[error("an access of {bytes} bytes at address {address:#x} meets no device buffer")]
    NoBuffer { address: u64, bytes: u32 },
    #[error("an access of {bytes} bytes at byte {offset} of buffer {buffer} is not aligned to {expected} bytes")]
    GlobalMisaligned { buffer: String, offset: u64, bytes: u32, expected: u32 },
    #[error("a write of {bytes} bytes at byte {offset} of buffer {buffer}, which is read-only")]
    ReadOnly { buffer: String, offset: u64, bytes: u32 },
    #[error("the warp diverges: lane {lane} waits at {here}, lane {other} {there}")]
    Divergence { lane: u32, here: String, other: u32, there: String },
    #[error("lane {lane} calls {call} with mask {mask:#010x}, which does not name it")]
    NotInMask { lane: u32, call: String, mask: u32 },
    #[error("barrier {id} is used with {found} threads, others use it with {expected}")]
    BarrierCount { id: u32, found: u32, expected: u32 },
    #[error(
        "named barrier {id} with {threads} threads: ids are 0 to 15, the count a multiple of 32 up to the block size"
    )]
    BarrierOperands { id: u32, threads: u32 },
    #[error("deadlock: this thread waits at {here}; {there}")]
    Deadlock { here: String, there: String },
    #[error("no progress: every thread that can run only spins")]
    Livelock,
    #[error("the mbarrier at byte {offset} of shared memory is not initialised")]
    NoMbarrier { offset: u32 },
    #[error("the mbarrier at byte {offset} of shared memory gets more {what} than its phase has")]
    MbarrierOverflow { offset: u32, what: &'static str },
    #[error("the block ends while a bulk copy to byte {offset} of shared memory is in flight")]
    CopyAtExit { offset: u32 },
    #[error("panic: {0}")]
    Panic(String),
}

fn other_place(at: &Option<String>) -> String {
    at.as_ref().map(|at| format!(" at {at}")).unwrap_or_default()
}
