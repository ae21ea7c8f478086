//! Launches: typed arguments from the kernel's own description, and errors that name the kernel.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr;

use cuda_std::launch::{Arguments, Kernel, LaunchShape};
use cust::sys::{self, CUfunction, CUfunction_attribute, CUstream};

use super::device::Device;
use super::driver::Status;
use super::error;
use crate::error::Result;

/// Dynamic shared memory that a kernel may use without being told, bytes.
const DEFAULT_SHARED: u32 = 48 << 10;
/// Launches remembered between two synchronisations.
const REMEMBERED: usize = 64;

/// Functions found so far, and what was launched since the last synchronisation.
#[derive(Debug, Default)]
pub struct Launches {
    functions: HashMap<&'static str, Function>,
    pending: Vec<&'static str>,
}

#[derive(Debug, Clone, Copy)]
struct Function {
    handle: CUfunction,
    /// Dynamic shared memory it may use.
    shared_bytes: u32,
}

impl Launches {
    fn remember(&mut self, name: &'static str) {
        if self.pending.last() != Some(&name) {
            if self.pending.len() == REMEMBERED {
                self.pending.remove(0);
            }
            self.pending.push(name);
        }
    }

    /// The names of the kernels launched since the last call, oldest first.
    pub fn take_pending(&mut self) -> Vec<&'static str> {
        std::mem::take(&mut self.pending)
    }
}

/// `CUlaunchConfig`, which `cust_raw` does not know.
#[repr(C)]
struct LaunchConfig {
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    stream: CUstream,
    attributes: *const LaunchAttribute,
    attribute_count: u32,
}

/// `CUlaunchAttribute`: a number and 64 bytes of value.
#[repr(C)]
struct LaunchAttribute {
    id: u32,
    padding: u32,
    value: [u32; 16],
}

/// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`, on.
const EARLY: LaunchAttribute =
    LaunchAttribute { id: 6, padding: 0, value: [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0] };

unsafe extern "C" {
    fn cuLaunchKernelEx(
        config: *const LaunchConfig,
        function: CUfunction,
        arguments: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> u32;
}

impl Device {
    /// Queues a kernel. Failures of the kernel itself show at the next synchronisation.
    ///
    /// # Safety
    /// The arguments keep the kernel's contract: buffers of this device, as large as it says, alive until it is done.
    ///
    /// # Errors
    /// The driver does not take the launch.
    pub unsafe fn launch<A: Arguments>(&self, kernel: &Kernel<A>, shape: LaunchShape, arguments: A) -> Result<()> {
        // SAFETY: the caller's contract.
        unsafe { self.launch_with(kernel, shape, arguments, &[]) }
    }

    /// As [`launch`](Self::launch), but the kernel may start before the one before it has ended (a programmatic edge): it
    /// waits for that one itself.
    ///
    /// # Safety
    /// As there; and the kernel executes `grid::dependency_wait` before it touches what an earlier kernel writes or reads.
    ///
    /// # Errors
    /// As there.
    pub unsafe fn launch_early<A: Arguments>(
        &self,
        kernel: &Kernel<A>,
        shape: LaunchShape,
        arguments: A,
    ) -> Result<()> {
        // SAFETY: the caller's contract.
        unsafe { self.launch_with(kernel, shape, arguments, &[EARLY]) }
    }

    unsafe fn launch_with<A: Arguments>(
        &self,
        kernel: &Kernel<A>,
        shape: LaunchShape,
        arguments: A,
        attributes: &[LaunchAttribute],
    ) -> Result<()> {
        let function = self.function(kernel.name, shape.shared_bytes)?;
        let ([gx, gy, gz], [bx, by, bz]) = (shape.grid.0, shape.block.0);
        let config = LaunchConfig {
            grid: shape.grid.0,
            block: shape.block.0,
            shared_bytes: shape.shared_bytes,
            stream: self.stream.as_inner(),
            attributes: attributes.as_ptr(),
            attribute_count: attributes.len() as u32,
        };
        let mut pointers = arguments.pointers();
        // SAFETY: the function is loaded; configuration, attributes and `arguments` live through the call, which copies
        // them; the rest is the caller's contract.
        let result = unsafe { cuLaunchKernelEx(&config, function, pointers.as_mut_ptr(), ptr::null_mut()) };
        let mut launches = self.launches.borrow_mut();
        match Status::check_code(result) {
            Ok(()) => {
                launches.remember(kernel.name);
                Ok(())
            }
            // The driver may report an earlier kernel's failure here.
            Err(status) if launches.pending.is_empty() => Err(error(format!(
                "kernel {} with grid {gx} x {gy} x {gz}, block {bx} x {by} x {bz} and {} B of shared memory was not \
                 launched: {status}",
                kernel.name, shape.shared_bytes
            ))),
            Err(status) => {
                launches.remember(kernel.name);
                Err(error(failure(&launches.take_pending(), status)))
            }
        }
    }

    /// The function of a kernel, allowed to use `shared_bytes` of dynamic shared memory.
    fn function(&self, name: &'static str, shared_bytes: u32) -> Result<CUfunction> {
        let mut launches = self.launches.borrow_mut();
        let mut function = match launches.functions.get(name) {
            Some(function) => *function,
            None => Function { handle: self.module.function(name)?, shared_bytes: DEFAULT_SHARED },
        };
        if shared_bytes > function.shared_bytes {
            let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function belongs to the loaded module.
            let result = unsafe { sys::cuFuncSetAttribute(function.handle, attribute, shared_bytes.cast_signed()) };
            Status::check(result).map_err(|status| {
                error(format!("kernel {name} cannot have {shared_bytes} B of shared memory a block: {status}"))
            })?;
            function.shared_bytes = shared_bytes;
        }
        launches.functions.insert(name, function);
        Ok(function.handle)
    }
}

/// An asynchronous failure, with the kernels it may come from.
pub fn failure(names: &[&str], status: Status) -> String {
    match names {
        [] => format!("the GPU failed: {status}"),
        [name] => format!("kernel {name} failed: {status}"),
        _ => format!(
            "one of the kernels {} failed: {status}; CUDA_LAUNCH_BLOCKING=1 in the environment tells which",
            names.join(", ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launch_structures_have_the_drivers_layout() {
        assert_eq!((size_of::<LaunchConfig>(), size_of::<LaunchAttribute>()), (56, 72));
        assert_eq!(std::mem::offset_of!(LaunchConfig, stream), 32);
        assert_eq!(std::mem::offset_of!(LaunchConfig, attribute_count), 48);
        assert_eq!(std::mem::offset_of!(LaunchAttribute, value), 8);
    }

    #[test]
    fn an_asynchronous_failure_names_the_kernel() {
        let mut launches = Launches::default();
        launches.remember("rms_norm");
        launches.remember("rms_norm");
        let illegal_address = Status(700);
        assert!(failure(&launches.take_pending(), illegal_address).starts_with("kernel rms_norm failed: "));
        for name in ["embed", "rms_norm"] {
            launches.remember(name);
        }
        let text = failure(&launches.take_pending(), illegal_address);
        assert!(text.starts_with("one of the kernels embed, rms_norm failed: "), "{text}");
        assert!(launches.take_pending().is_empty());
        for _ in 0..REMEMBERED {
            launches.remember("a");
            launches.remember("b");
        }
        assert_eq!(launches.take_pending().len(), REMEMBERED);
    }
}
