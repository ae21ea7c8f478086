//! Operations on rows alone: embedding, norm, linear products, and what rows they take.

use super::*;
use crate::backend::{Select, Tap};

/// Row sets of a sequence without caches.
fn chain(backend: &mut Cpu, ids: &[u32]) -> Rows {
    let spec = SequenceSpec { context: 64, max_rows: 64, target: vec![], draft: vec![] };
    let sequence = backend.sequence(&spec).unwrap();
    let rows = backend.rows(64).unwrap();
    backend.submit(Op::Begin { sequence, request: request(9, &[]) });
    backend.submit(Op::PromptRows { sequence, rows, ids: ids.into() });
    rows
}

#[test]
fn the_norm_adds_taps_and_norms_in_that_order() {
    let (width, ids) = (37, [3, 0, 7]);
    let mut cpu = Cpu::new(2);
    let rows = chain(&mut cpu, &ids);
    let [x_table, delta_table] = [1, 2].map(|seed| noise(seed, 8 * width));
    let gain = noise(3, width);
    let weight_vector = cpu.vector(&gain).unwrap();
    let tables = [&x_table, &delta_table].map(|table| cpu.matrix(&weight(8, width, table.clone())).unwrap());
    let [x, delta, out] = [(); 3].map(|()| cpu.tensor(5, width).unwrap());
    let taps = cpu.tensor(5, 2 * width).unwrap();
    for (table, out) in tables.into_iter().zip([x, delta]) {
        cpu.submit(Op::Embed { rows, table, out });
    }
    let tap = Some(Tap { out: taps, column: width });
    cpu.submit(Op::AddNorm { rows, x, delta: Some(delta), tap, weight: weight_vector, eps: 1e-5, out });
    let (found_x, found_taps) = (cpu.read_tensor(x, 3).unwrap(), cpu.read_tensor(taps, 3).unwrap());
    let found = cpu.read_tensor(out, 3).unwrap();
    for (row, id) in ids.into_iter().enumerate() {
        let at = |table: &[f32], i: usize| f64::from(table[id as usize * width + i]);
        let sum: Vec<f64> = (0..width).map(|i| at(&x_table, i) + at(&delta_table, i)).collect();
        let rms = (sum.iter().map(|x| x * x).sum::<f64>() / width as f64 + 1e-5).sqrt();
        let expected: Vec<f64> = sum.iter().zip(&gain).map(|(x, gain)| x / rms * f64::from(*gain)).collect();
        assert!(relative_error(&found_x[row * width..][..width], &sum) < 1e-7);
        assert!(relative_error(&found[row * width..][..width], &expected) < 1e-6);
        // S3: the tap is the residual stream itself.
        assert_eq!(found_taps[(2 * row + 1) * width..][..width], found_x[row * width..][..width]);
    }
    // Without a delta the stream stays, and the norm is the same.
    cpu.submit(Op::AddNorm { rows, x, delta: None, tap: None, weight: weight_vector, eps: 1e-5, out });
    assert_eq!((cpu.read_tensor(x, 3).unwrap(), cpu.read_tensor(out, 3).unwrap()), (found_x, found));
}

#[test]
fn a_product_takes_the_selected_rows() {
    let (inputs, outputs) = (19, 5);
    let table = noise(1, 8 * inputs);
    let matrix = noise(2, outputs * inputs);
    let mut cpu = Cpu::new(2);
    let handles =
        [weight(8, inputs, table.clone()), weight(outputs, inputs, matrix.clone())].map(|w| cpu.matrix(&w).unwrap());
    let (x, out) = (cpu.tensor(6, inputs).unwrap(), cpu.tensor(6, outputs).unwrap());
    let mut failed = Vec::new();
    for ids in [&[4u32][..], &[1, 6], &[7, 0, 2, 3, 5]] {
        let rows = chain(&mut cpu, ids);
        cpu.submit(Op::Embed { rows, table: handles[0], out: x });
        for (select, taken) in
            [(Select::All, ids), (Select::Last, &ids[ids.len() - 1..]), (Select::AfterFirst, &ids[1..])]
        {
            cpu.submit(Op::Linear { rows, select, x, weight: handles[1], out });
            let found = cpu.read_tensor(out, taken.len()).unwrap();
            let dot = |id: u32, o: usize| -> f64 {
                (0..inputs)
                    .map(|i| f64::from(table[id as usize * inputs + i]) * f64::from(matrix[o * inputs + i]))
                    .sum()
            };
            let expected: Vec<f64> = taken.iter().flat_map(|id| (0..outputs).map(|o| dot(*id, o))).collect();
            if !expected.is_empty() && relative_error(&found, &expected) > 1e-6 {
                failed.push((ids, select));
            }
        }
    }
    assert!(failed.is_empty() && cpu.failure.is_none(), "{failed:?} {:?}", cpu.failure);
}

#[test]
fn memory_counts_weights_caches_and_buffers() {
    let mut rig = Rig::new(ODD, MlaForm::Absorbed);
    let before = rig.backend.memory();
    rig.sequence(100, request(1, &[]));
    rig.backend.tensor(10, 10).unwrap();
    rig.backend.matrix(&weight(3, 7, noise(1, 21))).unwrap();
    let after = rig.backend.memory();
    assert_eq!((after.weights - before.weights, after.buffers - before.buffers), (84, 400));
    // 180 slots in six tiles of 32: two layers of a latent (9, stored as 32) and k_pe (6).
    assert_eq!(after.cache - before.cache, 2 * 192 * (32 + 6) * 4);
}
