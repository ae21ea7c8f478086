//! Checks of the mixture-of-experts kernels.

use coppice_gpu::moe::active::{self, active_reference, random_choices};
use coppice_gpu::moe::combine::{self, combine_reference};
use coppice_gpu::moe::experts::{BF16, FP8, INT4, Instance};
use coppice_gpu::moe::format::{Matrix, pack_down, pack_gate_up};
use coppice_gpu::moe::route::{self, Rule, route_reference};
use coppice_gpu::moe::router::{self, INSTANCES, router_reference};
use coppice_gpu::moe::testing::Weights;
use cuda_std::Bf16;

use super::Run;
use super::rows::bf16s;
use crate::error::Result;

macro_rules! checks {
    ($($check:ident = $function:ident($($argument:expr),*);)*) => {
        $(
            pub(super) fn $check(run: &mut Run<'_>) -> Result<()> {
                $function(run, $($argument),*)
            }
        )*
    };
}
checks! {
    router_8 = product(&INSTANCES[0]);
    router_16 = product(&INSTANCES[1]);
    router_32 = product(&INSTANCES[2]);
    router_64 = product(&INSTANCES[3]);
    int4_8 = experts(0, &INT4[0]);
    int4_32 = experts(0, &INT4[1]);
    bf16_8 = experts(1, &BF16[0]);
    bf16_32 = experts(1, &BF16[1]);
    fp8_8 = experts(2, &FP8[0]);
    fp8_32 = experts(2, &FP8[1]);
}

fn product(run: &mut Run<'_>, instance: &router::Instance) -> Result<()> {
    let bound = instance.bound as usize;
    for (rows, inputs, experts) in run.cases(&[(1, 32, 1), (bound - 1, 1056, 19)], &[(bound, 7168, 384)]) {
        let (x, weight) = (bf16s(run, rows * inputs), run.random.normals(experts * inputs));
        let (input, weights) = (run.place.input("x", &x)?, run.place.input("weight", &weight)?);
        let [r, i, e] = [rows, inputs, experts].map(|n| n as u32);
        let partial = run.place.output::<f32>("partial", router::parts(i) as usize * rows * experts)?;
        let arguments = (input.ptr(), weights.ptr(), partial.ptr_mut(), r, i, e);
        // SAFETY: the buffers are as large as these sizes say; rows are within the bound, inputs a multiple of 32.
        unsafe { run.place.launch(&instance.kernel, instance.shape(i, e), arguments)? };
        let partial = partial.to_vec()?;
        for at in 0..rows * experts {
            let found: f32 = partial.iter().skip(at).step_by(rows * experts).sum();
            let (row, expert) = (at / experts, at % experts);
            let (exact, size) = router_reference(&x[row * inputs..][..inputs], &weight[expert * inputs..][..inputs]);
            if (f64::from(found) - exact).abs() > size * 2f64.powi(-20) {
                let case = format!("{} {rows} rows, {inputs} to {experts}, ({row}, {expert})", instance.kernel.name);
                run.failures.check(false, &case, &format!("is {found}, expected {exact}"));
            }
        }
    }
    Ok(())
}

pub(super) fn choice(run: &mut Run<'_>) -> Result<()> {
    let small = [(1, 8, 1, 1, 3), (5, 33, 3, 2, 8), (3, 256, 8, 4, 8)];
    for (rows, experts, groups, kept, k) in run.cases(&small, &[(64, 384, 1, 1, 8), (64, 256, 8, 4, 8)]) {
        let rule = Rule { groups, kept, k, normalise: rows != 5, scale: 2.827 };
        // Steps of 1/4, so that there are ties.
        let logits: Vec<f32> =
            run.random.normals(rows * experts).into_iter().map(|x| (x * 8.0).round() / 4.0).collect();
        let bias: Vec<f32> = (0..experts).map(|_| run.random.below(3) as f32 / 8.0).collect();
        let (partial, biases) = (run.place.input("partial", &logits)?, run.place.input("bias", &bias)?);
        let (ids, weights) = (run.place.output::<u32>("ids", rows * k)?, run.place.output::<f32>("weights", rows * k)?);
        let [e, g, m, c] = [experts, groups, kept, k].map(|n| n as u32);
        let pointers = (partial.ptr(), biases.ptr(), ids.ptr_mut(), weights.ptr_mut());
        let arguments =
            (pointers.0, pointers.1, pointers.2, pointers.3, 1, e, g, m, c, rule.normalise.into(), rule.scale);
        // SAFETY: the buffers are as large as these sizes say; the groups divide the experts and hold k.
        unsafe { run.place.launch(&route::route::KERNEL, route::shape(rows as u32, e, g), arguments)? };
        let (ids, weights) = (ids.to_vec()?, weights.to_vec()?);
        for (row, logits) in logits.chunks(experts).enumerate() {
            let case = format!("route {rule:?} of {experts}, row {row}");
            let (expected, expected_weights) = route_reference(logits, &bias, rule);
            run.failures.check(ids[row * k..][..k] == expected, &case, "ids differ");
            run.failures.check(weights[row * k..][..k] == expected_weights, &case, "weights differ");
        }
        run.integers.extend(ids);
        run.integers.extend(weights.iter().map(|weight| weight.to_bits()));
    }
    Ok(())
}

pub(super) fn list(run: &mut Run<'_>) -> Result<()> {
    for (rows, k, experts) in run.cases(&[(1, 8, 384), (33, 5, 100), (64, 8, 384)], &[(200, 8, 384)]) {
        let ids = random_choices(&mut run.random, rows, k, experts);
        let input = run.place.input("ids", &ids)?;
        let found = run.place.output::<[u32; 4]>("active", experts as usize)?;
        let (count, choices) = (run.place.output::<u32>("count", 1)?, run.place.output::<u32>("choices", ids.len())?);
        let arguments = (input.ptr(), found.ptr_mut(), count.ptr_mut(), choices.ptr_mut(), rows, k, experts);
        // SAFETY: the buffers are as large as these sizes say; the ids are below `experts`.
        unsafe { run.place.launch(&active::active_experts::KERNEL, active::shape(rows, experts), arguments)? };
        let (found, choices) = (found.to_vec()?, choices.to_vec()?);
        let expected = active_reference(&ids, experts);
        let mut flat: Vec<u32> = Vec::new();
        let lists: Vec<[u32; 4]> = expected
            .iter()
            .map(|(expert, own)| {
                let entry = [*expert, flat.len() as u32, own.len() as u32, 0];
                flat.extend(own);
                entry
            })
            .collect();
        let case = format!("active_experts {rows} x {k} of {experts}");
        run.failures.check(count.to_vec()? == [lists.len() as u32], &case, "the count differs");
        run.failures.check(found.get(..lists.len()) == Some(&lists[..]), &case, "the list differs");
        run.failures.check(choices == flat, &case, "the choices differ");
        run.integers.extend(choices);
    }
    Ok(())
}

fn dot(matrix: Matrix<'_>, output: usize, x: &[Bf16]) -> (f64, f64) {
    let terms = x.iter().enumerate().map(|(i, value)| matrix.value(output, i, x.len()) * f64::from(value.to_f32()));
    terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()))
}

fn experts(run: &mut Run<'_>, format: usize, instance: &Instance) -> Result<()> {
    let small = [(1, 1, 1, 32, 1), (3, 2, 5, 96, 17), (9, 3, 4, 544, 40), (33, 1, 2, 160, 300)];
    for (rows, k, experts, inputs, outputs) in run.cases(&small, &[(16, 2, 6, 2048, 256)]) {
        let n = inputs as usize;
        let x = bf16s(run, (rows * inputs) as usize);
        let mut matrices =
            || (0..experts).map(|_| Weights::random(format, &mut run.random, outputs, inputs)).collect::<Vec<_>>();
        let (gate, up) = (matrices(), matrices());
        let ids = random_choices(&mut run.random, rows, k, experts);
        let pairs = gate.iter().zip(&up);
        let gate_up: Vec<u8> = pairs.flat_map(|(g, u)| pack_gate_up(g.matrix(), u.matrix(), n)).collect();
        let down: Vec<u8> = gate.iter().flat_map(|weights| pack_down(weights.matrix(), n)).collect();
        let (mut active, mut choices) = (Vec::new(), Vec::new());
        for (expert, own) in active_reference(&ids, experts) {
            active.push([expert, choices.len() as u32, own.len() as u32, 0]);
            choices.extend(own);
        }
        let most = active.len() as u32 + 1;
        let lists = (run.place.input("active", &active)?, run.place.input("count", &[active.len() as u32])?);
        let (choices, input) = (run.place.input("choices", &choices)?, run.place.input("x", &x)?);
        let weights = (run.place.input("gate_up", &gate_up)?, run.place.input("down", &down)?);
        let size = (rows * k * outputs) as usize;
        let (h, y) = (run.place.output::<Bf16>("h", size)?, run.place.output::<f32>("y", size)?);
        let common = (lists.0.ptr(), lists.1.ptr(), choices.ptr());
        let arguments = (input.ptr(), weights.0.ptr(), common.0, common.1, common.2, h.ptr_mut(), inputs, outputs, k);
        // SAFETY: the buffers are as large as these sizes say; inputs are a multiple of 32.
        unsafe { run.place.launch(&instance.gate_up, instance.gate_up_shape(outputs, most), arguments)? };
        let arguments = (input.ptr(), weights.1.ptr(), common.0, common.1, common.2, y.ptr_mut(), inputs, outputs, k);
        // SAFETY: as above.
        unsafe { run.place.launch(&instance.down, instance.down_shape(outputs, most), arguments)? };
        for (at, (h, y)) in h.to_vec()?.into_iter().zip(y.to_vec()?).enumerate() {
            let (choice, output) = (at / outputs as usize, at % outputs as usize);
            let expert = ids[choice] as usize;
            let x = &x[choice / k as usize * n..][..n];
            let ((gate, gate_size), (up, up_size)) =
                (dot(gate[expert].matrix(), output, x), dot(up[expert].matrix(), output, x));
            let unit = 2f64.powi(-19);
            let exact = gate / (1.0 + (-gate).exp()) * up;
            // silu's slope is at most 1.1.
            let bound = 1.1 * gate_size * unit * up.abs() + up_size * unit * gate.abs() + exact.abs() * 1.01 / 256.0;
            let h = f64::from(h.to_f32());
            if (f64::from(y) - gate).abs() > gate_size * unit || (h - exact).abs() > bound + 1e-30 {
                let case = format!(
                    "{} {rows} x {k} of {experts}, {inputs} to {outputs}, ({choice}, {output})",
                    instance.gate_up.name
                );
                run.failures.check(false, &case, &format!("is {h} and {y}, expected {exact} and {gate}"));
            }
        }
    }
    Ok(())
}

pub(super) fn sum(run: &mut Run<'_>) -> Result<()> {
    for (rows, width, k) in run.cases(&[(1, 4, 1), (3, 516, 5), (2, 160, 8)], &[(64, 7168, 8)]) {
        let (outputs, weights) = (run.random.normals(rows * k * width), run.random.normals(rows * k));
        let (shared, residual) = (run.random.normals(rows * width), run.random.normals(rows * width));
        let inputs = (run.place.input("outputs", &outputs)?, run.place.input("weights", &weights)?);
        let (s, r) = (run.place.input("shared", &shared)?, run.place.state("residual", &residual)?);
        let has_shared = u32::from(rows != 3);
        let (w, c) = (width as u32, k as u32);
        let arguments = (inputs.0.ptr(), inputs.1.ptr(), s.ptr(), r.ptr_mut(), w, c, has_shared);
        // SAFETY: the buffers are as large as these sizes say; the width is a multiple of 4.
        unsafe { run.place.launch(&combine::moe_combine::KERNEL, combine::shape(rows as u32, w), arguments)? };
        for (at, found) in r.to_vec()?.into_iter().enumerate() {
            let (row, column) = (at / width, at % width);
            let terms = (row * k..(row + 1) * k).map(|c| (weights[c], outputs[c * width + column]));
            let own = if has_shared == 1 { shared[at] } else { 0.0 };
            let (exact, size) = combine_reference(terms, own, residual[at]);
            if (f64::from(found) - exact).abs() > size * 2f64.powi(-21) {
                let case = format!("moe_combine {rows} x {width}, k {k}, ({row}, {column})");
                run.failures.check(false, &case, &format!("is {found}, expected {exact}"));
            }
        }
    }
    Ok(())
}
