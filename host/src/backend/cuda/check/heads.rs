//! Checks of the products head by head.

use coppice_gpu::heads::{INSTANCES, Instance};
use coppice_gpu::linear::{linear_reference, pack};
use coppice_gpu::rope::rope_reference;
use cuda_std::Bf16;

use super::Run;
use super::rows::{angles, bf16s, compare_pairs};
use crate::error::Result;

macro_rules! checks {
    ($($check:ident = $instance:literal;)*) => {
        $(
            pub(super) fn $check(run: &mut Run<'_>) -> Result<()> {
                absorb(run, &INSTANCES[$instance])?;
                project(run, &INSTANCES[$instance])
            }
        )*
    };
}
checks! {
    rows_8 = 0;
    rows_16 = 1;
    rows_32 = 2;
    rows_64 = 3;
}

fn packed(weight: &[Bf16], heads: usize, inputs: usize) -> Vec<Bf16> {
    weight.chunks(weight.len() / heads).flat_map(|head| pack(head, inputs)).collect()
}

/// Whether a bf16 result is that of a product.
fn is_product(found: Bf16, x: &[Bf16], weight: &[Bf16]) -> std::result::Result<(), String> {
    let (exact, size) = linear_reference(x, weight);
    let close = (f64::from(found.to_f32()) - exact).abs() <= size * 2f64.powi(-20) + exact.abs() * 1.01 / 256.0;
    if close { Ok(()) } else { Err(format!("{found:?}, expected {exact}")) }
}

fn absorb(run: &mut Run<'_>, instance: &Instance) -> Result<()> {
    let bound = instance.bound as usize;
    let small = [(1, [1, 32, 4, 16]), (bound - 1, [3, 64, 16, 48])];
    for (rows, [heads, nope, rope, latent]) in run.cases(&small, &[(bound, [8, 128, 64, 512])]) {
        let (q, weight) = (run.random.normals(rows * heads * (nope + rope)), bf16s(run, heads * latent * nope));
        let (cos_sin, positions) = (angles(rope), (0..rows as u32).map(|i| i * 3 % 11).collect::<Vec<_>>());
        let place = run.place;
        let (input, weights) = (place.input("q", &q)?, place.input("weight", &packed(&weight, heads, nope))?);
        let (turns, at) = (place.input("cos_sin", &cos_sin)?, place.input("positions", &positions)?);
        let query = place.output::<Bf16>("query", rows * heads * (latent + rope))?;
        let [t, n, r, l] = [rows, nope, rope, latent].map(|n| n as u32);
        let arguments = (input.ptr(), weights.ptr(), turns.ptr(), at.ptr(), query.ptr_mut(), t, n, r, l);
        // SAFETY: the buffers are as large as these sizes say; positions are below 11, rows within the bound.
        unsafe { place.launch(&instance.absorb, instance.absorb_shape(heads as u32, l), arguments)? };
        for (at, (found, q)) in query.to_vec()?.chunks(latent + rope).zip(q.chunks(nope + rope)).enumerate() {
            let (row, head) = (at / heads, at % heads);
            let case = format!("{} {rows} rows, {heads} heads, row {row}, head {head}", instance.absorb.name);
            let x: Vec<Bf16> = q[..nope].iter().map(|x| Bf16::from_f32(*x)).collect();
            for (o, found) in found[..latent].iter().enumerate() {
                if let Err(what) = is_product(*found, &x, &weight[(head * latent + o) * nope..][..nope]) {
                    run.failures.check(false, &case, &format!("output {o} is {what}"));
                }
            }
            let turns = &cos_sin[row * 3 % 11 * rope / 2..][..rope / 2];
            compare_pairs(run, &case, &found[latent..], &rope_reference(&q[nope..], turns));
        }
    }
    Ok(())
}

fn project(run: &mut Run<'_>, instance: &Instance) -> Result<()> {
    let bound = instance.bound as usize;
    let small = [(1, [1, 32, 1]), (bound - 1, [3, 160, 24])];
    for (rows, [heads, latent, v]) in run.cases(&small, &[(bound, [8, 512, 128])]) {
        let (x, weight) = (bf16s(run, rows * heads * latent), bf16s(run, heads * v * latent));
        let (place, stride) = (run.place, heads * v + 3);
        let (input, weights) = (place.input("attended", &x)?, place.input("weight", &packed(&weight, heads, latent))?);
        let out = place.output::<Bf16>("out", rows * stride)?;
        let [t, l, w, s] = [rows, latent, v, stride].map(|n| n as u32);
        let arguments = (input.ptr(), weights.ptr(), out.ptr_mut(), t, l, w, s);
        // SAFETY: the buffers are as large as these sizes say; rows are within the bound.
        unsafe { place.launch(&instance.project, instance.project_shape(heads as u32, w), arguments)? };
        for (row, found) in out.to_vec()?.chunks(stride).enumerate() {
            let case = format!("{} {rows} rows, {heads} heads, row {row}", instance.project.name);
            for (o, found) in found[..heads * v].iter().enumerate() {
                let x = &x[(row * heads + o / v) * latent..][..latent];
                if let Err(what) = is_product(*found, x, &weight[o * latent..][..latent]) {
                    run.failures.check(false, &case, &format!("output {o} is {what}"));
                }
            }
            run.failures.check(found[heads * v..].iter().all(|x| x.0 == u16::MAX), &case, "writes past its row");
        }
    }
    Ok(())
}
