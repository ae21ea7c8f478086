//! Verify attention over heads, tree rows and contexts: time, error and share of the floor.

use coppice_gpu::attention::{HEAD_512_64, HEAD_512_64_E4M3, Head, Kind, attention_reference};
use coppice_gpu::testing::Random;
use coppice_gpu::tree::tree_layout_reference;
use cuda_std::Bf16;
use rayon::prelude::*;
use serde::Serialize;

use super::super::attention::{Inputs, VerifyAttention};
use super::{Ceilings, Timing, ceilings, rotation, time};
use crate::backend::cuda::{Device, DeviceBuffer};
use crate::error::Result;

const LATENT: usize = HEAD_512_64.latent as usize;
const WIDTH: usize = LATENT + HEAD_512_64.rope as usize;
/// Random rows that a cache repeats: a prime number, so that no split meets the same ones again.
const PATTERN: usize = 1801;
/// Launches recorded together: for about this long (seconds), and no fewer.
const RECORDED: (f64, usize) = (1e-3, 4);
/// Output rows compared with the formula, a seed.
const SAMPLED: usize = 4;

/// Sizes to measure: every combination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sizes {
    /// Heads.
    pub heads: Vec<u32>,
    /// Tree rows.
    pub tree_rows: Vec<u32>,
    /// Cached rows before the tree's.
    pub contexts: Vec<u32>,
    /// How the cache holds its elements.
    pub cache: Kind,
    /// Random inputs that results are checked with.
    pub seeds: u64,
    /// Launches more with the last of them, whose results must be the same to the bit.
    pub repeats: u32,
}

/// One size.
#[derive(Debug, Serialize)]
pub struct Row {
    /// Heads.
    pub heads: u32,
    /// Tree rows.
    pub tree_rows: u32,
    /// Cached rows before the tree's.
    pub context: u32,
    /// The kernel that serves it.
    pub kernel: &'static str,
    /// Its grid: row tiles and splits.
    pub grid: [u32; 2],
    /// Seconds a launch, each with a cache that no second-level cache holds.
    pub cold: Timing,
    /// Seconds a launch, all with the same cache.
    pub warm: Timing,
    /// Bytes that must come from memory: the cache, once.
    pub bytes: f64,
    /// FLOPs.
    pub flops: f64,
    /// Seconds that the copy and mma ceilings allow.
    pub floor: f64,
    /// `floor` / cold median.
    pub share: f64,
    /// Largest relative error (2-norm) of the sampled output rows over all seeds.
    pub error: f64,
    /// Launches whose result differs from the first one's.
    pub differing: u32,
}

/// Measures all sizes.
///
/// # Errors
/// The device failed, or has too little memory free.
pub fn run(device: &Device, sizes: &Sizes) -> Result<(Ceilings, Vec<Row>)> {
    let at = ceilings::measure(device)?;
    let head = match sizes.cache {
        Kind::Bf16 => &HEAD_512_64,
        Kind::E4m3 => &HEAD_512_64_E4M3,
    };
    let mut rows = Vec::new();
    for &context in &sizes.contexts {
        let most = sizes.tree_rows.iter().max().map_or(0, |most| *most as usize);
        let bytes = (context as usize + most) * head.row_bytes();
        let sets = rotation(device, bytes as u64);
        let patterns: Vec<Pattern> = (0..sizes.seeds.max(1)).map(|seed| Pattern::new(head, seed)).collect();
        let caches = (0..sets.max(patterns.len()))
            .map(|i| DeviceBuffer::repeating(device, &patterns[i % patterns.len()].cache, bytes))
            .collect::<Result<Vec<_>>>()?;
        for &heads in &sizes.heads {
            for &tree_rows in &sizes.tree_rows {
                let case = Case { device, head, heads, tree_rows, context };
                rows.push(case.measure((&patterns, sizes.repeats), &caches, sets, &at)?);
            }
        }
    }
    Ok((at, rows))
}

/// Random values of one seed.
struct Pattern {
    seed: u64,
    /// Rows as cached, and their elements.
    cache: Vec<u8>,
    rows: Vec<Vec<f32>>,
}

impl Pattern {
    fn new(head: &Head, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let cache: Vec<u8> = (0..PATTERN).flat_map(|_| head.pack(&random.normals(WIDTH))).collect();
        let rows = cache.chunks(head.row_bytes()).map(|row| head.unpack(row)).collect();
        Self { seed, cache, rows }
    }
}

#[derive(Clone, Copy)]
struct Case<'d> {
    device: &'d Device,
    head: &'d Head,
    heads: u32,
    tree_rows: u32,
    context: u32,
}

impl Case<'_> {
    fn measure(
        self,
        (patterns, repeats): (&[Pattern], u32),
        caches: &[DeviceBuffer<'_, u8>],
        sets: usize,
        at: &Ceilings,
    ) -> Result<Row> {
        let Self { device, head, heads, tree_rows, context } = self;
        let factor = (WIDTH as f32).powf(-0.5);
        let attention = VerifyAttention::new(device, head, (heads, tree_rows), factor)?;
        let rows = (heads * tree_rows) as usize;
        let length = DeviceBuffer::new(device, &[context])?;
        let mut error = 0.0f64;
        let (mut query, mut differing) = (None, 0);
        for (pattern, cache) in patterns.iter().zip(caches) {
            let mut random = Random::new(pattern.seed + 1000);
            let queries: Vec<Bf16> = random.normals(rows * WIDTH).into_iter().map(Bf16::from_f32).collect();
            let parents: Vec<u32> = (0..tree_rows).map(|t| if t == 0 { 0 } else { random.below(t) }).collect();
            let (_, sees) = tree_layout_reference(&parents, context);
            let bits = DeviceBuffer::new(device, &mask(&sees))?;
            let out = DeviceBuffer::<Bf16>::poisoned(device, rows * LATENT)?;
            let input = DeviceBuffer::new(device, &queries)?;
            let inputs = Inputs { query: &input, cache, mask: Some(&bits), context: &length };
            // SAFETY: the buffers have these sizes; every row sees itself.
            unsafe { attention.launch(inputs, &out)? };
            let results = out.to_vec()?;
            let worst = (0..SAMPLED).into_par_iter().map(|i| {
                let row = if i == 0 { 0 } else { i * (rows - 1) / (SAMPLED - 1) };
                let sees = &sees[row / heads as usize];
                let keys = (0..(context + tree_rows) as usize)
                    .filter(|key| *key < context as usize || sees[*key - context as usize])
                    .map(|key| &pattern.rows[key % PATTERN]);
                let query = &queries[row * WIDTH..][..WIDTH];
                relative_error(
                    &results[row * LATENT..][..LATENT],
                    &attention_reference(query, keys, LATENT, factor.into()),
                )
            });
            error = error.max(worst.reduce(|| 0.0, |a: f64, b| if b.is_nan() || b > a { b } else { a }));
            if pattern.seed + 1 == patterns.len() as u64 {
                differing = self.repeat(&attention, inputs, &out, repeats)?;
            }
            query = Some((input, bits));
        }
        let Some((query, mask)) = query else {
            return Err(super::super::error("there are no seeds to measure with".to_owned()));
        };
        let out = DeviceBuffer::<Bf16>::poisoned(device, rows * LATENT)?;
        let keys = f64::from(context + tree_rows);
        let (bytes, flops) =
            (keys * f64::from(head.kind.bytes()) * WIDTH as f64, 2.0 * rows as f64 * keys * (WIDTH + LATENT) as f64);
        let floor = (bytes / at.copy).max(flops / at.mma);
        let launches = ((RECORDED.0 / floor) as usize).clamp(RECORDED.1, 64);
        let timed = |sets: usize| {
            time(device, launches.next_multiple_of(sets), |i| {
                let cache = &caches[i % sets];
                let inputs = Inputs { query: &query, cache, mask: Some(&mask), context: &length };
                // SAFETY: as above.
                unsafe { attention.launch(inputs, &out) }
            })
        };
        let (cold, warm) = (timed(sets)?, timed(1)?);
        let [tiles, splits, _] = attention.plan.shape.grid.0;
        let kernel = attention.plan.kernel.name;
        let share = floor / cold.median;
        Ok(Row {
            heads,
            tree_rows,
            context,
            kernel,
            grid: [tiles, splits],
            cold,
            warm,
            bytes,
            flops,
            floor,
            share,
            error,
            differing,
        })
    }

    /// How many of `launches` leave other bits than what `out` holds.
    fn repeat(
        self,
        attention: &VerifyAttention<'_>,
        inputs: Inputs<'_, '_>,
        out: &DeviceBuffer<'_, Bf16>,
        launches: u32,
    ) -> Result<u32> {
        let bits = || -> Result<Vec<u16>> { Ok(out.to_vec()?.into_iter().map(|x| x.0).collect()) };
        let (first, mut differing) = (bits()?, 0);
        for _ in 0..launches {
            // SAFETY: the buffers served for a launch before.
            unsafe { attention.launch(inputs, out)? };
            differing += u32::from(bits()? != first);
        }
        Ok(differing)
    }
}

/// What each row sees of the tree, as bits.
fn mask(sees: &[Vec<bool>]) -> Vec<u32> {
    let word = |bits: &[bool]| bits.iter().enumerate().fold(0, |word, (i, bit)| word | u32::from(*bit) << i);
    sees.iter().flat_map(|sees| sees.chunks(32).map(word)).collect()
}

fn relative_error(found: &[Bf16], expected: &[f32]) -> f64 {
    let difference = |(f, e): (&Bf16, &f32)| f64::from(f.to_f32() - e).powi(2);
    let error: f64 = found.iter().zip(expected).map(difference).sum();
    (error / expected.iter().map(|e| f64::from(*e).powi(2)).sum::<f64>()).sqrt()
}
