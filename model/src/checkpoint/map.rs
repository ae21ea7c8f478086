//! Files as read-only memory; the only unsafe code of this crate.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::weight::SharedBytes;

/// Maps the whole file. Pages are read when first touched.
pub(super) fn map(path: &Path) -> Result<SharedBytes> {
    let io = |source| Error::Io { path: path.to_owned(), source };
    // Opening a named pipe would wait for a writer.
    if !std::fs::metadata(path).map_err(io)?.is_file() {
        return Err(io(std::io::Error::new(std::io::ErrorKind::InvalidInput, "not a regular file")));
    }
    let file = File::open(path).map_err(io)?;
    // SAFETY: the map is private and read-only, and `Checkpoint::open` asks its callers to leave the files alone while they
    // are open; every value of the mapped types is valid, so changed content could at most change results.
    #[allow(unsafe_code)]
    let map = unsafe { memmap2::Mmap::map(&file) }.map_err(io)?;
    Ok(Arc::new(map))
}
