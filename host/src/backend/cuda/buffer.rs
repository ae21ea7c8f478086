//! Device memory of one element type, as kernels take it.

use std::marker::PhantomData;

use cuda_std::{DeviceCopy, Global, GlobalMut};
use cust::sys::{self, CUdeviceptr};

use super::device::Device;
use super::driver::Status;
use super::error;
use crate::error::Result;
use crate::report::Bytes;

/// `len` elements on a device.
#[derive(Debug)]
pub struct DeviceBuffer<'d, T> {
    device: &'d Device,
    address: CUdeviceptr,
    len: usize,
    marker: PhantomData<T>,
}

impl<'d, T: DeviceCopy> DeviceBuffer<'d, T> {
    /// A buffer whose bytes are all 0xff: NaN as a float, out of range as an index.
    ///
    /// # Errors
    /// The device has not that much memory free.
    pub fn poisoned(device: &'d Device, len: usize) -> Result<Self> {
        Self::filled(device, len, 0xff)
    }

    /// A buffer whose bytes are all `byte`.
    ///
    /// # Errors
    /// The device has not that much memory free.
    pub fn filled(device: &'d Device, len: usize, byte: u8) -> Result<Self> {
        let bytes = (len * size_of::<T>()).max(1);
        let mut address = 0;
        // SAFETY: the device's context is current; the address is a place for the result.
        Status::check(unsafe { sys::cuMemAlloc_v2(&mut address, bytes) })
            .map_err(|status| out_of_memory(device, bytes, status))?;
        let buffer = Self { device, address, len, marker: PhantomData };
        // SAFETY: freshly allocated, of this size.
        Status::check(unsafe { sys::cuMemsetD8_v2(address, byte, bytes) })
            .map_err(|status| error(format!("cannot fill device memory: {status}")))?;
        // Filling is asynchronous and the kernels' stream does not wait for it.
        device.synchronize()?;
        Ok(buffer)
    }

    /// A buffer holding `data`.
    ///
    /// # Errors
    /// The device has not that much memory free.
    pub fn new(device: &'d Device, data: &[T]) -> Result<Self> {
        Self::repeating(device, data, data.len())
    }

    /// A buffer holding `pattern` over and over, `len` elements in all.
    ///
    /// # Errors
    /// The device has not that much memory free.
    pub fn repeating(device: &'d Device, pattern: &[T], len: usize) -> Result<Self> {
        let buffer = Self::poisoned(device, len)?;
        for first in (0..len).step_by(pattern.len().max(1)) {
            let bytes = pattern.len().min(len - first) * size_of::<T>();
            let to = buffer.address + (first * size_of::<T>()) as u64;
            // SAFETY: both hold as many elements from there on, which are plain bytes.
            let result = unsafe { sys::cuMemcpyHtoD_v2(to, pattern.as_ptr().cast(), bytes) };
            Status::check(result).map_err(|status| error(format!("cannot copy to device memory: {status}")))?;
        }
        Ok(buffer)
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Replaces its first elements, as far as there are: after all queued work, before what is queued later, waiting for
    /// neither.
    ///
    /// # Errors
    /// The driver does not take the copy.
    pub fn write(&mut self, data: &[T]) -> Result<()> {
        let bytes = data.len().min(self.len) * size_of::<T>();
        let stream = self.device.stream.as_inner();
        // SAFETY: both hold that many bytes; memory that is not pinned is copied out before the call returns.
        let result = unsafe { sys::cuMemcpyHtoDAsync_v2(self.address, data.as_ptr().cast(), bytes, stream) };
        Status::check(result).map_err(|status| error(format!("cannot copy to device memory: {status}")))
    }

    /// Address for reading.
    pub fn ptr(&self) -> Global<T> {
        Global::from_raw(std::ptr::without_provenance(self.address as usize))
    }

    /// Address for writing.
    pub fn ptr_mut(&self) -> GlobalMut<T> {
        GlobalMut::from_raw(std::ptr::without_provenance_mut(self.address as usize))
    }

    /// What it holds after all queued work.
    ///
    /// # Errors
    /// Queued work failed.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        self.device.synchronize()?;
        let mut data: Vec<T> = Vec::with_capacity(self.len);
        // SAFETY: the buffer holds `len` elements; any bytes are a valid `T`.
        let result = unsafe { sys::cuMemcpyDtoH_v2(data.as_mut_ptr().cast(), self.address, self.len * size_of::<T>()) };
        Status::check(result).map_err(|status| error(format!("cannot copy from device memory: {status}")))?;
        // SAFETY: the copy has written every element.
        unsafe { data.set_len(self.len) };
        Ok(data)
    }
}

impl<T> Drop for DeviceBuffer<'_, T> {
    fn drop(&mut self) {
        // SAFETY: allocated in `filled`; freeing waits for kernels that use it.
        let _ = unsafe { sys::cuMemFree_v2(self.address) };
    }
}

fn out_of_memory(device: &Device, bytes: usize, status: Status) -> crate::Error {
    let name = &device.info().name;
    if status != Status::OUT_OF_MEMORY {
        return error(format!("cannot allocate memory on {name}: {status}"));
    }
    let (mut free, mut total) = (0, 0);
    // SAFETY: two places for sizes.
    let known = Status::check(unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) }).is_ok();
    let free =
        if known { format!(", {} of {} are free", Bytes(free as u64), Bytes(total as u64)) } else { String::new() };
    error(format!("{name} has no room for {} more{free}", Bytes(bytes as u64)))
}
