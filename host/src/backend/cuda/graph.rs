//! Recorded launches: replaying them costs the host one call, whatever their number.

use std::ptr;

use cust::event::{Event, EventFlags};
use cust::sys::{self, CUgraphExec, CUstreamCaptureMode};

use super::device::Device;
use super::driver::Status;
use super::error;
use crate::error::Result;

/// Launches to replay.
#[derive(Debug)]
pub struct Graph<'d> {
    device: &'d Device,
    handle: CUgraphExec,
}

impl Device {
    /// Records what `body` launches, without running it.
    ///
    /// # Errors
    /// Those of `body`, or the driver's: recording forbids waiting and allocating.
    pub fn record(&self, body: impl FnOnce() -> Result<()>) -> Result<Graph<'_>> {
        let cannot = |status| error(format!("cannot record a graph: {status}"));
        self.synchronize()?;
        let stream = self.stream.as_inner();
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is idle and this device's.
        Status::check(unsafe { sys::cuStreamBeginCapture_v2(stream, mode) }).map_err(cannot)?;
        let recorded = body();
        let mut graph = ptr::null_mut();
        // SAFETY: a capture began above; it must end whatever the body did.
        let ended = Status::check(unsafe { sys::cuStreamEndCapture(stream, &mut graph) });
        self.launches.borrow_mut().take_pending();
        let mut handle = ptr::null_mut();
        let instantiated = ended.and_then(|()| {
            // SAFETY: the graph is complete.
            Status::check(unsafe { sys::cuGraphInstantiateWithFlags(&mut handle, graph, 0) })
        });
        if !graph.is_null() {
            // SAFETY: an executable graph does not need what it was made from. A failure leaves nothing to do.
            let _ = unsafe { sys::cuGraphDestroy(graph) };
        }
        let graph = instantiated.map(|()| Graph { device: self, handle });
        recorded?;
        graph.map_err(cannot)
    }
}

impl Graph<'_> {
    /// Queues the recorded launches.
    ///
    /// # Errors
    /// The driver does not take them.
    pub fn replay(&self) -> Result<()> {
        // SAFETY: the graph is executable, and its device's stream is alive.
        let result = unsafe { sys::cuGraphLaunch(self.handle, self.device.stream.as_inner()) };
        Status::check(result).map_err(|status| error(format!("cannot replay a graph: {status}")))
    }

    /// Replays once and says how long it ran on the device, in seconds.
    ///
    /// # Errors
    /// A kernel failed.
    pub fn time(&self) -> Result<f64> {
        let cannot = |e: cust::error::CudaError| error(format!("cannot time a graph: {}", Status::from(e)));
        let events = [(); 2].map(|()| Event::new(EventFlags::DEFAULT).map_err(cannot));
        let [before, after] = events;
        let (before, after) = (before?, after?);
        before.record(&self.device.stream).map_err(cannot)?;
        self.replay()?;
        after.record(&self.device.stream).map_err(cannot)?;
        self.device.synchronize()?;
        Ok(f64::from(after.elapsed_time_f32(&before).map_err(cannot)?) / 1e3)
    }
}

impl Drop for Graph<'_> {
    fn drop(&mut self) {
        // SAFETY: instantiated in `record`; the driver keeps what still runs.
        let _ = unsafe { sys::cuGraphExecDestroy(self.handle) };
    }
}
