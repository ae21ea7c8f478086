//! Where a check runs: one set of calls for a device and for the simulator.

use cuda_std::launch::{Arguments, Kernel, LaunchShape};
use cuda_std::simulate::{self, Simulator};
use cuda_std::{DeviceCopy, Global, GlobalMut};

use super::super::{Device, DeviceBuffer, error};
use crate::error::Result;

/// Most blocks that the simulator runs at a time.
const RESIDENT: u64 = 16;
/// Shared memory of a block under the simulator, bytes: what Hopper has, as cases are the same there and on a device.
const SHARED_BYTES: u32 = 232_448;

/// A device, or the simulator with the seed of its schedule.
#[derive(Clone, Copy)]
pub enum Place<'d> {
    Device(&'d Device),
    Simulator(u64),
}

/// Memory of a place.
pub enum Memory<'d, T> {
    Device(DeviceBuffer<'d, T>),
    Simulated(simulate::Buffer<T>),
}

impl<'d> Place<'d> {
    /// Memory that kernels only read; the simulator faults where one writes.
    pub fn input<T: DeviceCopy>(self, name: &str, data: &[T]) -> Result<Memory<'d, T>> {
        Ok(match self {
            Self::Device(device) => Memory::Device(DeviceBuffer::new(device, data)?),
            Self::Simulator(_) => Memory::Simulated(simulate::Buffer::input(name, data)),
        })
    }

    /// Memory that kernels read and write.
    pub fn state<T: DeviceCopy>(self, name: &str, data: &[T]) -> Result<Memory<'d, T>> {
        Ok(match self {
            Self::Device(device) => Memory::Device(DeviceBuffer::new(device, data)?),
            Self::Simulator(_) => Memory::Simulated(simulate::Buffer::new(name, data)),
        })
    }

    /// Memory for an output, poisoned.
    pub fn output<T: DeviceCopy>(self, name: &str, len: usize) -> Result<Memory<'d, T>> {
        Ok(match self {
            Self::Device(device) => Memory::Device(DeviceBuffer::poisoned(device, len)?),
            Self::Simulator(_) => Memory::Simulated(simulate::Buffer::poisoned(name, len)),
        })
    }

    /// Runs a kernel to its end.
    ///
    /// # Safety
    /// The arguments keep the kernel's contract.
    pub unsafe fn launch<A: Arguments>(self, kernel: &Kernel<A>, shape: LaunchShape, arguments: A) -> Result<()> {
        match self {
            Self::Device(device) => {
                // SAFETY: the caller's contract; the buffers outlive the kernel, which is waited for.
                unsafe { device.launch(kernel, shape, arguments)? };
                device.synchronize()
            }
            Self::Simulator(seed) => Simulator::default()
                .seed(seed)
                // Blocks of verify attention wait for each other, as do those of a cooperative launch.
                .resident_blocks(shape.grid.volume().min(RESIDENT) as u32)
                .shared_bytes(SHARED_BYTES)
                .launch(kernel, shape, arguments)
                .map(|_| ())
                .map_err(|fault| error(format!("simulated kernel {}: {fault}", kernel.name))),
        }
    }
}

impl<T: DeviceCopy> Memory<'_, T> {
    /// Address for reading.
    pub fn ptr(&self) -> Global<T> {
        match self {
            Self::Device(buffer) => buffer.ptr(),
            Self::Simulated(buffer) => buffer.ptr(),
        }
    }

    /// Address for writing.
    pub fn ptr_mut(&self) -> GlobalMut<T> {
        match self {
            Self::Device(buffer) => buffer.ptr_mut(),
            Self::Simulated(buffer) => buffer.ptr_mut(),
        }
    }

    /// What it holds.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        match self {
            Self::Device(buffer) => buffer.to_vec(),
            Self::Simulated(buffer) => Ok(buffer.to_vec()),
        }
    }
}
