//! NVIDIA GPUs: the driver found at run time, a device with its kernels, memory, launches, graphs; and the kernels' check
//! and bench. The kernels themselves live in `coppice-gpu`.
#![allow(unsafe_code)]

pub mod attention;
pub mod bench;
mod buffer;
pub mod check;
pub mod cupti;
mod device;
mod driver;
mod graph;
mod info;
mod launch;
mod module;
pub mod ptx;
mod stub;
mod symbols;

pub use buffer::DeviceBuffer;
pub use device::Device;
pub use driver::{LIBRARY, Status};
pub use graph::Graph;
pub use info::{DeviceInfo, DriverState, counters_permitted};
pub use module::Usage;

use crate::error::Error;

/// An error of this backend.
fn error(message: String) -> Error {
    Error::Backend { backend: "cuda", message }
}
