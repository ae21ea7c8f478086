//! Checks of the skinny linear layers.

use coppice_gpu::linear::{BF16, EMPTY, F32, Instance, linear_reference, pack};
use cuda_std::{Bf16, DeviceCopy};

use super::Run;
use super::rows::bf16s;
use crate::error::Result;

/// A result, and the share of its magnitude that rounding to its type may take.
trait Value: DeviceCopy {
    const ROUNDING: f64;
    fn to_f64(self) -> f64;
}

impl Value for f32 {
    const ROUNDING: f64 = 0.0;
    fn to_f64(self) -> f64 {
        self.into()
    }
}

impl Value for Bf16 {
    const ROUNDING: f64 = 1.01 / 256.0;
    fn to_f64(self) -> f64 {
        self.to_f32().into()
    }
}

macro_rules! checks {
    ($($check:ident = $instances:ident, $index:literal;)*) => {
        $(
            pub(super) fn $check(run: &mut Run<'_>) -> Result<()> {
                check(run, &$instances[$index])
            }
        )*
    };
}
checks! {
    f32_8 = F32, 0;
    f32_16 = F32, 1;
    f32_32 = F32, 2;
    f32_64 = F32, 3;
    f32_8_wide = F32, 4;
    f32_16_wide = F32, 5;
    f32_32_wide = F32, 6;
    f32_64_wide = F32, 7;
    bf16_8 = BF16, 0;
    bf16_16 = BF16, 1;
    bf16_32 = BF16, 2;
    bf16_64 = BF16, 3;
    bf16_8_wide = BF16, 4;
    bf16_16_wide = BF16, 5;
    bf16_32_wide = BF16, 6;
    bf16_64_wide = BF16, 7;
}

fn check<T: Value>(run: &mut Run<'_>, instance: &Instance<T>) -> Result<()> {
    let (kernel, bound) = (&instance.kernel, instance.bound as usize);
    let small = [(1, 32, 1), (bound - 1, 96, 5), (bound, 544, 19)];
    let large = [(bound, 7168, 520), (bound / 2 + 1, 2048, 1031), (1, 18_432, 100)];
    for (rows, inputs, outputs) in run.cases(&small, &large) {
        let (x, weight) = (bf16s(run, rows * inputs), bf16s(run, outputs * inputs));
        let (input, weights) = (run.place.input("x", &x)?, run.place.input("weight", &pack(&weight, inputs))?);
        let out = run.place.output::<T>("out", rows * outputs)?;
        let [r, i, o] = [rows, inputs, outputs].map(|n| n as u32);
        let words = instance.exchange_words(r, o) as usize;
        let exchange = run.place.state("exchange", &vec![EMPTY; words.max(1)])?;
        let arguments = (input.ptr(), weights.ptr(), exchange.ptr_mut(), out.ptr_mut(), r, i, o);
        // SAFETY: the buffers are as large as these sizes say; there are 1 to `bound` rows, inputs are a multiple of 32.
        unsafe { run.place.launch(kernel, instance.shape(o), arguments)? };
        let left = exchange.to_vec()?.into_iter().filter(|word| *word != EMPTY).count();
        run.failures.check(left == 0, kernel.name, &format!("leaves {left} words of the exchange in use"));
        for (at, found) in out.to_vec()?.into_iter().enumerate() {
            let (row, output) = (at / outputs, at % outputs);
            let (x, weight) = (&x[row * inputs..][..inputs], &weight[output * inputs..][..inputs]);
            let (exact, magnitude) = linear_reference(x, weight);
            let bound = magnitude * 2f64.powi(-20) + exact.abs() * T::ROUNDING;
            let close = (found.to_f64() - exact).abs() <= bound;
            let case = || format!("{} {rows} rows, {inputs} to {outputs}, ({row}, {output})", kernel.name);
            if !close {
                run.failures.check(close, &case(), &format!("is {}, expected {exact}", found.to_f64()));
            }
        }
    }
    Ok(())
}
