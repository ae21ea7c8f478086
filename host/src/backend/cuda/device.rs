//! One GPU, opened: context, stream and loaded kernels. What there is to open lives in `info`.

use std::cell::RefCell;

use cust::context::{Context, CurrentContext};
use cust::stream::{Stream, StreamFlags};
use cust::sys;

use super::driver::Status;
use super::info::{DeviceInfo, DriverState};
use super::launch::Launches;
use super::module::{Module, Usage};
use super::ptx::{self, Choice, Ptx};
use super::{error, launch};
use crate::error::Result;

/// A GPU with the kernels loaded. Work goes to one stream, in order.
#[derive(Debug)]
pub struct Device {
    // Fields are dropped in this order: the context last.
    pub(super) stream: Stream,
    pub(super) module: Module,
    pub(super) launches: RefCell<Launches>,
    context: Context,
    info: DeviceInfo,
    ptx: &'static Ptx,
    choice: Choice,
}

impl Device {
    /// Opens the GPU of this number and loads the kernels that suit it.
    ///
    /// # Errors
    /// No driver, no such GPU, one older than the kernels, or a driver that does not take them; the text says what to do.
    pub fn open(index: u32) -> Result<Self> {
        let devices = match DriverState::detect() {
            DriverState::Ready { devices, .. } => devices,
            DriverState::Absent { reason } => {
                return Err(error(format!("there is no NVIDIA driver: {reason}; `coppice doctor` says more")));
            }
            DriverState::Failing { reason, .. } => {
                return Err(error(format!("the NVIDIA driver does not start: {reason}; `coppice doctor` says more")));
            }
        };
        let count = devices.len();
        let info = devices.into_iter().nth(index as usize);
        let info = info.ok_or_else(|| error(format!("there is no GPU {index}: the driver shows {count}")))?;
        Self::open_described(info)
    }

    /// As [`open`](Self::open), for a GPU that [`DriverState::detect`] has described.
    ///
    /// # Errors
    /// As there.
    pub fn open_described(info: DeviceInfo) -> Result<Self> {
        let Some((ptx, choice)) = ptx::choose(info.capability) else {
            return Err(error(format!(
                "{} has compute capability {}, the kernels are for {} and later GPUs",
                info.name,
                info.capability,
                ptx::targets()
            )));
        };
        let cannot = |action: &str, status: Status| error(format!("cannot {action} on {}: {status}", info.name));
        let device = cust::device::Device::get_device(info.index).map_err(|e| cannot("find the GPU", e.into()))?;
        let context = Context::new(device).map_err(|e| cannot("create a context", e.into()))?;
        let module = Module::load(ptx, &info)?;
        let stream = Stream::new(StreamFlags::NON_BLOCKING, None).map_err(|e| cannot("create a stream", e.into()))?;
        let launches = RefCell::default();
        Ok(Self { stream, module, launches, context, info, ptx, choice })
    }

    /// What the GPU is.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// The PTX that was loaded, and why it was chosen.
    pub fn ptx(&self) -> (&'static Ptx, Choice) {
        (self.ptx, self.choice)
    }

    /// What a kernel needs on this GPU.
    ///
    /// # Errors
    /// There is no kernel of this name.
    pub fn usage(&self, kernel: &str) -> Result<Usage> {
        self.module.usage(kernel)
    }

    /// Makes this GPU the calling thread's own.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn enter(&self) -> Result<()> {
        CurrentContext::set_current(&self.context)
            .map_err(|status| error(format!("cannot use {}: {}", self.info.name, Status::from(status))))
    }

    /// Whether all work is done; does not wait.
    ///
    /// # Errors
    /// A kernel failed; it is named, or those are among which it is.
    pub fn is_idle(&self) -> Result<bool> {
        // SAFETY: the stream is alive.
        match Status::check(unsafe { sys::cuStreamQuery(self.stream.as_inner()) }) {
            Ok(()) => Ok(true),
            Err(Status::NOT_READY) => Ok(false),
            Err(status) => {
                let names = self.launches.borrow_mut().take_pending();
                Err(error(launch::failure(&names, status)))
            }
        }
    }

    /// Free and total memory, bytes.
    ///
    /// # Errors
    /// The driver does not say.
    pub fn memory(&self) -> Result<(usize, usize)> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: two places for sizes.
        Status::check(unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })
            .map_err(|status| error(format!("cannot ask {} for its memory: {status}", self.info.name)))?;
        Ok((free, total))
    }

    /// Waits until all work is done.
    ///
    /// # Errors
    /// A kernel failed; it is named, or those are among which it is.
    pub fn synchronize(&self) -> Result<()> {
        let names = self.launches.borrow_mut().take_pending();
        CurrentContext::synchronize().map_err(|status| error(launch::failure(&names, status.into())))
    }
}
