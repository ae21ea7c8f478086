//! The driver's functions, found at run time: one program starts with a driver and without. Nothing is called here.
//!
//! `cust` expects every `cu*` symbol at link time. This file defines them all as jumps through a table, which [`load`]
//! fills from `libcuda.so.1`. A call before that, or without a driver, returns `CUDA_ERROR_NO_DEVICE`; a call of a function
//! that the driver is too old to have returns `CUDA_ERROR_NOT_SUPPORTED`, and a status newer than `cust_raw` becomes
//! `CUDA_ERROR_UNKNOWN`: its `CUresult` is an enum, which must not hold a number it has no name for.

use std::ffi::{CStr, c_char, c_void};
use std::fmt;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::stub::forward;
use super::symbols::with_symbols;

/// The driver's library, as the dynamic linker finds it.
pub const LIBRARY: &str = "libcuda.so.1";

const NO_DEVICE: u32 = 100;
const NOT_SUPPORTED: u32 = 801;
const UNKNOWN: u32 = 999;

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
                /// Calls the function of this name; arguments are none of its business, the status is made a known one.
                #[unsafe(naked)]
                #[unsafe(no_mangle)]
                #[allow(non_snake_case)]
                extern "C" fn $name() {
                    super::forward!(
                        super::TABLE,
                        super::Slot::$name as usize * size_of::<usize>(),
                        super::is_filtered(stringify!($name)),
                        super::known
                    );
                }
            )*
        }
    };
}
with_symbols!(define_table);

/// Functions whose status goes through unseen. The first six take arguments on the stack, which a call in between would move;
/// nothing here calls them by `cust_raw`'s signature. The last is declared with a number for its status.
const UNFILTERED: [&str; 7] = [
    "cuLinkAddData_v2",
    "cuLaunchKernel",
    "cuLaunchCooperativeKernel",
    "cuOccupancyMaxPotentialBlockSizeWithFlags",
    "cuIpcOpenEventHandle",
    "cuIpcOpenMemHandle_v2",
    "cuLaunchKernelEx",
];

const fn is_filtered(name: &str) -> bool {
    let mut i = 0;
    while i < UNFILTERED.len() {
        if same(name.as_bytes(), UNFILTERED[i].as_bytes()) {
            return false;
        }
        i += 1;
    }
    true
}

const fn same(a: &[u8], b: &[u8]) -> bool {
    let mut i = 0;
    while i < a.len() && i < b.len() && a[i] == b[i] {
        i += 1;
    }
    i == a.len() && i == b.len()
}

/// First and last of each run of statuses that `cust_raw` names.
const KNOWN: [(u32, u32); 14] = [
    (0, 8),
    (34, 34),
    (100, 102),
    (200, 202),
    (205, 224),
    (300, 304),
    (400, 401),
    (500, 500),
    (600, 600),
    (700, 705),
    (708, 720),
    (800, 809),
    (900, 911),
    (999, 999),
];

/// The status, or `CUDA_ERROR_UNKNOWN` for one that `cust_raw` has no name for.
extern "C" fn known(status: u32) -> u32 {
    if KNOWN.iter().any(|(first, last)| (*first..=*last).contains(&status)) { status } else { UNKNOWN }
}

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

    /// The source of `cust_raw`, from where Cargo keeps it. Only this platform's packages are asked for: others need not
    /// have been downloaded.
    fn cust_raw() -> String {
        let metadata = std::process::Command::new(env!("CARGO"))
            .args([
                "metadata",
                "--format-version",
                "1",
                "--locked",
                "--offline",
                "--filter-platform",
                env!("COPPICE_TARGET"),
            ])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .unwrap();
        assert!(metadata.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&metadata.stderr));
        let metadata: serde_json::Value = serde_json::from_slice(&metadata.stdout).unwrap();
        let package = metadata["packages"].as_array().unwrap().iter().find(|package| package["name"] == "cust_raw");
        let manifest = package.unwrap()["manifest_path"].as_str().unwrap();
        let source = std::path::Path::new(manifest).with_file_name("src/cuda.rs");
        let text = std::fs::read_to_string(&source).unwrap_or_else(|e| panic!("{}: {e}", source.display()));
        // The declarations are broken where a line was full.
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Every entry point that `cust_raw` declares, with its arguments; `source` with single spaces.
    fn declared(source: &str) -> Vec<(&str, &str)> {
        let functions = source.split(" pub fn ").skip(1).filter_map(|text| text.split_once('('));
        let declarations = functions.filter_map(|(name, rest)| Some((name, rest.split_once(") -> ")?.0)));
        declarations.filter(|(name, _)| name.starts_with("cu")).collect()
    }

    #[test]
    fn the_table_has_every_function_that_cust_declares() {
        let source = cust_raw();
        let declared: Vec<&str> = declared(&source).into_iter().map(|(name, _)| name).collect();
        assert!(declared.len() > 300, "{}", declared.len());
        assert_eq!(NAMES.split_at(declared.len()), (&declared[..], &["cuLaunchKernelEx"][..]));
    }

    #[test]
    fn only_functions_with_arguments_on_the_stack_keep_their_status() {
        let source = cust_raw();
        for (name, arguments) in declared(&source) {
            let by_value = [": CUipcEventHandle", ": CUipcMemHandle"].iter().any(|of| arguments.contains(of));
            let stacked = arguments.matches(": ").count() > 6 || by_value;
            assert_eq!(is_filtered(name), !stacked, "{name}({arguments})");
        }
        assert!(!is_filtered("cuLaunchKernelEx"));
    }

    #[test]
    fn the_known_statuses_are_those_that_cust_names() {
        let source = cust_raw();
        let (_, rest) = source.split_once("pub enum cudaError_enum {").unwrap();
        let (body, _) = rest.split_once('}').unwrap();
        let numbers = body.split(',').filter_map(|line| line.split_once(" = ")?.1.parse().ok());
        let named: Vec<u32> = numbers.collect();
        assert!(named.len() > 80, "{}", named.len());
        let known: Vec<u32> = (0..2000).filter(|status| known(*status) == *status).collect();
        assert_eq!(known, named);
    }

    #[test]
    fn a_status_newer_than_cust_becomes_unknown_at_the_call() {
        extern "C" fn newer(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64) -> u32 {
            // The arguments arrive as they were given.
            if [a, b, c, d, e, f] == [1, 2, 3, 4, 5, 6] { 912 } else { 1 }
        }
        unsafe extern "C" {
            // Declared with numbers in place of pointers: nothing here looks at them.
            #[link_name = "cuCtxDetach"]
            fn entry(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64) -> u32;
        }
        // No test and nothing in the program uses this deprecated function.
        let place = &TABLE[Slot::cuCtxDetach as usize];
        let before = place.swap(newer as *mut c_void, Ordering::AcqRel);
        // SAFETY: the place holds a function of this signature.
        let status = unsafe { entry(1, 2, 3, 4, 5, 6) };
        place.store(before, Ordering::Release);
        assert_eq!(status, UNKNOWN);
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
