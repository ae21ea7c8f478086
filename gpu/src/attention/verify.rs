//! Verify attention: the rows of a tree over context and tree, in the absorbed form of MLA.
use super::element::Element;
use super::layout::{GROUP, GROUPS, KEYS, Layout, WARPS};
use super::query::{load_query, park};
use super::split::{Parts, Target, arrive, merge, share};
use super::sums::{leave_sums, scale, write_sums};
use super::tile::{self, Row};
use cuda_std::barrier::{self, Mbarrier};
use cuda_std::{async_copy, grid, prelude::*, shared};

/// Fewest tiles of a split: shorter ones cost more in the merge than they save.
const LEAST_TILES: u32 = 2;

/// Arguments that do not depend on the size of a head.
#[derive(Clone, Copy)]
pub struct Round {
    pub query: Global<Bf16>,
    pub cache: Global<Bf16>,
    pub mask: Global<u32>,
    pub context: Global<u32>,
    pub parts: Parts,
    pub out: GlobalMut<Bf16>,
    pub heads: u32,
    pub tree_rows: u32,
    pub scale: f32,
    pub stages: u32,
    pub mergers: u32,
}

impl Round {
    /// Whether tree row `row` sees `key`: the context, its ancestors and itself. Without a mask the tree is a chain.
    #[inline(always)]
    unsafe fn sees(&self, row: u32, key: u32, context: u32) -> bool {
        if key < context {
            return true;
        }
        let node = key - context;
        if self.mask.as_raw().is_null() {
            return node <= row;
        }
        // SAFETY: row and node are rows of the mask.
        node < self.tree_rows
            && unsafe { self.mask.add((row * self.tree_rows.div_ceil(32) + node / 32) as usize).read_cached() }
                >> (node % 32)
                & 1
                == 1
    }
}

/// A thread's place in its block.
#[derive(Clone, Copy)]
struct Place {
    thread: u32,
    lane: u32,
    /// Its warp's group, and the slice of the width that the warp scores.
    group: u32,
    slice: u32,
    /// Its warp's team, and its number there: the slice of the values that the warp adds up.
    team: u32,
    member: u32,
}

/// Tells the compiler that all lanes of the warp have the same value: it may then live in a uniform register.
#[inline(always)]
fn uniform(value: u32) -> u32 {
    // SAFETY: whole warps come here.
    unsafe { warp::warp_shuffle_idx(warp::FULL_MASK, value, 0, 32) }
}

impl Place {
    #[inline(always)]
    fn new(layout: Layout) -> Self {
        let thread = thread::thread_idx_x();
        let warp = uniform(thread / 32);
        let (group, slice) = (warp / GROUP, warp % GROUP);
        Self { thread, lane: thread % 32, group, slice, team: warp / layout.team, member: warp % layout.team }
    }
}

/// A ring of tiles of keys, filled by bulk copies ahead of their use.
#[derive(Clone, Copy)]
struct Ring {
    tiles: Shared<Bf16>,
    barriers: Shared<u64>,
    cache: Global<Bf16>,
    layout: Layout,
    stages: u32,
    /// First tile of the context, tiles in all, keys of the context after the first tile's start.
    first: u32,
    count: u32,
    keys: u32,
}

impl Ring {
    #[inline(always)]
    fn tile(&self, stage: u32) -> Shared<Bf16> {
        self.tiles.byte_add(stage * self.layout.stage)
    }

    #[inline(always)]
    fn full(&self, stage: u32) -> Mbarrier {
        Mbarrier::at(self.barriers.add(stage))
    }

    /// Starts the copy of tile `i` into `stage`: of the keys that exist.
    #[inline(always)]
    unsafe fn fetch(&self, i: u32, stage: u32) {
        let bytes = (self.keys - i * KEYS).min(KEYS) * self.layout.row;
        let from = self.cache.byte_add((self.first + i) as usize * self.layout.stage as usize);
        // SAFETY: inside the cache; nobody uses the stage.
        unsafe {
            self.full(stage).arrive_expect_tx(bytes);
            async_copy::copy_bulk(self.tile(stage), from, bytes, self.full(stage));
        }
    }

    /// Zeros for the rows that the last tile lacks, where no earlier tile leaves finite values there: 0 x garbage might be NaN.
    #[inline(always)]
    unsafe fn clear_missing(&self, member: u32, lane: u32) {
        if self.count > 0 && self.count <= self.stages {
            let present = self.keys - (self.count - 1) * KEYS;
            let tile = self.tile(self.count - 1);
            let mut offset = present * self.layout.row + (member * 32 + lane) * 16;
            while offset < self.layout.stage {
                // SAFETY: inside the stage, where the first copy does not reach.
                unsafe { tile.byte_add(offset).cast::<[u32; 4]>().write([0; 4]) };
                offset += self.layout.team * 512;
            }
            barrier::fence_proxy_async();
        }
    }
}

/// The kernel's body. A warp scores `STEPS` steps of the width for 16 `TILES` rows of its group, and adds up 8 `COLUMNS` values
/// of 16 `HEIGHT` rows of its team of `TEAM` warps.
///
/// Tile i passes three phases: partial scores of tile i + 1 go out before the weights of tile i are waited for, and the values
/// of tile i are added up before the scores of tile i + 1 are waited for. Each wait has a phase of products behind it.
#[inline(always)]
pub unsafe fn verify<
    E: Element,
    const LATENT: u32,
    const ROPE: u32,
    const STEPS: usize,
    const TILES: usize,
    const TEAM: u32,
    const HEIGHT: usize,
    const COLUMNS: usize,
    const PARKED: usize,
>(
    round: Round,
) {
    // SAFETY: sizes as in the kernels' contract. Barriers are reached by all threads, since all bounds are uniform in a block.
    // A tile's stage is refilled after the weights of the tile after it are complete: all warps of the team are done with it.
    // Scores and weights have two buffers each: whoever writes one has waited for a later phase of all who read it.
    unsafe {
        let layout = const { Layout::new(E::KIND, LATENT, ROPE, TILES as u32, TEAM, PARKED as u32) };
        let me = Place::new(layout);
        let base = shared::dynamic_shared_mem::<Bf16>();
        let barriers = base.cast::<u64>();
        grid::dependency_launch();
        if me.thread == 0 {
            for group in 0..GROUPS {
                Mbarrier::at(barriers.add(Layout::scores_barrier(group))).init(GROUP);
            }
            for ring in 0..layout.rings {
                Mbarrier::at(barriers.add(Layout::weights_barrier(ring))).init(TEAM);
                for stage in 0..round.stages {
                    Mbarrier::at(barriers.add(Layout::tile_barrier(ring, stage))).init(1);
                }
            }
            barrier::fence_init();
        }
        grid::dependency_wait();
        let context = uniform(round.context.read());
        let keys = context + round.tree_rows;
        let tiles = keys.div_ceil(KEYS);
        let (row_tile, split, splits) = (thread::block_idx_x(), thread::block_idx_y(), thread::grid_dim_y());
        let active = splits.min(tiles.div_ceil(LEAST_TILES * layout.rings));
        if split >= active {
            return;
        }
        let rows = round.heads * round.tree_rows;
        let target = Target { out: round.out, rows, row_tile, splits, active };
        let ring = |team: u32| {
            let (part, parts) = (split * layout.rings + team, active * layout.rings);
            let first = share(part, parts, tiles);
            Ring {
                tiles: base.byte_add(layout.ring + team * round.stages * layout.stage),
                barriers: barriers.add(Layout::tile_barrier(team, 0)),
                cache: round.cache,
                layout,
                stages: round.stages,
                first,
                count: share(part + 1, parts, tiles) - first,
                keys: keys - first * KEYS,
            }
        };
        if me.thread == 0 {
            for team in 0..layout.rings {
                let ring = ring(team);
                for i in 0..ring.count.min(ring.stages) {
                    ring.fetch(i, i);
                }
            }
        }
        let ring = ring(me.team);
        ring.clear_missing(me.member, me.lane);
        let first_row = row_tile * layout.rows;
        let group_row = if layout.rings == 1 { first_row + me.group * 16 * TILES as u32 } else { first_row };
        if me.thread < layout.rows {
            let node = (first_row + me.thread) / round.heads;
            base.byte_add(layout.nodes).cast::<u32>().add(me.thread).write(node.min(round.tree_rows - 1));
        }
        let query = load_query::<STEPS, TILES>(round.query, layout, (group_row, rows), me.slice);
        let parked = base
            .byte_add(layout.parked + me.thread / 32 * (512 * (TILES * PARKED) as u32) + me.lane * 16)
            .cast::<[u32; 4]>();
        park::<STEPS, TILES, PARKED>(&query, parked);
        thread::sync_threads();

        let scores_ready = Mbarrier::at(barriers.add(Layout::scores_barrier(me.group)));
        let weights_ready = Mbarrier::at(barriers.add(Layout::weights_barrier(me.team)));
        let messages = base.byte_add(layout.scores + me.group * (layout.scores_size / GROUPS)).cast::<f32>();
        // Where this warp writes the weights and factors of its 8 rows, and where its team reads.
        let softmax = me.slice < 2 * TILES as u32;
        let team_rows = layout.weights + me.team * (layout.weights_size / layout.rings);
        let team_factors = layout.factors + me.team * (layout.factors_size / layout.rings);
        let block = if layout.rings == 1 { me.group * 2 * TILES as u32 + me.slice } else { me.slice };
        let own_rows = base.byte_add(team_rows + block * (8 * 2 * KEYS));
        let own_factor = base.byte_add(team_factors + tile::factor_offset::<HEIGHT>(block, me.lane / 4)).cast::<f32>();
        let own_node = base.byte_add(layout.nodes).cast::<u32>().add(8 * block + me.lane / 4);
        let (team_rows, team_factors) =
            (base.byte_add(team_rows + tile::weights_offset()), base.byte_add(team_factors).cast::<f32>());
        let values_at = E::values_offset(layout) + me.member * (8 * E::KIND.bytes() * COLUMNS as u32);

        let mut row = Row::EMPTY;
        let mut sums = [[[0.0f32; 4]; COLUMNS]; HEIGHT];
        let mut own = [0.0f32; 4];
        let keys_at = E::keys_offset(layout);
        let hand_out = |i: u32, stage: u32| {
            let from = ring.tile(stage).byte_add(keys_at);
            let scores = tile::score::<E, STEPS, TILES, PARKED>(&query, parked, from, layout, me.slice);
            tile::send::<TILES>(&scores, messages.byte_add(i % 2 * layout.scores_size), me.slice);
            warp::sync_warp(warp::FULL_MASK);
            if me.lane == 0 {
                scores_ready.arrive();
            }
            [scores[0][0][0], scores[0][0][1], scores[0][1][0], scores[0][1][1]]
        };
        if ring.count > 0 {
            ring.full(0).wait(0);
            own = hand_out(0, 0);
        }
        let (mut stage, mut phase) = (0, 0);
        for i in 0..ring.count {
            let parity = i % 2;
            let (last_stage, this_stage) = (if stage == 0 { ring.stages } else { stage } - 1, stage);
            (stage, phase) = if stage + 1 == ring.stages { (0, phase ^ 1) } else { (stage + 1, phase) };
            // Warps without rows of their own wait as well: otherwise they would announce the next tile in this one's phase.
            scores_ready.wait(parity);
            if softmax {
                let received = messages.byte_add(parity * layout.scores_size);
                let mut scores = tile::receive(own, received, me.slice);
                let factors = E::factors(ring.tile(this_stage), layout);
                scores = core::array::from_fn(|j| scores[j] * factors[j]);
                let first_key = (ring.first + i) * KEYS;
                // Only tiles that hold tree rows or the end need the mask.
                if first_key + KEYS > context {
                    let node = own_node.read();
                    for (j, score) in scores.iter_mut().enumerate() {
                        let key = first_key + j as u32 / 2 * 8 + me.lane % 4 * 2 + j as u32 % 2;
                        if !round.sees(node, key, context) {
                            *score = f32::NEG_INFINITY;
                        }
                    }
                }
                let (weights, factor) = row.add(scores, round.scale);
                let weights = core::array::from_fn(|j| weights[j] * factors[j]);
                tile::store_weights(weights, own_rows.byte_add(parity * layout.weights_size));
                if me.lane.is_multiple_of(4) {
                    own_factor.byte_add(parity * layout.factors_size).write(factor);
                }
            }
            warp::sync_warp(warp::FULL_MASK);
            if me.lane == 0 {
                weights_ready.arrive();
            }

            if i + 1 < ring.count {
                ring.full(stage).wait(phase);
                own = hand_out(i + 1, stage);
            }

            let values = ring.tile(this_stage).byte_add(values_at);
            let mut first_values = tile::first_values::<E, HEIGHT, COLUMNS>(values);
            weights_ready.wait(parity);
            let next = i + ring.stages - 1;
            if i > 0 && next < ring.count && me.member == i % TEAM && me.lane == 0 {
                ring.fetch(next, last_stage);
            }
            tile::rescale(&mut sums, team_factors.byte_add(parity * layout.factors_size));
            let weights = team_rows.byte_add(parity * layout.weights_size);
            tile::accumulate::<E, HEIGHT, COLUMNS>(&mut sums, weights, &mut first_values, values);
        }

        finish::<E, TILES, HEIGHT, COLUMNS>(round.parts, target, layout, me, split, row, &mut sums);
        if active > 1 {
            let counters = round.parts.arrivals.add(2 * row_tile as usize);
            let mergers = round.mergers.min(active.div_ceil(2));
            let flag = base.byte_add(layout.states).cast();
            if let Some(number) = arrive(counters, active, mergers, flag) {
                let scratch = base.byte_add(layout.weights).cast();
                merge::<E, HEIGHT, COLUMNS>(round.parts, target, layout, (number, mergers), scratch);
            }
        }
    }
}

/// Normalises the sums and writes them, with the logarithms of their rows' sums of weights.
#[inline(always)]
unsafe fn finish<E: Element, const TILES: usize, const HEIGHT: usize, const COLUMNS: usize>(
    parts: Parts,
    target: Target,
    layout: Layout,
    me: Place,
    split: u32,
    mut row: Row,
    sums: &mut [[[f32; 4]; COLUMNS]; HEIGHT],
) {
    // SAFETY: all threads come here together; rings, scores and weights are no longer in use after the first barrier.
    unsafe {
        let base = shared::dynamic_shared_mem::<[f32; 2]>();
        let states = base.byte_add(layout.states);
        let group_rows = 16 * TILES as u32;
        row.sum += warp::warp_shuffle_xor(warp::FULL_MASK, row.sum, 1, 32);
        row.sum += warp::warp_shuffle_xor(warp::FULL_MASK, row.sum, 2, 32);
        if me.slice < 2 * TILES as u32 && me.lane.is_multiple_of(4) {
            states.add(me.group * group_rows + 8 * me.slice + me.lane / 4).write([row.max, row.sum]);
        }
        thread::sync_threads();
        // Of a row of the block: its maximum, the sum of its weights, and the factor for this team's sums.
        let state = |row: u32| {
            let [max, sum] = states.add(row).read();
            if layout.rings == 1 {
                return (max, sum, 1.0);
            }
            let [other_max, other_sum] = states.add(group_rows + row).read();
            let new = max.max(other_max);
            let (factor, other_factor) = (math::ex2(max - new), math::ex2(other_max - new));
            let mine = if me.team == 0 { factor } else { other_factor };
            (new, math::fma(sum, factor, other_sum * other_factor), mine)
        };
        let factor = |row: u32| {
            let (_, sum, factor) = state(row + me.lane / 4);
            if sum > 0.0 { factor * math::rcp(sum) } else { 0.0 }
        };
        let factors = core::array::from_fn(|tile| [factor(16 * tile as u32), factor(16 * tile as u32 + 8)]);
        scale(sums, factors);
        if target.active > 1 && me.thread < layout.rows {
            let (max, sum, _) = state(me.thread);
            let log_sum = if sum > 0.0 { max + math::lg2(sum) } else { f32::NEG_INFINITY };
            let at = (target.row_tile * target.splits + split) * layout.rows + me.thread;
            parts.log_sums.add(at as usize).write(log_sum);
        }
        let left = base.byte_add(layout.ring).cast();
        if layout.rings > 1 {
            leave_sums(sums, (me.team, me.member), left);
        }
        if me.team == 0 {
            write_sums::<E, HEIGHT, COLUMNS>(sums, (parts, target, layout), (split, me.member), left);
        }
    }
}

const _: () = assert!(WARPS == GROUP * GROUPS);
