//! Expansion of a weight row to f32 by the definition of its stored type: for shapes of scales that the decoders leave
//! out, and the reference they are tested against.

use coppice_model::weight::{Storage, Weight};

/// Writes row `row` of `weight` `[cols]` to `out`.
pub(crate) fn expand_row(weight: &Weight, row: usize, out: &mut [f32]) {
    let cols = weight.cols;
    let at = row * cols;
    for (col, out) in out.iter_mut().enumerate() {
        *out = match &weight.storage {
            Storage::F32(values) => values[at + col],
            Storage::F16(values) => values[at + col].to_f32(),
            Storage::Bf16(values) => values[at + col].to_f32(),
            Storage::Fp8Block { values, scale_inv, block } => {
                let scale = scale_inv[row / block[0] * cols.div_ceil(block[1]) + col / block[1]];
                e4m3_to_f32(values[at + col]) * scale
            }
            Storage::Int4Group { packed, scale, group } => {
                let word = packed[row * cols.div_ceil(8) + col / 8];
                let nibble = word >> (4 * (col % 8)) & 0xf;
                let scale = scale[row * cols.div_ceil(*group) + col / group];
                (nibble as f32 - 8.0) * scale.to_f32()
            }
        };
    }
}

/// e4m3 (OCP 8-bit floating point, "e4m3fn"): bias 7, no infinities, NaN is all ones below the sign.
fn e4m3_to_f32(bits: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(bits >> 3 & 0xf), f32::from(bits & 7));
    let magnitude = match (exponent, bits & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa / 512.0,
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    };
    if bits & 0x80 == 0 { magnitude } else { -magnitude }
}
