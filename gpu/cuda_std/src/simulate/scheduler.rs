//! Runs a launch: creates blocks, picks warps by a seeded random schedule, resumes lanes, notices who waits for ever.
use super::block::Block;
use super::collective;
use super::fault::{Fault, FaultKind};
use super::lane::{Lane, Special, Wait, set_current};
use crate::launch::{Arguments, Kernel, LaunchShape};
use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Stack of a lane, bytes; kernels have small frames, panics and formatting in a fault need room.
const STACK_BYTES: usize = 128 * 1024;
/// Most shared memory of a block on the smallest of the supported GPUs, bytes.
const SHARED_BYTES: u32 = 101_376;
/// Turns in a row in which lanes only spin, after which the launch counts as stuck.
const PATIENCE: u64 = 4_000_000;

thread_local! {
    static STACKS: RefCell<Vec<DefaultStack>> = const { RefCell::new(Vec::new()) };
}

/// Settings of a simulation.
#[derive(Clone, Copy, Debug)]
pub struct Simulator {
    seed: u64,
    resident_blocks: u32,
    shared_bytes: u32,
}

impl Default for Simulator {
    fn default() -> Self {
        Self { seed: 0, resident_blocks: 4, shared_bytes: SHARED_BYTES }
    }
}

/// What a launch without a fault did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Times a GPU thread was resumed.
    pub lane_switches: u64,
    /// Warp collectives evaluated.
    pub collectives: u64,
}

/// A launch under way. Blocks and lanes point to it.
pub struct Run {
    pub kernel: &'static str,
    pub queue: Vec<(*mut Block, u32)>,
    pub fault: Option<Fault>,
    pub report: Report,
    entry: *const dyn Fn(),
    random: u64,
    spins: u64,
}

impl Simulator {
    /// Another schedule for another seed: order of blocks, warps and lanes.
    pub fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// How many blocks run at a time (4 unless told).
    pub fn resident_blocks(self, resident_blocks: u32) -> Self {
        Self { resident_blocks: resident_blocks.max(1), ..self }
    }

    /// Most shared memory of a block, bytes: 101,376 unless told, as on sm_120. For kernels that are launched otherwise on
    /// GPUs that have more.
    pub fn shared_bytes(self, shared_bytes: u32) -> Self {
        Self { shared_bytes, ..self }
    }

    /// Runs `kernel`.
    ///
    /// # Errors
    /// The first fault found, naming kernel, block, thread and source line.
    pub fn launch<A: Arguments>(self, kernel: &Kernel<A>, shape: LaunchShape, arguments: A) -> Result<Report, Fault> {
        let entry = move || (kernel.entry)(arguments);
        let entry: &dyn Fn() = &entry;
        let threads = shape.block.volume();
        let bound = if kernel.threads == 0 { 1024 } else { u64::from(kernel.threads) };
        let refuse = |kind| Fault { kernel: kernel.name, block: [0; 3], thread: [0; 3], at: None, kind };
        if threads > bound || threads == 0 {
            return Err(refuse(FaultKind::LaunchBounds { found: threads, expected: bound }));
        }
        if shape.shared_bytes > self.shared_bytes {
            return Err(refuse(FaultKind::SharedTooLarge { found: shape.shared_bytes, expected: self.shared_bytes }));
        }
        let mut run = Run {
            kernel: kernel.name,
            queue: Vec::new(),
            fault: None,
            report: Report::default(),
            // SAFETY: only the lifetime changes; every lane is gone before `launch` returns.
            entry: unsafe { std::mem::transmute::<*const (dyn Fn() + '_), *const (dyn Fn() + 'static)>(entry) },
            random: self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d,
            spins: 0,
        };
        let run: *mut Run = &mut run;
        let mut blocks: Vec<Box<Block>> = Vec::new();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: `run` outlives `blocks`; references to either are short and never held while a lane runs.
            unsafe { drive(run, &mut blocks, shape, self.resident_blocks) }
        }));
        // SAFETY: no lane is running now.
        let run = unsafe { &mut *run };
        if let Err(payload) = outcome {
            let text = payload.downcast_ref::<String>().map(String::as_str);
            let text = text.or(payload.downcast_ref::<&str>().copied()).unwrap_or("without a message");
            run.fault = blame_current(run.kernel, &mut blocks, FaultKind::Panic(text.into()));
        }
        drop(blocks);
        set_current(std::ptr::null_mut());
        run.fault.take().map_or(Ok(run.report), Err)
    }
}

/// The fault of the lane that was running, or of the launch where none was.
fn blame_current(kernel: &'static str, blocks: &mut [Box<Block>], kind: FaultKind) -> Option<Fault> {
    let panicked = |lane: &&Lane| lane.wait != Wait::Done && lane.coroutine.as_ref().is_some_and(Coroutine::done);
    let lane = blocks.iter().find_map(|b| b.lanes.iter().find(panicked));
    let (block, thread, at) = lane.map_or(([0; 3], [0; 3], None), |l| (l.special.block, l.special.thread, Some(l.at)));
    Some(Fault { kernel, block, thread, at, kind })
}

/// Blocks are boxed since lanes and the queue point to them while the vector changes.
///
/// # Safety
/// `run` must outlive `blocks`.
#[allow(clippy::vec_box)]
unsafe fn drive(run: *mut Run, blocks: &mut Vec<Box<Block>>, shape: LaunchShape, resident: u32) {
    let total = shape.grid.volume();
    let mut started = 0;
    loop {
        while blocks.len() < resident as usize && started < total {
            // SAFETY: the caller's contract.
            blocks.push(unsafe { start_block(run, shape, started) });
            started += 1;
        }
        // SAFETY: no lane runs here, so this is the only reference.
        let r = unsafe { &mut *run };
        if r.queue.is_empty() {
            if let Some(block) = blocks.first() {
                r.fault = Some(deadlock(r.kernel, block));
            }
            return;
        }
        let pick = r.random_below(r.queue.len());
        let (block, warp) = r.queue.swap_remove(pick);
        // SAFETY: queued blocks are in `blocks`; their boxes do not move what they hold.
        unsafe {
            run_warp(run, block, warp as usize);
            if (*run).fault.is_some() {
                return;
            }
            if (*block).live == 0 {
                if let Err(kind) = (*block).check_end() {
                    let (index, kernel) = ((*block).index, (*run).kernel);
                    (*run).fault = Some(Fault { kernel, block: index, thread: [0; 3], at: None, kind });
                    return;
                }
                blocks.retain(|b| !std::ptr::eq(&raw const **b, block));
            }
        }
    }
}

/// # Safety
/// `run` must outlive the block.
unsafe fn start_block(run: *mut Run, shape: LaunchShape, linear: u64) -> Box<Block> {
    let split = |i: u64, d: [u32; 3]| {
        let (x, y) = (u64::from(d[0]), u64::from(d[1]));
        [(i % x) as u32, (i / x % y) as u32, (i / x / y) as u32]
    };
    let (grid, extent) = (shape.grid.0, shape.block.0);
    let threads = shape.block.volume() as u32;
    let mut block = Block::new(split(linear, grid), threads, shape.shared_bytes, run);
    let pointer: *mut Block = &mut *block;
    for thread in 0..threads {
        let special =
            Special { thread: split(thread.into(), extent), block: block.index, block_dim: extent, grid_dim: grid };
        block.lanes.push(Lane::new(thread, pointer, special));
    }
    for lane in &mut block.lanes {
        let pointer: *mut Lane = lane;
        // SAFETY: the run is alive, and its entry too.
        let entry = unsafe { (*run).entry };
        lane.coroutine = Some(Coroutine::with_stack(take_stack(), move |yielder, ()| {
            // SAFETY: the lane outlives its coroutine and does not move; the entry outlives the launch.
            unsafe {
                (*pointer).yielder = yielder;
                (*entry)();
            }
        }));
    }
    for warp in 0..block.warps.len() {
        block.enqueue(warp as u32);
    }
    block
}

fn take_stack() -> DefaultStack {
    let pooled = STACKS.with_borrow_mut(Vec::pop);
    #[allow(clippy::expect_used)]
    pooled.unwrap_or_else(|| DefaultStack::new(STACK_BYTES).expect("no memory for the stack of a simulated thread"))
}

/// Runs a warp until its lanes wait for others, or for a random number of collectives.
///
/// # Safety
/// Both pointers must be live, and no reference to what they point at may be held.
unsafe fn run_warp(run: *mut Run, block: *mut Block, w: usize) {
    // SAFETY: the caller's contract. Lanes reach the block through their own pointer, so references end before `resume`.
    unsafe {
        let warp: *mut super::block::Warp = &mut (&mut (*block).warps)[w];
        // `queued` stays set meanwhile: lanes of this warp that wake each other must not queue it a second time.
        (*warp).ready |= std::mem::take(&mut (*warp).spinning);
        let mut rounds = (*run).random_below(8);
        let rotation = (*run).random_below(32) as u32;
        loop {
            while (*warp).ready != 0 {
                let turned = (*warp).ready.rotate_right(rotation);
                let bit = (1u32 << turned.trailing_zeros()).rotate_left(rotation);
                (*warp).ready &= !bit;
                let lane: *mut Lane = &mut (&mut (*block).lanes)[32 * w + bit.trailing_zeros() as usize];
                resume(run, lane);
                if (*run).fault.is_some() {
                    return;
                }
                match (*lane).wait {
                    Wait::Collective => (*warp).waiting |= bit,
                    Wait::Spin => (*warp).spinning |= bit,
                    _ => {}
                }
            }
            if (*warp).waiting == 0 || !converge(run, &mut *block, w) || rounds == 0 {
                break;
            }
            rounds -= 1;
        }
        (*warp).queued = false;
        if (*warp).ready | (*warp).spinning != 0 {
            (*block).enqueue(w as u32);
        }
    }
}

/// # Safety
/// Both pointers must be live, and no reference to what they point at may be held.
unsafe fn resume(run: *mut Run, lane: *mut Lane) {
    // SAFETY: the caller's contract.
    unsafe {
        (*run).report.lane_switches += 1;
        set_current(lane);
        (*lane).wait = Wait::Ready;
        let coroutine: *mut Coroutine<(), (), (), DefaultStack> = match &mut (*lane).coroutine {
            Some(coroutine) => coroutine,
            None => return,
        };
        if let CoroutineResult::Return(()) = (*coroutine).resume(()) {
            (*lane).wait = Wait::Done;
            (*(*lane).block).live -= 1;
            if let Some(coroutine) = (*lane).coroutine.take() {
                STACKS.with_borrow_mut(|stacks| stacks.push(coroutine.into_stack()));
            }
        }
        if (*lane).wait != Wait::Spin {
            (*run).spins = 0;
            return;
        }
        (*run).spins += 1;
        if (*run).spins > PATIENCE && (*run).fault.is_none() {
            let (block, thread) = ((*lane).special.block, (*lane).special.thread);
            let at = Some((*lane).at);
            (*run).fault = Some(Fault { kernel: (*run).kernel, block, thread, at, kind: FaultKind::Livelock });
        }
    }
}

/// Evaluates the collectives whose lanes have all arrived; false where none has.
///
/// # Safety
/// `run` must be live.
unsafe fn converge(run: *mut Run, block: &mut Block, w: usize) -> bool {
    let (exists, mut open) = (block.warps[w].lanes, block.warps[w].waiting);
    let first = 32 * w;
    let mut progress = false;
    while open != 0 {
        let leader = open.trailing_zeros() as usize;
        let (kind, mask) = (block.lanes[first + leader].collective, block.lanes[first + leader].mask);
        let named = mask & exists;
        let waiting = block.warps[w].waiting;
        let here = |i: usize| {
            let lane = &block.lanes[first + i];
            waiting >> i & 1 == 1 && lane.collective == kind && lane.mask == mask
        };
        let arrived = (0..32).filter(|&i| named >> i & 1 == 1 && here(i)).fold(0u32, |m, i| m | 1 << i);
        open &= !arrived;
        let blame = |lane: &Lane, kind: FaultKind| {
            let (block, thread) = (lane.special.block, lane.special.thread);
            // SAFETY: the caller's contract.
            unsafe { (*run).fault = Some(Fault { kernel: (*run).kernel, block, thread, at: Some(lane.at), kind }) };
        };
        if arrived != named {
            if let Some(other) = (0..32).find(|&i| named >> i & 1 == 1 && will_not_come(block, first, leader, i)) {
                let (l, o) = (&block.lanes[first + leader], &block.lanes[first + other]);
                let (lane, other) = (leader as u32, other as u32);
                blame(l, FaultKind::Divergence { lane, here: l.describe(), other, there: o.whereabouts() });
                return false;
            }
            continue;
        }
        let end = block.lanes.len().min(first + 32);
        let lanes: *mut [Lane] = &mut block.lanes[first..end];
        // SAFETY: `evaluate` uses the block's shared memory and order, never its lanes, so the two do not overlap.
        if let Err((lane, kind)) = collective::evaluate(kind, named, unsafe { &mut *lanes }, block) {
            blame(&block.lanes[first + lane], kind);
            return false;
        }
        let warp = &mut block.warps[w];
        warp.waiting &= !named;
        warp.ready |= named;
        progress = true;
        // SAFETY: the caller's contract.
        unsafe { (*run).report.collectives += 1 };
    }
    progress
}

/// Whether lane `other` can no longer come to the collective at which `leader` waits.
fn will_not_come(block: &Block, first: usize, leader: usize, other: usize) -> bool {
    let (l, o) = (&block.lanes[first + leader], &block.lanes[first + other]);
    match o.wait {
        Wait::Done | Wait::Barrier(_) => true,
        // Two collectives that wait for each other's lanes never end.
        Wait::Collective => o.mask >> leader & 1 == 1 && (o.collective != l.collective || o.mask != l.mask),
        _ => false,
    }
}

/// Blames a block none of whose threads can run.
fn deadlock(kernel: &'static str, block: &Block) -> Fault {
    let waits = |l: &&Lane| l.wait != Wait::Done;
    let here = block.lanes.iter().find(waits).unwrap_or(&block.lanes[0]);
    let other = block.lanes.iter().find(|l| l.wait != here.wait);
    let there = other.map_or("every other thread of the block waits there too".into(), |o| {
        format!("thread {:?} {}", o.special.thread, o.whereabouts())
    });
    let kind = FaultKind::Deadlock { here: here.describe(), there };
    Fault { kernel, block: block.index, thread: here.special.thread, at: Some(here.at), kind }
}

impl Run {
    /// A random number below `n`, by xorshift.
    pub fn random_below(&mut self, n: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        ((self.random >> 33) as usize) % n.max(1)
    }
}
