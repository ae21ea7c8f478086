//! e^x in f64, the same bits on a GPU and under the simulator. The f32 functions of the special function unit are in
//! `cuda_std::math`.
use cuda_std::math;

/// Adding it rounds to an integer, which then stands in the low bits: 1.5 x 2^52.
const ROUND: f64 = 6_755_399_441_055_744.0;
/// ln 2 in two parts: products of the first with integers below 2^20 are exact.
const LN2: [f64; 2] = [0.693_147_180_369_123_8, 1.908_214_929_270_587_7e-10];
/// 1 / n!, n from 13 down to 0.
const INVERSE_FACTORIALS: [f64; 14] = {
    let mut values = [1.0; 14];
    let mut n = 1;
    while n < 14 {
        values[13 - n] = values[14 - n] / n as f64;
        n += 1;
    }
    values
};

/// e^x for -708 <= x <= 0, to 2^-52 relative; 0 below.
#[inline(always)]
pub fn exp(x: f64) -> f64 {
    if x < -708.0 {
        return 0.0;
    }
    let shifted = math::fma_f64(x, core::f64::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let rest = math::fma_f64(n, -LN2[1], math::fma_f64(n, -LN2[0], x));
    let mut sum = INVERSE_FACTORIALS[0];
    cuda_std::unroll!(I in [1 2 3 4 5 6 7 8 9 10 11 12 13] {
        sum = math::fma_f64(sum, rest, INVERSE_FACTORIALS[I]);
    });
    // n is -1021 or more: 2^n is a normal number.
    sum * f64::from_bits(shifted.to_bits().wrapping_add(1023) << 52)
}

#[cfg(test)]
mod tests {
    use super::exp;

    #[test]
    fn exponentials_are_those_of_the_standard_library_to_a_last_place() {
        for i in 0..200_000 {
            let x = -(f64::from(i) * 0.003_537) - f64::from(i % 7) * 1e-9;
            let (found, exact) = (exp(x), x.exp());
            assert!((found - exact).abs() <= exact * 2.0f64.powi(-51), "e^{x} is {found:e}, expected {exact:e}");
        }
    }

    #[test]
    fn the_ends_are_one_and_nothing() {
        assert_eq!([exp(0.0), exp(-0.0), exp(-709.0), exp(f64::NEG_INFINITY)], [1.0, 1.0, 0.0, 0.0]);
    }
}
