//! Sixteen f32 lanes on every instruction set: the vocabulary that loops over many numbers are written in, and the choice of
//! instruction set at run time. The kernels themselves live elsewhere.
//!
//! A kernel is one generic body over [`Simd`], compiled by [`kernel!`] for each instruction set. All sets have the same
//! sixteen lanes and the same order of additions; AVX-512 and AVX2 give the same bits, `portable` rounds a product before
//! it is added (no fused multiply-add).

#![allow(unsafe_code)]

use std::fmt;
use std::str::FromStr;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod exponentials;
mod math;
mod portable;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;
pub(crate) use exponentials::sum_of_exponentials;
pub(crate) use math::{exp, silu_mul};
pub(crate) use portable::Portable;

/// Lanes of a vector.
pub(crate) const LANES: usize = 16;

/// The instruction sets that kernels exist for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isa {
    /// What the compiler's target has.
    Portable,
    /// AVX2, FMA, F16C.
    Avx2,
    /// AVX-512 F, BW, DQ, VL, and what AVX2 kernels need.
    Avx512,
}

impl Isa {
    /// Every set, narrowest first.
    pub const ALL: [Isa; 3] = [Isa::Portable, Isa::Avx2, Isa::Avx512];

    /// Whether this CPU (and system) has it.
    pub fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 =
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
            match self {
                Isa::Portable => true,
                Isa::Avx2 => avx2,
                Isa::Avx512 => {
                    avx2 && is_x86_feature_detected!("avx512f")
                        && is_x86_feature_detected!("avx512bw")
                        && is_x86_feature_detected!("avx512dq")
                        && is_x86_feature_detected!("avx512vl")
                }
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            self == Isa::Portable
        }
    }

    /// The widest set of this CPU.
    pub fn detect() -> Isa {
        Self::ALL.into_iter().rev().find(|isa| isa.is_available()).unwrap_or(Isa::Portable)
    }

    /// The set named by the environment variable `COPPICE_SIMD` (`portable`, `avx2`, `avx512`), else the widest.
    ///
    /// # Errors
    /// The variable has another value, or names a set that this CPU lacks.
    pub fn from_env() -> Result<Isa, String> {
        match std::env::var_os("COPPICE_SIMD") {
            None => Ok(Self::detect()),
            Some(value) => value.to_string_lossy().parse(),
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Isa::Portable => "portable",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        })
    }
}

impl FromStr for Isa {
    type Err = String;

    fn from_str(name: &str) -> Result<Isa, String> {
        let isa = Self::ALL.into_iter().find(|isa| isa.to_string() == name).ok_or_else(|| {
            format!("COPPICE_SIMD is `{name}`, expected portable, avx2 or avx512; leave it unset for the widest")
        })?;
        if !isa.is_available() {
            let widest = Self::detect();
            return Err(format!("COPPICE_SIMD is `{name}`, which this CPU lacks; its widest set is {widest}"));
        }
        Ok(isa)
    }
}

/// Code to be compiled for an instruction set as a function of its own.
pub(crate) trait Outlined<S> {
    /// The code. It must be `#[inline(always)]`.
    fn run(self, s: S);
}

/// An instruction set, as a value that proves that the CPU has it: sixteen lanes of f32 (`F`) or of u32 (`U`).
///
/// Every method is inlined into a function that was compiled for the set (see [`kernel!`]).
pub(crate) trait Simd: Copy {
    /// Sixteen f32.
    type F: Copy;
    /// Sixteen u32.
    type U: Copy;
    /// Thirty-two vector registers of sixteen lanes, or what amounts to a quarter of that.
    const WIDE: bool;

    /// Calls `code` as a function of its own. A loop that is to use all registers should not share a function with others.
    fn outlined(self, code: impl Outlined<Self>);

    fn splat(self, x: f32) -> Self::F;
    /// # Safety
    /// Sixteen f32 are readable at `p`, at any alignment.
    unsafe fn load(self, p: *const f32) -> Self::F;
    /// # Safety
    /// Sixteen f32 are writable at `p`, at any alignment.
    unsafe fn store(self, p: *mut f32, x: Self::F);
    /// # Safety
    /// Sixteen IEEE halves are readable at `p`, at any alignment.
    unsafe fn load_f16(self, p: *const u16) -> Self::F;

    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`.
    fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The lesser; `b` where either is NaN.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// The greater; `b` where either is NaN.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// Sum of the lanes: lane i + lane i+8, then i+4, then i+2, then i+1.
    fn sum(self, x: Self::F) -> f32;
    /// [`Simd::sum`] of four vectors, for half the work.
    fn sum4(self, x: [Self::F; 4]) -> [f32; 4];
    /// The greatest lane, if none is NaN.
    fn greatest(self, x: Self::F) -> f32;
    /// `[a, a, a, a, b, b, b, b, c, c, c, c, d, d, d, d]`.
    fn quads(self, abcd: [f32; 4]) -> Self::F;
    /// The same of four bf16.
    ///
    /// # Safety
    /// Four bf16 are readable at `p`.
    unsafe fn quads_bf16(self, p: *const u16) -> Self::F;

    fn splat_u(self, x: u32) -> Self::U;
    /// # Safety
    /// Sixteen u32 are readable at `p`, at any alignment.
    unsafe fn load_u32(self, p: *const u8) -> Self::U;
    /// Sixteen bytes, each extended by zeros.
    ///
    /// # Safety
    /// Sixteen bytes are readable at `p`.
    unsafe fn load_u8(self, p: *const u8) -> Self::U;
    /// Nibble `I` (0: the lowest four bits) of each word, minus 8.
    fn nibble<const I: u32>(self, x: Self::U) -> Self::F;
    fn shl<const N: u32>(self, x: Self::U) -> Self::U;
    /// Shift right that copies the sign bit.
    fn sar<const N: u32>(self, x: Self::U) -> Self::U;
    fn and(self, a: Self::U, b: Self::U) -> Self::U;
    fn add_u(self, a: Self::U, b: Self::U) -> Self::U;
    /// `x`, but NaN where `bits` are not all 0.
    fn nan_where(self, bits: Self::U, x: Self::F) -> Self::F;
    /// Asks for the cache line of `p`, which may point anywhere.
    fn prefetch<T>(self, p: *const T);
    /// The same bits.
    fn as_f(self, x: Self::U) -> Self::F;
    /// The same bits.
    fn as_u(self, x: Self::F) -> Self::U;
}

/// Defines a function that runs `$body::<S>(s, ..)` compiled for the instruction set it is given.
///
/// The body must be `#[inline(always)]`, so that it is compiled with the features of the entry it is inlined into.
macro_rules! kernel {
    ($(#[$doc:meta])* $vis:vis fn $name:ident $(<$($generic:ident: $bound:path),*>)? ($($arg:ident: $type:ty),* $(,)?) = $body:path) => {
        $(#[$doc])*
        $vis fn $name $(<$($generic: $bound),*>)? (isa: $crate::simd::Isa, $($arg: $type),*) {
            use $crate::simd;
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma,f16c")]
                fn avx2 $(<$($generic: $bound),*>)? (s: simd::Avx2, $($arg: $type),*) {
                    $body(s, $($arg),*)
                }
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
                fn avx512 $(<$($generic: $bound),*>)? (s: simd::Avx512, $($arg: $type),*) {
                    $body(s, $($arg),*)
                }
                if let (simd::Isa::Avx512, Some(s)) = (isa, simd::Avx512::new()) {
                    // SAFETY: `s` proves that the CPU has the features.
                    return unsafe { avx512(s, $($arg),*) };
                }
                if let (simd::Isa::Avx2, Some(s)) = (isa, simd::Avx2::new()) {
                    // SAFETY: as above.
                    return unsafe { avx2(s, $($arg),*) };
                }
            }
            let _ = isa;
            $body(simd::Portable, $($arg),*)
        }
    };
}
pub(crate) use kernel;

#[cfg(test)]
mod tests;
