//! `kernels list`: names, bounds, and on a device what each kernel needs.

use serde::Serialize;

use super::{DeviceName, table, text};
use crate::backend::cuda::ptx::{EMBEDDED, Entry, Ptx};
use crate::backend::cuda::{Device, Usage};
use crate::cli::output::ReportOutput;
use crate::cli::{Outcome, messages};
use crate::error::Result;
use crate::report::{Build, schema};

/// The JSON object.
#[derive(Serialize)]
struct ListReport {
    schema: &'static str,
    /// The device that registers are of; null without one.
    device: Option<DeviceName>,
    kernels: Vec<Row>,
    env: Build,
}

#[derive(Serialize)]
struct Row {
    kernel: String,
    arch: String,
    threads: Option<u32>,
    blocks_per_sm: Option<u32>,
    /// The rest as the device's driver compiled it.
    registers: Option<u32>,
    static_shared_bytes: Option<u32>,
    local_bytes: Option<u32>,
}

impl Row {
    fn new(ptx: &Ptx, entry: Entry, usage: Option<Usage>) -> Self {
        Self {
            kernel: entry.name,
            arch: ptx.target(),
            threads: entry.threads,
            blocks_per_sm: entry.blocks_per_sm,
            registers: usage.map(|usage| usage.registers),
            static_shared_bytes: usage.map(|usage| usage.shared_bytes),
            local_bytes: usage.map(|usage| usage.local_bytes),
        }
    }
}

/// Lists the kernels: of the device's architecture where there is a device, else of all.
///
/// # Errors
/// A closed standard output.
pub fn run(device: u32, output: &ReportOutput) -> Result<Outcome> {
    let device = Device::open(device);
    let kernels = match &device {
        Ok(device) => {
            let (ptx, _) = device.ptx();
            let row = |entry: Entry| Ok(Row::new(ptx, entry.clone(), Some(device.usage(&entry.name)?)));
            ptx.entries().into_iter().map(row).collect::<Result<Vec<_>>>()?
        }
        Err(_) => EMBEDDED
            .iter()
            .flat_map(|ptx| ptx.entries().into_iter().map(move |entry| Row::new(ptx, entry, None)))
            .collect(),
    };
    let name = device.as_ref().ok().map(DeviceName::new);
    let mut rows = table(&["kernel", "arch", "threads", "blocks/SM", "registers", "static shared", "local"]);
    let number = |value: Option<u32>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
    for row in &kernels {
        rows.add_row([
            row.kernel.clone(),
            row.arch.clone(),
            number(row.threads),
            number(row.blocks_per_sm),
            number(row.registers),
            number(row.static_shared_bytes),
            number(row.local_bytes),
        ]);
    }
    if let Err(error) = &device {
        messages::line(&format_args!("registers are known on a device alone: {error}"));
    }
    let head = name.as_ref().map(DeviceName::line).unwrap_or_default();
    let listed = head + &text(rows, &[2, 3, 4, 5, 6]);
    let report = ListReport { schema: schema::KERNELS_LIST, device: name, kernels, env: Build::of_this_process() };
    output.write(&report, || listed)?;
    Ok(Outcome::Done)
}
