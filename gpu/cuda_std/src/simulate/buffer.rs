//! Global memory of the simulator: registered buffers, so that every access can be checked against one.
use super::fault::FaultKind;
use crate::{DeviceCopy, Global, GlobalMut};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::marker::PhantomData;

/// Alignment of device allocations, as `cuMemAlloc` gives it.
const ALIGNMENT: usize = 256;

#[derive(Clone)]
struct Region {
    start: usize,
    bytes: usize,
    writable: bool,
    name: String,
}

thread_local! {
    /// Buffers of this OS thread, by address. Simulations run on the thread that starts them.
    static REGIONS: RefCell<Vec<Region>> = const { RefCell::new(Vec::new()) };
}

/// The buffers that kernels of an OS thread may access, put aside: to take them to another thread, or out of the way.
#[derive(Default)]
pub struct Registry(Vec<Region>);

impl Registry {
    /// Exchanges these buffers with those of the calling thread.
    pub fn swap(&mut self) {
        REGIONS.with_borrow_mut(|regions| std::mem::swap(regions, &mut self.0));
    }
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Registry({} buffers)", self.0.len())
    }
}

/// A device buffer of `T`s that kernels under the simulator may access through the pointers it hands out.
pub struct Buffer<T> {
    start: *mut T,
    len: usize,
    layout: Layout,
    marker: PhantomData<T>,
}

impl<T: DeviceCopy> Buffer<T> {
    /// A read-only buffer holding `data`; `name` appears in faults.
    pub fn input(name: &str, data: &[T]) -> Self {
        let buffer = Self::allocate(name, data.len(), false);
        // SAFETY: freshly allocated for exactly this many elements.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), buffer.start, data.len()) };
        buffer
    }

    /// A writable buffer holding `data`.
    pub fn new(name: &str, data: &[T]) -> Self {
        let buffer = Self::allocate(name, data.len(), true);
        // SAFETY: freshly allocated for exactly this many elements.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), buffer.start, data.len()) };
        buffer
    }

    /// A writable buffer of `len` elements whose bytes are all 0xff: NaN as a float, out of range as an index.
    pub fn poisoned(name: &str, len: usize) -> Self {
        let buffer = Self::allocate(name, len, true);
        // SAFETY: freshly allocated for exactly this many elements; any bits are a valid `T`.
        unsafe { std::ptr::write_bytes(buffer.start, 0xff, len) };
        buffer
    }

    /// A writable buffer of `len` elements whose bytes are all zero.
    pub fn zeroed(name: &str, len: usize) -> Self {
        Self::allocate(name, len, true)
    }

    fn allocate(name: &str, len: usize, writable: bool) -> Self {
        let bytes = len * size_of::<T>();
        let layout = Layout::from_size_align(bytes.max(1), ALIGNMENT).unwrap_or(Layout::new::<u8>());
        // SAFETY: the layout has a size of at least one byte.
        let start = unsafe { alloc_zeroed(layout) }.cast::<T>();
        if start.is_null() {
            handle_alloc_error(layout);
        }
        let region = Region { start: start as usize, bytes, writable, name: name.into() };
        REGIONS.with_borrow_mut(|regions| {
            let at = regions.partition_point(|r| r.start < region.start);
            regions.insert(at, region);
        });
        Self { start, len, layout, marker: PhantomData }
    }

    /// Address for reading.
    pub fn ptr(&self) -> Global<T> {
        Global::from_raw(self.start)
    }

    /// Address for writing. Writes into an [`input`](Self::input) buffer are faults.
    pub fn ptr_mut(&self) -> GlobalMut<T> {
        GlobalMut::from_raw(self.start)
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Replaces the first elements, as far as there are, as a copy from the host does.
    pub fn write(&mut self, data: &[T]) {
        // SAFETY: both hold that many elements, and no kernel is running.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.start, data.len().min(self.len)) };
    }

    /// A copy of what the buffer holds.
    pub fn to_vec(&self) -> Vec<T> {
        // SAFETY: the allocation holds `len` initialised elements, and no kernel is running.
        (0..self.len).map(|i| unsafe { self.start.add(i).read() }).collect()
    }
}

impl<T> std::fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} elements)", self.len)
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        REGIONS.with_borrow_mut(|regions| regions.retain(|r| r.start != self.start as usize));
        // SAFETY: allocated in `allocate` with this layout.
        unsafe { dealloc(self.start.cast(), self.layout) };
    }
}

/// Whether an access of `bytes` bytes at `address` lies inside one buffer, is aligned and permitted.
pub fn check(address: usize, bytes: u32, alignment: u32, write: bool) -> Result<(), FaultKind> {
    REGIONS.with_borrow(|regions| {
        let after = regions.partition_point(|r| r.start <= address);
        let end = address.saturating_add(bytes as usize);
        match after.checked_sub(1).and_then(|i| regions.get(i)) {
            Some(r) if end <= r.start + r.bytes => {
                let offset = (address - r.start) as u64;
                if !address.is_multiple_of(alignment as usize) {
                    return Err(FaultKind::GlobalMisaligned {
                        buffer: r.name.clone(),
                        offset,
                        bytes,
                        expected: alignment,
                    });
                }
                if write && !r.writable {
                    return Err(FaultKind::ReadOnly { buffer: r.name.clone(), offset, bytes });
                }
                Ok(())
            }
            before => Err(out_of_bounds(address, bytes, before, regions.get(after))),
        }
    })
}

/// Blames the nearest buffer, if one is near.
fn out_of_bounds(address: usize, bytes: u32, before: Option<&Region>, after: Option<&Region>) -> FaultKind {
    const NEAR: usize = 1 << 32;
    let below = before.map(|r| (address - r.start.saturating_add(r.bytes).min(address), r));
    let above = after.map(|r| (r.start - address, r));
    match below.into_iter().chain(above).min_by_key(|(distance, _)| *distance) {
        Some((distance, r)) if distance < NEAR => FaultKind::GlobalOutOfBounds {
            buffer: r.name.clone(),
            offset: address as i64 - r.start as i64,
            bytes,
            size: r.bytes as u64,
        },
        _ => FaultKind::NoBuffer { address: address as u64, bytes },
    }
}
