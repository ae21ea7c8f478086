//! Checks of verify attention.

use coppice_gpu::attention::{self, Class, HEAD_64_16, HEAD_64_16_E4M3, HEAD_512_64, HEAD_512_64_E4M3, Head, Limits};
use coppice_gpu::tree::tree_layout_reference;
use cuda_std::{Bf16, Global};

use super::Run;
use super::rows::bf16s;
use super::tree::{mask, parents};
use crate::error::Result;

/// Ring stages and blocks that every device holds.
const LIMITS: Limits = Limits { multiprocessors: 100, shared_bytes: 101_376 };

/// Sizes of a case.
#[derive(Clone, Copy)]
struct Case {
    heads: usize,
    tree_rows: usize,
    context: usize,
    splits: u32,
    chain: bool,
}

const fn case(heads: usize, tree_rows: usize, context: usize, splits: u32) -> Case {
    Case { heads, tree_rows, context, splits, chain: false }
}

const SMALL: [Case; 10] = [
    case(1, 1, 0, 1),
    case(2, 1, 1, 1),
    case(3, 1, 15, 1),
    case(1, 2, 16, 2),
    case(5, 1, 17, 2),
    case(3, 5, 27, 1),
    case(2, 8, 33, 2),
    case(1, 33, 50, 2),
    case(3, 7, 129, 3),
    Case { chain: true, ..case(2, 19, 40, 2) },
];

macro_rules! checks {
    ($($name:ident: $head:ident, $class:literal, [$($large:expr),*];)*) => {
        $(
            pub(super) fn $name(run: &mut Run<'_>) -> Result<()> {
                let class = &$head.classes[$class];
                for case in run.cases(&SMALL, &[$($large),*]) {
                    check(run, &$head, class, case)?;
                }
                Ok(())
            }
        )*
    };
}
checks! {
    small_16: HEAD_64_16, 0, [case(8, 2, 4001, 60), case(3, 90, 1001, 5)];
    small_32: HEAD_64_16, 1, [case(8, 4, 4001, 60), case(6, 64, 2047, 8)];
    small_64: HEAD_64_16, 2, [case(8, 8, 4001, 60), case(64, 16, 4001, 6), case(1, 256, 99, 3)];
    full_16: HEAD_512_64, 0, [case(8, 1, 5001, 90), case(8, 2, 15, 4), case(16, 1, 333, 7)];
    full_32: HEAD_512_64, 1, [case(8, 4, 5001, 90), case(4, 7, 17, 3), case(16, 2, 333, 7)];
    full_64: HEAD_512_64, 2, [case(8, 16, 1000, 30), case(64, 3, 2001, 8), case(8, 61, 333, 3), case(1, 256, 16, 2)];
    small_e4m3_16: HEAD_64_16_E4M3, 0, [case(8, 2, 4001, 60), case(3, 90, 1001, 5)];
    small_e4m3_32: HEAD_64_16_E4M3, 1, [case(8, 4, 4001, 60), case(6, 64, 2047, 8)];
    full_e4m3_16: HEAD_512_64_E4M3, 0, [case(8, 1, 5001, 90), case(8, 2, 15, 4), case(16, 1, 333, 7)];
    full_e4m3_32: HEAD_512_64_E4M3, 1, [case(8, 4, 5001, 90), case(4, 7, 17, 3), case(16, 2, 333, 7)];
    full_e4m3_64: HEAD_512_64_E4M3, 2, [case(8, 16, 1000, 30), case(64, 3, 2001, 8), case(8, 61, 333, 3), case(1, 256, 16, 2)];
}

fn check(run: &mut Run<'_>, head: &Head, class: &Class, case: Case) -> Result<()> {
    let Case { heads, tree_rows, context, splits, chain } = case;
    let (latent, rows) = (head.latent as usize, heads * tree_rows);
    let width = head.width();
    let query = bf16s(run, rows * width);
    let mut cache: Vec<u8> = (0..context + tree_rows).flat_map(|_| head.pack(&run.random.normals(width))).collect();
    let elements: Vec<Vec<f32>> = cache.chunks(head.row_bytes()).map(|row| head.unpack(row)).collect();
    // What lies past the end must not matter.
    cache.resize(cache.len() + head.row_bytes(), 0xff);
    let parents = if chain { (0..tree_rows as u32).map(|t| t.max(1) - 1).collect() } else { parents(run, tree_rows) };
    let (_, sees) = tree_layout_reference(&parents, context as u32);
    let place = run.place;
    let (queries, keys) = (place.input("query", &query)?, place.input("cache", &cache)?);
    let (bits, length) = (place.input("mask", &mask(&sees))?, place.input("context", &[context as u32])?);
    // A ring at its shortest wraps most often.
    let plan = class.plan(rows as u32, splits, class.stages(LIMITS).max(3), LIMITS);
    let values = place.output::<[u32; 4]>("values", plan.values)?;
    let log_sums = place.output::<f32>("log_sums", plan.log_sums)?;
    let arrivals = place.state("arrivals", &vec![0u32; plan.arrivals])?;
    let out = place.output::<Bf16>("out", rows * latent)?;
    let scale = (width as f32).powf(-0.5);
    let name = format!("{} {heads} heads, {tree_rows} rows, context {context}, {splits} splits", plan.kernel.name);
    // Twice: a launch must leave its scratch ready for the next, which must find the same to the bit.
    let mut found = Vec::new();
    for _ in 0..2 {
        let arguments = (
            queries.ptr(),
            keys.ptr(),
            if chain { Global::from_raw(std::ptr::null()) } else { bits.ptr() },
            length.ptr(),
            values.ptr_mut(),
            log_sums.ptr_mut(),
            arrivals.ptr_mut(),
            out.ptr_mut(),
            heads as u32,
            tree_rows as u32,
            scale * std::f32::consts::LOG2_E,
            plan.stages,
            plan.mergers,
        );
        // SAFETY: the buffers are as large as the plan says; every row sees itself.
        unsafe { place.launch(plan.kernel, plan.shape, arguments)? };
        let idle = arrivals.to_vec()?.iter().all(|count| *count == 0);
        run.failures.check(idle, &name, "leaves a counter that is not 0");
        let bits: Vec<u16> = out.to_vec()?.iter().map(|x| x.0).collect();
        run.failures.check(found.is_empty() || found == bits, &name, "differs from launch to launch");
        found = bits;
    }
    for (row, found) in out.to_vec()?.chunks(latent).enumerate() {
        let sees = &sees[row / heads];
        let visible = (0..context + tree_rows).filter(|key| *key < context || sees[*key - context]);
        let keys = visible.map(|key| &elements[key]);
        let expected = attention::attention_reference(&query[row * width..][..width], keys, latent, scale.into());
        let found: Vec<f32> = found.iter().map(|x| x.to_f32()).collect();
        // Weights and result are bf16; values are of order 1.
        run.failures.compare(&format!("{name}, row {row}"), &found, &expected, (1.0 / 128.0, 1.0 / 128.0));
    }
    Ok(())
}
