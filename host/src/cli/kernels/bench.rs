//! `kernels bench`: what the device can do, and what the kernels reach of it.

use serde::Serialize;

use super::{DeviceName, table, text};
use crate::backend::cuda::Device;
use crate::backend::cuda::bench::{self, Bound, Ceilings, Measured};
use crate::cli::Outcome;
use crate::cli::output::ReportOutput;
use crate::error::Result;
use crate::report::{Build, schema};

/// The JSON object.
#[derive(Serialize)]
struct BenchReport {
    schema: &'static str,
    device: DeviceName,
    ceilings: Ceilings,
    kernels: Vec<Measured>,
    env: Build,
}

/// Measures everything.
///
/// # Errors
/// No usable device, or too little memory on it.
pub fn run(device: u32, output: &ReportOutput) -> Result<Outcome> {
    let device = Device::open(device)?;
    let (ceilings, kernels) = bench::run(&device)?;
    let name = DeviceName::new(&device);
    let mut shown = name.line();
    let mut rows = table(&["ceiling", "measured"]);
    rows.add_row(["copy, read + written".to_owned(), format!("{:.3} TB/s", ceilings.copy / 1e12)]);
    rows.add_row(["read".to_owned(), format!("{:.3} TB/s", ceilings.read / 1e12)]);
    rows.add_row(["mma.sync bf16".to_owned(), format!("{:.1} TFLOP/s", ceilings.mma / 1e12)]);
    shown += &(text(rows, &[1]) + "\n");
    let mut rows = table(&["kernel", "shape", "us (min to max)", "GB/s", "TFLOP/s", "share", "of"]);
    for row in &kernels {
        let seconds = row.time.median;
        rows.add_row([
            row.kernel.to_owned(),
            row.shape.clone(),
            row.time.to_string(),
            format!("{:.0}", row.bytes / seconds / 1e9),
            format!("{:.2}", row.flops / seconds / 1e12),
            format!("{:.1}%", 100.0 * row.share),
            match row.bound {
                Bound::Memory => "read".to_owned(),
                Bound::Roofline => "roofline".to_owned(),
            },
        ]);
    }
    shown += &text(rows, &[2, 3, 4, 5]);
    let env = Build::of_this_process();
    let report = BenchReport { schema: schema::KERNELS_BENCH, device: name, ceilings, kernels, env };
    output.write(&report, || shown)?;
    Ok(Outcome::Done)
}
