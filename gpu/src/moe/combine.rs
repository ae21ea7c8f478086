//! The end of a mixture-of-experts layer: the choices' outputs, weighted and added up in a fixed order.
#[cfg(not(target_arch = "nvptx64"))]
use cuda_std::launch::LaunchShape;
use cuda_std::{grid, prelude::*};

/// Threads of a block, four columns each.
const THREADS: u32 = 128;

/// Adds the routed experts' outputs and the shared expert's to the residual stream.
///
/// residual[t, i] += (sum_j weights[t, j] * outputs[t k + j, i], in order of j) + shared[t, i]
///
/// * Shapes: `outputs` [rows x k, width] f32; `weights` [rows, k] f32; `shared` [rows, width] f32, of which `has_shared`
///   (0 or 1) says whether it is read; `residual` [rows, width] f32.
/// * Work: grid (ceil(width / 512), rows), 128 threads; a thread takes four neighbouring columns.
/// * Shared memory: none.
/// * Registers: under 40.
/// * Bytes: 4 x (k + 3) an element; FLOPs: 2 x k + 2 an element.
/// * Alignment: 16 B; `width` a multiple of 4.
/// * Tolerance: 2^-21 x sum of the terms' magnitudes.
///
/// # Safety
/// The buffers have those shapes and alignments and do not overlap.
#[kernel(threads = 128)]
pub unsafe fn moe_combine(
    outputs: Global<f32>,
    weights: Global<f32>,
    shared: Global<f32>,
    residual: GlobalMut<f32>,
    width: u32,
    k: u32,
    has_shared: u32,
) {
    // SAFETY: four columns of a row a thread, inside the buffers by the contract.
    unsafe {
        grid::dependency_wait();
        let column = thread::index_1d() * 4;
        if column < width {
            let (row, width) = (thread::block_idx_y() as usize, width as usize);
            let mut sums = [0.0f32; 4];
            for j in 0..k as usize {
                let weight = weights.add(row * k as usize + j).read();
                let values = outputs.add((row * k as usize + j) * width + column as usize).cast::<[f32; 4]>().read();
                for (sum, value) in sums.iter_mut().zip(&values) {
                    *sum = math::fma(weight, *value, *sum);
                }
            }
            let at = row * width + column as usize;
            if has_shared == 1 {
                let values = shared.add(at).cast::<[f32; 4]>().read();
                for (sum, value) in sums.iter_mut().zip(&values) {
                    *sum += value;
                }
            }
            let to = residual.add(at).cast::<[f32; 4]>();
            let mut values = to.read();
            for (value, sum) in values.iter_mut().zip(&sums) {
                *value += sum;
            }
            to.write(values);
        }
        grid::dependency_launch();
    }
}

/// Launch of [`moe_combine`].
#[cfg(not(target_arch = "nvptx64"))]
pub fn shape(rows: u32, width: u32) -> LaunchShape {
    LaunchShape::new((width.div_ceil(THREADS * 4), rows), THREADS)
}

/// One element of [`moe_combine`] by its formula, in f64, and the sum of the terms' magnitudes.
#[cfg(not(target_arch = "nvptx64"))]
pub fn combine_reference(terms: impl Iterator<Item = (f32, f32)>, shared: f32, residual: f32) -> (f64, f64) {
    let start = (f64::from(shared) + f64::from(residual), f64::from(shared.abs()) + f64::from(residual.abs()));
    terms
        .map(|(weight, value)| f64::from(weight) * f64::from(value))
        .fold(start, |(sum, size), x| (sum + x, size + x.abs()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Failures, Random};
    use cuda_std::simulate::{Buffer, launch};

    #[test]
    fn outputs_are_weighted_and_added() {
        let mut failures = Failures::default();
        for (i, (rows, width, k)) in [
            (1, 4, 1),
            (2, 8, 2),
            (3, 96, 3),
            (1, 160, 8),
            (5, 256, 4),
            (2, 508, 6),
            (1, 512, 8),
            (4, 516, 1),
            (2, 1020, 5),
            (1, 2052, 8),
            (3, 1028, 7),
            (1, 7168, 8),
        ]
        .into_iter()
        .enumerate()
        {
            let mut random = Random::new(i as u64);
            let (outputs, weights) = (random.normals(rows * k * width), random.normals(rows * k));
            let (shared, residual) = (random.normals(rows * width), random.normals(rows * width));
            let has_shared = i as u32 % 2;
            let inputs = (Buffer::input("outputs", &outputs), Buffer::input("weights", &weights));
            let s = Buffer::input("shared", if has_shared == 1 { &shared } else { &[] });
            let r = Buffer::new("residual", &residual);
            let (w, k32) = (width as u32, k as u32);
            let arguments = (inputs.0.ptr(), inputs.1.ptr(), s.ptr(), r.ptr_mut(), w, k32, has_shared);
            launch(&moe_combine::KERNEL, shape(rows as u32, w), arguments).unwrap();
            for (at, found) in r.to_vec().into_iter().enumerate() {
                let (row, column) = (at / width, at % width);
                let terms = (row * k..(row + 1) * k).map(|c| (weights[c], outputs[c * width + column]));
                let (exact, size) =
                    combine_reference(terms, if has_shared == 1 { shared[at] } else { 0.0 }, residual[at]);
                let close = (f64::from(found) - exact).abs() <= size * 2f64.powi(-21);
                failures.check(
                    close,
                    &std::format!("{rows} x {width}, k {k}, ({row}, {column})"),
                    &std::format!("{found} {exact}"),
                );
            }
        }
        failures.report();
    }
}
