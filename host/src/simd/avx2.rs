//! [`Simd`] with AVX2, FMA and F16C: a vector is a pair of registers.

#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::{Isa, Outlined, Simd};

/// Proof that the CPU has AVX2, FMA and F16C.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// The proof, if it is true.
    pub(crate) fn new() -> Option<Self> {
        Isa::Avx2.is_available().then_some(Self(()))
    }
}

/// Evaluates intrinsics.
macro_rules! cpu {
    ($e:expr) => {
        // SAFETY: an `Avx2` exists only where the CPU has the features; pointers are as the method's caller promised.
        unsafe { $e }
    };
}

/// Applies an expression to both halves of the named vectors.
macro_rules! halves {
    ($($x:ident),* => $e:expr) => {
        cpu!([
            { $(let $x = $x[0];)* $e },
            { $(let $x = $x[1];)* $e },
        ])
    };
}

type F = [__m256; 2];
type U = [__m256i; 2];

impl Simd for Avx2 {
    type F = F;
    type U = U;
    const WIDE: bool = false;

    #[inline(always)]
    fn outlined(self, code: impl Outlined<Self>) {
        #[inline(never)]
        #[target_feature(enable = "avx2,fma,f16c")]
        fn call<C: Outlined<Avx2>>(s: Avx2, code: C) {
            code.run(s);
        }
        cpu!(call(self, code))
    }

    #[inline(always)]
    fn splat(self, x: f32) -> F {
        cpu!([_mm256_set1_ps(x); 2])
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> F {
        cpu!([_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))])
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, x: F) {
        cpu!({
            _mm256_storeu_ps(p, x[0]);
            _mm256_storeu_ps(p.add(8), x[1]);
        })
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> F {
        cpu!([_mm256_cvtph_ps(_mm_loadu_si128(p.cast())), _mm256_cvtph_ps(_mm_loadu_si128(p.add(8).cast()))])
    }

    #[inline(always)]
    fn add(self, a: F, b: F) -> F {
        halves!(a, b => _mm256_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: F, b: F) -> F {
        halves!(a, b => _mm256_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: F, b: F) -> F {
        halves!(a, b => _mm256_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: F, b: F) -> F {
        halves!(a, b => _mm256_div_ps(a, b))
    }
    #[inline(always)]
    fn min(self, a: F, b: F) -> F {
        halves!(a, b => _mm256_min_ps(a, b))
    }
    #[inline(always)]
    fn max(self, a: F, b: F) -> F {
        halves!(a, b => _mm256_max_ps(a, b))
    }
    #[inline(always)]
    fn mul_add(self, a: F, b: F, c: F) -> F {
        halves!(a, b, c => _mm256_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn sum(self, x: F) -> f32 {
        cpu!({
            let x = _mm256_add_ps(x[0], x[1]);
            let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
        })
    }
    #[inline(always)]
    fn sum4(self, [a, b, c, d]: [F; 4]) -> [f32; 4] {
        cpu!({
            let [a, b, c, d] = [
                _mm256_add_ps(a[0], a[1]),
                _mm256_add_ps(b[0], b[1]),
                _mm256_add_ps(c[0], c[1]),
                _mm256_add_ps(d[0], d[1]),
            ];
            let ab = _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(a, b), _mm256_permute2f128_ps::<0x31>(a, b));
            let cd = _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(c, d), _mm256_permute2f128_ps::<0x31>(c, d));
            // Now a and c in the lower half, b and d in the upper one.
            let x = _mm256_add_ps(_mm256_shuffle_ps::<0x44>(ab, cd), _mm256_shuffle_ps::<0xee>(ab, cd));
            let x = _mm256_add_ps(x, _mm256_shuffle_ps::<0xb1>(x, x));
            let mut sums = [0.0; 8];
            _mm256_storeu_ps(sums.as_mut_ptr(), x);
            [sums[0], sums[4], sums[2], sums[6]]
        })
    }
    #[inline(always)]
    fn greatest(self, x: F) -> f32 {
        cpu!({
            let x = _mm256_max_ps(x[0], x[1]);
            let x = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let x = _mm_max_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)))
        })
    }
    #[inline(always)]
    fn quads(self, abcd: [f32; 4]) -> F {
        let [a, b, c, d] = abcd;
        cpu!([_mm256_set_m128(_mm_set1_ps(b), _mm_set1_ps(a)), _mm256_set_m128(_mm_set1_ps(d), _mm_set1_ps(c))])
    }
    #[inline(always)]
    unsafe fn quads_bf16(self, p: *const u16) -> F {
        cpu!({
            let four = _mm_slli_epi32::<16>(_mm_cvtepu16_epi32(_mm_loadl_epi64(p.cast())));
            let four = _mm256_castsi128_si256(four);
            let low = _mm256_permutevar8x32_epi32(four, _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1));
            let high = _mm256_permutevar8x32_epi32(four, _mm256_setr_epi32(2, 2, 2, 2, 3, 3, 3, 3));
            [_mm256_castsi256_ps(low), _mm256_castsi256_ps(high)]
        })
    }

    #[inline(always)]
    fn splat_u(self, x: u32) -> U {
        cpu!([_mm256_set1_epi32(x.cast_signed()); 2])
    }
    #[inline(always)]
    unsafe fn load_u32(self, p: *const u8) -> U {
        cpu!([_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(32).cast())])
    }
    #[inline(always)]
    unsafe fn load_u8(self, p: *const u8) -> U {
        cpu!([_mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast())), _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.add(8).cast()))])
    }
    #[inline(always)]
    fn nibble<const I: u32>(self, x: U) -> F {
        // Under the exponent of 2^23 a small integer reads as 2^23 plus itself.
        const BASE: f32 = 8_388_608.0;
        halves!(x => {
            let low = _mm256_and_si256(_mm256_srl_epi32(x, _mm_cvtsi32_si128((4 * I).cast_signed())), _mm256_set1_epi32(0xf));
            let biased = _mm256_or_si256(low, _mm256_castps_si256(_mm256_set1_ps(BASE)));
            _mm256_sub_ps(_mm256_castsi256_ps(biased), _mm256_set1_ps(BASE + 8.0))
        })
    }
    #[inline(always)]
    fn shl<const N: u32>(self, x: U) -> U {
        halves!(x => _mm256_sll_epi32(x, _mm_cvtsi32_si128(N.cast_signed())))
    }
    #[inline(always)]
    fn sar<const N: u32>(self, x: U) -> U {
        halves!(x => _mm256_sra_epi32(x, _mm_cvtsi32_si128(N.cast_signed())))
    }
    #[inline(always)]
    fn and(self, a: U, b: U) -> U {
        halves!(a, b => _mm256_and_si256(a, b))
    }
    #[inline(always)]
    fn add_u(self, a: U, b: U) -> U {
        halves!(a, b => _mm256_add_epi32(a, b))
    }
    #[inline(always)]
    fn nan_where(self, bits: U, x: F) -> F {
        // All ones is a NaN.
        halves!(bits, x => {
            let zero = _mm256_cmpeq_epi32(bits, _mm256_setzero_si256());
            _mm256_or_ps(x, _mm256_castsi256_ps(_mm256_xor_si256(zero, _mm256_set1_epi32(-1))))
        })
    }
    #[inline(always)]
    fn prefetch<T>(self, p: *const T) {
        cpu!(_mm_prefetch::<_MM_HINT_T0>(p.cast()))
    }
    #[inline(always)]
    fn as_f(self, x: U) -> F {
        halves!(x => _mm256_castsi256_ps(x))
    }
    #[inline(always)]
    fn as_u(self, x: F) -> U {
        halves!(x => _mm256_castps_si256(x))
    }
}
