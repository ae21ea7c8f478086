//! Verify attention on a device: the plan for a number of rows with its scratch memory. The kernels live in `coppice_gpu`.

use coppice_gpu::attention::{Head, Limits, Plan};
use cuda_std::{Bf16, Global};
use cust::sys::{self, CUdevice_attribute};

use super::driver::Status;
use super::{Device, DeviceBuffer, error};
use crate::error::Result;

/// What a launch reads; lengths as [`VerifyAttention`] says.
#[derive(Clone, Copy)]
pub struct Inputs<'b, 'd> {
    /// Queries [tree_rows, heads, latent + rope].
    pub query: &'b DeviceBuffer<'d, Bf16>,
    /// Cached rows, >= context + tree_rows, as [`Head::pack`] makes them.
    pub cache: &'b DeviceBuffer<'d, u8>,
    /// Visible nodes [tree_rows, ceil(tree_rows / 32)]; none for a chain.
    pub mask: Option<&'b DeviceBuffer<'d, u32>>,
    /// Cached rows before the tree's, on the device: a captured launch follows it.
    pub context: &'b DeviceBuffer<'d, u32>,
}

/// Verify attention of `heads` x `tree_rows` rows over any context.
pub struct VerifyAttention<'d> {
    device: &'d Device,
    /// Kernel and launch.
    pub plan: Plan,
    heads: u32,
    tree_rows: u32,
    /// Softmax factor times log2(e).
    scale: f32,
    values: DeviceBuffer<'d, [u32; 4]>,
    log_sums: DeviceBuffer<'d, f32>,
    arrivals: DeviceBuffer<'d, u32>,
}

impl<'d> VerifyAttention<'d> {
    /// Plans it and allocates its scratch. `factor` is that of the softmax.
    ///
    /// # Errors
    /// The device has not that much memory free.
    pub fn new(device: &'d Device, head: &Head, (heads, tree_rows): (u32, u32), factor: f32) -> Result<Self> {
        let plan = head.plan(heads * tree_rows, limits(device)?);
        Ok(Self {
            device,
            plan,
            heads,
            tree_rows,
            scale: factor * std::f32::consts::LOG2_E,
            values: DeviceBuffer::poisoned(device, plan.values)?,
            log_sums: DeviceBuffer::poisoned(device, plan.log_sums)?,
            arrivals: DeviceBuffer::new(device, &vec![0; plan.arrivals])?,
        })
    }

    /// Queues it. `out` is [tree_rows, heads, latent].
    ///
    /// # Safety
    /// The buffers are as large as said, alive until the kernel is done, and every row sees itself.
    ///
    /// # Errors
    /// The driver does not take the launch.
    pub unsafe fn launch(&self, inputs: Inputs<'_, '_>, out: &DeviceBuffer<'_, Bf16>) -> Result<()> {
        let arguments = (
            inputs.query.ptr(),
            inputs.cache.ptr(),
            inputs.mask.map_or_else(|| Global::from_raw(std::ptr::null()), DeviceBuffer::ptr),
            inputs.context.ptr(),
            self.values.ptr_mut(),
            self.log_sums.ptr_mut(),
            self.arrivals.ptr_mut(),
            out.ptr_mut(),
            self.heads,
            self.tree_rows,
            self.scale,
            self.plan.stages,
            self.plan.mergers,
        );
        // SAFETY: the caller's contract; the scratch is what the plan wants.
        unsafe { self.device.launch_early(self.plan.kernel, self.plan.shape, arguments) }
    }
}

/// What plans depend on.
fn limits(device: &Device) -> Result<Limits> {
    let mut bytes = 0;
    let wanted = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
    let ordinal = device.info().index as i32;
    // SAFETY: a place for the answer; the device with this number is open.
    Status::check(unsafe { sys::cuDeviceGetAttribute(&mut bytes, wanted, ordinal) })
        .map_err(|status| error(format!("cannot ask {} for its shared memory: {status}", device.info().name)))?;
    Ok(Limits { multiprocessors: device.info().multiprocessors, shared_bytes: bytes.unsigned_abs() })
}
