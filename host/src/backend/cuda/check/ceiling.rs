//! Checks of the kernels that measure ceilings.

use coppice_gpu::ceiling;
use cuda_std::convert::bf16x2_from_f32;

use super::Run;
use crate::error::Result;

/// Blocks and vectors of small cases.
const SMALL: [(u32, usize); 4] = [(1, 1), (3, 1000), (1, 4097), (2, 8192)];

fn vectors(run: &mut Run<'_>, n: usize) -> Vec<[u32; 4]> {
    (0..n).map(|_| std::array::from_fn(|_| run.random.below(u32::MAX))).collect()
}

pub(super) fn copy(run: &mut Run<'_>) -> Result<()> {
    for (blocks, n) in run.cases(&SMALL, &[(264, 3_000_001)]) {
        let data = vectors(run, n);
        let (from, to) = (run.place.input("from", &data)?, run.place.output::<[u32; 4]>("to", n)?);
        let arguments = (from.ptr(), to.ptr_mut(), n as u64);
        // SAFETY: both buffers hold `n` vectors.
        unsafe { run.place.launch(&ceiling::ceiling_copy::KERNEL, ceiling::memory_shape(blocks), arguments)? };
        run.failures.check(to.to_vec()? == data, &format!("ceiling_copy of {n} vectors, {blocks} blocks"), "differs");
    }
    Ok(())
}

pub(super) fn read(run: &mut Run<'_>) -> Result<()> {
    for (blocks, n) in run.cases(&SMALL, &[(264, 3_000_001)]) {
        let data = vectors(run, n);
        let shape = ceiling::memory_shape(blocks);
        let threads = (shape.grid.volume() * shape.block.volume()) as usize;
        let (from, out) = (run.place.input("from", &data)?, run.place.output::<u32>("out", threads)?);
        let arguments = (from.ptr(), out.ptr_mut(), n as u64);
        // SAFETY: `from` holds `n` vectors, `out` a word a thread.
        unsafe { run.place.launch(&ceiling::ceiling_read::KERNEL, shape, arguments)? };
        let (out, xor) = (out.to_vec()?, |a: u32, b: &u32| a ^ b);
        let good = out.iter().fold(0, xor) == data.iter().flatten().fold(0, xor);
        run.failures.check(good, &format!("ceiling_read of {n} vectors, {blocks} blocks"), "misses a word");
        run.integers.extend(out);
    }
    Ok(())
}

pub(super) fn mma(run: &mut Run<'_>) -> Result<()> {
    for (blocks, rounds) in run.cases(&[(1, 1), (2, 5)], &[(264, 9)]) {
        let mut pair = || bf16x2_from_f32(run.random.normal(), run.random.normal());
        let a: Vec<[u32; 4]> = (0..32).map(|_| std::array::from_fn(|_| pair())).collect();
        let b: Vec<[u32; 2]> = (0..32).map(|_| std::array::from_fn(|_| pair())).collect();
        let shape = ceiling::mma_shape(blocks);
        let threads = (shape.grid.volume() * shape.block.volume()) as usize;
        let (from_a, from_b) = (run.place.input("a", &a)?, run.place.input("b", &b)?);
        let out = run.place.output::<f32>("out", threads)?;
        let arguments = (from_a.ptr(), from_b.ptr(), out.ptr_mut(), rounds);
        // SAFETY: fragments of a warp, and a value of `out` a thread.
        unsafe { run.place.launch(&ceiling::ceiling_mma::KERNEL, shape, arguments)? };
        let expected = ceiling::ceiling_mma_reference(&a, &b, rounds);
        for (thread, found) in out.to_vec()?.into_iter().enumerate() {
            let (exact, magnitude) = expected[thread % 32];
            let close = (f64::from(found) - exact).abs() <= magnitude * 2f64.powi(-20);
            let case = format!("ceiling_mma of {rounds} rounds, {blocks} blocks, thread {thread}");
            run.failures.check(close, &case, &format!("is {found}, expected {exact}"));
        }
    }
    Ok(())
}
