//! NVIDIA's profiling library, found at run time. A machine without it, or without a driver, says so.

use libloading::Library;

use super::driver;

/// Names under which the library is installed, the newest first.
const LIBRARIES: [&str; 3] = ["libcupti.so.13", "libcupti.so.12", "libcupti.so"];

/// Why a GPU cannot be profiled on this machine; `None` if its driver and libcupti are there.
pub fn absence() -> Option<String> {
    let present = |names: &[&str]| {
        names.iter().any(|name| {
            // SAFETY: the libraries' initialisers only set up their own state.
            unsafe { Library::new(*name) }.is_ok()
        })
    };
    if !present(&[driver::LIBRARY]) {
        return Some(format!("no NVIDIA driver was found ({})", driver::LIBRARY));
    }
    (!present(&LIBRARIES)).then(|| {
        let names = LIBRARIES.join(", ");
        format!(
            "CUPTI was not found ({names}): install it with the CUDA toolkit, or name its folder in LD_LIBRARY_PATH"
        )
    })
}
