//! Which instance serves how many rows, with which launch and how much scratch. Host side.
use super::element::Kind;
use super::instances::*;
use super::layout::{GROUP, Layout, MOST_STAGES, WARPS};
use cuda_std::convert;
use cuda_std::launch::{Kernel, LaunchShape};
use cuda_std::prelude::*;
use std::vec::Vec;

/// A verify attention kernel.
pub type Attention = Kernel<(
    Global<Bf16>,
    Global<u8>,
    Global<u32>,
    Global<u32>,
    GlobalMut<[u32; 4]>,
    GlobalMut<f32>,
    GlobalMut<u32>,
    GlobalMut<Bf16>,
    u32,
    u32,
    f32,
    u32,
    u32,
)>;

/// Greatest e4m3.
const E4M3_MOST: f32 = 448.0;
/// Fewest tiles of a ring: one is being scored, one added up, one on its way.
const FEWEST_STAGES: u32 = 3;
/// By how much a launch of several waves must be better balanced than one of a single wave.
const WAVE_COST: f64 = 1.05;

/// What a plan must know of a device.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Its multiprocessors.
    pub multiprocessors: u32,
    /// Most shared memory of a block, bytes.
    pub shared_bytes: u32,
}

/// A class of rows: an instance and the sizes of its blocks.
#[derive(Clone, Copy)]
pub struct Class {
    /// The kernel.
    pub kernel: &'static Attention,
    layout: Layout,
}

/// A size of heads and a type of cache.
pub struct Head {
    /// How the cache holds its elements.
    pub kind: Kind,
    /// Elements of the latent, which are keys and values.
    pub latent: u32,
    /// Elements of the rope part, which are keys alone.
    pub rope: u32,
    /// By rows of a block, ascending: 16, 32 and mostly 64.
    pub classes: &'static [Class],
}

const fn class(
    kernel: &'static Attention,
    kind: Kind,
    latent: u32,
    rope: u32,
    tiles: u32,
    team: u32,
    parked: u32,
) -> Class {
    Class { kernel, layout: Layout::new(kind, latent, rope, tiles, team, parked) }
}

/// 512 + 64: DeepSeek-V3 and Kimi-K2.
pub const HEAD_512_64: Head = Head {
    kind: Kind::Bf16,
    latent: 512,
    rope: 64,
    classes: &[
        class(&verify_attention_512_64_rows16::KERNEL, Kind::Bf16, 512, 64, 1, GROUP, 0),
        class(&verify_attention_512_64_rows32::KERNEL, Kind::Bf16, 512, 64, 2, GROUP, 2),
        class(&verify_attention_512_64_rows64::KERNEL, Kind::Bf16, 512, 64, 2, WARPS, 1),
    ],
};

/// 64 + 16: the embedded model.
pub const HEAD_64_16: Head = Head {
    kind: Kind::Bf16,
    latent: 64,
    rope: 16,
    classes: &[
        class(&verify_attention_64_16_rows16::KERNEL, Kind::Bf16, 64, 16, 1, GROUP, 0),
        class(&verify_attention_64_16_rows32::KERNEL, Kind::Bf16, 64, 16, 2, GROUP, 0),
        class(&verify_attention_64_16_rows64::KERNEL, Kind::Bf16, 64, 16, 2, WARPS, 0),
    ],
};

/// 512 + 64, cached as e4m3.
pub const HEAD_512_64_E4M3: Head = Head {
    kind: Kind::E4m3,
    latent: 512,
    rope: 64,
    classes: &[
        class(&verify_attention_512_64_e4m3_rows16::KERNEL, Kind::E4m3, 512, 64, 1, GROUP, 0),
        class(&verify_attention_512_64_e4m3_rows32::KERNEL, Kind::E4m3, 512, 64, 2, GROUP, 2),
        class(&verify_attention_512_64_e4m3_rows64::KERNEL, Kind::E4m3, 512, 64, 2, WARPS, 1),
    ],
};

/// 64 + 16, cached as e4m3.
pub const HEAD_64_16_E4M3: Head = Head {
    kind: Kind::E4m3,
    latent: 64,
    rope: 16,
    classes: &[
        class(&verify_attention_64_16_e4m3_rows16::KERNEL, Kind::E4m3, 64, 16, 1, GROUP, 0),
        class(&verify_attention_64_16_e4m3_rows32::KERNEL, Kind::E4m3, 64, 16, 2, GROUP, 0),
    ],
};

/// A launch that serves any context. It and its scratch depend on the number of rows and the device alone.
#[derive(Clone, Copy)]
pub struct Plan {
    /// The kernel.
    pub kernel: &'static Attention,
    /// Its launch.
    pub shape: LaunchShape,
    /// Argument `stages`.
    pub stages: u32,
    /// Argument `mergers`.
    pub mergers: u32,
    /// Vectors of 16 bytes of `values`.
    pub values: usize,
    /// Elements of `log_sums`.
    pub log_sums: usize,
    /// Elements of `arrivals`.
    pub arrivals: usize,
}

impl Head {
    /// Elements of a cached row.
    pub fn width(&self) -> usize {
        (self.latent + self.rope) as usize
    }

    /// Bytes of a cached row.
    pub fn row_bytes(&self) -> usize {
        self.width() * self.kind.bytes() as usize + 16
    }

    /// A cached row of these elements; of e4m3, the factor makes the greatest 448.
    pub fn pack(&self, row: &[f32]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.row_bytes());
        match self.kind {
            Kind::Bf16 => bytes.extend(row.iter().flat_map(|x| Bf16::from_f32(*x).0.to_le_bytes())),
            Kind::E4m3 => {
                let most = row.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                let factor = if most > 0.0 { most / E4M3_MOST } else { 1.0 };
                bytes.extend(row.iter().map(|x| convert::e4m3x2_from_f32(x / factor, 0.0) as u8));
                bytes.extend(factor.to_le_bytes());
            }
        }
        // What else there is of the padding must not matter.
        bytes.resize(self.row_bytes(), 0xff);
        bytes
    }

    /// The elements of a cached row.
    pub fn unpack(&self, row: &[u8]) -> Vec<f32> {
        match self.kind {
            Kind::Bf16 => {
                let (pairs, _) = row[..2 * self.width()].as_chunks();
                pairs.iter().map(|pair| Bf16(u16::from_le_bytes(*pair)).to_f32()).collect()
            }
            Kind::E4m3 => {
                let (elements, rest) = row.split_at(self.width());
                let factor = rest.first_chunk().map_or(f32::NAN, |bytes| f32::from_le_bytes(*bytes));
                let value = |x: &u8| convert::F16(convert::e4m3x2_to_f16x2((*x).into()) as u16).to_f32() * factor;
                elements.iter().map(value).collect()
            }
        }
    }

    /// The plan for `rows` = heads x tree rows: the smallest class that holds the rows of one block, the largest for more.
    /// Where shared memory does not hold two rings, the largest class serves all.
    pub fn plan(&self, rows: u32, limits: Limits) -> Plan {
        let fits = |class: &&Class| rows <= class.layout.rows && class.stages(limits) >= FEWEST_STAGES;
        let class = self.classes.iter().find(fits).unwrap_or(&self.classes[self.classes.len() - 1]);
        class.plan(rows, class.splits(rows, limits), class.stages(limits), limits)
    }
}

impl Class {
    /// Rows of a block.
    pub fn rows(&self) -> u32 {
        self.layout.rows
    }

    /// Tiles of a ring that fit.
    pub fn stages(&self, limits: Limits) -> u32 {
        let Layout { ring, rings, stage, .. } = self.layout;
        let stages = (limits.shared_bytes.saturating_sub(ring) / (rings * stage)).min(MOST_STAGES);
        if self.layout.total(stages) <= limits.shared_bytes { stages } else { 0 }
    }

    /// As many splits as fill the device with one block a multiprocessor, or more where that balances much better.
    fn splits(&self, rows: u32, limits: Limits) -> u32 {
        let (tiles, resident) = (rows.div_ceil(self.layout.rows), limits.multiprocessors);
        let time = |splits: u32| f64::from((tiles * splits).div_ceil(resident)) / f64::from(splits);
        let single = (resident / tiles).max(1);
        (1..=4).fold(single, |best, splits| if time(splits) * WAVE_COST < time(best) { splits } else { best })
    }

    /// A plan with these splits and stages.
    pub fn plan(&self, rows: u32, splits: u32, stages: u32, limits: Limits) -> Plan {
        let row_tiles = rows.div_ceil(self.layout.rows);
        let parts = (row_tiles * splits) as usize;
        // Blocks that wait for others must leave room for those.
        let mergers = if row_tiles * splits <= limits.multiprocessors { splits } else { 1 };
        Plan {
            kernel: self.kernel,
            shape: LaunchShape::new((row_tiles, splits), WARPS * 32).shared(self.layout.total(stages)),
            stages,
            mergers,
            values: parts * self.layout.units as usize * 32,
            log_sums: parts * self.layout.rows as usize,
            arrivals: 2 * row_tiles as usize,
        }
    }
}
