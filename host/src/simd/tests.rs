use super::*;

fn available() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.is_available())
}

#[test]
fn the_widest_set_is_available_and_every_name_parses_back() {
    assert!(Isa::detect().is_available());
    for isa in available() {
        assert_eq!(isa.to_string().parse(), Ok(isa));
    }
}

#[test]
fn an_unknown_set_is_named() {
    let error = "sse9".parse::<Isa>().unwrap_err();
    assert_eq!(error, "COPPICE_SIMD is `sse9`, expected portable, avx2 or avx512; leave it unset for the widest");
}

/// silu(g) u in f64, for comparison.
fn reference(g: f32, u: f32) -> f64 {
    let g = f64::from(g);
    g / (1.0 + (-g).exp()) * f64::from(u)
}

#[test]
fn silu_mul_agrees_with_f64_to_four_ulp() {
    // Four roundings of at most half an ulp each, and 2 ulp of the exponential where it dominates.
    let gate: Vec<f32> = (-35_000..35_000).map(|i| i as f32 * 2.5e-3).chain([0.0, -0.0, 1e-30, 60.0]).collect();
    let up: Vec<f32> = (0..gate.len()).map(|i| (i % 17) as f32 / 4.0 - 2.0).collect();
    for isa in available() {
        let mut out = gate.clone();
        silu_mul(isa, &mut out, &up);
        for ((&g, &u), &y) in gate.iter().zip(&up).zip(&out) {
            let expected = reference(g, u);
            let bound = 4.0 * f64::from(f32::EPSILON) * expected.abs() + 1e-36;
            assert!((f64::from(y) - expected).abs() <= bound, "{isa}: silu({g}) * {u} is {y}, expected {expected}");
        }
    }
}

#[test]
fn silu_mul_of_a_value_does_not_depend_on_its_place() {
    let gate: Vec<f32> = (0..67).map(|i| (i as f32 * 0.37).sin() * 9.0).collect();
    let up: Vec<f32> = (0..67).map(|i| (i as f32 * 0.73).cos()).collect();
    for isa in available() {
        let mut whole = gate.clone();
        silu_mul(isa, &mut whole, &up);
        for i in 0..gate.len() {
            let mut one = [gate[i]];
            silu_mul(isa, &mut one, &up[i..=i]);
            assert_eq!(one[0].to_bits(), whole[i].to_bits(), "{isa}, element {i}");
        }
    }
}

#[test]
fn silu_mul_keeps_nan_and_saturates() {
    for isa in available() {
        let mut out = [f32::NAN, 1e4, -1e4, f32::INFINITY];
        silu_mul(isa, &mut out, &[1.0; 4]);
        assert!(out[0].is_nan(), "{isa}");
        assert_eq!(out[1], 1e4, "{isa}");
        assert!(out[2].abs() < 1e-30, "{isa}: {}", out[2]);
        assert_eq!(out[3], f32::INFINITY, "{isa}");
    }
}
