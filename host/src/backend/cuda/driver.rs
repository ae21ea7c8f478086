//! The driver's functions, found at run time: one program starts with a driver and without. Nothing is called here.
//!
//! `cust` expects every `cu*` symbol at link time. This file defines them all as jumps through a table, which [`load`]
//! fills from `libcuda.so.1`. A call before that, or without a driver, returns `CUDA_ERROR_NO_DEVICE`; a call of a function
//! that the driver is too old to have returns `CUDA_ERROR_NOT_SUPPORTED`.

use std::ffi::{CStr, c_char, c_void};
use std::fmt;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::symbols::with_symbols;

/// The driver's library, as the dynamic linker finds it.
pub const LIBRARY: &str = "libcuda.so.1";

const NO_DEVICE: u32 = 100;
const NOT_SUPPORTED: u32 = 801;

extern "C" fn no_device() -> u32 {
    NO_DEVICE
}

extern "C" fn not_supported() -> u32 {
    NOT_SUPPORTED
}

/// `cuGetErrorString` and `cuGetErrorName` without a driver: `cust` panics where they fail.
///
/// # Safety
/// `text` points to a place for a pointer.
unsafe extern "C" fn unnamed_error(_: u32, text: *mut *const c_char) -> u32 {
    // SAFETY: the caller's contract.
    unsafe { text.write(c"the NVIDIA driver is not loaded".as_ptr()) };
    0
}

macro_rules! define_table {
    ($($name:ident)*) => {
        /// Places in the table.
        #[allow(non_camel_case_types, clippy::enum_variant_names)]
        #[derive(Clone, Copy)]
        enum Slot { $($name),* }

        /// The names of the places, in order.
        const NAMES: &[&str] = &[$(stringify!($name)),*];

        static TABLE: [AtomicPtr<c_void>; NAMES.len()] = [$(AtomicPtr::new(start(Slot::$name))),*];

        /// The symbols that the linker is looking for.
        mod entry {
            $(
                /// Jumps to the function of this name; arguments and result are none of its business.
                #[unsafe(naked)]
                #[unsafe(no_mangle)]
                #[allow(non_snake_case)]
                extern "C" fn $name() {
                    #[cfg(target_arch = "x86_64")]
                    core::arch::naked_asm!(
                        "jmp qword ptr [rip + {table} + {offset}]",
                        table = sym super::TABLE,
                        offset = const super::Slot::$name as usize * size_of::<usize>(),
                    );
                    #[cfg(target_arch = "aarch64")]
                    core::arch::naked_asm!(
                        "adrp x16, {table} + {offset}",
                        "add x16, x16, :lo12:{table} + {offset}",
                        "ldr x16, [x16]",
                        "br x16",
                        table = sym super::TABLE,
                        offset = const super::Slot::$name as usize * size_of::<usize>(),
                    );
                }
            )*
        }
    };
}
with_symbols!(define_table);

/// What a place holds before a driver is loaded.
const fn start(slot: Slot) -> *mut c_void {
    match slot {
        Slot::cuGetErrorString | Slot::cuGetErrorName => unnamed_error as *mut c_void,
        _ => no_device as *mut c_void,
    }
}

/// Fills the table from the driver's library, once a process; later calls repeat the first answer.
///
/// # Errors
/// What the dynamic linker says when there is no library.
pub fn load() -> Result<(), &'static str> {
    static LOADED: OnceLock<Result<(), String>> = OnceLock::new();
    LOADED.get_or_init(fill).as_ref().map_err(String::as_str).copied()
}

fn fill() -> Result<(), String> {
    // SAFETY: the driver's initialisers are those that every CUDA program runs.
    let library = unsafe { libloading::Library::new(LIBRARY) }.map_err(|error| {
        // The error's own text says only which call failed.
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        cause.unwrap_or_else(|| format!("{LIBRARY}: {error}"))
    })?;
    for (name, place) in NAMES.iter().zip(&TABLE) {
        // SAFETY: an address only; who calls it knows its signature.
        let found = unsafe { library.get::<*mut c_void>(*name) };
        let address = found.map_or(not_supported as *mut c_void, |symbol| *symbol);
        place.store(address, Ordering::Release);
    }
    // The table points into it from now on.
    std::mem::forget(library);
    Ok(())
}

/// A status of the driver other than success. Its text says what, and the constant's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u32);

impl Status {
    /// Too little device memory.
    pub const OUT_OF_MEMORY: Self = Self(2);
    /// None of the code is for this GPU.
    pub const NO_BINARY: Self = Self(209);
    /// The PTX does not compile.
    pub const INVALID_PTX: Self = Self(218);
    /// The driver's PTX compiler is missing.
    pub const NO_COMPILER: Self = Self(221);
    /// The PTX is newer than the driver.
    pub const UNSUPPORTED_PTX: Self = Self(222);
    /// PTX compilation was switched off.
    pub const COMPILER_DISABLED: Self = Self(223);

    /// The result of a call of `cust_raw`.
    ///
    /// # Errors
    /// Anything but `CUDA_SUCCESS`.
    pub fn check(result: cust::sys::CUresult) -> Result<(), Self> {
        Self::check_code(result as u32)
    }

    /// The result of a call that this program declares itself.
    ///
    /// # Errors
    /// Anything but `CUDA_SUCCESS`.
    pub fn check_code(result: u32) -> Result<(), Self> {
        match result {
            0 => Ok(()),
            code => Err(Self(code)),
        }
    }

    fn text(self, slot: Slot) -> Option<String> {
        let mut text: *const c_char = ptr::null();
        let address = TABLE[slot as usize].load(Ordering::Acquire);
        // SAFETY: both slots hold, at any time, a function of this signature: the driver's or the stand-in.
        let function: unsafe extern "C" fn(u32, *mut *const c_char) -> u32 = unsafe { std::mem::transmute(address) };
        // SAFETY: `text` is a place for a pointer; the driver's strings are static.
        unsafe {
            let known = function(self.0, &mut text) == 0 && !text.is_null();
            known.then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        }
    }
}

impl From<cust::error::CudaError> for Status {
    fn from(error: cust::error::CudaError) -> Self {
        Self(error as u32)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.text(Slot::cuGetErrorString), self.text(Slot::cuGetErrorName)) {
            (Some(text), Some(name)) => write!(f, "{text} ({name})"),
            _ => write!(f, "CUDA error {}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every entry point that `cust_raw` declares, from its source in Cargo's registry.
    fn declared() -> Option<Vec<String>> {
        // Without a platform it wants the packages of all, which need not be there.
        let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let metadata = std::process::Command::new(env!("CARGO"))
            .args(["metadata", "--format-version", "1", "--locked", "--offline", "--filter-platform", &platform])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .ok()?;
        let metadata: serde_json::Value = serde_json::from_slice(&metadata.stdout).ok()?;
        let package = metadata["packages"].as_array()?.iter().find(|package| package["name"] == "cust_raw")?;
        let manifest = std::path::Path::new(package["manifest_path"].as_str()?);
        let source = std::fs::read_to_string(manifest.with_file_name("src/cuda.rs")).ok()?;
        let names = source.lines().filter_map(|line| line.trim().strip_prefix("pub fn ")?.split('(').next());
        Some(names.map(str::to_owned).collect())
    }

    #[test]
    fn the_table_has_every_function_that_cust_declares() {
        let declared = declared().unwrap();
        assert!(declared.len() > 300, "{}", declared.len());
        let (known, newer) = NAMES.split_at(declared.len());
        assert_eq!(
            (known, newer),
            (&declared.iter().map(String::as_str).collect::<Vec<_>>()[..], &["cuLaunchKernelEx"][..])
        );
    }

    #[test]
    fn a_driver_is_loaded_or_its_absence_explained() {
        if let Err(reason) = load() {
            assert!(reason.contains(LIBRARY), "{reason}");
            assert_eq!(cust::init(cust::CudaFlags::empty()), Err(cust::error::CudaError::NoDevice));
            assert_eq!(cust::error::CudaError::NoDevice.to_string(), "\"the NVIDIA driver is not loaded\"");
        }
    }

    #[test]
    fn a_status_always_has_words() {
        for code in [1, 100, 222, 801, 12_345] {
            assert!(!Status(code).to_string().is_empty());
        }
    }
}
