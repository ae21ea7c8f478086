//! Words that kernels write and the host reads while they run: memory of the host that a device sees.

use std::hint;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use cuda_std::GlobalMut;
use cust::sys;

use super::device::Device;
use super::driver::Status;
use super::error;
use super::place::{Memory, Place};
use crate::error::Result;

/// How long the host polls before it asks whether the device is still well.
const PATIENCE: Duration = Duration::from_micros(500);

/// The words of a place.
#[derive(Debug)]
pub enum Ring<'d> {
    /// Pinned memory of the host.
    Pinned(Pinned<'d>),
    /// Memory of a place where kernels have ended before the host reads.
    Plain(Memory<'d, u32>),
}

/// Pinned memory of the host, mapped into the device's addresses.
#[derive(Debug)]
pub struct Pinned<'d> {
    device: &'d Device,
    start: *mut u32,
    len: usize,
}

impl<'d> Place<'d> {
    /// `len` words, all zero.
    ///
    /// # Errors
    /// The host has not that much memory to pin.
    pub fn ring(self, len: usize) -> Result<Ring<'d>> {
        Ok(match self {
            Self::Device(device) => Ring::Pinned(Pinned::new(device, len)?),
            Self::Simulator(_) | Self::Tally(_) => Ring::Plain(self.zeroed("ring", len)?),
        })
    }
}

impl<'d> Pinned<'d> {
    fn new(device: &'d Device, len: usize) -> Result<Self> {
        let mut start = ptr::null_mut();
        let bytes = (len * size_of::<u32>()).max(1);
        // SAFETY: a place for the address; the context is current.
        let result = unsafe { sys::cuMemHostAlloc(&mut start, bytes, sys::CU_MEMHOSTALLOC_DEVICEMAP) };
        Status::check(result).map_err(|status| error(format!("cannot pin {bytes} B of host memory: {status}")))?;
        // SAFETY: freshly allocated, of this size.
        unsafe { ptr::write_bytes(start.cast::<u8>(), 0, bytes) };
        Ok(Self { device, start: start.cast(), len })
    }

    /// The word at an index, if it is one.
    fn word(&self, index: usize) -> Option<&AtomicU32> {
        // SAFETY: inside the allocation, which is aligned; the device writes whole words.
        (index < self.len).then(|| unsafe { AtomicU32::from_ptr(self.start.add(index)) })
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        // Kernels may still write to it.
        let _ = self.device.synchronize();
        // SAFETY: allocated in `new`.
        let _ = unsafe { sys::cuMemFreeHost(self.start.cast()) };
    }
}

impl Ring<'_> {
    /// Address for kernels. Host and device share it.
    pub fn ptr_mut(&self) -> GlobalMut<u32> {
        match self {
            Self::Pinned(pinned) => GlobalMut::from_raw(ptr::without_provenance_mut(pinned.start.addr())),
            Self::Plain(memory) => memory.ptr_mut(),
        }
    }

    /// Makes all words zero, after all queued work.
    ///
    /// # Errors
    /// Queued work failed.
    pub fn clear(&mut self) -> Result<()> {
        match self {
            Self::Pinned(pinned) => {
                pinned.device.synchronize()?;
                (0..pinned.len).filter_map(|i| pinned.word(i)).for_each(|word| word.store(0, Ordering::Relaxed));
                Ok(())
            }
            Self::Plain(memory) => memory.write(&vec![0; memory.len()]),
        }
    }

    /// The word at `index`, which tells that those written before it may be read.
    ///
    /// # Errors
    /// There is no such word.
    pub fn number(&self, index: usize) -> Result<u32> {
        let found = match self {
            Self::Pinned(pinned) => pinned.word(index).map(|word| word.load(Ordering::Acquire)),
            Self::Plain(memory) => memory.to_vec()?.get(index).copied(),
        };
        found.ok_or_else(|| error(format!("the ring has no word {index}")))
    }

    /// Waits until the word at `index` is `number`.
    ///
    /// # Errors
    /// All queued work is done and it is not, or a kernel failed.
    pub fn wait(&self, place: Place<'_>, index: usize, number: u32) -> Result<()> {
        let mut since = Instant::now();
        while self.number(index)? != number {
            if let Place::Device(device) = place {
                if since.elapsed() < PATIENCE {
                    hint::spin_loop();
                    continue;
                }
                since = Instant::now();
                if !device.is_idle()? {
                    continue;
                }
            }
            // Idle now: what was to come has come, or never will.
            place.synchronize()?;
            return match self.number(index)? {
                found if found == number => Ok(()),
                found => Err(error(format!("a round's report is number {found}, expected {number}"))),
            };
        }
        Ok(())
    }

    /// `len` words from `first` on.
    ///
    /// # Errors
    /// There are not so many.
    pub fn read(&self, first: usize, len: usize) -> Result<Vec<u32>> {
        let missing = || error(format!("the ring has no words {first} to {}", first + len));
        match self {
            Self::Pinned(pinned) => (first..first + len)
                .map(|index| pinned.word(index).map(|word| word.load(Ordering::Relaxed)).ok_or_else(missing))
                .collect(),
            Self::Plain(memory) => memory.to_vec()?.get(first..first + len).map(<[u32]>::to_vec).ok_or_else(missing),
        }
    }
}
