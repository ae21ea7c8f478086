//! Sums of exponentials in f64: the normaliser of a softmax over a vocabulary.

#![allow(unsafe_code)]

use super::{Isa, LANES, kernel};

/// The sum of e^((x - max) scale) over `values`, whose greatest is `max`; NaN adds nothing. As many partial sums as
/// lanes, so that it is the same on every machine.
pub(crate) fn sum_of_exponentials(isa: Isa, values: &[f32], max: f32, scale: f64) -> f64 {
    let mut sum = 0.0;
    sum_on(isa, values, max, scale, &mut sum);
    sum
}

kernel! {
    fn sum_on(values: &[f32], max: f32, scale: f64, sum: &mut f64) = sum_body
}

#[inline(always)]
fn sum_body<S>(_: S, values: &[f32], max: f32, scale: f64, sum: &mut f64) {
    let (chunks, rest) = values.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for chunk in chunks {
        for i in 0..LANES {
            sums[i] += term(chunk[i], max, scale);
        }
    }
    *sum = sums.iter().sum();
    for &x in rest {
        *sum += term(x, max, scale);
    }
}

#[inline(always)]
fn term(x: f32, max: f32, scale: f64) -> f64 {
    let below = (f64::from(x) - f64::from(max)) * scale;
    // Where both are infinite, `below` is NaN.
    exp_of_nonpositive(if x == max { 0.0 } else { below })
}

/// e^x for x <= 0, within 2 units in the last place; about 1e-308 below -708 and for NaN, which is nothing beside the 1
/// of the greatest logit. Without a branch or a call, so that a loop over it becomes vectors.
///
/// x = n ln 2 + r with |r| <= ln 2 / 2, the series of e^r to the 12th power, n added to the exponent.
#[inline(always)]
fn exp_of_nonpositive(x: f64) -> f64 {
    /// Adding it rounds to an integer, which is then in the low bits.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    // ln 2 in two parts; n times the first is exact.
    const LN2_HIGH: f64 = 0.693_147_180_369_123_8;
    const LN2_LOW: f64 = 1.908_214_929_270_587_7e-10;
    /// 1 / k! for k from 12 down to 0.
    const SERIES: [f64; 13] = {
        let mut series = [1.0; 13];
        let (mut k, mut factorial) = (1, 1.0);
        while k < 13 {
            factorial *= k as f64;
            series[12 - k] = 1.0 / factorial;
            k += 1;
        }
        series
    };
    let x = if x > -708.0 { x } else { -708.0 };
    let shifted = x * std::f64::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (x - n * LN2_HIGH) - n * LN2_LOW;
    let mut sum = SERIES[0];
    for coefficient in &SERIES[1..] {
        sum = sum * r + coefficient;
    }
    f64::from_bits(sum.to_bits().wrapping_add(shifted.to_bits() << 52))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponentials_are_within_two_units_in_the_last_place() {
        for x in (0..708_000).map(|i| f64::from(i) * -1e-3) {
            let (got, exact) = (exp_of_nonpositive(x), x.exp());
            assert!((got - exact).abs() <= 2.0 * f64::EPSILON * exact, "e^{x} is {exact}, not {got}");
        }
        assert_eq!(exp_of_nonpositive(0.0), 1.0);
        assert!([-1e9, f64::NEG_INFINITY, f64::NAN].iter().all(|x| exp_of_nonpositive(*x) < 1e-300));
    }

    #[test]
    fn sums_are_the_same_on_every_instruction_set() {
        for len in [0, 1, 15, 16, 17, 100, 4096] {
            let values: Vec<f32> = (0..len).map(|i| (i as f32 * 0.37).sin() * 9.0).collect();
            let max = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let exact: f64 = values.iter().map(|x| ((f64::from(*x) - f64::from(max)) * 1.25).exp()).sum();
            for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
                let sum = sum_of_exponentials(isa, &values, max, 1.25);
                assert_eq!(sum.to_bits(), sum_of_exponentials(Isa::Portable, &values, max, 1.25).to_bits(), "{isa}");
                assert!((sum - exact).abs() <= 1e-14 * exact, "{isa}, {len}: {sum} {exact}");
            }
        }
    }
}
