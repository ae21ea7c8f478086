//! `kernels`: what GPU kernels there are, whether they are right on this device, and how fast. The checks and measurements
//! themselves live in `backend::cuda`.

mod attention;
mod bench;
mod check;
mod list;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;

use super::Outcome;
use super::output::ReportOutput;
use super::validate::{KernelsArgs, KernelsTask};
use crate::backend::cuda::{Device, DeviceInfo};
use crate::error::Result;

/// Runs the command.
///
/// # Errors
/// A file that cannot be written, no usable device for `check` and `bench`, a kernel that is wrong, a closed standard output.
pub fn run(args: &KernelsArgs) -> Result<Outcome> {
    let output = ReportOutput::open(&args.report)?;
    match &args.task {
        KernelsTask::List => list::run(args.device, &output),
        KernelsTask::Check { size, seeds } => check::run(args.device, *size, *seeds, &output),
        KernelsTask::Bench => bench::run(args.device, &output),
        KernelsTask::Attention { sizes, csv } => attention::run(args.device, sizes, *csv, &output),
    }
}

/// The device as reports name it.
#[derive(Debug, Serialize)]
struct DeviceName {
    name: String,
    capability: String,
    driver: Option<String>,
    cuda: String,
    ptx: String,
    ptx_hash: &'static str,
}

impl DeviceName {
    fn new(device: &Device) -> Self {
        let DeviceInfo { name, capability, driver, cuda, .. } = device.info();
        let (ptx, _) = device.ptx();
        Self {
            name: name.clone(),
            capability: capability.to_string(),
            driver: driver.clone(),
            cuda: cuda.to_string(),
            ptx: ptx.target(),
            ptx_hash: ptx.hash,
        }
    }

    /// One line above a table.
    fn line(&self) -> String {
        let driver = self.driver.as_deref().unwrap_or("unknown");
        format!("{}, driver {driver}, CUDA {}, kernels for {} ({})\n\n", self.name, self.cuda, self.ptx, self.ptx_hash)
    }
}

/// An empty table.
fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header.iter().copied());
    table
}

/// The table's text; columns in `numbers` are flush right.
fn text(mut table: Table, numbers: &[usize]) -> String {
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if numbers.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt() + "\n"
}
