//! Which accesses of a block are ordered: vector clocks of its threads. What is done with the answer lives in `shadow`.
//!
//! A barrier of the whole block starts a new epoch, which orders everything before it at no cost. Within an epoch each
//! thread counts its releases, and knows up to which count it has synchronised with every other thread.

/// What a synchronisation object (named barrier, mbarrier) hands from those who arrive to those who wait.
#[derive(Default)]
pub struct Carried {
    epoch: u32,
    clocks: Vec<u32>,
}

/// The clocks of a block's threads.
pub struct Order {
    threads: usize,
    epoch: u32,
    own: Vec<u32>,
    /// `known[a * threads + b]`: thread a is ordered after b's accesses up to this count. Allocated at first use.
    known: Vec<u32>,
    known_epoch: Vec<u32>,
}

impl Order {
    pub fn new(threads: usize) -> Self {
        Self { threads, epoch: 1, own: vec![1; threads], known: Vec::new(), known_epoch: Vec::new() }
    }

    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The count to record with an access of `thread`.
    pub fn clock(&self, thread: u32) -> u32 {
        self.own[thread as usize]
    }

    /// Whether what `other` did at `clock` of this epoch is ordered before what `thread` does now.
    pub fn is_after(&self, thread: u32, other: u32, clock: u32) -> bool {
        let (thread, other) = (thread as usize, other as usize);
        thread == other
            || (!self.known.is_empty()
                && self.known_epoch[thread] == self.epoch
                && self.known[thread * self.threads + other] >= clock)
    }

    /// A barrier of all threads of the block.
    pub fn synchronise_block(&mut self) {
        self.epoch += 1;
    }

    fn row(&mut self, thread: usize) -> &mut [u32] {
        let n = self.threads;
        if self.known.is_empty() {
            self.known = vec![0; n * n];
            self.known_epoch = vec![self.epoch; n];
        }
        let row = &mut self.known[thread * n..(thread + 1) * n];
        if self.known_epoch[thread] != self.epoch {
            self.known_epoch[thread] = self.epoch;
            row.fill(0);
        }
        row[thread] = self.own[thread];
        row
    }

    /// `thread` hands what it knows to `object`.
    pub fn release(&mut self, thread: u32, object: &mut Carried) {
        let (epoch, n) = (self.epoch, self.threads);
        if object.epoch != epoch {
            object.epoch = epoch;
            object.clocks.clear();
            object.clocks.resize(n, 0);
        }
        join(&mut object.clocks, self.row(thread as usize));
        self.own[thread as usize] += 1;
    }

    /// `thread` learns what `object` carries.
    pub fn acquire(&mut self, thread: u32, object: &Carried) {
        if object.epoch == self.epoch {
            join(self.row(thread as usize), &object.clocks);
        }
    }

    /// The threads synchronise with each other: a `sync_warp`.
    pub fn synchronise(&mut self, threads: impl Iterator<Item = u32> + Clone) {
        let mut object = Carried::default();
        for thread in threads.clone() {
            self.release(thread, &mut object);
        }
        for thread in threads {
            self.acquire(thread, &object);
        }
    }
}

fn join(to: &mut [u32], from: &[u32]) {
    for (to, &from) in to.iter_mut().zip(from) {
        *to = (*to).max(from);
    }
}
