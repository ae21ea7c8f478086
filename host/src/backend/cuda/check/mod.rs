//! Every kernel against its scalar reference: on a device, and the same cases under the simulator. One file a family.
//!
//! Outputs are poisoned before a launch, so that one left unwritten is NaN or out of range. Integer outputs are kept in a
//! trace as well: device and simulator must agree on them to the bit.

mod attention;
mod ceiling;
mod linear;
mod moe;
mod place;
mod probe;
mod rows;
mod sample;
mod tree;

use coppice_gpu::testing::{Failures, Random};
use serde::Serialize;

use super::device::Device;
use crate::error::Result;
use place::Place;

/// How far device and simulator may differ in approximations, relative and absolute: lg2 is within 2^-22 near 1.
const APPROXIMATE: (f32, f32) = (1e-5, 5e-7);

/// How large the cases are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// Small odd shapes: quick under the simulator and under memory checkers.
    Small,
    /// Those, and shapes of real models.
    Full,
}

/// What one check found.
#[derive(Debug, Serialize)]
pub struct Checked {
    /// The kernels it ran.
    pub kernels: &'static [&'static str],
    /// Seed of its inputs.
    pub seed: u64,
    /// Cases it ran on the device.
    pub cases: usize,
    /// Integer outputs that device and simulator agree on.
    pub equal_integers: usize,
    /// What was wrong, one line each; empty is good.
    pub failures: Vec<String>,
}

/// A check of some kernels.
#[derive(Debug)]
pub struct Check {
    kernels: &'static [&'static str],
    run: fn(&mut Run<'_>) -> Result<()>,
}

/// All checks. Together they run every kernel.
pub const CHECKS: &[Check] = &[
    Check { kernels: &["embed"], run: rows::embed },
    Check { kernels: &["rms_norm"], run: rows::rms_norm },
    Check { kernels: &["add_rms_norm"], run: rows::add_rms_norm },
    Check { kernels: &["silu_mul"], run: rows::silu_mul },
    Check { kernels: &["rope_append"], run: rows::rope_append },
    Check { kernels: &["linear_f32_8"], run: linear::f32_8 },
    Check { kernels: &["linear_f32_16"], run: linear::f32_16 },
    Check { kernels: &["linear_f32_32"], run: linear::f32_32 },
    Check { kernels: &["linear_f32_64"], run: linear::f32_64 },
    Check { kernels: &["linear_f32_8_wide"], run: linear::f32_8_wide },
    Check { kernels: &["linear_f32_16_wide"], run: linear::f32_16_wide },
    Check { kernels: &["linear_f32_32_wide"], run: linear::f32_32_wide },
    Check { kernels: &["linear_f32_64_wide"], run: linear::f32_64_wide },
    Check { kernels: &["linear_bf16_8"], run: linear::bf16_8 },
    Check { kernels: &["linear_bf16_16"], run: linear::bf16_16 },
    Check { kernels: &["linear_bf16_32"], run: linear::bf16_32 },
    Check { kernels: &["linear_bf16_64"], run: linear::bf16_64 },
    Check { kernels: &["linear_bf16_8_wide"], run: linear::bf16_8_wide },
    Check { kernels: &["linear_bf16_16_wide"], run: linear::bf16_16_wide },
    Check { kernels: &["linear_bf16_32_wide"], run: linear::bf16_32_wide },
    Check { kernels: &["linear_bf16_64_wide"], run: linear::bf16_64_wide },
    Check { kernels: &["verify_attention_64_16_rows16"], run: attention::small_16 },
    Check { kernels: &["verify_attention_64_16_rows32"], run: attention::small_32 },
    Check { kernels: &["verify_attention_64_16_rows64"], run: attention::small_64 },
    Check { kernels: &["verify_attention_512_64_rows16"], run: attention::full_16 },
    Check { kernels: &["verify_attention_512_64_rows32"], run: attention::full_32 },
    Check { kernels: &["verify_attention_512_64_rows64"], run: attention::full_64 },
    Check { kernels: &["verify_attention_64_16_e4m3_rows16"], run: attention::small_e4m3_16 },
    Check { kernels: &["verify_attention_64_16_e4m3_rows32"], run: attention::small_e4m3_32 },
    Check { kernels: &["verify_attention_512_64_e4m3_rows16"], run: attention::full_e4m3_16 },
    Check { kernels: &["verify_attention_512_64_e4m3_rows32"], run: attention::full_e4m3_32 },
    Check { kernels: &["verify_attention_512_64_e4m3_rows64"], run: attention::full_e4m3_64 },
    Check { kernels: &["router_8"], run: moe::router_8 },
    Check { kernels: &["router_16"], run: moe::router_16 },
    Check { kernels: &["router_32"], run: moe::router_32 },
    Check { kernels: &["router_64"], run: moe::router_64 },
    Check { kernels: &["route"], run: moe::choice },
    Check { kernels: &["active_experts"], run: moe::list },
    Check { kernels: &["experts_gate_up_int4_8", "experts_down_int4_8"], run: moe::int4_8 },
    Check { kernels: &["experts_gate_up_int4_32", "experts_down_int4_32"], run: moe::int4_32 },
    Check { kernels: &["experts_gate_up_bf16_8", "experts_down_bf16_8"], run: moe::bf16_8 },
    Check { kernels: &["experts_gate_up_bf16_32", "experts_down_bf16_32"], run: moe::bf16_32 },
    Check { kernels: &["experts_gate_up_fp8_8", "experts_down_fp8_8"], run: moe::fp8_8 },
    Check { kernels: &["experts_gate_up_fp8_32", "experts_down_fp8_32"], run: moe::fp8_32 },
    Check { kernels: &["moe_combine"], run: moe::sum },
    Check { kernels: &["argmax"], run: sample::argmax },
    Check { kernels: &["top_k_parts", "top_k_merge"], run: sample::top_k },
    Check { kernels: &["tree_layout"], run: tree::layout },
    Check { kernels: &["walk"], run: tree::walk },
    Check { kernels: &["compact_rows"], run: tree::compact },
    Check { kernels: &["ceiling_copy"], run: ceiling::copy },
    Check { kernels: &["ceiling_read"], run: ceiling::read },
    Check { kernels: &["ceiling_mma"], run: ceiling::mma },
    Check { kernels: &["probe_indices"], run: probe::indices },
    Check { kernels: &["probe_warp"], run: probe::warp },
    Check { kernels: &["probe_math"], run: probe::math },
    Check { kernels: &["probe_convert"], run: probe::convert },
    Check { kernels: &["probe_atomics"], run: probe::atomics },
    Check { kernels: &["probe_hand_over"], run: probe::hand_over },
    Check { kernels: &["probe_named_barriers"], run: probe::named_barriers },
    Check { kernels: &["probe_ldmatrix"], run: probe::ldmatrix },
    Check { kernels: &["probe_mma"], run: probe::mma },
    Check { kernels: &["probe_copy_groups"], run: probe::copy_groups },
    Check { kernels: &["probe_copy_bulk"], run: probe::copy_bulk },
];

/// The state of one check in one place.
struct Run<'d> {
    place: Place<'d>,
    size: Size,
    random: Random,
    failures: Failures,
    cases: usize,
    /// Integer outputs, in the order of cases.
    integers: Vec<u32>,
    /// Outputs of approximations, likewise.
    floats: Vec<f32>,
}

impl<'d> Run<'d> {
    fn new(place: Place<'d>, size: Size, seed: u64) -> Self {
        let (random, failures) = (Random::new(seed), Failures::default());
        Self { place, size, random, failures, cases: 0, integers: Vec::new(), floats: Vec::new() }
    }

    /// The cases to run, counted.
    fn cases<C: Copy>(&mut self, small: &[C], large: &[C]) -> Vec<C> {
        let large = if self.size == Size::Full { large } else { &[] };
        let cases: Vec<C> = small.iter().chain(large).copied().collect();
        self.cases += cases.len();
        cases
    }
}

impl Check {
    /// Its kernels.
    pub fn kernels(&self) -> &'static [&'static str] {
        self.kernels
    }

    /// Runs it on a device, and its small cases under the simulator.
    ///
    /// # Errors
    /// The device or the simulator failed; wrong results are no error but [`Checked::failures`].
    pub fn on_device(&self, device: &Device, size: Size, seed: u64) -> Result<Checked> {
        let mut run = Run::new(Place::Device(device), Size::Small, seed);
        (self.run)(&mut run)?;
        let simulated = self.simulated(seed)?;
        let name = self.kernels.join(", ");
        run.failures.check(run.integers == simulated.integers, &name, "integers differ from the simulator's");
        run.failures.compare(&name, &run.floats, &simulated.floats, APPROXIMATE);
        let (mut failures, mut cases) = (run.failures.messages().to_vec(), run.cases);
        if size == Size::Full {
            let mut run = Run::new(Place::Device(device), Size::Full, seed);
            (self.run)(&mut run)?;
            failures.extend_from_slice(run.failures.messages());
            cases += run.cases;
        }
        Ok(Checked { kernels: self.kernels, seed, cases, equal_integers: simulated.integers.len(), failures })
    }

    /// Runs its small cases under the simulator.
    fn simulated(&self, seed: u64) -> Result<Run<'static>> {
        let mut run = Run::new(Place::Simulator(seed), Size::Small, seed);
        (self.run)(&mut run)?;
        Ok(run)
    }
}

#[cfg(test)]
mod tests {
    use super::super::ptx::EMBEDDED;
    use super::*;

    #[test]
    fn every_kernel_has_a_check() {
        let mut checked: Vec<&str> = CHECKS.iter().flat_map(|check| check.kernels).copied().collect();
        checked.sort_unstable();
        let entries: Vec<String> = EMBEDDED[0].entries().into_iter().map(|entry| entry.name).collect();
        assert_eq!(checked, entries);
    }

    #[test]
    fn the_checks_hold_under_the_simulator() {
        let mut wrong = Vec::new();
        for check in CHECKS {
            let run = check.simulated(5).unwrap();
            assert!(run.cases > 0);
            wrong.extend_from_slice(run.failures.messages());
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}
