//! What there is: the driver's state and the GPUs it knows. Using one lives in `device`.

use std::fs;

use cust::CudaFlags;
use cust::device::{Device as CudaDevice, DeviceAttribute};

use super::driver::{self, Status};
use super::ptx::{Capability, Version};

/// A GPU and its driver.
#[derive(Debug, Clone)]
pub struct DeviceInfo {
    /// Its number, as in `cuda:0`.
    pub index: u32,
    /// Its product name.
    pub name: String,
    /// Its generation.
    pub capability: Capability,
    /// Its memory.
    pub memory_bytes: u64,
    /// Its multiprocessors.
    pub multiprocessors: u32,
    /// Its second-level cache.
    pub l2_bytes: u64,
    /// Highest clock of the multiprocessors.
    pub clock_khz: u32,
    /// The kernel driver's version, where Linux says it.
    pub driver: Option<String>,
    /// The CUDA version of the driver's library.
    pub cuda: Version,
}

/// How far a driver got.
#[derive(Debug, Clone)]
pub enum DriverState {
    /// There is no driver library.
    Absent {
        /// The dynamic linker's word.
        reason: String,
    },
    /// There is one, and it does not start.
    Failing {
        /// The driver's word.
        reason: String,
        /// The kernel driver's version, where it is loaded.
        driver: Option<String>,
    },
    /// It runs.
    Ready {
        /// Its GPUs; may be none.
        devices: Vec<DeviceInfo>,
        /// The kernel driver's version, where Linux says it.
        driver: Option<String>,
        /// The CUDA version of its library.
        cuda: Version,
    },
}

impl DriverState {
    /// Loads and asks the driver.
    pub fn detect() -> Self {
        if let Err(reason) = driver::load() {
            return Self::Absent { reason: reason.to_owned() };
        }
        let driver = kernel_driver();
        match detect_devices(&driver) {
            Ok((cuda, devices)) => Self::Ready { devices, driver, cuda },
            Err(status) => Self::Failing { reason: status.to_string(), driver },
        }
    }
}

fn detect_devices(driver: &Option<String>) -> Result<(Version, Vec<DeviceInfo>), Status> {
    cust::init(CudaFlags::empty())?;
    let version = cust::CudaApiVersion::get()?;
    let cuda = Version { major: version.major().unsigned_abs(), minor: version.minor().unsigned_abs() };
    let count = CudaDevice::num_devices()?;
    let devices = (0..count).map(|index| describe(index, cuda, driver.clone())).collect::<Result<_, _>>()?;
    Ok((cuda, devices))
}

fn describe(index: u32, cuda: Version, driver: Option<String>) -> Result<DeviceInfo, Status> {
    let device = CudaDevice::get_device(index)?;
    let attribute = |attribute| Ok::<_, Status>(device.get_attribute(attribute)?.unsigned_abs());
    Ok(DeviceInfo {
        index,
        name: device.name()?,
        capability: Capability {
            major: attribute(DeviceAttribute::ComputeCapabilityMajor)?,
            minor: attribute(DeviceAttribute::ComputeCapabilityMinor)?,
        },
        memory_bytes: device.total_memory()? as u64,
        multiprocessors: attribute(DeviceAttribute::MultiprocessorCount)?,
        l2_bytes: attribute(DeviceAttribute::L2CacheSize)?.into(),
        clock_khz: attribute(DeviceAttribute::ClockRate)?,
        driver,
        cuda,
    })
}

/// The version of the loaded kernel module.
fn kernel_driver() -> Option<String> {
    let version = fs::read_to_string("/sys/module/nvidia/version").ok().map(|text| text.trim().to_owned());
    version.or_else(|| {
        let text = fs::read_to_string("/proc/driver/nvidia/version").ok()?;
        driver_version(&text).map(str::to_owned)
    })
}

/// `NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat ...`: the first word of numbers and points.
fn driver_version(text: &str) -> Option<&str> {
    let is_version = |word: &&str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
    text.lines().next()?.split_whitespace().find(is_version)
}

/// Whether a user without privileges may read the GPU's hardware counters; none where Linux does not say.
pub fn counters_permitted() -> Option<bool> {
    let text = fs::read_to_string("/proc/driver/nvidia/params").ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix("RmProfilingAdminOnly:"))?;
    Some(value.trim() == "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drivers_version_is_read_from_either_flavour() {
        let cases = [
            (
                "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\nGCC version: 12.3",
                Some("535.104.05"),
            ),
            (
                "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (x)",
                Some("580.159.04"),
            ),
            ("", None),
        ];
        for (text, version) in cases {
            assert_eq!(driver_version(text), version);
        }
    }
}
