//! Where kernels run: one set of calls for a device, for the simulator, and for nowhere at all, where memory is only counted.

use coppice_gpu::attention::Limits;
use cuda_std::launch::{Arguments, Kernel, LaunchShape};
use cuda_std::simulate::{self, Simulator};
use cuda_std::{DeviceCopy, Global, GlobalMut};

use super::{Device, DeviceBuffer, attention, error};
use crate::error::Result;

/// Most blocks that the simulator runs at a time.
const RESIDENT: u64 = 16;
/// Shared memory of a block under the simulator, bytes: what Hopper has, as cases are the same there and on a device.
const SHARED_BYTES: u32 = 232_448;

/// What is planned for under the simulator: two multiprocessors, so that work is split.
const SIMULATED: Limits = Limits { multiprocessors: 2, shared_bytes: 101_376 };

/// A device, the simulator with the seed of its schedule, or a count of bytes.
#[derive(Debug, Clone, Copy)]
pub enum Place<'d> {
    /// A GPU.
    Device(&'d Device),
    /// The simulator.
    Simulator(u64),
    /// Nowhere: memory is counted, kernels do not run. What a device of these limits would need.
    Tally(Limits),
}

/// Memory of a place.
#[derive(Debug)]
pub enum Memory<'d, T> {
    /// Of a GPU.
    Device(DeviceBuffer<'d, T>),
    /// Of the simulator.
    Simulated(simulate::Buffer<T>),
    /// So many elements, nowhere.
    Counted(usize),
}

impl<'d> Place<'d> {
    /// Memory that kernels only read; the simulator faults where one writes.
    ///
    /// # Errors
    /// The device has not that much memory free.
    pub fn input<T: DeviceCopy>(self, name: &str, data: &[T]) -> Result<Memory<'d, T>> {
        Ok(match self {
            Self::Device(device) => Memory::Device(DeviceBuffer::new(device, data)?),
            Self::Simulator(_) => Memory::Simulated(simulate::Buffer::input(name, data)),
            Self::Tally(_) => Memory::Counted(data.len()),
        })
    }

    /// As [`input`](Self::input), of `len` elements that are not made where nothing holds them.
    ///
    /// # Errors
    /// As there.
    pub fn input_of<T: DeviceCopy>(
        self,
        name: &str,
        len: usize,
        data: impl FnOnce() -> Vec<T>,
    ) -> Result<Memory<'d, T>> {
        match self {
            Self::Tally(_) => Ok(Memory::Counted(len)),
            _ => {
                let data = data();
                debug_assert_eq!(data.len(), len, "{name}");
                self.input(name, &data)
            }
        }
    }

    /// Memory that kernels read and write.
    ///
    /// # Errors
    /// The device has not that much memory free.
    pub fn state<T: DeviceCopy>(self, name: &str, data: &[T]) -> Result<Memory<'d, T>> {
        Ok(match self {
            Self::Device(device) => Memory::Device(DeviceBuffer::new(device, data)?),
            Self::Simulator(_) => Memory::Simulated(simulate::Buffer::new(name, data)),
            Self::Tally(_) => Memory::Counted(data.len()),
        })
    }

    /// Memory for an output, poisoned.
    ///
    /// # Errors
    /// The device has not that much memory free.
    pub fn output<T: DeviceCopy>(self, name: &str, len: usize) -> Result<Memory<'d, T>> {
        Ok(match self {
            Self::Device(device) => Memory::Device(DeviceBuffer::poisoned(device, len)?),
            Self::Simulator(_) => Memory::Simulated(simulate::Buffer::poisoned(name, len)),
            Self::Tally(_) => Memory::Counted(len),
        })
    }

    /// Memory whose bytes are all zero.
    ///
    /// # Errors
    /// The device has not that much memory free.
    pub fn zeroed<T: DeviceCopy>(self, name: &str, len: usize) -> Result<Memory<'d, T>> {
        Ok(match self {
            Self::Device(device) => Memory::Device(DeviceBuffer::filled(device, len, 0)?),
            Self::Simulator(_) => Memory::Simulated(simulate::Buffer::zeroed(name, len)),
            Self::Tally(_) => Memory::Counted(len),
        })
    }

    /// Runs a kernel to its end.
    ///
    /// # Safety
    /// The arguments keep the kernel's contract.
    ///
    /// # Errors
    /// The kernel failed, or nothing runs here.
    pub unsafe fn launch<A: Arguments>(self, kernel: &Kernel<A>, shape: LaunchShape, arguments: A) -> Result<()> {
        // SAFETY: the caller's contract; the buffers outlive the kernel, which is waited for.
        unsafe { self.queue(kernel, shape, arguments, false)? };
        self.synchronize()
    }

    /// Queues a kernel behind those before it; under the simulator it has ended on return. `early`: on a device it may start
    /// before the one before it has ended.
    ///
    /// # Safety
    /// The arguments keep the kernel's contract, and their buffers live until it is done. `early`: the kernel executes
    /// `grid::dependency_wait` before it touches what an earlier one writes or reads.
    ///
    /// # Errors
    /// The driver does not take the launch, or the simulated kernel failed.
    pub unsafe fn queue<A: Arguments>(
        self,
        kernel: &Kernel<A>,
        shape: LaunchShape,
        arguments: A,
        early: bool,
    ) -> Result<()> {
        match self {
            // SAFETY: the caller's contract.
            Self::Device(device) if early => unsafe { device.launch_early(kernel, shape, arguments) },
            // SAFETY: the caller's contract.
            Self::Device(device) => unsafe { device.launch(kernel, shape, arguments) },
            Self::Simulator(seed) => Simulator::default()
                .seed(seed)
                // Blocks that wait for each other must be there together, as they are on a device.
                .resident_blocks(shape.grid.volume().min(RESIDENT) as u32)
                .shared_bytes(SHARED_BYTES)
                .launch(kernel, shape, arguments)
                .map(|_| ())
                .map_err(|fault| error(format!("simulated kernel {}: {fault}", kernel.name))),
            Self::Tally(_) => Err(error(format!("kernel {} was to run where memory is only counted", kernel.name))),
        }
    }

    /// What launches are planned for.
    ///
    /// # Errors
    /// The driver does not say.
    pub fn limits(self) -> Result<Limits> {
        match self {
            Self::Device(device) => attention::limits(device),
            Self::Simulator(_) => Ok(SIMULATED),
            Self::Tally(limits) => Ok(limits),
        }
    }

    /// Waits until all queued work is done.
    ///
    /// # Errors
    /// A kernel failed.
    pub fn synchronize(self) -> Result<()> {
        match self {
            Self::Device(device) => device.synchronize(),
            Self::Simulator(_) | Self::Tally(_) => Ok(()),
        }
    }
}

impl<T: DeviceCopy> Memory<'_, T> {
    /// Address for reading.
    pub fn ptr(&self) -> Global<T> {
        match self {
            Self::Device(buffer) => buffer.ptr(),
            Self::Simulated(buffer) => buffer.ptr(),
            Self::Counted(_) => Global::from_raw(std::ptr::null()),
        }
    }

    /// Address for writing.
    pub fn ptr_mut(&self) -> GlobalMut<T> {
        match self {
            Self::Device(buffer) => buffer.ptr_mut(),
            Self::Simulated(buffer) => buffer.ptr_mut(),
            Self::Counted(_) => GlobalMut::from_raw(std::ptr::null_mut()),
        }
    }

    /// Elements.
    pub fn len(&self) -> usize {
        match self {
            Self::Device(buffer) => buffer.len(),
            Self::Simulated(buffer) => buffer.len(),
            Self::Counted(len) => *len,
        }
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes.
    pub fn bytes(&self) -> usize {
        self.len() * size_of::<T>()
    }

    /// Replaces its first elements, after all queued work and before any that is queued later.
    ///
    /// # Errors
    /// It holds fewer, or queued work failed.
    pub fn write(&mut self, data: &[T]) -> Result<()> {
        if data.len() > self.len() {
            return Err(error(format!("{} elements do not fit memory of {}", data.len(), self.len())));
        }
        match self {
            Self::Device(buffer) => buffer.write(data),
            Self::Simulated(buffer) => {
                buffer.write(data);
                Ok(())
            }
            Self::Counted(_) => Ok(()),
        }
    }

    /// What it holds.
    ///
    /// # Errors
    /// Queued work failed, or nothing is held.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        match self {
            Self::Device(buffer) => buffer.to_vec(),
            Self::Simulated(buffer) => Ok(buffer.to_vec()),
            Self::Counted(_) => Err(error("memory that was only counted holds nothing".to_owned())),
        }
    }
}
