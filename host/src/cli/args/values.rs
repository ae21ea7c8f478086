//! What a flag's value may be, said in plain words. What values mean beside each other lives in `validate`.

use std::ops::RangeInclusive;
use std::str::FromStr;

/// Most nodes of a tree: far beyond what pays, and a bound on what a round allocates.
const MAX_BUDGET: usize = 1024;

/// More than any machine's cores, and no more than it takes to notice a mistyped number.
const MAX_THREADS: usize = 1024;

fn within<T: FromStr + PartialOrd + std::fmt::Display>(text: &str, range: &RangeInclusive<T>) -> Result<T, String> {
    let value = text.parse().ok().filter(|value| range.contains(value));
    value.ok_or_else(|| format!("expected an integer from {} to {}", range.start(), range.end()))
}

pub fn threads(text: &str) -> Result<usize, String> {
    within(text, &(1..=MAX_THREADS))
}

/// Runs of a check.
pub fn runs(text: &str) -> Result<u32, String> {
    within(text, &(1..=1000))
}

/// Nodes of a round's tree besides the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TreeBudget {
    /// Decided round by round.
    Auto,
    /// So many, if there are.
    Nodes(usize),
}

pub fn budget(text: &str) -> Result<TreeBudget, String> {
    match text {
        "auto" => Ok(TreeBudget::Auto),
        _ => {
            let nodes = text.parse().ok().filter(|nodes| *nodes <= MAX_BUDGET);
            nodes.map(TreeBudget::Nodes).ok_or_else(|| format!("expected auto or an integer from 0 to {MAX_BUDGET}"))
        }
    }
}

pub fn count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("expected an integer of at least 1".to_owned()),
        Ok(value) => Ok(value),
    }
}

/// An integer of at least 0.
pub fn whole<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| "expected an integer of at least 0".to_owned())
}

pub fn temperature(text: &str) -> Result<f32, String> {
    let value = text.parse().ok().filter(|value: &f32| value.is_finite() && *value >= 0.0);
    value.ok_or_else(|| "expected a finite number of at least 0".to_owned())
}

pub fn probability(text: &str) -> Result<f32, String> {
    let value = text.parse().ok().filter(|value| (0.0..=1.0).contains(value));
    value.ok_or_else(|| "expected a number from 0 to 1".to_owned())
}

pub fn positive(text: &str) -> Result<f64, String> {
    let value = text.parse().ok().filter(|value: &f64| value.is_finite() && *value > 0.0);
    value.ok_or_else(|| "expected a finite number above 0".to_owned())
}

/// Where a model runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    /// Where it runs best.
    Auto,
    /// On the CPU.
    Cpu,
    /// On the GPU of this number.
    Cuda(u32),
    /// On the CPU behind a queue, as a GPU would be: a test of the step.
    Deferred,
    /// On the GPU's kernels under the simulator: a test of them, slow.
    Simulator,
}

/// The names that tests use are not offered.
pub fn device(text: &str) -> Result<Device, String> {
    match text {
        "auto" => Ok(Device::Auto),
        "cpu" => Ok(Device::Cpu),
        "deferred" => Ok(Device::Deferred),
        "simulator" => Ok(Device::Simulator),
        _ => gpu_index(text).map(Device::Cuda).ok_or_else(|| "expected auto, cpu, cuda or cuda:N".to_owned()),
    }
}

/// Microseconds, as nanoseconds.
pub fn microseconds(text: &str) -> Result<u64, String> {
    let value = text.parse().ok().filter(|value: &f64| (0.0..=1e9).contains(value));
    value.map(|value| (value * 1e3).round() as u64).ok_or_else(|| "expected microseconds from 0 to 1e9".to_owned())
}

/// `cuda` or `cuda:N`.
pub fn gpu(text: &str) -> Result<u32, String> {
    gpu_index(text).ok_or_else(|| "expected cuda or cuda:N".to_owned())
}

fn gpu_index(text: &str) -> Option<u32> {
    match text.strip_prefix("cuda") {
        Some("") => Some(0),
        Some(rest) => rest.strip_prefix(':').and_then(|index| index.parse().ok()),
        None => None,
    }
}
