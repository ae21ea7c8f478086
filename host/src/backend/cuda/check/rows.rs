//! Checks of the kernels that take each row by itself: embedding, norms, SwiGLU, rotary embedding.

use coppice_gpu::linear::pack;
use coppice_gpu::{columns, embed, norm, rope, swiglu};
use cuda_std::Bf16;

use super::Run;
use crate::error::Result;

const EPS: f32 = 1e-6;

/// Normal bf16 values.
pub(super) fn bf16s(run: &mut Run<'_>, n: usize) -> Vec<Bf16> {
    run.random.normals(n).into_iter().map(Bf16::from_f32).collect()
}

pub(super) fn embed(run: &mut Run<'_>) -> Result<()> {
    let small = [(1, 1, 32), (3, 5, 96), (2, 70, 1056)];
    for (rows, vocab, width) in run.cases(&small, &[(64, 999, 7168), (7, 163_840, 768)]) {
        let table = bf16s(run, vocab * width);
        let ids: Vec<u32> = (0..rows).map(|_| run.random.below(vocab as u32)).collect();
        let (tokens, weights) = (run.place.input("ids", &ids)?, run.place.input("table", &pack(&table, width))?);
        let out = run.place.output::<f32>("out", rows * width)?;
        let arguments = (tokens.ptr(), weights.ptr(), out.ptr_mut(), width as u32);
        // SAFETY: the buffers are as large as these sizes say, and the ids are below `vocab`.
        unsafe { run.place.launch(&embed::embed::KERNEL, embed::shape(rows as u32), arguments)? };
        let good = out.to_vec()? == embed::embed_reference(&ids, &table, width);
        run.failures.check(good, &format!("embed {rows} of {vocab} x {width}"), "differs from the table");
    }
    Ok(())
}

pub(super) fn rms_norm(run: &mut Run<'_>) -> Result<()> {
    let small = [(1, 1usize), (3, 7), (2, 1000), (2, 1029)];
    for (rows, width) in run.cases(&small, &[(64, 7168), (33, 1536), (1000, 576)]) {
        let (x_stride, out_stride) = (width.next_multiple_of(4) + 4, width.next_multiple_of(4) + 8);
        let (x, weight) = (run.random.normals(rows * x_stride), bf16s(run, width));
        let (input, weights) = (run.place.input("x", &x)?, run.place.input("weight", &weight)?);
        let out = run.place.output::<Bf16>("out", rows * out_stride)?;
        let [w, xs, os] = [width, x_stride, out_stride].map(|n| n as u32);
        let arguments = (input.ptr(), weights.ptr(), out.ptr_mut(), w, xs, os, EPS);
        // SAFETY: the buffers are as large as these sizes say; both strides are multiples of 4.
        unsafe { run.place.launch(&norm::rms_norm::KERNEL, norm::shape(rows as u32), arguments)? };
        for (row, (found, x)) in out.to_vec()?.chunks(out_stride).zip(x.chunks(x_stride)).enumerate() {
            let case = format!("rms_norm {rows} x {width}, row {row}");
            run.failures.compare_bf16(&case, &found[..width], &norm::rms_norm_reference(&x[..width], &weight, EPS));
            run.failures.check(found[width..].iter().all(|x| x.0 == u16::MAX), &case, "writes past its row");
        }
    }
    Ok(())
}

pub(super) fn add_rms_norm(run: &mut Run<'_>) -> Result<()> {
    let small = [(1, 1usize), (3, 7), (2, 1000), (2, 1029)];
    for (rows, width) in run.cases(&small, &[(64, 7168), (33, 1536)]) {
        let stride = width.next_multiple_of(4) + 4;
        let (residual, delta) = (run.random.normals(rows * stride), run.random.normals(rows * stride));
        let weight = bf16s(run, width);
        let (r, d) = (run.place.state("residual", &residual)?, run.place.input("delta", &delta)?);
        let (w, out) = (run.place.input("weight", &weight)?, run.place.output::<Bf16>("out", rows * stride)?);
        let arguments = (r.ptr_mut(), d.ptr(), w.ptr(), out.ptr_mut(), width as u32, stride as u32, EPS);
        // SAFETY: the buffers are as large as these sizes say; the stride is a multiple of 4.
        unsafe { run.place.launch(&norm::add_rms_norm::KERNEL, norm::shape(rows as u32), arguments)? };
        let (updated, out) = (r.to_vec()?, out.to_vec()?);
        for row in 0..rows {
            let span = row * stride..row * stride + width;
            let sum: Vec<f32> = span.clone().map(|i| residual[i] + delta[i]).collect();
            let case = format!("add_rms_norm {rows} x {width}, row {row}");
            run.failures.check(updated[span.clone()] == sum, &case, "the residual is not the sum");
            run.failures.compare_bf16(&case, &out[span], &norm::rms_norm_reference(&sum, &weight, EPS));
        }
    }
    Ok(())
}

pub(super) fn silu_mul(run: &mut Run<'_>) -> Result<()> {
    for (rows, width) in run.cases(&[(1, 8), (3, 24), (2, 2056)], &[(64, 18_432), (512, 2048)]) {
        let x = bf16s(run, rows * 2 * width);
        let (input, out) = (run.place.input("gate_up", &x)?, run.place.output::<Bf16>("out", rows * width)?);
        let shape = swiglu::shape(rows as u32, width as u32);
        // SAFETY: the buffers are as large as these sizes say; the width is a multiple of 8.
        unsafe { run.place.launch(&swiglu::silu_mul::KERNEL, shape, (input.ptr(), out.ptr_mut(), width as u32))? };
        for (row, (found, x)) in out.to_vec()?.chunks(width).zip(x.chunks(2 * width)).enumerate() {
            let expected = swiglu::silu_mul_reference(&x[..width], &x[width..]);
            run.failures.compare_bf16(&format!("silu_mul {rows} x {width}, row {row}"), found, &expected);
        }
    }
    Ok(())
}

pub(super) fn append_latent(run: &mut Run<'_>) -> Result<()> {
    let small = [(1, 2, 2, 4), (3, 8, 30, 40), (2, 16, 62, 78)];
    for (rows, rope, latent, stride) in run.cases(&small, &[(64, 64, 512, 584), (65, 64, 512, 584)]) {
        let (slots, start, width) = (rows + 5, rows % 4, latent + rope);
        let positions: Vec<u32> = (0..rows as u32).map(|i| i * 3 % 11).collect();
        let (kv, weight) = (run.random.normals(rows * width), bf16s(run, latent));
        let cos_sin = angles(rope);
        let place = run.place;
        let (input, weights) = (place.input("kv", &kv)?, place.input("weight", &weight)?);
        let (turns, at) = (place.input("cos_sin", &cos_sin)?, place.input("positions", &positions)?);
        let (first, cache) = (place.input("start", &[start as u32])?, place.output::<Bf16>("cache", slots * stride)?);
        let [r, l, s] = [rope, latent, stride].map(|n| n as u32);
        let pointers = (input.ptr(), weights.ptr(), turns.ptr(), at.ptr(), first.ptr(), cache.ptr_mut());
        let arguments = (pointers.0, pointers.1, pointers.2, pointers.3, pointers.4, pointers.5, r, l, s, EPS);
        // SAFETY: the buffers are as large as these sizes say; positions are below 11.
        unsafe { place.launch(&rope::append_latent::KERNEL, rope::shape(rows as u32), arguments)? };
        for (slot, found) in cache.to_vec()?.chunks(stride).enumerate() {
            let name = format!("append_latent {rows} rows, latent {latent}, rope {rope}, slot {slot}");
            if slot < start || slot >= start + rows {
                run.failures.check(found.iter().all(|x| x.0 == u16::MAX), &name, "was written");
                continue;
            }
            let from = &kv[(slot - start) * width..][..width];
            let turns = &cos_sin[positions[slot - start] as usize * rope / 2..][..rope / 2];
            let expected = norm::rms_norm_reference(&from[..latent], &weight, EPS);
            run.failures.compare_bf16(&name, &found[..latent], &expected);
            compare_pairs(run, &name, &found[latent..width], &rope::rope_reference(&from[latent..], turns));
        }
    }
    Ok(())
}

/// Rotations of the first 11 positions.
pub(super) fn angles(rope: usize) -> Vec<[f32; 2]> {
    let angle = |i: usize| ((i / (rope / 2)) as f32 * 0.7f32.powi((i % (rope / 2)) as i32)).sin_cos();
    (0..11 * rope / 2).map(angle).map(|(sin, cos)| [cos, sin]).collect()
}

pub(super) fn columns(run: &mut Run<'_>) -> Result<()> {
    for (rows, width) in run.cases(&[(1, 4), (3, 48), (2, 516)], &[(64, 7168), (8, 1536)]) {
        let (x_stride, out_stride) = (width + 4, width + 8);
        let x = run.random.normals(rows * x_stride);
        let input = run.place.input("x", &x)?;
        let copy = run.place.output::<f32>("copy", rows * out_stride)?;
        let rounded = run.place.output::<Bf16>("rounded", rows * out_stride)?;
        let [w, xs, os] = [width, x_stride, out_stride].map(|n| n as u32);
        let shape = columns::shape(rows as u32, w);
        let arguments = (input.ptr(), copy.ptr_mut(), w, xs, os);
        // SAFETY: the buffers are as large as these sizes say; all are multiples of 4.
        unsafe { run.place.launch(&columns::copy_columns::KERNEL, shape, arguments)? };
        let arguments = (input.ptr(), rounded.ptr_mut(), w, xs, os);
        // SAFETY: as above.
        unsafe { run.place.launch(&columns::round_columns::KERNEL, shape, arguments)? };
        let (copy, rounded) = (copy.to_vec()?, rounded.to_vec()?);
        for (row, x) in x.chunks(x_stride).enumerate() {
            let (span, case) =
                (row * out_stride..row * out_stride + width, format!("columns {rows} x {width}, row {row}"));
            run.failures.check(copy[span.clone()] == x[..width], &case, "the copy differs");
            run.failures.compare_bf16(&case, &rounded[span.clone()], &x[..width]);
            let rest = span.end..(row + 1) * out_stride;
            let untouched =
                copy[rest.clone()].iter().all(|x| x.is_nan()) && rounded[rest].iter().all(|x| x.0 == u16::MAX);
            run.failures.check(untouched, &case, "writes past its row");
        }
    }
    Ok(())
}

/// An element of a rotated pair may cancel, so the bound is relative to the pair's length.
pub(super) fn compare_pairs(run: &mut Run<'_>, case: &str, found: &[Bf16], expected: &[f32]) {
    for (i, (f, e)) in found.chunks(2).zip(expected.chunks(2)).enumerate() {
        let length = e[0].hypot(e[1]);
        let close = (0..2).all(|j| (f[j].to_f32() - e[j]).abs() <= length / 256.0);
        run.failures.check(close, case, &format!("pair {i} is {f:?}, expected {e:?}"));
    }
}
