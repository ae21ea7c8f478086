//! Checks of verify attention.

use coppice_gpu::attention;
use coppice_gpu::tree::tree_layout_reference;
use cuda_std::launch::{Kernel, LaunchShape};
use cuda_std::{Bf16, Global, GlobalMut};

use super::Run;
use super::rows::bf16s;
use super::tree::{mask, parents};
use crate::error::Result;

type Attention = Kernel<(
    Global<Bf16>,
    Global<Bf16>,
    Global<u32>,
    Global<u32>,
    GlobalMut<f32>,
    GlobalMut<f32>,
    GlobalMut<u32>,
    GlobalMut<Bf16>,
    u32,
    u32,
    f32,
)>;

/// A kernel with the sizes it is made for.
struct Instance {
    kernel: Attention,
    shape: fn(u32, u32, u32) -> LaunchShape,
    latent: usize,
    rope: usize,
}

/// Sizes of a case.
#[derive(Clone, Copy)]
struct Case {
    heads: usize,
    tree_rows: usize,
    context: usize,
    splits: usize,
}

const fn case(heads: usize, tree_rows: usize, context: usize, splits: usize) -> Case {
    Case { heads, tree_rows, context, splits }
}

pub(super) fn small(run: &mut Run<'_>) -> Result<()> {
    let kernel = attention::verify_attention_64_16::KERNEL;
    let instance = Instance { kernel, shape: attention::shape_64_16, latent: 64, rope: 16 };
    let small = [case(1, 1, 0, 1), case(3, 5, 27, 1), case(2, 8, 33, 2), case(1, 33, 50, 2), case(3, 7, 129, 5)];
    let large = [case(64, 16, 4001, 8), case(6, 64, 2047, 16)];
    for case in run.cases(&small, &large) {
        check(run, &instance, case)?;
    }
    Ok(())
}

pub(super) fn large(run: &mut Run<'_>) -> Result<()> {
    let kernel = attention::verify_attention_512_64::KERNEL;
    let instance = Instance { kernel, shape: attention::shape_512_64, latent: 512, rope: 64 };
    let small = [case(1, 1, 40, 1), case(3, 7, 61, 2)];
    let large = [case(8, 16, 1000, 4), case(64, 3, 2001, 8), case(8, 61, 333, 3)];
    for case in run.cases(&small, &large) {
        check(run, &instance, case)?;
    }
    Ok(())
}

fn check(run: &mut Run<'_>, instance: &Instance, case: Case) -> Result<()> {
    let Instance { kernel, shape, latent, rope } = instance;
    let Case { heads, tree_rows, context, splits } = case;
    let (latent, width, stride, rows) = (*latent, latent + rope, latent + rope + 8, heads * tree_rows);
    let query = bf16s(run, rows * width);
    let mut cache = bf16s(run, (context + tree_rows + 1) * stride);
    // What lies past the end, and the padding, must not matter.
    cache[(context + tree_rows) * stride..].fill(Bf16(u16::MAX));
    cache.chunks_mut(stride).for_each(|row| row[width..].fill(Bf16(u16::MAX)));
    let (_, sees) = tree_layout_reference(&parents(run, tree_rows), context as u32);
    let place = run.place;
    let (queries, keys) = (place.input("query", &query)?, place.input("cache", &cache)?);
    let (bits, length) = (place.input("mask", &mask(&sees))?, place.input("context", &[context as u32])?);
    let partial = place.output::<f32>("partial", splits * rows * latent)?;
    let log_sums = place.output::<f32>("log_sums", splits * rows)?;
    let arrivals = place.state("arrivals", &vec![0u32; rows.div_ceil(16)])?;
    let out = place.output::<Bf16>("out", rows * latent)?;
    let scale = (width as f32).powf(-0.5);
    let shape = shape(heads as u32, tree_rows as u32, splits as u32);
    let name = format!("{} {heads} heads, {tree_rows} rows, context {context}, {splits} splits", kernel.name);
    // Twice: a launch must leave its scratch ready for the next.
    for _ in 0..2 {
        let arguments = (
            queries.ptr(),
            keys.ptr(),
            bits.ptr(),
            length.ptr(),
            partial.ptr_mut(),
            log_sums.ptr_mut(),
            arrivals.ptr_mut(),
            out.ptr_mut(),
            heads as u32,
            tree_rows as u32,
            scale * std::f32::consts::LOG2_E,
        );
        // SAFETY: the buffers are as large as these sizes say; every row sees itself.
        unsafe { place.launch(kernel, shape, arguments)? };
        let idle = arrivals.to_vec()?.iter().all(|count| *count == 0);
        run.failures.check(idle, &name, "leaves a counter that is not 0");
    }
    for (row, found) in out.to_vec()?.chunks(latent).enumerate() {
        let sees = &sees[row / heads];
        let visible = (0..context + tree_rows).filter(|key| *key < context || sees[*key - context]);
        let keys: Vec<&[Bf16]> = visible.map(|key| &cache[key * stride..][..width]).collect();
        let expected = attention::attention_reference(&query[row * width..][..width], &keys, latent, scale.into());
        let found: Vec<f32> = found.iter().map(|x| x.to_f32()).collect();
        // Weights and result are bf16; values are of order 1.
        run.failures.compare(&format!("{name}, row {row}"), &found, &expected, (1.0 / 128.0, 1.0 / 128.0));
    }
    Ok(())
}
