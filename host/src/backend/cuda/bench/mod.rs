//! What kernels reach on a device, beside what the device can do: ceilings measured on the spot, then shares of them.
//!
//! Launches are recorded in a graph and timed together, so that the host's launch costs stay out. Each takes the next of
//! several sets of buffers, together far larger than the second-level cache: every launch finds it cold.

pub mod attention;
mod ceilings;
mod kernels;

use std::fmt;

use serde::Serialize;

use super::device::Device;
use crate::error::Result;

/// Replays timed.
const SAMPLES: usize = 9;
/// Second-level caches that the buffers of all launches fill together.
const CACHES: u64 = 6;

/// What the device can do, as this program's kernels reach it.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Ceilings {
    /// Bytes read and written a second by a copy.
    pub copy: f64,
    /// Bytes read a second by a kernel that only reads.
    pub read: f64,
    /// bf16 FLOPs a second by `mma.sync`.
    pub mma: f64,
}

/// What a kernel is held against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// The read ceiling.
    Memory,
    /// The longer of the times that its bytes and its FLOPs take at their ceilings.
    Roofline,
}

/// One kernel at one size.
#[derive(Debug, Serialize)]
pub struct Measured {
    /// The kernel.
    pub kernel: &'static str,
    /// Its sizes, in words.
    pub shape: String,
    /// Seconds a launch.
    pub time: Timing,
    /// Bytes that it must move.
    pub bytes: f64,
    /// FLOPs that it must do.
    pub flops: f64,
    /// What its share is of.
    pub bound: Bound,
    /// Share of what the ceilings allow, 1 being all.
    pub share: f64,
}

/// Seconds of one launch over several replays.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Timing {
    /// Half were faster.
    pub median: f64,
    /// The fastest.
    pub min: f64,
    /// The slowest.
    pub max: f64,
}

impl fmt::Display for Timing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} ({:.2} to {:.2})", self.median * 1e6, self.min * 1e6, self.max * 1e6)
    }
}

/// Measures the ceilings, then every kernel that is worth it.
///
/// # Errors
/// The device failed, or has too little memory free.
pub fn run(device: &Device) -> Result<(Ceilings, Vec<Measured>)> {
    let ceilings = ceilings::measure(device)?;
    Ok((ceilings, kernels::measure(device, &ceilings)?))
}

impl Measured {
    fn new(kernel: &'static str, shape: String, time: Timing, work: (f64, f64), bound: Bound, at: &Ceilings) -> Self {
        let (bytes, flops) = work;
        let floor = match bound {
            Bound::Memory => bytes / at.read,
            Bound::Roofline => (bytes / at.read).max(flops / at.mma),
        };
        Self { kernel, shape, time, bytes, flops, bound, share: floor / time.median }
    }
}

/// Sets of buffers of `bytes` each that `launches` launches should take in turn.
fn rotation(device: &Device, bytes: u64) -> usize {
    (CACHES * device.info().l2_bytes).div_ceil(bytes.max(1)).clamp(1, 64) as usize
}

/// Times `launches` launches, `launch` being given the number of each.
fn time(device: &Device, launches: usize, mut launch: impl FnMut(usize) -> Result<()>) -> Result<Timing> {
    let graph = device.record(|| (0..launches).try_for_each(&mut launch))?;
    // The first replays upload the graph and warm the clocks.
    for _ in 0..3 {
        graph.time()?;
    }
    let mut samples = (0..SAMPLES).map(|_| Ok(graph.time()? / launches as f64)).collect::<Result<Vec<f64>>>()?;
    samples.sort_by(f64::total_cmp);
    Ok(Timing { median: samples[SAMPLES / 2], min: samples[0], max: samples[SAMPLES - 1] })
}
