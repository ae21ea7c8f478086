//! Columns of rows copied elsewhere: as they are (taps of the residual stream), or rounded for a product to read.
#[cfg(not(target_arch = "nvptx64"))]
use cuda_std::launch::LaunchShape;
use cuda_std::{convert::bf16x2_from_f32, grid, prelude::*};

/// Threads of a block, four elements each.
const THREADS: u32 = 128;

/// Copies rows.
///
/// out[t, i] = x[t, i]
///
/// * Shapes: `x` [rows, width] f32, rows `x_stride` elements apart; `out` [rows, width] f32, rows `out_stride` apart.
/// * Work: grid (ceil(width / 512), rows), 128 threads; a thread takes four neighbouring elements.
/// * Shared memory: none.
/// * Registers: under 24.
/// * Bytes: 8 an element; FLOPs: none.
/// * Alignment: both 16 B; width and strides multiples of 4.
/// * Tolerance: exact.
///
/// # Safety
/// The buffers have those shapes and alignments and do not overlap.
#[kernel(threads = 128)]
pub unsafe fn copy_columns(x: Global<f32>, out: GlobalMut<f32>, width: u32, x_stride: u32, out_stride: u32) {
    // SAFETY: four elements of a row a thread, inside the buffers by the contract.
    unsafe {
        grid::dependency_wait();
        let (i, row) = (thread::index_1d() * 4, thread::block_idx_y() as usize);
        if i < width {
            let from = x.add(row * x_stride as usize + i as usize).cast::<[f32; 4]>();
            out.add(row * out_stride as usize + i as usize).cast::<[f32; 4]>().write(from.read());
        }
        grid::dependency_launch();
    }
}

/// Rounds rows to bf16.
///
/// out[t, i] = bf16(x[t, i])
///
/// * Shapes: `x` [rows, width] f32, rows `x_stride` elements apart; `out` [rows, width] bf16, rows `out_stride` apart.
/// * Work: grid (ceil(width / 512), rows), 128 threads; a thread takes four neighbouring elements.
/// * Shared memory: none.
/// * Registers: under 24.
/// * Bytes: 6 an element; FLOPs: none.
/// * Alignment: `x` 16 B, `out` 8 B; width and strides multiples of 4.
/// * Tolerance: the rounding to bf16.
///
/// # Safety
/// The buffers have those shapes and alignments and do not overlap.
#[kernel(threads = 128)]
pub unsafe fn round_columns(x: Global<f32>, out: GlobalMut<Bf16>, width: u32, x_stride: u32, out_stride: u32) {
    // SAFETY: four elements of a row a thread, inside the buffers by the contract.
    unsafe {
        grid::dependency_wait();
        let (i, row) = (thread::index_1d() * 4, thread::block_idx_y() as usize);
        if i < width {
            let [a, b, c, d] = x.add(row * x_stride as usize + i as usize).cast::<[f32; 4]>().read();
            let to = out.add(row * out_stride as usize + i as usize).cast::<[u32; 2]>();
            to.write([bf16x2_from_f32(a, b), bf16x2_from_f32(c, d)]);
        }
        grid::dependency_launch();
    }
}

/// Launch of either kernel over `rows` rows.
#[cfg(not(target_arch = "nvptx64"))]
pub fn shape(rows: u32, width: u32) -> LaunchShape {
    LaunchShape::new((width.div_ceil(THREADS * 4), rows), THREADS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;
    use cuda_std::simulate::{Buffer, launch};
    use std::vec::Vec;

    #[test]
    fn columns_are_copied_and_rounded_and_nothing_else_is_written() {
        for (rows, width, x_stride, out_stride) in [
            (1usize, 4usize, 4usize, 4usize),
            (2, 4, 8, 12),
            (3, 48, 48, 64),
            (1, 96, 96, 96),
            (5, 508, 512, 516),
            (2, 512, 512, 1536),
            (4, 516, 520, 516),
            (7, 1000, 1000, 1024),
            (1, 2052, 2052, 2056),
            (64, 96, 96, 288),
            (2, 7168, 7168, 7168),
            (3, 1536, 1540, 1536),
        ] {
            let x = Random::new(width as u64).normals(rows * x_stride);
            let input = Buffer::input("x", &x);
            let (copy, rounded) =
                (Buffer::<f32>::poisoned("out", rows * out_stride), Buffer::<Bf16>::poisoned("out", rows * out_stride));
            let [w, xs, os] = [width, x_stride, out_stride].map(|n| n as u32);
            let shape = shape(rows as u32, w);
            launch(&copy_columns::KERNEL, shape, (input.ptr(), copy.ptr_mut(), w, xs, os)).unwrap();
            launch(&round_columns::KERNEL, shape, (input.ptr(), rounded.ptr_mut(), w, xs, os)).unwrap();
            let (copy, rounded) = (copy.to_vec(), rounded.to_vec());
            for (row, x) in x.chunks(x_stride).enumerate() {
                let span = row * out_stride..row * out_stride + width;
                assert_eq!(copy[span.clone()], x[..width], "{rows} x {width}, row {row}");
                let expected: Vec<Bf16> = x[..width].iter().map(|x| Bf16::from_f32(*x)).collect();
                assert_eq!(rounded[span.clone()], expected, "{rows} x {width}, row {row}");
                let rest = span.end..(row + 1) * out_stride;
                assert!(copy[rest.clone()].iter().all(|x| x.is_nan()) && rounded[rest].iter().all(|x| x.0 == u16::MAX));
            }
        }
    }
}
