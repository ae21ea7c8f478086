//! The 8-bit float e4m3 (Micikevicius et al. 2022, section 3; the variant with NaN and without infinities).

/// e4m3 bit pattern to f32, exactly: sign, 4 bits of exponent with bias 7, 3 of mantissa; all ones below the sign is NaN.
pub const fn e4m3_to_f32(bits: u8) -> f32 {
    let (sign, exponent, mantissa) = ((bits as u32 >> 7) << 31, (bits as u32 >> 3) & 15, bits as u32 & 7);
    let magnitude = match (exponent, mantissa) {
        (15, 7) => f32::NAN,
        // Subnormals are multiples of 2^(1 - 7 - 3).
        (0, _) => mantissa as f32 / 512.0,
        _ => f32::from_bits((exponent + 127 - 7) << 23 | mantissa << 20),
    };
    f32::from_bits(sign | magnitude.to_bits())
}

/// [`e4m3_to_f32`] of every bit pattern.
pub static E4M3: [f32; 256] = {
    let mut table = [0.0; 256];
    let mut bits = 0;
    while bits < table.len() {
        table[bits] = e4m3_to_f32(bits as u8);
        bits += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_equals_the_definition() {
        for bits in 0..=255u8 {
            let sign = if bits & 0x80 == 0 { 1.0 } else { -1.0 };
            let (exponent, mantissa) = (i32::from(bits >> 3 & 15), f64::from(bits & 7));
            let expected = match exponent {
                0 => sign * 2f64.powi(-6) * (mantissa / 8.0),
                _ => sign * 2f64.powi(exponent - 7) * (1.0 + mantissa / 8.0),
            } as f32;
            let found = E4M3[usize::from(bits)];
            match bits & 0x7f {
                0x7f => assert!(found.is_nan(), "{bits:#x}"),
                _ => assert_eq!(found.to_bits(), expected.to_bits(), "{bits:#x}"),
            }
        }
    }

    #[test]
    fn landmarks() {
        let cases = [
            (0x00, 0.0),
            (0x80, -0.0),
            (0x01, 2f32.powi(-9)),
            (0x07, 7.0 * 2f32.powi(-9)),
            (0x08, 2f32.powi(-6)),
            (0x38, 1.0),
            (0xb8, -1.0),
            (0x7e, 448.0),
            (0xfe, -448.0),
        ];
        for (bits, value) in cases {
            assert_eq!(e4m3_to_f32(bits).to_bits(), f32::to_bits(value), "{bits:#x}");
        }
    }
}
