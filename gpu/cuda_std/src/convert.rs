//! Number formats narrower than f32: bf16, f16, fp8 e4m3, int4; one at a time and packed in registers.
//! Rounding is to nearest, ties to even; e4m3 saturates at 448.

/// bfloat16: the upper half of an f32.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bf16(pub u16);

/// IEEE half precision.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct F16(pub u16);

impl Bf16 {
    /// The nearest bf16.
    #[inline(always)]
    pub fn from_f32(x: f32) -> Self {
        Self(bf16x2_from_f32(x, 0.0) as u16)
    }

    /// Exact.
    #[inline(always)]
    pub fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }
}

impl F16 {
    /// The nearest f16.
    #[inline(always)]
    pub fn from_f32(x: f32) -> Self {
        Self(f16x2_from_f32(x, 0.0) as u16)
    }

    /// Exact.
    #[inline(always)]
    pub fn to_f32(self) -> f32 {
        #[cfg(target_arch = "nvptx64")]
        {
            crate::device::f16_to_f32(self.0)
        }
        #[cfg(not(target_arch = "nvptx64"))]
        host::f16_to_f32(self.0)
    }
}

/// Two bf16 in a register, `low` in the lower half.
#[inline(always)]
pub fn bf16x2_from_f32(low: f32, high: f32) -> u32 {
    #[cfg(target_arch = "nvptx64")]
    {
        crate::device::bf16x2(high, low)
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        u32::from(host::f32_to_bf16(low)) | (u32::from(host::f32_to_bf16(high)) << 16)
    }
}

/// The two bf16 of a register, lower half first. Exact.
#[inline(always)]
pub fn bf16x2_to_f32(bits: u32) -> [f32; 2] {
    [f32::from_bits(bits << 16), f32::from_bits(bits & 0xffff_0000)]
}

/// Two f16 in a register, `low` in the lower half.
#[inline(always)]
pub fn f16x2_from_f32(low: f32, high: f32) -> u32 {
    #[cfg(target_arch = "nvptx64")]
    {
        crate::device::f16x2(high, low)
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        u32::from(host::f32_to_f16(low)) | (u32::from(host::f32_to_f16(high)) << 16)
    }
}

/// Two e4m3 (lower byte first) as two f16 in a register. Exact.
#[inline(always)]
pub fn e4m3x2_to_f16x2(bits: u16) -> u32 {
    #[cfg(target_arch = "nvptx64")]
    {
        crate::device::e4m3x2_to_f16x2(bits)
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        f16x2_from_f32(host::e4m3_to_f32(bits as u8), host::e4m3_to_f32((bits >> 8) as u8))
    }
}

/// Two e4m3, `low` in the lower byte; magnitudes above 448 become 448.
#[inline(always)]
pub fn e4m3x2_from_f32(low: f32, high: f32) -> u16 {
    #[cfg(target_arch = "nvptx64")]
    {
        crate::device::e4m3x2(high, low)
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        u16::from(host::f32_to_e4m3(low)) | (u16::from(host::f32_to_e4m3(high)) << 8)
    }
}

/// Eight int4 (value = nibble - 8) as bf16 pairs. Pair i holds nibbles i and i + 4: the order in which masking a whole
/// register yields them; repack weights so that this is the order a fragment wants. Exact.
#[inline(always)]
pub fn int4x8_to_bf16x2(word: u32) -> [u32; 4] {
    core::array::from_fn(|i| {
        // 0x4300 is 128 in bf16, whose last mantissa bit weighs 1: the nibble adds itself. 128 + n - 136 = n - 8.
        let biased = ((word >> (4 * i)) & 0x000f_000f) | 0x4300_4300;
        bf16x2_fma(biased, 0x3f80_3f80, 0xc308_c308)
    })
}

/// a x b + c on two bf16 in a register, rounded once.
#[inline(always)]
pub fn bf16x2_fma(a: u32, b: u32, c: u32) -> u32 {
    #[cfg(target_arch = "nvptx64")]
    {
        crate::device::bf16x2_fma(a, b, c)
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        let ([a0, a1], [b0, b1], [c0, c1]) = (bf16x2_to_f32(a), bf16x2_to_f32(b), bf16x2_to_f32(c));
        // The product of two bf16 is exact in f64 and so, but for far-apart exponents, is the sum: one rounding matters.
        let once = |a: f32, b: f32, c: f32| host::f64_to_bf16(f64::from(a) * f64::from(b) + f64::from(c));
        u32::from(once(a0, b0, c0)) | (u32::from(once(a1, b1, c1)) << 16)
    }
}

#[cfg(not(target_arch = "nvptx64"))]
pub(crate) mod host {
    //! Scalar conversions by their definition.

    pub fn f32_to_bf16(x: f32) -> u16 {
        if x.is_nan() {
            return 0x7fff;
        }
        let bits = x.to_bits();
        ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
    }

    pub fn f64_to_bf16(x: f64) -> u16 {
        // Round to odd on the way to f32, so that the second rounding cannot be misled by the first.
        let near = x as f32;
        let exact = f64::from(near) == x || !near.is_finite();
        let odd = if exact || near.to_bits() & 1 == 1 {
            near
        } else if (f64::from(near) < x) == (x > 0.0) {
            f32::from_bits(near.to_bits() + 1)
        } else {
            f32::from_bits(near.to_bits() - 1)
        };
        f32_to_bf16(odd)
    }

    pub fn f16_to_f32(bits: u16) -> f32 {
        let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
        let (exponent, mantissa) = (i32::from((bits >> 10) & 31), f32::from(bits & 1023));
        match exponent {
            0 => sign * mantissa * 2f32.powi(-24),
            31 if mantissa == 0.0 => sign * f32::INFINITY,
            31 => f32::NAN,
            _ => sign * (1.0 + mantissa / 1024.0) * 2f32.powi(exponent - 15),
        }
    }

    pub fn f32_to_f16(x: f32) -> u16 {
        let sign = ((x.to_bits() >> 16) & 0x8000) as u16;
        if x.is_nan() {
            return sign | 0x7fff;
        }
        let magnitude = f64::from(x.abs());
        // The unit in the last place at this magnitude; 2^-24 below the smallest normal.
        let exponent = (magnitude.log2().floor() as i32).max(-14);
        let steps = (magnitude / 2f64.powi(exponent - 10)).round_ties_even();
        let bits = if magnitude == 0.0 { 0 } else { (i64::from(exponent + 14) << 10) + steps as i64 };
        sign | bits.min(0x7c00) as u16
    }

    pub fn e4m3_to_f32(bits: u8) -> f32 {
        let sign = if bits >> 7 == 1 { -1.0 } else { 1.0 };
        let (exponent, mantissa) = (i32::from((bits >> 3) & 15), f32::from(bits & 7));
        match (exponent, bits & 7) {
            (15, 7) => f32::NAN,
            (0, _) => sign * mantissa * 2f32.powi(-9),
            _ => sign * (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
        }
    }

    pub fn f32_to_e4m3(x: f32) -> u8 {
        let sign = ((x.to_bits() >> 24) & 0x80) as u8;
        if x.is_nan() {
            return sign | 0x7f;
        }
        let magnitude = f64::from(x.abs());
        let exponent = (magnitude.log2().floor().max(-6.0) as i32).min(9);
        let steps = (magnitude / 2f64.powi(exponent - 3)).round_ties_even();
        let bits = if magnitude == 0.0 { 0 } else { (i64::from(exponent + 6) << 3) + (steps.min(1e6)) as i64 };
        sign | bits.min(0x7e) as u8
    }
}
