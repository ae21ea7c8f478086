//! temp
use super::{Ceilings, rotation, time};
use crate::backend::cuda::{Device, DeviceBuffer};
use crate::error::Result;
use coppice_gpu::linear::{BF16, EMPTY};
use coppice_gpu::norm;
use coppice_gpu::testing::Random;
use cuda_std::Bf16;

pub fn run(device: &Device, at: &Ceilings) -> Result<()> {
    println!("ceilings copy {:.0} read {:.0} mma {:.0}", at.copy / 1e9, at.read / 1e9, at.mma / 1e12);
    let f32s = Random::new(2).normals(1 << 22);
    let pattern: Vec<Bf16> = f32s.iter().map(|x| Bf16::from_f32(*x)).collect();
    for (inputs, outputs) in [(7168u32, 18_432u32), (7168, 2048)] {
        let elements = inputs as usize * outputs as usize;
        let sets = rotation(device, 2 * elements as u64);
        let weights =
            (0..sets).map(|_| DeviceBuffer::repeating(device, &pattern, elements)).collect::<Result<Vec<_>>>()?;
        let x = DeviceBuffer::repeating(device, &pattern, 64 * inputs as usize)?;
        let out = DeviceBuffer::<Bf16>::poisoned(device, 64 * outputs as usize)?;
        let exchange = DeviceBuffer::new(device, &vec![EMPTY; 3 * 64 * outputs as usize])?;
        for instance in BF16.iter().filter(|instance| instance.wide == (outputs > 8192)) {
            let counts: &[u32] = match instance.bound {
                8 => &[1, 8],
                16 => &[16],
                32 => &[32],
                _ => &[64],
            };
            for &rows in counts {
                let mut line = String::new();
                for (early, alone) in [(false, false), (true, false), (true, true)] {
                    let mut shape = instance.shape(outputs);
                    if alone {
                        shape.shared_bytes = shape.shared_bytes.max(116_096);
                    }
                    let mut i = 0;
                    let timing = time(device, 24usize.next_multiple_of(sets), |_| {
                        i += 1;
                        let arguments = (
                            x.ptr(),
                            weights[i % sets].ptr(),
                            exchange.ptr_mut(),
                            out.ptr_mut(),
                            rows,
                            inputs,
                            outputs,
                        );
                        unsafe {
                            if early {
                                device.launch_early(&instance.kernel, shape, arguments)
                            } else {
                                device.launch(&instance.kernel, shape, arguments)
                            }
                        }
                    })?;
                    let share = 100.0 * 2.0 * elements as f64 / timing.median / at.read;
                    line += &format!(" {:7.2} ({:5.1}%)", timing.median * 1e6, share);
                }
                println!(
                    "X {inputs} x {outputs} rows {rows:2} {:20} plain/early/early alone {line}",
                    instance.kernel.name
                );
            }
        }
    }
    let (rows, width) = (16_384u32, 7168u32);
    let elements = rows as usize * width as usize;
    let x = DeviceBuffer::repeating(device, &f32s, elements)?;
    let weight = DeviceBuffer::repeating(device, &pattern, width as usize)?;
    let out = DeviceBuffer::<Bf16>::poisoned(device, elements)?;
    for kernel in [
        &norm::rms_norm::KERNEL,
        &norm::rms_cached::KERNEL,
        &norm::rms_five::KERNEL,
        &norm::rms_once::KERNEL,
        &norm::rms_five_once::KERNEL,
    ] {
        let timing = time(device, 12, |_| unsafe {
            device.launch_early(
                kernel,
                norm::shape(rows),
                (x.ptr(), weight.ptr(), out.ptr_mut(), width, width, width, 1e-6),
            )
        })?;
        println!(
            "X {} {:.2} us {:.1}%",
            kernel.name,
            timing.median * 1e6,
            100.0 * 6.0 * elements as f64 / timing.median / at.read
        );
    }
    Ok(())
}
