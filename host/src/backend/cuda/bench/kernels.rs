//! The kernels' own measurements: sizes of real models, bytes and FLOPs counted by hand.

use coppice_gpu::linear::{self, BF16, EMPTY, Instance};
use coppice_gpu::testing::Random;
use coppice_gpu::{norm, sample, swiglu, top_k};
use cuda_std::Bf16;

use super::{Bound, Ceilings, Measured, rotation, time};
use crate::backend::cuda::{Device, DeviceBuffer};
use crate::error::Result;

/// Launches timed together, at least.
const LAUNCHES: usize = 24;
const EPS: f32 = 1e-6;

/// Measures them all.
///
/// # Errors
/// The device failed, or has too little memory free.
pub fn measure(device: &Device, at: &Ceilings) -> Result<Vec<Measured>> {
    let bench = Bench::new(device, at);
    let mut rows = Vec::new();
    for (inputs, outputs) in [(7168, 18_432), (7168, 2048)] {
        for count in [1, 8, 16, 32, 64] {
            if let Some(instance) = linear::choose(BF16, count, outputs) {
                rows.push(bench.linear(instance, count, inputs, outputs)?);
            }
        }
    }
    rows.push(bench.rms_norm(16_384, 7168)?);
    rows.push(bench.silu_mul(8192, 18_432)?);
    rows.push(bench.argmax(64, 163_840)?);
    rows.push(bench.top_k_parts(16, 163_840, 8)?);
    Ok(rows)
}

struct Bench<'d> {
    device: &'d Device,
    at: &'d Ceilings,
    /// Random values that buffers repeat.
    bf16: Vec<Bf16>,
    f32: Vec<f32>,
}

impl<'d> Bench<'d> {
    fn new(device: &'d Device, at: &'d Ceilings) -> Self {
        let f32 = Random::new(2).normals(1 << 20);
        Self { device, at, bf16: f32.iter().map(|x| Bf16::from_f32(*x)).collect(), f32 }
    }

    fn bf16(&self, len: usize) -> Result<DeviceBuffer<'d, Bf16>> {
        DeviceBuffer::repeating(self.device, &self.bf16, len)
    }

    fn f32(&self, len: usize) -> Result<DeviceBuffer<'d, f32>> {
        DeviceBuffer::repeating(self.device, &self.f32, len)
    }

    fn linear(&self, instance: &Instance<Bf16>, rows: u32, inputs: u32, outputs: u32) -> Result<Measured> {
        let elements = inputs as usize * outputs as usize;
        let sets = rotation(self.device, 2 * elements as u64);
        let weights = (0..sets).map(|_| self.bf16(elements)).collect::<Result<Vec<_>>>()?;
        let x = self.bf16((rows * inputs) as usize)?;
        let out = DeviceBuffer::<Bf16>::poisoned(self.device, (rows * outputs) as usize)?;
        let words = instance.exchange_words(rows, outputs).max(1) as usize;
        let exchange = DeviceBuffer::new(self.device, &vec![EMPTY; words])?;
        let (kernel, shape) = (&instance.kernel, instance.shape(outputs));
        let timing = time(self.device, LAUNCHES.next_multiple_of(sets), |i| {
            let weights = weights[i % sets].ptr();
            let arguments = (x.ptr(), weights, exchange.ptr_mut(), out.ptr_mut(), rows, inputs, outputs);
            // SAFETY: the buffers are as large as these sizes say; rows are within the kernel's bound.
            unsafe {
                if instance.early {
                    self.device.launch_early(kernel, shape, arguments)
                } else {
                    self.device.launch(kernel, shape, arguments)
                }
            }
        })?;
        // Weight bytes alone: what must come from memory once.
        let work = (2.0 * elements as f64, 2.0 * f64::from(rows) * elements as f64);
        let shape = format!("{rows} rows, {inputs} x {outputs}");
        Ok(Measured::new(kernel.name, shape, timing, work, Bound::Memory, self.at))
    }

    fn rms_norm(&self, rows: u32, width: u32) -> Result<Measured> {
        let elements = rows as usize * width as usize;
        let (x, weight) = (self.f32(elements)?, self.bf16(width as usize)?);
        let out = DeviceBuffer::<Bf16>::poisoned(self.device, elements)?;
        let timing = time(self.device, LAUNCHES, |_| {
            let arguments = (x.ptr(), weight.ptr(), out.ptr_mut(), width, width, width, EPS);
            // SAFETY: the buffers are as large as these sizes say.
            unsafe { self.device.launch_early(&norm::rms_norm::KERNEL, norm::shape(rows), arguments) }
        })?;
        let (work, shape) = ((6.0 * elements as f64, 5.0 * elements as f64), format!("{rows} x {width}"));
        Ok(Measured::new("rms_norm", shape, timing, work, Bound::Memory, self.at))
    }

    fn silu_mul(&self, rows: u32, width: u32) -> Result<Measured> {
        let elements = rows as usize * width as usize;
        let (x, out) = (self.bf16(2 * elements)?, DeviceBuffer::<Bf16>::poisoned(self.device, elements)?);
        let timing = time(self.device, LAUNCHES, |_| {
            let arguments = (x.ptr(), out.ptr_mut(), width);
            // SAFETY: the buffers are as large as these sizes say.
            unsafe { self.device.launch_early(&swiglu::silu_mul::KERNEL, swiglu::shape(rows, width), arguments) }
        })?;
        let (work, shape) = ((6.0 * elements as f64, 5.0 * elements as f64), format!("{rows} x {width}"));
        Ok(Measured::new("silu_mul", shape, timing, work, Bound::Memory, self.at))
    }

    fn argmax(&self, rows: u32, vocab: u32) -> Result<Measured> {
        let elements = rows as usize * vocab as usize;
        let sets = rotation(self.device, 4 * elements as u64);
        let logits = (0..sets).map(|_| self.f32(elements)).collect::<Result<Vec<_>>>()?;
        let out = DeviceBuffer::<u32>::poisoned(self.device, rows as usize)?;
        let timing = time(self.device, LAUNCHES.next_multiple_of(sets), |i| {
            let arguments = (logits[i % sets].ptr(), out.ptr_mut(), vocab, vocab);
            // SAFETY: the buffers are as large as these sizes say.
            unsafe { self.device.launch_early(&sample::argmax::KERNEL, sample::shape(rows), arguments) }
        })?;
        let (work, shape) = ((4.0 * elements as f64, elements as f64), format!("{rows} x {vocab}"));
        Ok(Measured::new("argmax", shape, timing, work, Bound::Memory, self.at))
    }

    fn top_k_parts(&self, rows: u32, vocab: u32, k: u32) -> Result<Measured> {
        let elements = rows as usize * vocab as usize;
        let places = (rows * top_k::parts(vocab)) as usize;
        let sets = rotation(self.device, 4 * elements as u64);
        let logits = (0..sets).map(|_| self.f32(elements)).collect::<Result<Vec<_>>>()?;
        let candidates = DeviceBuffer::<[u32; 2]>::poisoned(self.device, places * k as usize)?;
        let sums = DeviceBuffer::<[f32; 2]>::poisoned(self.device, places)?;
        let timing = time(self.device, LAUNCHES.next_multiple_of(sets), |i| {
            let arguments = (logits[i % sets].ptr(), candidates.ptr_mut(), sums.ptr_mut(), vocab, vocab, k);
            // SAFETY: the buffers are as large as these sizes say.
            unsafe { self.device.launch_early(&top_k::top_k_parts::KERNEL, top_k::parts_shape(rows, vocab), arguments) }
        })?;
        let (work, shape) = ((4.0 * elements as f64, 3.0 * elements as f64), format!("{k} of {rows} x {vocab}"));
        Ok(Measured::new("top_k_parts", shape, timing, work, Bound::Memory, self.at))
    }
}
