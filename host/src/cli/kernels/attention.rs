//! `kernels attention`: verify attention over heads, tree rows and contexts, held against the device's ceilings.

use serde::Serialize;

use super::{DeviceName, table, text};
use crate::backend::cuda::Device;
use crate::backend::cuda::bench::Ceilings;
use crate::backend::cuda::bench::attention::{self, Row, Sizes};
use crate::cli::Outcome;
use crate::cli::output::ReportOutput;
use crate::error::{Error, Result};
use crate::report::{Build, schema};

/// Largest relative error of a row that counts as right.
const TOLERANCE: f64 = 5e-3;

/// The JSON object.
#[derive(Serialize)]
struct AttentionReport<'r> {
    schema: &'static str,
    device: DeviceName,
    ceilings: Ceilings,
    rows: &'r [Row],
    env: Build,
}

/// Measures and checks.
///
/// # Errors
/// No usable device, too little memory on it, or wrong results.
pub fn run(device: u32, sizes: &Sizes, csv: bool, output: &ReportOutput) -> Result<Outcome> {
    let device = Device::open(device)?;
    let (ceilings, rows) = attention::run(&device, sizes)?;
    let name = DeviceName::new(&device);
    let shown = if csv { as_csv(&rows) } else { name.line() + &as_table(&ceilings, &rows) };
    let report = AttentionReport {
        schema: schema::KERNELS_ATTENTION,
        device: name,
        ceilings,
        rows: &rows,
        env: Build::of_this_process(),
    };
    output.write(&report, || shown)?;
    if let Some(row) = rows.iter().find(|row| row.differing > 0) {
        return Err(Error::Backend {
            backend: "cuda",
            message: format!(
                "{} of {} launches of {} at {} heads, {} tree rows, context {} differ from the first, expected the same bits",
                row.differing, sizes.repeats, row.kernel, row.heads, row.tree_rows, row.context
            ),
        });
    }
    match rows.iter().find(|row| row.error.is_nan() || row.error > TOLERANCE) {
        None => Ok(Outcome::Done),
        Some(row) => Err(Error::Backend {
            backend: "cuda",
            message: format!(
                "wrong results of {} at {} heads, {} tree rows, context {}: relative error {:.1e}, expected at most {TOLERANCE:.0e}",
                row.kernel, row.heads, row.tree_rows, row.context, row.error
            ),
        }),
    }
}

fn as_table(ceilings: &Ceilings, rows: &[Row]) -> String {
    let mut shown = format!(
        "floor: the longer of FLOPs at {:.0} TFLOP/s (mma.sync) and bytes at {:.2} TB/s (copy)\n\n",
        ceilings.mma / 1e12,
        ceilings.copy / 1e12
    );
    let mut table = table(&[
        "heads",
        "T",
        "context",
        "rows",
        "grid",
        "us cold (min to max)",
        "us warm",
        "TFLOP/s",
        "GB/s",
        "floor us",
        "share",
        "error",
    ]);
    for row in rows {
        let seconds = row.cold.median;
        table.add_row([
            row.heads.to_string(),
            row.tree_rows.to_string(),
            row.context.to_string(),
            row.kernel.rsplit("rows").next().unwrap_or_default().to_owned(),
            format!("{} x {}", row.grid[0], row.grid[1]),
            row.cold.to_string(),
            format!("{:.2}", row.warm.median * 1e6),
            format!("{:.1}", row.flops / seconds / 1e12),
            format!("{:.0}", row.bytes / seconds / 1e9),
            format!("{:.2}", row.floor * 1e6),
            format!("{:.1}%", 100.0 * row.share),
            format!("{:.1e}", row.error),
        ]);
    }
    shown += &text(table, &[0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11]);
    shown
}

fn as_csv(rows: &[Row]) -> String {
    let mut csv = String::from(
        "heads,tree_rows,context,kernel,row_tiles,splits,us_cold,us_cold_min,us_cold_max,us_warm,tflops,gb_s,us_floor,share,error\n",
    );
    for row in rows {
        let Row { heads, tree_rows, context, kernel, grid: [tiles, splits], cold, warm, .. } = row;
        csv += &format!("{heads},{tree_rows},{context},{kernel},{tiles},{splits}");
        for seconds in [cold.median, cold.min, cold.max, warm.median] {
            csv += &format!(",{:.3}", seconds * 1e6);
        }
        let (tflops, rate) = (row.flops / cold.median / 1e12, row.bytes / cold.median / 1e9);
        csv += &format!(",{tflops:.2},{rate:.1},{:.3},{:.4},{:.2e}\n", row.floor * 1e6, row.share, row.error);
    }
    csv
}
