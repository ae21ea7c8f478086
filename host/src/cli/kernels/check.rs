//! `kernels check`: every kernel on this device against its reference.

use std::time::Instant;

use serde::Serialize;

use super::{DeviceName, table, text};
use crate::backend::cuda::Device;
use crate::backend::cuda::check::{CHECKS, Checked, Size};
use crate::cli::Outcome;
use crate::cli::output::ReportOutput;
use crate::cli::validate::Seeds;
use crate::error::{Error, Result};
use crate::report::{Build, schema};

/// Lines shown of a kernel that is wrong.
const SHOWN: usize = 5;

/// The JSON object.
#[derive(Serialize)]
struct CheckReport {
    schema: &'static str,
    device: DeviceName,
    good: bool,
    checks: Vec<Checked>,
    env: Build,
}

/// Runs all checks, once a seed.
///
/// # Errors
/// No usable device, or kernels that are wrong.
pub fn run(device: u32, size: Size, seeds: Seeds, output: &ReportOutput) -> Result<Outcome> {
    let device = Device::open(device)?;
    let mut rows = table(&["kernel", "seed", "cases", "integers as simulated", "seconds", "result"]);
    let mut checks = Vec::new();
    for seed in seeds.first..seeds.first + u64::from(seeds.count) {
        for check in CHECKS {
            let start = Instant::now();
            let checked = check.on_device(&device, size, seed)?;
            let result = match checked.failures.len() {
                0 => "ok".to_owned(),
                n => format!("{n} WRONG"),
            };
            rows.add_row([
                checked.kernels.join(", "),
                seed.to_string(),
                checked.cases.to_string(),
                checked.equal_integers.to_string(),
                format!("{:.2}", start.elapsed().as_secs_f64()),
                result,
            ]);
            checks.push(checked);
        }
    }
    let name = DeviceName::new(&device);
    let mut shown = name.line() + &text(rows, &[1, 2, 3, 4]);
    let mut wrong: Vec<&str> = Vec::new();
    for checked in checks.iter().filter(|checked| !checked.failures.is_empty()) {
        wrong.extend(checked.kernels);
        for failure in checked.failures.iter().take(SHOWN) {
            shown.push_str(&format!("\n{failure}"));
        }
        if checked.failures.len() > SHOWN {
            shown.push_str(&format!(
                "\n... and {} more of {}",
                checked.failures.len() - SHOWN,
                checked.kernels.join(", ")
            ));
        }
    }
    wrong.dedup();
    let verdict = match wrong.as_slice() {
        [] => Ok(Outcome::Done),
        wrong => {
            shown.push('\n');
            Err(Error::Backend { backend: "cuda", message: format!("wrong results of {}", wrong.join(", ")) })
        }
    };
    let good = verdict.is_ok();
    let report =
        CheckReport { schema: schema::KERNELS_CHECK, device: name, good, checks, env: Build::of_this_process() };
    output.write(&report, || shown)?;
    verdict
}
