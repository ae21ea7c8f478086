//! Checks of the kernels that take each row by itself: embedding, norms, SwiGLU, rotary embedding.

use coppice_gpu::{embed, norm, rope, swiglu};
use cuda_std::Bf16;

use super::Run;
use crate::error::Result;

const EPS: f32 = 1e-6;

/// Normal bf16 values.
pub(super) fn bf16s(run: &mut Run<'_>, n: usize) -> Vec<Bf16> {
    run.random.normals(n).into_iter().map(Bf16::from_f32).collect()
}

pub(super) fn embed(run: &mut Run<'_>) -> Result<()> {
    let small = [(1, 1, 8), (3, 5, 24), (2, 7, 1032)];
    for (rows, vocab, width) in run.cases(&small, &[(64, 999, 7168), (7, 163_840, 768)]) {
        let table = bf16s(run, vocab * width);
        let ids: Vec<u32> = (0..rows).map(|_| run.random.below(vocab as u32)).collect();
        let (tokens, weights) = (run.place.input("ids", &ids)?, run.place.input("table", &table)?);
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

/// Sizes of a case of `rope_append`.
#[derive(Clone, Copy)]
struct Heads {
    rows: usize,
    heads: usize,
    nope: usize,
    rope: usize,
    latent: usize,
    stride: usize,
}

pub(super) fn rope_append(run: &mut Run<'_>) -> Result<()> {
    let small = [
        Heads { rows: 1, heads: 1, nope: 2, rope: 2, latent: 2, stride: 4 },
        Heads { rows: 3, heads: 5, nope: 16, rope: 8, latent: 30, stride: 40 },
        Heads { rows: 2, heads: 6, nope: 48, rope: 16, latent: 62, stride: 78 },
    ];
    let large = [
        Heads { rows: 64, heads: 64, nope: 128, rope: 64, latent: 512, stride: 584 },
        Heads { rows: 65, heads: 8, nope: 128, rope: 64, latent: 512, stride: 584 },
    ];
    for case in run.cases(&small, &large) {
        rope_append_case(run, case)?;
    }
    Ok(())
}

fn rope_append_case(run: &mut Run<'_>, case: Heads) -> Result<()> {
    let Heads { rows, heads, nope, rope, latent, stride } = case;
    let (from_head, to_head, slot_count) = (nope + rope, latent + rope, rows + 3);
    let positions: Vec<u32> = (0..rows as u32).map(|i| i * 3 % 11).collect();
    let slots: Vec<u32> = (0..rows).map(|i| ((i + 2) % slot_count) as u32).collect();
    let (q, kv) = (run.random.normals(rows * heads * from_head), run.random.normals(rows * to_head));
    let weight = bf16s(run, latent);
    let angle = |i: usize| ((i / (rope / 2)) as f32 * 0.7f32.powi((i % (rope / 2)) as i32)).sin_cos();
    let cos_sin: Vec<[f32; 2]> = (0..11 * rope / 2).map(angle).map(|(sin, cos)| [cos, sin]).collect();
    let place = run.place;
    let (inputs, weights) = ((place.input("q", &q)?, place.input("kv", &kv)?), place.input("weight", &weight)?);
    let (angles, at) = (place.input("cos_sin", &cos_sin)?, place.input("positions", &positions)?);
    let to = place.input("slots", &slots)?;
    let query = place.output::<Bf16>("query", rows * heads * to_head)?;
    let cache = place.output::<Bf16>("cache", slot_count * stride)?;
    let [heads_arg, nope_arg, rope_arg, latent_arg, stride_arg] = [heads, nope, rope, latent, stride].map(|n| n as u32);
    let arguments = (
        inputs.0.ptr(),
        inputs.1.ptr(),
        weights.ptr(),
        angles.ptr(),
        at.ptr(),
        to.ptr(),
        query.ptr_mut(),
        cache.ptr_mut(),
        heads_arg,
        nope_arg,
        rope_arg,
        latent_arg,
        stride_arg,
        EPS,
    );
    // SAFETY: the buffers are as large as these sizes say; positions are below 11, slots below their number and distinct.
    unsafe { place.launch(&rope::rope_append::KERNEL, rope::shape(rows as u32), arguments)? };
    let (query, cache) = (query.to_vec()?, cache.to_vec()?);
    for row in 0..rows {
        let name = format!("rope_append {rows} rows, {heads} heads, {nope}+{rope}, latent {latent}, row {row}");
        let angles = &cos_sin[positions[row] as usize * rope / 2..][..rope / 2];
        for head in 0..heads {
            let from = &q[(row * heads + head) * from_head + nope..][..rope];
            let found = &query[(row * heads + head) * to_head..][..to_head];
            compare_pairs(run, &name, &found[latent..], &rope::rope_reference(from, angles));
            run.failures.check(found[..latent].iter().all(|x| x.0 == u16::MAX), &name, "writes the latent query");
        }
        let (from, found) = (&kv[row * to_head..][..to_head], &cache[slots[row] as usize * stride..][..stride]);
        run.failures.compare_bf16(&name, &found[..latent], &norm::rms_norm_reference(&from[..latent], &weight, EPS));
        compare_pairs(run, &name, &found[latent..to_head], &rope::rope_reference(&from[latent..], angles));
    }
    for slot in (0..slot_count).filter(|slot| !slots.contains(&(*slot as u32))) {
        let row = &cache[slot * stride..][..stride];
        run.failures.check(row.iter().all(|x| x.0 == u16::MAX), &format!("rope_append slot {slot}"), "was written");
    }
    Ok(())
}

/// An element of a rotated pair may cancel, so the bound is relative to the pair's length.
fn compare_pairs(run: &mut Run<'_>, case: &str, found: &[Bf16], expected: &[f32]) {
    for (i, (f, e)) in found.chunks(2).zip(expected.chunks(2)).enumerate() {
        let length = e[0].hypot(e[1]);
        let close = (0..2).all(|j| (f[j].to_f32() - e[j]).abs() <= length / 256.0);
        run.failures.check(close, case, &format!("pair {i} is {f:?}, expected {e:?}"));
    }
}
