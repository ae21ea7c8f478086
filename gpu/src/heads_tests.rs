use super::*;
use crate::linear::{linear_reference, pack};
use crate::rope::rope_reference;
use crate::testing::{Failures, Random};
use cuda_std::simulate::{Buffer, Simulator};
use std::vec::Vec;

fn bf16s(random: &mut Random, n: usize) -> Vec<Bf16> {
    random.normals(n).into_iter().map(Bf16::from_f32).collect()
}

fn packed(weight: &[Bf16], heads: usize, inputs: usize) -> Vec<Bf16> {
    weight.chunks(weight.len() / heads).flat_map(|head| pack(head, inputs)).collect()
}

/// Rows, heads, and sizes of a head.
fn rows_of(bound: u32, i: usize) -> usize {
    [bound, bound / 2 + 1, if bound == 8 { 1 } else { bound - 3 }][i % 3] as usize
}

fn absorbed(
    instance: &Instance,
    q: &[f32],
    weight: &[Bf16],
    rows: usize,
    sizes: [usize; 4],
) -> (Vec<Bf16>, Vec<[f32; 2]>) {
    let [heads, nope, rope, latent] = sizes;
    let angle = |i: usize| ((i / (rope / 2)) as f32 * 0.7f32.powi((i % (rope / 2)) as i32)).sin_cos();
    let cos_sin: Vec<[f32; 2]> = (0..11 * rope / 2).map(angle).map(|(sin, cos)| [cos, sin]).collect();
    let positions: Vec<u32> = (0..rows as u32).map(|i| i * 3 % 11).collect();
    let (q, w) = (Buffer::input("q", q), Buffer::input("weight", &packed(weight, heads, nope)));
    let (angles, at) = (Buffer::input("cos_sin", &cos_sin), Buffer::input("positions", &positions));
    let query = Buffer::<Bf16>::poisoned("query", rows * heads * (latent + rope));
    let [n, r, l] = [nope, rope, latent].map(|n| n as u32);
    let arguments = (q.ptr(), w.ptr(), angles.ptr(), at.ptr(), query.ptr_mut(), rows as u32, n, r, l);
    let shape = instance.absorb_shape(heads as u32, l);
    Simulator::default().seed(rows as u64).launch(&instance.absorb, shape, arguments).unwrap();
    (query.to_vec(), cos_sin)
}

#[test]
fn queries_are_absorbed_and_turned() {
    let mut failures = Failures::default();
    for instance in &INSTANCES {
        for (i, sizes) in [[1, 32, 4, 16], [3, 64, 16, 48], [4, 32, 16, 64], [2, 96, 8, 80], [2, 128, 64, 512]]
            .into_iter()
            .enumerate()
        {
            let [heads, nope, rope, latent] = sizes;
            let rows = rows_of(instance.bound, i);
            let mut random = Random::new((rows * latent + heads) as u64);
            let (q, weight) = (random.normals(rows * heads * (nope + rope)), bf16s(&mut random, heads * latent * nope));
            let (query, cos_sin) = absorbed(instance, &q, &weight, rows, sizes);
            for (n, (found, q)) in query.chunks(latent + rope).zip(q.chunks(nope + rope)).enumerate() {
                let (row, head) = (n / heads, n % heads);
                let case = std::format!("{} {rows} rows, {sizes:?}, row {row}, head {head}", instance.absorb.name);
                let x: Vec<Bf16> = q[..nope].iter().map(|x| Bf16::from_f32(*x)).collect();
                for (o, found) in found[..latent].iter().enumerate() {
                    let (exact, size) = linear_reference(&x, &weight[(head * latent + o) * nope..][..nope]);
                    let bound = size * 2f64.powi(-20) + exact.abs() * 1.01 / 256.0;
                    let good = (f64::from(found.to_f32()) - exact).abs() <= bound;
                    failures.check(good, &case, &std::format!("output {o} is {found:?}, expected {exact}"));
                }
                let angles = &cos_sin[row * 3 % 11 * rope / 2..][..rope / 2];
                let expected = rope_reference(&q[nope..], angles);
                for (f, e) in found[latent..].chunks(2).zip(expected.chunks(2)) {
                    let length = e[0].hypot(e[1]);
                    let good = (0..2).all(|j| (f[j].to_f32() - e[j]).abs() <= length / 256.0);
                    failures.check(good, &case, &std::format!("a pair is {f:?}, expected {e:?}"));
                }
            }
        }
    }
    failures.report();
}

fn projected(
    instance: &Instance,
    x: &[Bf16],
    weight: &[Bf16],
    rows: usize,
    [heads, latent, v]: [usize; 3],
) -> Vec<Bf16> {
    let stride = heads * v + 3;
    let (x, w) = (Buffer::input("attended", x), Buffer::input("weight", &packed(weight, heads, latent)));
    let out = Buffer::<Bf16>::poisoned("out", rows * stride);
    let arguments = (x.ptr(), w.ptr(), out.ptr_mut(), rows as u32, latent as u32, v as u32, stride as u32);
    let shape = instance.project_shape(heads as u32, v as u32);
    Simulator::default().seed(rows as u64).launch(&instance.project, shape, arguments).unwrap();
    out.to_vec()
}

#[test]
fn values_are_projected_head_by_head() {
    let mut failures = Failures::default();
    for instance in &INSTANCES {
        for (i, sizes) in [[1, 32, 1], [3, 64, 24], [4, 96, 16], [2, 160, 40], [2, 512, 128]].into_iter().enumerate() {
            let [heads, latent, v] = sizes;
            let rows = rows_of(instance.bound, i);
            let mut random = Random::new((rows * latent + v) as u64);
            let (x, weight) = (bf16s(&mut random, rows * heads * latent), bf16s(&mut random, heads * v * latent));
            let found = projected(instance, &x, &weight, rows, sizes);
            for (row, found) in found.chunks(heads * v + 3).enumerate() {
                let case = std::format!("{} {rows} rows, {sizes:?}, row {row}", instance.project.name);
                for (o, found) in found[..heads * v].iter().enumerate() {
                    let x = &x[(row * heads + o / v) * latent..][..latent];
                    let (exact, size) = linear_reference(x, &weight[o * latent..][..latent]);
                    let bound = size * 2f64.powi(-20) + exact.abs() * 1.01 / 256.0;
                    let good = (f64::from(found.to_f32()) - exact).abs() <= bound;
                    failures.check(good, &case, &std::format!("output {o} is {found:?}, expected {exact}"));
                }
                failures.check(found[heads * v..].iter().all(|x| x.0 == u16::MAX), &case, "writes past its row");
            }
        }
    }
    failures.report();
}

#[test]
fn a_row_depends_neither_on_the_rows_beside_it_nor_on_the_instance() {
    let mut random = Random::new(3);
    let (sizes, heads, latent, v) = ([2, 64, 16, 32], 2, 160, 24);
    let (q, weight) = (random.normals(64 * 2 * 80), bf16s(&mut random, 2 * 32 * 64));
    let one = absorbed(&INSTANCES[0], &q[..160], &weight, 1, sizes).0;
    let (x, values) = (bf16s(&mut random, 64 * heads * latent), bf16s(&mut random, heads * v * latent));
    let one_value = projected(&INSTANCES[0], &x[..heads * latent], &values, 1, [heads, latent, v]);
    for instance in &INSTANCES {
        let rows = instance.bound as usize - 1;
        let all = absorbed(instance, &q[..rows * 160], &weight, rows, sizes).0;
        assert_eq!(all[..one.len()], one[..], "{}", instance.absorb.name);
        let all = projected(instance, &x[..rows * heads * latent], &values, rows, [heads, latent, v]);
        assert_eq!(all[..heads * v], one_value[..heads * v], "{}", instance.project.name);
    }
}
