//! RMS normalisation, alone and with the residual addition before it.
use crate::block::block_sum;
#[cfg(not(target_arch = "nvptx64"))]
use cuda_std::launch::LaunchShape;
use cuda_std::{convert::bf16x2_from_f32, convert::bf16x2_to_f32, grid, prelude::*, shared};

/// Threads of a block: one row, four elements a thread and step.
const THREADS: u32 = 256;
/// Steps of a row that a thread keeps in registers: rows up to 8192 wide are read once.
const HELD: usize = 8;

/// RMS norm of each row.
///
/// out[t, i] = x[t, i] / sqrt(mean_i x[t, i]^2 + eps) * weight[i]
///
/// * Shapes: `x` [rows, width] f32, rows `x_stride` elements apart; `weight` [width] bf16; `out` [rows, width] bf16, rows
///   `out_stride` elements apart.
/// * Work: a block of 256 threads a row; a thread takes four neighbouring elements, then steps by 1024. It keeps what it has
///   read, all loads being under way before the first is waited for; rows that are wider than 8192 or no multiple of four are
///   read again instead, with the same result.
/// * Shared memory: 32 B, one partial sum a warp.
/// * Registers: 32 of the row, 64 in all, so that four blocks are on a multiprocessor: the kernel lives on bytes in flight.
/// * Bytes: 6 a element and 2 a weight; FLOPs: 5 an element.
/// * Alignment: `x` 16 B, `weight` and `out` 8 B, both strides multiples of 4. Any width.
/// * Tolerance: 2^-8 relative, the rounding to bf16; the sum of squares in f32 adds less than 1e-6.
///
/// # Safety
/// The buffers have those shapes and alignments; `out` overlaps nothing.
#[kernel(threads = 256)]
pub unsafe fn rms_norm(
    x: Global<f32>,
    weight: Global<Bf16>,
    out: GlobalMut<Bf16>,
    width: u32,
    x_stride: u32,
    out_stride: u32,
    eps: f32,
) {
    // SAFETY: one row a block, inside the buffers by the contract.
    unsafe {
        grid::dependency_wait();
        let row = thread::block_idx_x() as usize;
        let (x, out) = (x.add(row * x_stride as usize), out.add(row * out_stride as usize));
        if fits(width) {
            let mut row = [[0.0; 4]; HELD];
            for (j, values) in row.iter_mut().enumerate() {
                if place(j) < width {
                    *values = vector(x, j).read_once();
                }
            }
            normalise_held(&row, weight, out, width, eps);
        } else {
            let mut squares = 0.0;
            let mut i = thread::thread_idx_x() * 4;
            while i < width {
                squares = add_squares(squares, read4(x, i, width));
                i += THREADS * 4;
            }
            normalise(x, weight, out, width, squares, eps);
        }
        grid::dependency_launch();
    }
}

/// Adds to the residual stream, then RMS norm of each row of the sum.
///
/// residual[t, i] += delta[t, i]; out[t, i] = residual[t, i] / sqrt(mean_i residual[t, i]^2 + eps) * weight[i]
///
/// * Shapes: `residual` [rows, width] f32, in place; `delta` [rows, width] f32; `weight` [width] bf16; `out` [rows, width]
///   bf16. Rows are `stride` elements apart in all three.
/// * Work: as [`rms_norm`]; where it reads again, each thread reads what itself wrote.
/// * Shared memory: 32 B, one partial sum a warp.
/// * Registers: 32 of the row, under 64 in all.
/// * Bytes: 14 an element and 2 a weight; FLOPs: 6 an element.
/// * Alignment: `residual` and `delta` 16 B, `weight` and `out` 8 B, `stride` a multiple of 4. Any width.
/// * Tolerance: the sum is exact to one f32 rounding; `out` 2^-8 relative, the rounding to bf16.
///
/// # Safety
/// The buffers have those shapes and alignments and do not overlap.
#[kernel(threads = 256)]
pub unsafe fn add_rms_norm(
    residual: GlobalMut<f32>,
    delta: Global<f32>,
    weight: Global<Bf16>,
    out: GlobalMut<Bf16>,
    width: u32,
    stride: u32,
    eps: f32,
) {
    // SAFETY: one row a block, inside the buffers by the contract.
    unsafe {
        grid::dependency_wait();
        let start = thread::block_idx_x() as usize * stride as usize;
        let (residual, delta, out) = (residual.add(start), delta.add(start), out.add(start));
        if fits(width) {
            let (mut row, mut more) = ([[0.0; 4]; HELD], [[0.0; 4]; HELD]);
            for (j, (row, more)) in row.iter_mut().zip(&mut more).enumerate() {
                if place(j) < width {
                    *row = vector(residual.as_const(), j).read();
                    *more = vector(delta, j).read_once();
                }
            }
            for (j, (row, more)) in row.iter_mut().zip(&more).enumerate() {
                *row = add(*row, *more);
                if place(j) < width {
                    residual.add(place(j) as usize).cast::<[f32; 4]>().write(*row);
                }
            }
            normalise_held(&row, weight, out, width, eps);
        } else {
            let mut squares = 0.0;
            let mut i = thread::thread_idx_x() * 4;
            while i < width {
                let sum = add(read4(residual.as_const(), i, width), read4(delta, i, width));
                squares = add_squares(squares, sum);
                write4(residual, i, width, sum);
                i += THREADS * 4;
            }
            normalise(residual.as_const(), weight, out, width, squares, eps);
        }
        grid::dependency_launch();
    }
}

/// Whether a row is whole vectors, and few enough to be held.
#[inline(always)]
fn fits(width: u32) -> bool {
    width.is_multiple_of(4) && width <= const { HELD as u32 * THREADS * 4 }
}

/// First element of this thread's step `j`.
#[inline(always)]
fn place(j: usize) -> u32 {
    (j as u32 * THREADS + thread::thread_idx_x()) * 4
}

/// The four elements of this thread's step `j`.
#[inline(always)]
fn vector(row: Global<f32>, j: usize) -> Global<[f32; 4]> {
    row.add(place(j) as usize).cast()
}

#[inline(always)]
fn add(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
    [a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]]
}

#[inline(always)]
fn add_squares(squares: f32, [a, b, c, d]: [f32; 4]) -> f32 {
    math::fma(d, d, math::fma(c, c, math::fma(b, b, math::fma(a, a, squares))))
}

/// Elements `i..i + 4` of a row of f32; 0 past its end.
#[inline(always)]
unsafe fn read4(row: Global<f32>, i: u32, width: u32) -> [f32; 4] {
    // SAFETY: only elements below `width` are read; the vector is aligned since `i` and the stride are multiples of 4.
    unsafe {
        let at = row.add(i as usize);
        if i + 4 <= width {
            return at.cast::<[f32; 4]>().read();
        }
        let mut values = [0.0; 4];
        for (j, value) in values.iter_mut().enumerate() {
            if i + (j as u32) < width {
                *value = at.add(j).read();
            }
        }
        values
    }
}

/// Writes elements `i..i + 4` of a row, none past its end.
#[inline(always)]
unsafe fn write4(row: GlobalMut<f32>, i: u32, width: u32, values: [f32; 4]) {
    // SAFETY: as in `read4`.
    unsafe {
        let at = row.add(i as usize);
        if i + 4 <= width {
            at.cast::<[f32; 4]>().write(values);
        } else {
            for (j, value) in values.into_iter().enumerate() {
                if i + (j as u32) < width {
                    at.add(j).write(value);
                }
            }
        }
    }
}

/// What each element of a row is multiplied with, given this thread's sum of squares.
#[inline(always)]
unsafe fn scale(squares: f32, width: u32, eps: f32) -> f32 {
    // SAFETY: all threads of the block come here, once.
    let total = unsafe { block_sum(squares, shared::dynamic_shared_mem()) };
    math::rsqrt(total / width as f32 + eps)
}

/// Four elements, scaled and weighted.
#[inline(always)]
fn weighted(x: [f32; 4], scale: f32, [w01, w23]: [u32; 2]) -> [u32; 2] {
    let ([w0, w1], [w2, w3]) = (bf16x2_to_f32(w01), bf16x2_to_f32(w23));
    let low = bf16x2_from_f32(x[0] * scale * w0, x[1] * scale * w1);
    [low, bf16x2_from_f32(x[2] * scale * w2, x[3] * scale * w3)]
}

/// Normalises a row that the threads hold, zeros past its end.
#[inline(always)]
unsafe fn normalise_held(row: &[[f32; 4]; HELD], weight: Global<Bf16>, out: GlobalMut<Bf16>, width: u32, eps: f32) {
    // SAFETY: vectors that start below `width`, a multiple of four; all threads come here.
    unsafe {
        let mut squares = 0.0;
        for values in row {
            squares = add_squares(squares, *values);
        }
        let scale = scale(squares, width, eps);
        for (j, values) in row.iter().enumerate() {
            let i = place(j);
            if i < width {
                let weight = weight.add(i as usize).cast::<[u32; 2]>().read_cached();
                out.add(i as usize).cast::<[u32; 2]>().write(weighted(*values, scale, weight));
            }
        }
    }
}

/// Reads a row again and normalises it.
#[inline(always)]
unsafe fn normalise(x: Global<f32>, weight: Global<Bf16>, out: GlobalMut<Bf16>, width: u32, squares: f32, eps: f32) {
    // SAFETY: as in `read4`; all threads come here.
    unsafe {
        let scale = scale(squares, width, eps);
        let mut i = thread::thread_idx_x() * 4;
        while i < width {
            let x = read4(x, i, width);
            let (weight, out) = (weight.add(i as usize), out.add(i as usize));
            if i + 4 <= width {
                out.cast::<[u32; 2]>().write(weighted(x, scale, weight.cast().read_cached()));
            } else {
                for (j, value) in x.into_iter().enumerate() {
                    if i + (j as u32) < width {
                        out.add(j).write(Bf16::from_f32(value * scale * weight.add(j).read_cached().to_f32()));
                    }
                }
            }
            i += THREADS * 4;
        }
    }
}

/// Launch of [`rms_norm`] and [`add_rms_norm`] over `rows` rows.
#[cfg(not(target_arch = "nvptx64"))]
pub fn shape(rows: u32) -> LaunchShape {
    LaunchShape::new(rows, THREADS).shared(32)
}

/// One row of [`rms_norm`] by its formula, in f64, unrounded.
#[cfg(not(target_arch = "nvptx64"))]
pub fn rms_norm_reference(row: &[f32], weight: &[Bf16], eps: f32) -> std::vec::Vec<f32> {
    let mean = row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / row.len() as f64;
    let scale = 1.0 / (mean + f64::from(eps)).sqrt();
    row.iter().zip(weight).map(|(x, w)| (f64::from(*x) * scale * f64::from(w.to_f32())) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Failures, Random};
    use cuda_std::simulate::{Buffer, Simulator};
    use std::vec::Vec;

    const SHAPES: [(u32, u32); 17] = [
        (1, 1),
        (1, 3),
        (2, 4),
        (3, 5),
        (5, 63),
        (1, 64),
        (7, 255),
        (2, 576),
        (3, 1000),
        (2, 1023),
        (2, 1024),
        (2, 1025),
        (1, 2051),
        (1, 7168),
        (1, 8190),
        (1, 8192),
        (2, 8196),
    ];

    #[test]
    fn rms_norm_equals_its_formula() {
        let mut failures = Failures::default();
        for (rows, width) in SHAPES {
            let mut random = Random::new((rows * width).into());
            let (x_stride, out_stride) = (width.next_multiple_of(4) + 4, width.next_multiple_of(4));
            let x = random.normals((rows * x_stride) as usize);
            let weight: Vec<Bf16> = random.normals(width as usize).into_iter().map(Bf16::from_f32).collect();
            let (input, weights) = (Buffer::input("x", &x), Buffer::input("weight", &weight));
            let out = Buffer::<Bf16>::poisoned("out", (rows * out_stride) as usize);
            let arguments = (input.ptr(), weights.ptr(), out.ptr_mut(), width, x_stride, out_stride, 1e-6);
            Simulator::default().seed(width.into()).launch(&rms_norm::KERNEL, shape(rows), arguments).unwrap();
            for (row, found) in out.to_vec().chunks(out_stride as usize).enumerate() {
                let x = &x[row * x_stride as usize..][..width as usize];
                let expected = rms_norm_reference(x, &weight, 1e-6);
                let case = std::format!("{rows} x {width}, row {row}");
                failures.compare_bf16(&case, &found[..width as usize], &expected);
                let padding = &found[width as usize..];
                failures.check(padding.iter().all(|p| p.0 == u16::MAX), &case, "writes past the row");
            }
        }
        failures.report();
    }

    #[test]
    fn add_rms_norm_updates_the_residual_and_normalises_it() {
        let mut failures = Failures::default();
        for (rows, width) in SHAPES {
            let mut random = Random::new((rows * width + 1).into());
            let stride = width.next_multiple_of(4);
            let [residual, delta] = [3.0, 1.0].map(|scale| {
                let values = random.normals((rows * stride) as usize);
                values.into_iter().map(|x| x * scale).collect::<Vec<f32>>()
            });
            let weight: Vec<Bf16> = random.normals(width as usize).into_iter().map(Bf16::from_f32).collect();
            let (r, d) = (Buffer::new("residual", &residual), Buffer::input("delta", &delta));
            let weights = Buffer::input("weight", &weight);
            let out = Buffer::<Bf16>::poisoned("out", (rows * stride) as usize);
            let arguments = (r.ptr_mut(), d.ptr(), weights.ptr(), out.ptr_mut(), width, stride, 1e-5);
            Simulator::default().seed(width.into()).launch(&add_rms_norm::KERNEL, shape(rows), arguments).unwrap();
            let (out, updated) = (out.to_vec(), r.to_vec());
            for row in 0..rows as usize {
                let span = row * stride as usize..row * stride as usize + width as usize;
                let sum: Vec<f32> = span.clone().map(|i| residual[i] + delta[i]).collect();
                let case = std::format!("{rows} x {width}, row {row}");
                failures.check(updated[span.clone()] == sum, &case, "residual is not the sum");
                failures.compare_bf16(&case, &out[span], &rms_norm_reference(&sum, &weight, 1e-5));
            }
        }
        failures.report();
    }
}
