//! Element-wise work on the residual stream: embedding rows, residual addition, RMS norm (Zhang and Sennrich 2019).

use super::pool::Pool;

/// Elements below which a loop is not worth another thread.
const SERIAL: usize = 1 << 15;

/// Partial sums of a row: a fixed number, so that the result does not depend on the machine's vectors.
const LANES: usize = 16;

/// 1 / sqrt(mean of squares + eps).
fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    let mut sums = [0.0f32; LANES];
    let chunks = x.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        sums.iter_mut().zip(chunk).for_each(|(sum, x)| *sum += x * x);
    }
    sums.iter_mut().zip(rest).for_each(|(sum, x)| *sum += x * x);
    let mut width = LANES / 2;
    while width > 0 {
        (0..width).for_each(|lane| sums[lane] += sums[lane + width]);
        width /= 2;
    }
    1.0 / (sums[0] / x.len() as f32 + eps).sqrt()
}

/// `out := x / rms(x) * weight` of one row.
pub(super) fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let factor = inverse_rms(x, eps);
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = x * factor * weight;
    }
}

/// `out := x / rms(x) * weight` of rows `[rows, width]`.
pub(super) fn rms_norm_rows(pool: &Pool, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let width = weight.len();
    by_rows(pool, out, width, |row, out| rms_norm(&x[row * width..(row + 1) * width], weight, eps, out));
}

/// `x += delta`, rows `[rows, width]`.
pub(super) fn add_rows(pool: &Pool, delta: &[f32], width: usize, x: &mut [f32]) {
    by_rows(pool, x, width, |row, x| {
        x.iter_mut().zip(&delta[row * width..]).for_each(|(x, delta)| *x += delta);
    });
}

/// Calls `work` on each row of `out`, on several threads where there is enough to do.
pub(super) fn by_rows(pool: &Pool, out: &mut [f32], width: usize, work: impl Fn(usize, &mut [f32]) + Sync) {
    if out.len() < SERIAL {
        out.chunks_exact_mut(width).enumerate().for_each(|(row, out)| work(row, out));
    } else {
        pool.run_on_chunks(out, width, work);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rms_norm_matches_f64_at_odd_widths() {
        for width in [1, 2, 15, 16, 17, 33, 100, 513] {
            let x: Vec<f32> = (0..width).map(|i| (i as f32 * 0.37).sin() * 3.0).collect();
            let weight: Vec<f32> = (0..width).map(|i| 1.0 + (i as f32 * 0.11).cos()).collect();
            let mut out = vec![0.0; width];
            rms_norm(&x, &weight, 1e-5, &mut out);
            let mean = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / width as f64;
            for i in 0..width {
                let expected = f64::from(x[i]) / (mean + 1e-5).sqrt() * f64::from(weight[i]);
                assert!((f64::from(out[i]) - expected).abs() < 2e-6 * expected.abs().max(1.0), "width {width}, {i}");
            }
        }
    }

    #[test]
    fn a_row_is_normed_alike_alone_and_among_many() {
        let pool = Pool::new(2);
        let (rows, width) = (70, 600);
        let x: Vec<f32> = (0..rows * width).map(|i| (i as f32 * 0.013).sin()).collect();
        let weight = vec![1.5; width];
        let (mut many, mut one) = (vec![0.0; rows * width], vec![0.0; width]);
        rms_norm_rows(&pool, &x, &weight, 1e-6, &mut many);
        for row in 0..rows {
            rms_norm_rows(&pool, &x[row * width..(row + 1) * width], &weight, 1e-6, &mut one);
            assert_eq!(one, many[row * width..(row + 1) * width]);
        }
    }
}
