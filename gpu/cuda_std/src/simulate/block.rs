//! State of one block: its lanes, warps, shared memory, barriers and bulk copies. When lanes run is up to `scheduler`.
use super::fault::FaultKind;
use super::lane::{Lane, Wait};
use super::order::{Carried, Order};
use super::scheduler::Run;
use super::shadow::SharedMemory;

/// 32 consecutive lanes; masks have a bit a lane.
#[derive(Default)]
pub struct Warp {
    /// Lanes that exist.
    pub lanes: u32,
    pub ready: u32,
    /// Lanes that gave up their turn and run again when the warp does.
    pub spinning: u32,
    /// Lanes waiting at a warp collective.
    pub waiting: u32,
    /// Whether the warp is in the run queue.
    pub queued: bool,
}

/// `barrier.sync id`.
#[derive(Default)]
pub struct Barrier {
    arrived: u32,
    expected: u32,
    all_wait: bool,
    waiters: Vec<u32>,
    carried: Carried,
}

/// An mbarrier; the simulator keeps its state beside shared memory.
pub struct Mbarrier {
    offset: u32,
    arrivals: u32,
    pending: u32,
    /// Bytes expected less bytes landed.
    bytes: i64,
    /// Phases completed.
    phase: u32,
    waiters: Vec<(u32, u32)>,
    carried: Carried,
}

/// A bulk copy on its way.
struct BulkCopy {
    to: u32,
    from: *const u8,
    bytes: u32,
    mbarrier: u32,
}

pub struct Block {
    pub index: [u32; 3],
    pub run: *mut Run,
    pub lanes: Vec<Lane>,
    pub warps: Vec<Warp>,
    pub shared: SharedMemory,
    pub order: Order,
    pub live: u32,
    barriers: [Barrier; 16],
    mbarriers: Vec<Mbarrier>,
    copies: Vec<BulkCopy>,
}

impl Block {
    pub fn new(index: [u32; 3], threads: u32, shared_bytes: u32, run: *mut Run) -> Box<Self> {
        let warps = (0..threads.div_ceil(32)).map(|w| {
            let lanes = u32::MAX >> (32 - (threads - 32 * w).min(32));
            Warp { lanes, ready: lanes, ..Warp::default() }
        });
        Box::new(Self {
            index,
            run,
            lanes: Vec::with_capacity(threads as usize),
            warps: warps.collect(),
            shared: SharedMemory::new(shared_bytes),
            order: Order::new(threads as usize),
            live: threads,
            barriers: Default::default(),
            mbarriers: Vec::new(),
            copies: Vec::new(),
        })
    }

    /// Lets a lane that waited run again.
    fn wake(&mut self, thread: u32) {
        self.lanes[thread as usize].wait = Wait::Ready;
        let warp = &mut self.warps[thread as usize / 32];
        warp.ready |= 1 << (thread % 32);
        self.enqueue(thread / 32);
    }

    /// Puts a warp into the run queue.
    pub fn enqueue(&mut self, warp: u32) {
        let queued = std::mem::replace(&mut self.warps[warp as usize].queued, true);
        if !queued {
            let this: *mut Self = self;
            // SAFETY: the run outlives its blocks, and nobody holds a reference to its queue across this call.
            unsafe { (*self.run).queue.push((this, warp)) };
        }
    }

    /// `thread` comes to a barrier; true where it has to wait.
    pub fn arrive(&mut self, id: u32, count: Option<u32>, thread: u32, wait: bool) -> Result<bool, FaultKind> {
        let all = self.lanes.len() as u32;
        let expected = count.unwrap_or(all);
        if id > 15 || count.is_some_and(|n| n == 0 || n % 32 != 0 || n > all) {
            return Err(FaultKind::BarrierOperands { id, threads: expected });
        }
        let barrier = &mut self.barriers[id as usize];
        if barrier.arrived == 0 {
            (barrier.expected, barrier.all_wait) = (expected, true);
        } else if barrier.expected != expected {
            return Err(FaultKind::BarrierCount { id, found: expected, expected: barrier.expected });
        }
        barrier.arrived += 1;
        barrier.all_wait &= wait;
        if count.is_some() {
            self.order.release(thread, &mut barrier.carried);
        }
        if barrier.arrived < expected {
            if wait {
                barrier.waiters.push(thread);
            }
            return Ok(wait);
        }
        let done = std::mem::take(barrier);
        if expected == all && done.all_wait {
            self.order.synchronise_block();
        } else {
            let here = Some(thread).filter(|_| wait);
            done.waiters.iter().copied().chain(here).for_each(|t| self.order.acquire(t, &done.carried));
        }
        for waiter in done.waiters {
            self.wake(waiter);
        }
        Ok(false)
    }

    pub fn mbarrier_init(&mut self, offset: u32, arrivals: u32) {
        self.mbarriers.retain(|m| m.offset != offset);
        let carried = Carried::default();
        let waiters = Vec::new();
        self.mbarriers.push(Mbarrier { offset, arrivals, pending: arrivals, bytes: 0, phase: 0, waiters, carried });
    }

    fn mbarrier(&mut self, offset: u32) -> Result<&mut Mbarrier, FaultKind> {
        self.mbarriers.iter_mut().find(|m| m.offset == offset).ok_or(FaultKind::NoMbarrier { offset })
    }

    pub fn mbarrier_arrive(&mut self, offset: u32, arrivals: u32, bytes: u32, thread: u32) -> Result<(), FaultKind> {
        let mbarrier = self.mbarrier(offset)?;
        if arrivals > mbarrier.pending {
            return Err(FaultKind::MbarrierOverflow { offset, what: "arrivals" });
        }
        mbarrier.bytes += i64::from(bytes);
        mbarrier.pending -= arrivals;
        if arrivals > 0 {
            let mut carried = std::mem::take(&mut mbarrier.carried);
            self.order.release(thread, &mut carried);
            self.mbarrier(offset)?.carried = carried;
        }
        self.settle(offset)
    }

    /// Whether the phase of this parity is over, for `thread`; a copy that someone waits for lands now.
    pub fn mbarrier_test(&mut self, offset: u32, parity: u32, thread: u32) -> Result<bool, FaultKind> {
        self.mbarrier(offset)?;
        self.land(offset)?;
        let mbarrier = self.mbarrier(offset)?;
        if mbarrier.phase & 1 == parity {
            mbarrier.waiters.push((thread, parity));
            return Ok(false);
        }
        let carried = std::mem::take(&mut mbarrier.carried);
        self.order.acquire(thread, &carried);
        self.mbarrier(offset)?.carried = carried;
        Ok(true)
    }

    /// A bulk copy whose destination the caller has checked and marked.
    pub fn start_bulk(&mut self, to: u32, from: *const u8, bytes: u32, mbarrier: u32) -> Result<(), FaultKind> {
        let awaited = !self.mbarrier(mbarrier)?.waiters.is_empty();
        self.copies.push(BulkCopy { to, from, bytes, mbarrier });
        if awaited { self.land(mbarrier) } else { Ok(()) }
    }

    /// Lands the copies that report to an mbarrier.
    fn land(&mut self, offset: u32) -> Result<(), FaultKind> {
        while let Some(i) = self.copies.iter().position(|c| c.mbarrier == offset) {
            let copy = self.copies.remove(i);
            // SAFETY: source and destination were checked when the copy started; buffers outlive the launch.
            let source = unsafe { std::slice::from_raw_parts(copy.from, copy.bytes as usize) };
            self.shared.slice(copy.to, copy.bytes).copy_from_slice(source);
            self.shared.land_bulk(copy.to, copy.bytes);
            self.mbarrier(offset)?.bytes -= i64::from(copy.bytes);
            self.settle(offset)?;
        }
        Ok(())
    }

    /// Ends the phase when all arrivals and bytes are in.
    fn settle(&mut self, offset: u32) -> Result<(), FaultKind> {
        let mbarrier = self.mbarrier(offset)?;
        if mbarrier.pending > 0 || mbarrier.bytes != 0 {
            return Ok(());
        }
        mbarrier.phase += 1;
        mbarrier.pending = mbarrier.arrivals;
        let phase = mbarrier.phase;
        let waiters = std::mem::take(&mut mbarrier.waiters);
        let carried = std::mem::take(&mut mbarrier.carried);
        for &(thread, parity) in &waiters {
            if phase & 1 == parity {
                self.mbarrier(offset)?.waiters.push((thread, parity));
            } else {
                self.order.acquire(thread, &carried);
                self.wake(thread);
            }
        }
        self.mbarrier(offset)?.carried = carried;
        Ok(())
    }

    /// What is wrong with a block whose threads have all ended.
    pub fn check_end(&self) -> Result<(), FaultKind> {
        self.copies.first().map_or(Ok(()), |copy| Err(FaultKind::CopyAtExit { offset: copy.to }))
    }
}
