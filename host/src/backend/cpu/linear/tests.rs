use coppice_model::weight::Slice;
use half::bf16;

use super::*;
use crate::backend::cpu::testing::{Kind, Random, bits, reference};
use crate::simd::Isa;

fn available() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.is_available())
}

fn apply(pool: &Pool, weight: &Weight, x: &[f32]) -> Vec<f32> {
    let rows = x.len() / weight.cols;
    let mut out = vec![f32::NAN; rows * weight.rows];
    linear(pool, weight, x, rows, &mut out);
    out
}

/// Shapes `[outputs, inputs]`; inputs are rounded up to what the type can store.
const SHAPES: [(usize, usize); 9] =
    [(1, 1), (1, 256), (3, 31), (5, 33), (17, 160), (33, 127), (7, 129), (40, 320), (576, 96)];

#[test]
fn every_stored_type_agrees_with_f64_on_every_instruction_set() {
    // A lane adds at most cols / 16 + 8 products, the tree four sums: an error of (cols / 16 + 13) half ulps of the sum
    // of magnitudes, one more for the product that portable code rounds.
    let mut random = Random(1);
    let mut failures = Vec::new();
    for isa in available() {
        let pool = Pool::with_isa(2, isa);
        for kind in Kind::ALL {
            for (outputs, cols) in SHAPES {
                let cols = cols.next_multiple_of(kind.step());
                let weight = kind.weight(outputs, cols, &mut random);
                for rows in [1, 2, 9] {
                    let x = random.units(rows * cols);
                    let out = apply(&pool, &weight, &x);
                    let (sums, magnitudes) = reference(&weight, &x.iter().map(|&x| x.into()).collect::<Vec<_>>());
                    let bound = (cols as f64 / 16.0 + 14.0) * 0.5 * f64::from(f32::EPSILON);
                    for (i, &y) in out.iter().enumerate() {
                        if (f64::from(y) - sums[i]).abs() > bound * magnitudes[i] {
                            failures.push(format!("{isa} {} element {i}: {y}, expected {}", weight.name, sums[i]));
                        }
                    }
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} failures\n{}", failures.len(), failures[..failures.len().min(20)].join("\n"));
}

#[test]
fn a_row_does_not_depend_on_the_rows_or_threads_beside_it() {
    let mut random = Random(2);
    let mut failures = Vec::new();
    for isa in available() {
        let pools = [1, 2, 3].map(|threads| Pool::with_isa(threads, isa));
        for kind in Kind::ALL {
            for (outputs, cols) in [(1usize, 33usize), (13, 160), (67, 97)] {
                let cols = cols.next_multiple_of(kind.step());
                let weight = kind.weight(outputs, cols, &mut random);
                let x = random.units(70 * cols);
                let singly: Vec<f32> = x.chunks_exact(cols).flat_map(|x| apply(&pools[0], &weight, x)).collect();
                for rows in 1..=70 {
                    let pool = &pools[rows % 3];
                    let out = apply(pool, &weight, &x[..rows * cols]);
                    if bits(&out) != bits(&singly[..rows * outputs]) {
                        failures.push(format!("{isa} {} {rows} rows, {} threads", weight.name, pool.threads()));
                    }
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} failures\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn work_large_enough_for_all_threads_does_not_depend_on_their_number() {
    let mut random = Random(3);
    let pools = [1, 2, 3].map(Pool::new);
    for kind in [Kind::Bf16, Kind::Int4(32), Kind::Fp8([128, 128])] {
        let weight = kind.weight(777, 512, &mut random);
        for rows in [1, 3, 8, 19] {
            let x = random.units(rows * 512);
            let outs: Vec<_> = pools.iter().map(|pool| bits(&apply(pool, &weight, &x))).collect();
            assert!(outs.iter().all(|out| *out == outs[0]), "{} {rows} rows", weight.name);
        }
    }
}

#[test]
fn avx2_and_avx512_give_the_same_bits() {
    if !Isa::Avx512.is_available() {
        return;
    }
    let mut random = Random(4);
    for kind in Kind::ALL {
        let weight = kind.weight(21, 192 * 3, &mut random);
        let x = random.units(5 * weight.cols);
        let outs = [Isa::Avx2, Isa::Avx512].map(|isa| bits(&apply(&Pool::with_isa(1, isa), &weight, &x)));
        assert_eq!(outs[0], outs[1], "{kind:?}");
    }
}

/// The weight's elements as the kernel sees them: products with unit vectors.
fn elements(pool: &Pool, weight: &Weight) -> Vec<f32> {
    let mut x = vec![0.0; weight.cols * weight.cols];
    for i in 0..weight.cols {
        x[i * weight.cols + i] = 1.0;
    }
    apply(pool, weight, &x)
}

#[test]
fn m7_int4_nibbles_run_from_low_to_high_are_offset_by_eight_and_take_their_own_groups_scale() {
    // Column c of row o holds nibble (c + o) % 16, group g of row o the scale 2^g (1 + o / 4): all sums are exact.
    let (rows, cols, group) = (3, 288, 32);
    let nibble = |o: usize, c: usize| ((c + o) % 16) as u32;
    let scale = |o: usize, g: usize| 2f32.powi(g as i32) * (1.0 + o as f32 / 4.0);
    let packed = (0..rows * cols / 8)
        .map(|i| {
            let (o, word) = (i / (cols / 8), i % (cols / 8));
            (0..8).map(|n| nibble(o, 8 * word + n) << (4 * n)).sum()
        })
        .collect();
    let scales = (0..rows).flat_map(|o| (0..cols / group).map(move |g| bf16::from_f32(scale(o, g)))).collect();
    let storage = Storage::Int4Group { packed: Slice::from_vec(packed), scale: Slice::from_vec(scales), group };
    let weight = Weight { name: "int4".into(), rows, cols, storage };
    for isa in available() {
        let found = elements(&Pool::with_isa(1, isa), &weight);
        for c in 0..cols {
            for o in 0..rows {
                let expected = (nibble(o, c) as f32 - 8.0) * scale(o, c / group);
                assert_eq!(found[c * rows + o], expected, "{isa}, row {o}, column {c}");
            }
        }
    }
}

#[test]
fn m4_every_e4m3_pattern_is_read_exactly_and_nan_stays_nan() {
    // 256 patterns a row in rotation; scales 1 and 2^-3 in alternate blocks, the last one ragged.
    let (rows, cols) = (5, 272);
    let values = (0..rows * cols).map(|i| ((i % cols) + 37 * (i / cols)) as u8).collect();
    let scale_inv = (0..3 * 5).map(|i| if i % 2 == 0 { 1.0 } else { 0.125 }).collect();
    let block = [2, 64];
    let storage = Storage::Fp8Block { values: Slice::from_vec(values), scale_inv: Slice::from_vec(scale_inv), block };
    let weight = Weight { name: "fp8".into(), rows, cols, storage };
    for isa in available() {
        let pool = Pool::with_isa(1, isa);
        for o in 0..rows {
            // One column at a time, all others cut off: a NaN elsewhere would hide the rest.
            for c in 0..cols {
                let mut values = vec![0u8; rows * cols];
                values[o * cols + c] = (c + 37 * o) as u8;
                let Storage::Fp8Block { scale_inv, .. } = &weight.storage else { unreachable!() };
                let storage =
                    Storage::Fp8Block { values: Slice::from_vec(values), scale_inv: scale_inv.clone(), block };
                let single = Weight { storage, ..weight.clone() };
                let mut x = vec![0.0; cols];
                x[c] = 1.0;
                let y = apply(&pool, &single, &x)[o];
                let expected = element(&weight, o, c);
                assert!(y == expected || y.is_nan() && expected.is_nan(), "{isa} [{o}, {c}]: {y}, expected {expected}");
            }
        }
    }
}

/// Where column `col` of a row of `cols` columns lies, by the definition of the layouts.
fn position(layout: Layout, cols: usize, col: usize) -> usize {
    let (planes, rest_planes) = match layout {
        Layout::Plain => (1, 1),
        Layout::Pairs => (2, 2),
        Layout::Quads => (4, 4),
        Layout::Octets => (8, 2),
    };
    let full = cols / (16 * planes) * (16 * planes);
    let (planes, base) = if col < full { (planes, 0) } else { (rest_planes, full) };
    let (block, within) = ((col - base) / (planes * 16), (col - base) % (planes * 16));
    base + block * planes * 16 + within % planes * 16 + within / planes
}

#[test]
fn a_layout_places_every_column_once_and_pads_with_zeros() {
    let pool = Pool::new(1);
    for layout in Layout::ALL {
        for cols in [1, 15, 16, 17, 31, 32, 64, 96, 128, 160, 200, 257, 385] {
            let x: Vec<f32> = (1..=cols).map(|c| c as f32).collect();
            let mut expected = vec![0.0; layout.packed_len(cols)];
            for (c, &x) in x.iter().enumerate() {
                expected[position(layout, cols, c)] = x;
            }
            let mut packed = pack::Packed::default();
            // What an earlier use left behind must not show.
            packed.reset(3, 500).fill(f32::NAN);
            packed.pack(&pool, layout, &x, cols);
            assert_eq!(packed.rows(0, layout, cols).row(0), expected, "{layout:?} {cols} columns at once");

            for step in [layout.block(), 3 * layout.block()] {
                let mut out = vec![f32::NAN; expected.len()];
                pool.run_on_columns(&mut out, expected.len(), step, |mut slab| {
                    let columns = slab.columns();
                    let x = &x[columns.start..columns.end.min(cols)];
                    pack::pack_slab(pool.isa(), layout, cols, x, &mut slab);
                });
                assert_eq!(out, expected, "{layout:?} {cols} columns, {step} at a time");
            }
        }
    }
}

#[test]
fn no_rows_and_no_columns_are_fine() {
    let pool = Pool::new(2);
    let mut random = Random(5);
    let weight = Kind::Bf16.weight(4, 8, &mut random);
    linear(&pool, &weight, &[], 0, &mut []);
    let weight = Kind::F32.weight(4, 0, &mut random);
    let mut out = [1.0; 8];
    linear(&pool, &weight, &[], 2, &mut out);
    assert_eq!(out, [0.0; 8]);
}
