//! One GPU thread, and the device functions as the simulator answers them. `cuda_std`'s modules call these on the host.
use super::block::Block;
use super::buffer;
use super::collective::Collective;
use super::fault::{Fault, FaultKind};
use super::shadow::Access;
use crate::DeviceCopy;
use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, Yielder};
use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::Location;

/// Where shared memory starts: not at 0, so that an offset used as an address is caught.
pub const SHARED_BASE: u32 = 1024;

/// Why a lane does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    Ready,
    Spin,
    Collective,
    Barrier(u32),
    Mbarrier(u32),
    Done,
}

/// A copy by `cp.async` on its way.
struct AsyncCopy {
    to: u32,
    from: *const u8,
    bytes: u32,
}

/// One GPU thread.
pub struct Lane {
    /// Index in the block.
    pub thread: u32,
    pub block: *mut Block,
    pub special: Special,
    pub coroutine: Option<Coroutine<(), (), (), DefaultStack>>,
    pub yielder: *const Yielder<(), ()>,
    pub wait: Wait,
    pub collective: Collective,
    pub mask: u32,
    pub operands: [u32; 10],
    pub result: [u32; 4],
    /// The call that this lane is in.
    pub at: &'static Location<'static>,
    open_group: Vec<AsyncCopy>,
    groups: VecDeque<Vec<AsyncCopy>>,
}

/// Indices and extents: x, y, z.
#[derive(Clone, Copy)]
pub struct Special {
    pub thread: [u32; 3],
    pub block: [u32; 3],
    pub block_dim: [u32; 3],
    pub grid_dim: [u32; 3],
}

impl Lane {
    #[track_caller]
    pub fn new(thread: u32, block: *mut Block, special: Special) -> Self {
        Self {
            thread,
            block,
            special,
            coroutine: None,
            yielder: std::ptr::null(),
            wait: Wait::Ready,
            collective: Collective::SyncWarp,
            mask: 0,
            operands: [0; 10],
            result: [0; 4],
            at: Location::caller(),
            open_group: Vec::new(),
            groups: VecDeque::new(),
        }
    }

    /// The lane's whereabouts as a sentence about it.
    pub fn whereabouts(&self) -> String {
        match self.wait {
            Wait::Ready | Wait::Spin => "is running".into(),
            Wait::Done => "has exited".into(),
            _ => format!("waits at {}", self.describe()),
        }
    }

    /// What the lane waits at.
    pub fn describe(&self) -> String {
        let place = format!("({}:{})", self.at.file(), self.at.line());
        match self.wait {
            Wait::Collective => format!("{:?} with mask {:#010x} {place}", self.collective, self.mask),
            Wait::Barrier(id) => format!("barrier {id} {place}"),
            Wait::Mbarrier(offset) => format!("the mbarrier at byte {offset} {place}"),
            Wait::Ready | Wait::Spin | Wait::Done => "nothing".into(),
        }
    }
}

thread_local! {
    /// The lane that is running on this OS thread.
    static CURRENT: Cell<*mut Lane> = const { Cell::new(std::ptr::null_mut()) };
}

/// Makes `lane` the one that device functions act for; null when none runs.
pub fn set_current(lane: *mut Lane) {
    CURRENT.set(lane);
}

/// The running lane and its block.
fn current() -> (&'static mut Lane, &'static mut Block) {
    let lane = CURRENT.get();
    assert!(!lane.is_null(), "a device function was called outside a kernel that the simulator runs");
    // SAFETY: the scheduler set the pointer to a lane that outlives the call. It holds no reference to lane or block
    // while a lane runs, and each device function lets go of these before it suspends.
    unsafe { (&mut *lane, &mut *(*lane).block) }
}

/// Lets the scheduler run others until this lane's wait is over.
fn suspend(wait: Wait) {
    let (lane, _) = current();
    lane.wait = wait;
    let yielder = lane.yielder;
    // SAFETY: the yielder lives on this lane's own stack, below this call.
    unsafe { (*yielder).suspend(()) };
}

/// Ends the launch with a fault of the running lane.
fn raise(kind: FaultKind, at: &'static Location<'static>) -> ! {
    let (lane, block) = current();
    // SAFETY: the run outlives its lanes, and nobody else uses it while a lane runs.
    let run = unsafe { &mut *block.run };
    let fault = Fault { kernel: run.kernel, block: block.index, thread: lane.special.thread, at: Some(at), kind };
    run.fault.get_or_insert(fault);
    loop {
        suspend(Wait::Spin);
    }
}

#[track_caller]
fn expect<T>(result: Result<T, FaultKind>) -> T {
    match result {
        Ok(value) => value,
        Err(kind) => raise(kind, Location::caller()),
    }
}

pub(crate) fn special() -> Special {
    current().0.special
}

pub(crate) fn lane_id() -> u32 {
    current().0.thread % 32
}

pub(crate) fn clock() -> u64 {
    // SAFETY: the run outlives its lanes, and nobody else uses it while a lane runs.
    unsafe { (*current().1.run).report.lane_switches }
}

/// Gives up the turn.
pub(crate) fn spin() {
    suspend(Wait::Spin);
}

#[track_caller]
pub(crate) fn collective(kind: Collective, mask: u32, operands: &[u32]) -> [u32; 4] {
    let at = Location::caller();
    let (lane, _) = current();
    (lane.collective, lane.mask, lane.at) = (kind, mask, at);
    if mask >> (lane.thread % 32) & 1 == 0 {
        raise(FaultKind::NotInMask { lane: lane.thread % 32, call: format!("{kind:?}"), mask }, at);
    }
    lane.operands[..operands.len()].copy_from_slice(operands);
    suspend(Wait::Collective);
    current().0.result
}

#[track_caller]
pub(crate) fn barrier(id: u32, threads: Option<u32>, wait: bool) {
    let (lane, block) = current();
    lane.at = Location::caller();
    if expect(block.arrive(id, threads, lane.thread, wait)) {
        suspend(Wait::Barrier(id));
    }
}

/// An access to shared memory, checked and recorded; the offset it has.
fn shared_access(
    address: u32,
    bytes: u32,
    access: Access,
    at: &'static Location<'static>,
) -> Result<(u32, &'static mut Block), FaultKind> {
    let (lane, block) = current();
    let offset = block.shared.locate(SHARED_BASE, address, bytes, bytes.min(16))?;
    block.shared.check(&block.order, lane.thread, (offset, bytes), access, at)?;
    Ok((offset, block))
}

#[track_caller]
pub(crate) fn shared_read<T: DeviceCopy>(address: u32) -> T {
    let bytes = size_of::<T>() as u32;
    let (offset, block) = expect(shared_access(address, bytes, Access::Read, Location::caller()));
    // SAFETY: the slice has the size of a `T`, and any bits are a valid one.
    unsafe { block.shared.slice(offset, bytes).as_ptr().cast::<T>().read_unaligned() }
}

#[track_caller]
pub(crate) fn shared_write<T: DeviceCopy>(address: u32, value: T) {
    let bytes = size_of::<T>() as u32;
    let (offset, block) = expect(shared_access(address, bytes, Access::Write, Location::caller()));
    // SAFETY: the slice has the size of a `T`.
    unsafe { block.shared.slice(offset, bytes).as_mut_ptr().cast::<T>().write_unaligned(value) };
}

#[track_caller]
pub(crate) fn shared_atomic<T: DeviceCopy>(address: u32, op: impl FnOnce(T) -> T) -> T {
    let bytes = size_of::<T>() as u32;
    let (offset, block) = expect(shared_access(address, bytes, Access::Atomic, Location::caller()));
    let place = block.shared.slice(offset, bytes).as_mut_ptr().cast::<T>();
    // SAFETY: the slice has the size of a `T`, and any bits are a valid one.
    unsafe {
        let old = place.read_unaligned();
        place.write_unaligned(op(old));
        old
    }
}

#[track_caller]
pub(crate) fn global_read<T: DeviceCopy>(from: *const T) -> T {
    let bytes = size_of::<T>() as u32;
    expect(buffer::check(from as usize, bytes, bytes.min(16), false));
    // SAFETY: inside a registered buffer, and any bits are a valid `T`.
    unsafe { from.read_unaligned() }
}

#[track_caller]
pub(crate) fn global_write<T: DeviceCopy>(to: *mut T, value: T) {
    let bytes = size_of::<T>() as u32;
    expect(buffer::check(to as usize, bytes, bytes.min(16), true));
    // SAFETY: inside a registered, writable buffer.
    unsafe { to.write_unaligned(value) };
}

#[track_caller]
pub(crate) fn copy_async(to: u32, from: *const u8, bytes: u32) {
    expect(buffer::check(from as usize, bytes, bytes, false));
    let (to, _) = expect(shared_access(to, bytes, Access::CopyStart, Location::caller()));
    current().0.open_group.push(AsyncCopy { to, from, bytes });
}

pub(crate) fn copy_async_commit() {
    let (lane, _) = current();
    let group = std::mem::take(&mut lane.open_group);
    lane.groups.push_back(group);
}

#[track_caller]
pub(crate) fn copy_async_wait(keep: u32) {
    let (lane, block) = current();
    while lane.groups.len() > keep as usize {
        for copy in lane.groups.pop_front().unwrap_or_default() {
            // SAFETY: source and destination were checked when the copy started; buffers outlive the launch.
            let source = unsafe { std::slice::from_raw_parts(copy.from, copy.bytes as usize) };
            block.shared.slice(copy.to, copy.bytes).copy_from_slice(source);
            let place = (copy.to, copy.bytes);
            expect(block.shared.check(&block.order, lane.thread, place, Access::CopyEnd, Location::caller()));
        }
    }
}

#[track_caller]
pub(crate) fn copy_bulk(to: u32, from: *const u8, bytes: u32, mbarrier: u32) {
    let (lane, block) = current();
    let at = Location::caller();
    expect(buffer::check(from as usize, bytes, 16, false));
    let offset = expect(block.shared.locate(SHARED_BASE, to, bytes, 16));
    if !bytes.is_multiple_of(16) {
        raise(FaultKind::SharedMisaligned { offset, bytes, expected: 16 }, at);
    }
    expect(block.shared.check(&block.order, lane.thread, (offset, bytes), Access::CopyStart, at));
    expect(block.start_bulk(offset, from, bytes, mbarrier.wrapping_sub(SHARED_BASE)));
}

#[track_caller]
pub(crate) fn mbarrier_init(address: u32, arrivals: u32) {
    let (_, block) = current();
    let offset = expect(block.shared.locate(SHARED_BASE, address, 8, 8));
    block.mbarrier_init(offset, arrivals);
}

#[track_caller]
pub(crate) fn mbarrier_arrive(address: u32, arrivals: u32, bytes: u32) {
    let (lane, block) = current();
    expect(block.mbarrier_arrive(address.wrapping_sub(SHARED_BASE), arrivals, bytes, lane.thread));
}

#[track_caller]
pub(crate) fn mbarrier_try_wait(address: u32, parity: u32) -> bool {
    // Waiting takes time even when the phase is over: now and then others come first.
    // SAFETY: the run outlives its lanes, and nobody else uses it while a lane runs.
    if unsafe { (*current().1.run).random_below(2) } == 0 {
        spin();
    }
    let offset = address.wrapping_sub(SHARED_BASE);
    let (lane, block) = current();
    lane.at = Location::caller();
    if !expect(block.mbarrier_test(offset, parity, lane.thread)) {
        suspend(Wait::Mbarrier(offset));
    }
    true
}

/// Prints for `println!`.
#[doc(hidden)]
pub fn print_line(text: std::fmt::Arguments<'_>) {
    let special = special();
    eprintln!("[block {:?} thread {:?}] {text}", special.block, special.thread);
}
