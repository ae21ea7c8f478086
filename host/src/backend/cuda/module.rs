//! Kernels in the driver: PTX compiled for the GPU, functions by name, what each needs. Launching lives in `launch`.

use std::ffi::{CString, c_void};
use std::ptr;

use cust::sys::{self, CUfunction, CUfunction_attribute, CUjit_option, CUmodule};

use super::driver::Status;
use super::error;
use super::info::DeviceInfo;
use super::ptx::{self, Ptx};
use crate::error::{Error, Result};

/// Bytes kept of what the driver's compiler says.
const LOG_BYTES: usize = 16 << 10;

/// What a kernel needs on this GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Registers a thread.
    pub registers: u32,
    /// Static shared memory, bytes.
    pub shared_bytes: u32,
    /// Local memory a thread, bytes: spills and arrays.
    pub local_bytes: u32,
    /// Most threads of a block.
    pub max_threads: u32,
}

/// A loaded module. It must go before its context does.
#[derive(Debug)]
pub struct Module {
    handle: CUmodule,
}

impl Module {
    /// Compiles `ptx` for the current context's device.
    ///
    /// # Errors
    /// The driver does not take it; the error says versions, architecture and what to do (C1).
    pub fn load(ptx: &Ptx, device: &DeviceInfo) -> Result<Self> {
        let text = CString::new(ptx.text).map_err(|_| error("the embedded PTX holds a zero byte".to_owned()))?;
        let mut log = vec![0u8; LOG_BYTES];
        let mut options = [CUjit_option::CU_JIT_ERROR_LOG_BUFFER, CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        // Numbers travel in the place of pointers.
        let mut values = [log.as_mut_ptr().cast::<c_void>(), ptr::without_provenance_mut(LOG_BYTES)];
        let mut handle = ptr::null_mut();
        // SAFETY: text, log and the two options with their values live through the call.
        let result = unsafe {
            sys::cuModuleLoadDataEx(
                &mut handle,
                text.as_ptr().cast(),
                options.len() as u32,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        let log = String::from_utf8_lossy(&log);
        match Status::check(result) {
            Ok(()) => Ok(Self { handle }),
            Err(status) => Err(load_error(status, ptx, device, log.trim_end_matches('\0').trim())),
        }
    }

    /// The function of this name.
    ///
    /// # Errors
    /// There is none.
    pub fn function(&self, name: &str) -> Result<CUfunction> {
        let c_name = CString::new(name).map_err(|_| error(format!("kernel name {name:?} holds a zero byte")))?;
        let mut function = ptr::null_mut();
        // SAFETY: the module is loaded; the name lives through the call.
        let result = unsafe { sys::cuModuleGetFunction(&mut function, self.handle, c_name.as_ptr()) };
        Status::check(result).map_err(|status| error(format!("kernel {name} is not in the embedded PTX: {status}")))?;
        Ok(function)
    }

    /// What a kernel needs.
    ///
    /// # Errors
    /// There is no kernel of this name.
    pub fn usage(&self, name: &str) -> Result<Usage> {
        let function = self.function(name)?;
        let attribute = |attribute| {
            let mut value = 0;
            // SAFETY: the function belongs to the module, which is loaded.
            Status::check(unsafe { sys::cuFuncGetAttribute(&mut value, attribute, function) })
                .map_err(|status| error(format!("kernel {name}: cannot read its attributes: {status}")))?;
            Ok::<_, Error>(value.unsigned_abs())
        };
        Ok(Usage {
            registers: attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            shared_bytes: attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
            local_bytes: attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
            max_threads: attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
        })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: loaded, and not used again. A failure leaves nothing to do.
        let _ = unsafe { sys::cuModuleUnload(self.handle) };
    }
}

/// Names what did not fit together and what to do about it.
fn load_error(status: Status, ptx: &Ptx, device: &DeviceInfo, log: &str) -> Error {
    let version = ptx.version().map_or_else(|| "of unknown version".to_owned(), |version| version.to_string());
    let needed = ptx.version().and_then(ptx::needed_cuda);
    let too_old = needed.is_some_and(|needed| device.cuda < needed) || status == Status::UNSUPPORTED_PTX;
    let fix = if too_old {
        let needed = needed.map_or_else(|| "a newer CUDA".to_owned(), |needed| format!("CUDA {needed} or later"));
        format!("this PTX needs a driver for {needed}: update the NVIDIA driver")
    } else if status == Status::NO_BINARY {
        let targets = ptx::targets();
        format!("the program has kernels for {targets}: use such a GPU, or add its architecture and rebuild")
    } else if status == Status::NO_COMPILER {
        "install the driver's PTX compiler (libnvidia-ptxjitcompiler.so.1); a container needs \
         NVIDIA_DRIVER_CAPABILITIES=compute,utility"
            .to_owned()
    } else if status == Status::COMPILER_DISABLED {
        "unset CUDA_DISABLE_PTX_JIT".to_owned()
    } else {
        "update the NVIDIA driver; if that does not help, report this message".to_owned()
    };
    let log = if log.is_empty() { String::new() } else { format!("; its compiler says: {log}") };
    error(format!(
        "the driver does not take the kernels, PTX {version} for {}, on {} (compute capability {}) with driver {} \
         (CUDA {}): {status}{log}; {fix}",
        ptx.target(),
        device.name,
        device.capability,
        device.driver.as_deref().unwrap_or("of unknown version"),
        device.cuda,
    ))
}

#[cfg(test)]
mod tests {
    use super::super::ptx::{Capability, EMBEDDED, Version};
    use super::*;

    fn device(cuda: (u32, u32), capability: (u32, u32)) -> DeviceInfo {
        DeviceInfo {
            index: 0,
            name: "NVIDIA Test".to_owned(),
            capability: Capability { major: capability.0, minor: capability.1 },
            memory_bytes: 1 << 30,
            multiprocessors: 1,
            l2_bytes: 1 << 20,
            clock_khz: 1,
            driver: Some("535.104.05".to_owned()),
            cuda: Version { major: cuda.0, minor: cuda.1 },
        }
    }

    #[test]
    fn c1_an_error_of_loading_names_versions_architecture_and_fix() {
        let cases = [
            (Status::UNSUPPORTED_PTX, (12, 2), "needs a driver for CUDA 12.8 or later: update the NVIDIA driver"),
            // Old drivers say no more than this.
            (Status::INVALID_PTX, (12, 2), "needs a driver for CUDA 12.8 or later: update the NVIDIA driver"),
            (Status::INVALID_PTX, (13, 0), "report this message"),
            (Status::NO_BINARY, (13, 0), "the program has kernels for sm_90, sm_120: use such a GPU"),
            (Status::NO_COMPILER, (13, 0), "libnvidia-ptxjitcompiler.so.1"),
            (Status::COMPILER_DISABLED, (13, 0), "unset CUDA_DISABLE_PTX_JIT"),
        ];
        for (status, cuda, fix) in cases {
            let text = load_error(status, &EMBEDDED[0], &device(cuda, (9, 0)), "ptxas fatal: line 3").to_string();
            let cuda = format!("with driver 535.104.05 (CUDA {}.{})", cuda.0, cuda.1);
            for part in ["PTX 8.7 for sm_90", "NVIDIA Test (compute capability 9.0)", &cuda, "ptxas fatal: line 3", fix]
            {
                assert!(text.contains(part), "{part} is not in: {text}");
            }
        }
    }
}
