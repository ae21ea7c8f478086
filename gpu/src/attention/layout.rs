//! What follows from the size of a head and of a block: fragments of a warp, and the map of shared memory.
use super::element::Kind;

/// Warps of a block.
pub const WARPS: u32 = 8;
/// Warps that share the scores of the same rows and keys, each adding up a slice of the width.
pub const GROUP: u32 = 4;
/// Groups of a block.
pub const GROUPS: u32 = WARPS / GROUP;
/// Keys of a tile: one step of a product along the keys.
pub const KEYS: u32 = 16;
/// Most tiles of a ring.
pub const MOST_STAGES: u32 = 12;
/// Bytes that a warp leaves for another in the exchange of scores: 8 rows of 16 keys.
pub const MESSAGE: u32 = 8 * KEYS * 4;

/// Constants of an instance. Offsets are bytes of shared memory.
///
/// The rows of a block are `tiles` x 16 a group. Either the groups have different rows and see all tiles of keys (then all
/// eight warps form one *team*, which adds up the values of all rows), or they have the same rows and see different tiles
/// (then each is a team of its own, and they merge at the end).
#[derive(Clone, Copy)]
pub struct Layout {
    /// How elements are cached.
    pub kind: Kind,
    /// Elements of a query or key.
    pub width: u32,
    /// Steps of 16 elements of the width, over all slices.
    pub steps: u32,
    /// Bytes of a cached row, in memory as in the ring: 16 more than its elements, so that `ldmatrix` meets no bank conflict
    /// (at width 576); of e4m3 they hold the factor, first.
    pub row: u32,
    /// Bytes of a stage of a ring.
    pub stage: u32,
    /// Query rows of a block.
    pub rows: u32,
    /// Warps of a team.
    pub team: u32,
    /// Rings of tiles, one a team.
    pub rings: u32,
    /// Units of 512 bytes of a block's result.
    pub units: u32,
    /// Maximum and sum of each row of each group.
    pub states: u32,
    /// Tree row of each row of the block.
    pub nodes: u32,
    /// Steps of the query that have no room in registers.
    pub parked: u32,
    /// Two buffers of factors by which a tile changes what was accumulated, and the size of one.
    pub factors: u32,
    pub factors_size: u32,
    /// Two buffers of weights, and the size of one.
    pub weights: u32,
    pub weights_size: u32,
    /// Two buffers of partial scores, and the size of one.
    pub scores: u32,
    pub scores_size: u32,
    /// The rings.
    pub ring: u32,
}

impl Layout {
    pub const fn new(kind: Kind, latent: u32, rope: u32, tiles: u32, team: u32, parked_steps: u32) -> Self {
        assert!(latent.is_multiple_of(8 * team) && rope.is_multiple_of(16) && (team == GROUP || team == WARPS));
        let width = latent + rope;
        let row = kind.bytes() * width + 16;
        let group_rows = 16 * tiles;
        let rows = group_rows * (team / GROUP);
        let states = 8 * (2 * GROUPS + GROUPS * MOST_STAGES);
        let nodes = states + 8 * GROUPS * group_rows;
        let factors = nodes + 4 * GROUPS * group_rows;
        let factors_size = 4 * GROUPS * group_rows;
        let weights = (factors + 2 * factors_size).next_multiple_of(128);
        let weights_size = 2 * KEYS * GROUPS * group_rows;
        let scores = weights + 2 * weights_size;
        let scores_size = GROUPS * (GROUP - 1) * GROUP * MESSAGE;
        Self {
            kind,
            width,
            steps: width / 16,
            row,
            stage: KEYS * row,
            rows,
            team,
            rings: WARPS / team,
            units: rows * latent * 2 / 512,
            states,
            nodes,
            factors,
            factors_size,
            weights,
            weights_size,
            scores,
            scores_size,
            parked: scores + 2 * scores_size,
            ring: scores + 2 * scores_size + WARPS * 512 * tiles * parked_steps,
        }
    }

    /// Bytes of shared memory with `stages` tiles a ring.
    pub const fn total(&self, stages: u32) -> u32 {
        // At the end, the sums of the second team take the place of the rings.
        let sums = if self.rings > 1 { self.units * 1024 } else { 0 };
        let rings = self.rings * stages * self.stage;
        self.ring + if rings > sums { rings } else { sums }
    }

    /// Index of the mbarrier at which a group's partial scores are complete.
    pub const fn scores_barrier(group: u32) -> u32 {
        group
    }

    /// Index of the mbarrier at which a team's weights are complete.
    pub const fn weights_barrier(ring: u32) -> u32 {
        GROUPS + ring
    }

    /// Index of the mbarrier at which a tile has arrived.
    pub const fn tile_barrier(ring: u32, stage: u32) -> u32 {
        2 * GROUPS + ring * MOST_STAGES + stage
    }
}
