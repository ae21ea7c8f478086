//! Fast arithmetic of the special function unit, and fused multiply-add, which rustc does not form by itself.
//! Subnormal inputs and results of the approximations count as zero.

macro_rules! function {
    ($($(#[$doc:meta])* $name:ident($($x:ident),*) = $device:ident, $host:expr;)*) => {
        $(
            $(#[$doc])*
            #[inline(always)]
            pub fn $name($($x: f32),*) -> f32 {
                #[cfg(target_arch = "nvptx64")]
                #[allow(unused_unsafe)]
                // SAFETY: arithmetic on registers.
                unsafe {
                    crate::device::$device($($x),*)
                }
                #[cfg(not(target_arch = "nvptx64"))]
                $host
            }
        )*
    };
}
function! {
    /// 2^x, relative error 2^-22.
    ex2(x) = ex2, flush(flush(x).exp2());
    /// log2(x), absolute error 2^-22 near 1, relative elsewhere.
    lg2(x) = lg2, flush(x).log2();
    /// 1 / sqrt(x), relative error 2^-22.
    rsqrt(x) = rsqrt, flush(1.0 / flush(x).sqrt());
    /// 1 / x, one unit in the last place.
    rcp(x) = rcp, flush(1.0 / flush(x));
    /// tanh(x), relative error 2^-11.
    tanh(x) = tanh, x.tanh();
    /// sqrt(x), correctly rounded.
    sqrt(x) = sqrt, x.sqrt();
    /// a x b + c, rounded once.
    fma(a, b, c) = fma, a.mul_add(b, c);
}

#[cfg(not(target_arch = "nvptx64"))]
fn flush(x: f32) -> f32 {
    if x.is_subnormal() { 0.0f32.copysign(x) } else { x }
}

/// a x b + c in f64, rounded once.
#[inline(always)]
pub fn fma_f64(a: f64, b: f64, c: f64) -> f64 {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: arithmetic on registers.
    unsafe {
        crate::device::fma_f64(a, b, c)
    }
    #[cfg(not(target_arch = "nvptx64"))]
    a.mul_add(b, c)
}

/// log2(e): `ex2(x * LOG2_E)` is e^x.
pub const LOG2_E: f32 = core::f32::consts::LOG2_E;

/// e^x through [`ex2`].
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    ex2(x * LOG2_E)
}

/// x / (1 + e^-x), through [`ex2`] and [`rcp`].
#[inline(always)]
pub fn silu(x: f32) -> f32 {
    x * rcp(1.0 + exp(-x))
}
