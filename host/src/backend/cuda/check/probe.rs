//! Checks of the probes, which call every device function once. Their reference is the simulator, which the kernel crate's
//! tests hold against scalar definitions: all outputs go into the trace.

use coppice_gpu::probe;
use cuda_std::launch::LaunchShape;

use super::Run;
use crate::error::Result;

pub(super) fn indices(run: &mut Run<'_>) -> Result<()> {
    for (grid, block) in run.cases(&[((2, 3, 2), (5, 4, 3)), ((1, 1, 1), (33, 1, 1))], &[]) {
        let shape = LaunchShape::new(grid, block);
        let out = run.place.output::<u32>("out", (shape.grid.volume() * shape.block.volume()) as usize * 13)?;
        // SAFETY: 13 values a thread.
        unsafe { run.place.launch(&probe::probe_indices::KERNEL, shape, (out.ptr_mut(),))? };
        run.integers.extend(out.to_vec()?);
    }
    Ok(())
}

pub(super) fn warp(run: &mut Run<'_>) -> Result<()> {
    for (by, width) in run.cases(&[(0, 32), (1, 32), (3, 8), (16, 32), (5, 16)], &[]) {
        let input: Vec<u32> = (0..32).map(|_| run.random.below(1 << 20)).collect();
        let (input, out) = (run.place.input("input", &input)?, run.place.output::<u32>("out", 17 * 32)?);
        let arguments = (input.ptr(), by, width, out.ptr_mut());
        // SAFETY: 32 inputs, 17 results a lane.
        unsafe { run.place.launch(&probe::probe_warp::KERNEL, LaunchShape::new(1, 32), arguments)? };
        run.integers.extend(out.to_vec()?);
    }
    Ok(())
}

pub(super) fn math(run: &mut Run<'_>) -> Result<()> {
    for n in run.cases(&[1, 33, 200], &[]) {
        let x: Vec<f32> = run.random.normals(n).into_iter().map(|x| x * 8.0).collect();
        let (input, out) = (run.place.input("x", &x)?, run.place.output::<f32>("out", 8 * n)?);
        let shape = LaunchShape::new(n.div_ceil(64) as u32, 64);
        // SAFETY: `n` inputs, eight results each.
        unsafe { run.place.launch(&probe::probe_math::KERNEL, shape, (input.ptr(), n as u32, out.ptr_mut()))? };
        run.floats.extend(out.to_vec()?);
    }
    Ok(())
}

pub(super) fn convert(run: &mut Run<'_>) -> Result<()> {
    for n in run.cases(&[1, 77, 300], &[]) {
        // Random signs and sizes, and ties between two bf16.
        let mut x: Vec<[f32; 2]> = (0..n).map(|_| [run.random.normal(), run.random.normal() * 100.0]).collect();
        x.extend([[1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0], [448.0, 464.0], [500.0, -1e6], [0.0, -0.0], [1e-3, 2e-3]]);
        let n = x.len();
        let (input, out) = (run.place.input("x", &x)?, run.place.output::<u32>("out", 11 * n)?);
        let shape = LaunchShape::new(n.div_ceil(64) as u32, 64);
        // SAFETY: `n` pairs, eleven results each.
        unsafe { run.place.launch(&probe::probe_convert::KERNEL, shape, (input.ptr(), n as u32, out.ptr_mut()))? };
        run.integers.extend(out.to_vec()?);
    }
    Ok(())
}

pub(super) fn atomics(run: &mut Run<'_>) -> Result<()> {
    for (blocks, threads) in run.cases(&[(1, 1), (3, 33), (5, 64), (2, 100)], &[]) {
        let state = run.place.state("state", &[0, 0, 0, u32::MAX, 0, 0, 0, 0, 0])?;
        let (sum, out) = (run.place.state("sum", &[0f32])?, run.place.output::<u32>("out", 3)?);
        let shape = LaunchShape::new(blocks, threads).shared(16);
        let arguments = (state.ptr_mut(), sum.ptr_mut(), out.ptr_mut());
        // SAFETY: buffers of the probe's sizes.
        unsafe { run.place.launch(&probe::probe_atomics::KERNEL, shape, arguments)? };
        run.integers.extend(state.to_vec()?);
        run.integers.extend(out.to_vec()?);
        run.integers.extend(sum.to_vec()?.into_iter().map(f32::to_bits));
    }
    Ok(())
}

pub(super) fn hand_over(run: &mut Run<'_>) -> Result<()> {
    // All blocks must be resident: the simulator holds eight.
    for blocks in run.cases(&[1, 6], &[]) {
        let (flag, value) = (run.place.state("flag", &[0u32])?, run.place.state("value", &[0u32])?);
        let time = run.place.output::<u64>("time", blocks as usize)?;
        let arguments = (flag.ptr_mut(), value.ptr_mut(), time.ptr_mut());
        // SAFETY: buffers of the probe's sizes.
        unsafe { run.place.launch(&probe::probe_hand_over::KERNEL, LaunchShape::new(blocks, 32), arguments)? };
        run.failures.check(time.to_vec()?.is_sorted(), "probe_hand_over", "the clock runs backwards");
        run.integers.extend(flag.to_vec()?);
        run.integers.extend(value.to_vec()?);
    }
    Ok(())
}

pub(super) fn named_barriers(run: &mut Run<'_>) -> Result<()> {
    for threads in run.cases(&[160], &[]) {
        let out = run.place.output::<u32>("out", 128)?;
        let shape = LaunchShape::new(1, threads).shared(640);
        // SAFETY: a buffer of the probe's size.
        unsafe { run.place.launch(&probe::probe_named_barriers::KERNEL, shape, (out.ptr_mut(),))? };
        run.integers.extend(out.to_vec()?);
    }
    Ok(())
}

pub(super) fn ldmatrix(run: &mut Run<'_>) -> Result<()> {
    for lanes in run.cases(&[32], &[]) {
        let tiles: Vec<[u16; 8]> =
            (0..lanes).map(|_| std::array::from_fn(|_| run.random.below(1 << 16) as u16)).collect();
        let (input, out) = (run.place.input("input", &tiles)?, run.place.output::<u32>("out", 14 * 32)?);
        let shape = LaunchShape::new(1, lanes).shared(512);
        // SAFETY: four tiles, 14 results a lane.
        unsafe { run.place.launch(&probe::probe_ldmatrix::KERNEL, shape, (input.ptr(), out.ptr_mut()))? };
        run.integers.extend(out.to_vec()?);
    }
    Ok(())
}

pub(super) fn mma(run: &mut Run<'_>) -> Result<()> {
    for lanes in run.cases(&[32], &[]) {
        // Bytes 0x30 to 0x4f are moderate numbers in bf16 and in e4m3; few of them, so that the sums are exact.
        let mut word = || u32::from_le_bytes(std::array::from_fn(|_| (0x38 + run.random.below(8)) as u8));
        let a: Vec<[u32; 4]> = (0..lanes).map(|_| std::array::from_fn(|_| word())).collect();
        let b: Vec<[u32; 2]> = (0..lanes).map(|_| std::array::from_fn(|_| word())).collect();
        let c: Vec<[f32; 4]> = (0..lanes).map(|i| std::array::from_fn(|j| (i * 4 + j as u32) as f32 / 64.0)).collect();
        let (a, b, c) = (run.place.input("a", &a)?, run.place.input("b", &b)?, run.place.input("c", &c)?);
        let out = run.place.output::<[f32; 4]>("out", 64)?;
        let arguments = (a.ptr(), b.ptr(), c.ptr(), out.ptr_mut());
        // SAFETY: fragments of a warp, and two results.
        unsafe { run.place.launch(&probe::probe_mma::KERNEL, LaunchShape::new(1, lanes), arguments)? };
        run.floats.extend(out.to_vec()?.into_iter().flatten());
    }
    Ok(())
}

pub(super) fn copy_groups(run: &mut Run<'_>) -> Result<()> {
    copy(run, |run, tiles, data| {
        let (input, out) = (run.place.input("input", data)?, run.place.output::<u32>("out", data.len())?);
        let shape = LaunchShape::new(1, 32).shared(1024);
        // SAFETY: 128 words a tile in both buffers.
        unsafe { run.place.launch(&probe::probe_copy_groups::KERNEL, shape, (input.ptr(), tiles, out.ptr_mut()))? };
        out.to_vec()
    })
}

pub(super) fn copy_bulk(run: &mut Run<'_>) -> Result<()> {
    copy(run, |run, tiles, data| {
        let (input, out) = (run.place.input("input", data)?, run.place.output::<u32>("out", 64)?);
        let shape = LaunchShape::new(1, 96).shared(3 * 256 + 48);
        // SAFETY: at least 64 words a tile, and 64 sums.
        unsafe { run.place.launch(&probe::probe_copy_bulk::KERNEL, shape, (input.ptr(), tiles, out.ptr_mut()))? };
        out.to_vec()
    })
}

/// Runs a copying probe over some numbers of tiles of 128 words.
fn copy(run: &mut Run<'_>, launch: fn(&Run<'_>, u32, &[u32]) -> Result<Vec<u32>>) -> Result<()> {
    for tiles in run.cases(&[1, 2, 3, 7, 13], &[]) {
        let data: Vec<u32> = (0..tiles * 128).map(|_| run.random.below(u32::MAX)).collect();
        let out = launch(run, tiles, &data)?;
        run.integers.extend(out);
    }
    Ok(())
}
