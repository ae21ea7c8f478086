//! Latent attention: against a naive reference, and bit for bit against itself.

use super::*;
use crate::backend::cpu::Isa;

/// Attention of one query after `ids`, itself the last of them, in f64.
fn reference(rig: &Rig, ids: &[u32]) -> Vec<f64> {
    let Shape { heads, nope, rope, v, kv_lora } = rig.shape;
    let at = |table: usize, width: usize, token: u32| -> Vec<f64> {
        rig.tables[table][token as usize * width..][..width].iter().map(|x| f64::from(*x)).collect()
    };
    let turn = |x: &[f64], position: usize| -> Vec<f64> {
        let mut turned = x.to_vec();
        for (i, frequency) in rig.table.inv_freq.iter().enumerate() {
            let (sin, cos) = f64::from(position as f32 * frequency).sin_cos();
            let m = f64::from(rig.table.amplitude);
            turned[2 * i] = m * (x[2 * i] * cos - x[2 * i + 1] * sin);
            turned[2 * i + 1] = m * (x[2 * i + 1] * cos + x[2 * i] * sin);
        }
        turned
    };
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let kv_b =
        |row: usize| -> Vec<f64> { rig.kv_b[row * kv_lora..][..kv_lora].iter().map(|x| f64::from(*x)).collect() };
    let entries: Vec<(Vec<f64>, Vec<f64>)> = ids
        .iter()
        .enumerate()
        .map(|(position, id)| {
            let kv_a = at(0, kv_lora + rope, *id);
            let mean = dot(&kv_a[..kv_lora], &kv_a[..kv_lora]) / kv_lora as f64;
            let factor = 1.0 / (mean + f64::from(rig.spec.norm_eps)).sqrt();
            let latent = (0..kv_lora).map(|i| kv_a[i] * factor * f64::from(rig.kv_a_norm[i])).collect();
            (latent, turn(&kv_a[kv_lora..], position))
        })
        .collect();
    let q = at(1, heads * (nope + rope), *ids.last().unwrap());
    let mut out = Vec::new();
    for head in 0..heads {
        let q = &q[head * (nope + rope)..][..nope + rope];
        let q_pe = turn(&q[nope..], ids.len() - 1);
        let first = head * (nope + v);
        let scores: Vec<f64> = entries
            .iter()
            .map(|(latent, k_pe)| {
                let k: Vec<f64> = (0..nope).map(|n| dot(&kv_b(first + n), latent)).collect();
                f64::from(rig.spec.softmax_scale) * (dot(&q[..nope], &k) + dot(&q_pe, k_pe))
            })
            .collect();
        let max = scores.iter().copied().fold(f64::MIN, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
        let total: f64 = weights.iter().sum();
        for n in 0..v {
            let row = kv_b(first + nope + n);
            out.push(entries.iter().zip(&weights).map(|((latent, _), w)| w * dot(&row, latent)).sum::<f64>() / total);
        }
    }
    out
}

#[test]
fn both_forms_match_the_reference_at_odd_shapes_and_lengths() {
    let mut failed = Vec::new();
    for (shape, form) in [ODD, WIDE].into_iter().flat_map(|shape| FORMS.map(|form| (shape, form))) {
        let mut rig = Rig::new(shape, form);
        let ids = text(9, 140);
        let width = shape.heads * shape.v;
        let sequence = rig.sequence(ids.len(), request(1, &[]));
        let outputs = rig.prefill(sequence, &ids, 37);
        for position in [0, 1, 2, 30, 31, 32, 33, 63, 64, 65, 100, 139] {
            let error = relative_error(&outputs[position * width..][..width], &reference(&rig, &ids[..=position]));
            if error > 2e-6 {
                failed.push((form, shape, position, error));
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn m5_absorbed_and_expanded_attention_agree() {
    let ids = text(4, 70);
    let [absorbed, expanded] = FORMS.map(|form| {
        let mut rig = Rig::new(WIDE, form);
        let sequence = rig.sequence(ids.len(), request(1, &[]));
        rig.prefill(sequence, &ids, 70)
    });
    let expanded: Vec<f64> = expanded.iter().map(|x| f64::from(*x)).collect();
    let error = relative_error(&absorbed, &expanded);
    assert!(error < 1e-5 && error > 0.0, "{error}");
}

#[test]
fn s7_the_cache_and_the_outputs_do_not_depend_on_the_chunk() {
    for form in FORMS {
        let ids = text(5, 150);
        let runs = [64, 1, 2, 7, 8, 16].map(|chunk| {
            let mut rig = Rig::new(ODD, form);
            let sequence = rig.sequence(ids.len(), request(1, &[]));
            (rig.prefill(sequence, &ids, chunk), rig.caches(sequence))
        });
        assert!(runs.iter().all(|run| *run == runs[0]), "{form:?}");
        assert!(runs[0].0.iter().all(|x| x.is_finite()) && runs[0].0.iter().any(|x| *x != 0.0));
    }
}

/// S8 and S12: every node's output is that of its path decoded plainly, bit for bit.
#[test]
fn s8_s12_a_node_of_a_tree_equals_its_path_at_any_context() {
    let mut failed = Vec::new();
    for form in FORMS {
        for context in [1, 31, 32, 33, 383, 384, 385, 1023, 1024, 1025, 2047] {
            let mut rig = Rig::new(ODD, form);
            let width = ODD.heads * ODD.v;
            let ids = text(6, context);
            let [tree, plain, single] = [(); 3].map(|()| {
                let sequence = rig.sequence(context + MAX_ROWS, request(1000, &[]));
                rig.prefill(sequence, &ids, 64);
                sequence
            });
            for (seed, nodes) in [(1, 1), (2, 7), (3, 40)] {
                let proposal = random_tree(seed, nodes);
                rig.backend.submit(Op::TreeRows { sequence: tree, rows: rig.rows, proposal });
                rig.attend(tree);
                let (rows, output) = (rig.rows(), rig.output(nodes + 1));
                assert_eq!(rows.ids.len(), nodes + 1);
                for row in 0..=nodes {
                    let path = path(&rows.parents, row);
                    let tokens: Vec<u32> = path.iter().map(|row| rows.ids[*row]).collect();
                    assert_eq!(rows.positions[row], context + path.len() - 1);
                    let chain = rig.chain(plain, &tokens);
                    if chain[(path.len() - 1) * width..] != output[row * width..][..width] {
                        failed.push((form, context, nodes, row));
                    }
                }
            }
            // The deepest path again, one committed row at a time.
            let proposal = random_tree(3, 40);
            rig.backend.submit(Op::TreeRows { sequence: tree, rows: rig.rows, proposal });
            rig.attend(tree);
            let (rows, output) = (rig.rows(), rig.output(41));
            let deepest = (0..=40).max_by_key(|row| rows.positions[*row]).unwrap();
            for row in path(&rows.parents, deepest) {
                if rig.prefill(single, &[rows.ids[row]], 1) != output[row * width..][..width] {
                    failed.push((form, context, 0, row));
                }
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn s12_a_changed_parent_changes_the_output() {
    for form in FORMS {
        let mut rig = Rig::new(ODD, form);
        let sequence = rig.sequence(100, request(100, &[]));
        rig.prefill(sequence, &text(1, 33), 33);
        let outputs = [[0, 1, 2], [0, 1, 1]].map(|parents| {
            rig.backend.submit(Op::TreeRows { sequence, rows: rig.rows, proposal: given(&[4, 5, 6], &parents) });
            rig.attend(sequence);
            rig.output(4)
        });
        let width = ODD.heads * ODD.v;
        assert_eq!(outputs[0][..3 * width], outputs[1][..3 * width]);
        assert_ne!(outputs[0][3 * width..], outputs[1][3 * width..]);
    }
}

#[test]
fn threads_and_instruction_set_change_no_bit() {
    for form in FORMS {
        let run = |threads, isa| {
            let backend = Cpu::with_options(CpuOptions { threads, mla_form: Some(form), isa: Some(isa) });
            let mut rig = Rig::on(Box::new(backend), WIDE);
            let sequence = rig.sequence(200, request(1, &[]));
            rig.prefill(sequence, &text(8, 150), 70)
        };
        let sets: Vec<Isa> = Isa::ALL.into_iter().filter(|isa| isa.is_available()).collect();
        // What has no fused multiply-add rounds differently.
        let portable = run(1, sets[0]);
        let wide: Vec<Vec<f32>> =
            sets[1..].iter().flat_map(|isa| [1, 2, 3].map(|threads| run(threads, *isa))).collect();
        assert!(wide.iter().all(|output| *output == wide[0]), "{form:?}");
        for output in &wide {
            let output: Vec<f64> = output.iter().map(|x| f64::from(*x)).collect();
            assert!(relative_error(&portable, &output) < 1e-6, "{form:?}");
        }
    }
}

#[test]
fn the_cheaper_form_is_expanded_for_few_heads_and_absorbed_for_published_shapes() {
    let mut rig = Rig::new(ODD, MlaForm::Absorbed);
    let form = |heads, nope, v| MlaForm::cheaper(&MlaSpec { heads, nope, rope: 64, v, kv_lora: 512, ..rig.spec });
    let cases = [(4, 64, 64, MlaForm::Expanded), (64, 128, 128, MlaForm::Absorbed), (128, 128, 128, MlaForm::Absorbed)];
    for (heads, nope, v, expected) in cases {
        assert_eq!(form(heads, nope, v), expected, "{heads} heads");
    }
    let sequence = rig.sequence(10, request(1, &[]));
    rig.prefill(sequence, &[1, 2, 3], 3);
    let entries = rig.caches(sequence)[0].len();
    assert_eq!(entries, 3 * (ODD.kv_lora + ODD.rope));
}
