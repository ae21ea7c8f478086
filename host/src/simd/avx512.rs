//! [`Simd`] with AVX-512: a vector is one register.

#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::{Isa, Outlined, Simd};

/// Proof that the CPU has AVX-512 F, BW, DQ and VL.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// The proof, if it is true.
    pub(crate) fn new() -> Option<Self> {
        Isa::Avx512.is_available().then_some(Self(()))
    }
}

/// Evaluates intrinsics.
macro_rules! cpu {
    ($e:expr) => {
        // SAFETY: an `Avx512` exists only where the CPU has the features; pointers are as the method's caller promised.
        unsafe { $e }
    };
}

impl Simd for Avx512 {
    type F = __m512;
    type U = __m512i;
    const WIDE: bool = true;

    #[inline(always)]
    fn outlined(self, code: impl Outlined<Self>) {
        #[inline(never)]
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
        fn call<C: Outlined<Avx512>>(s: Avx512, code: C) {
            code.run(s);
        }
        cpu!(call(self, code))
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        cpu!(_mm512_set1_ps(x))
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> __m512 {
        cpu!(_mm512_loadu_ps(p))
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, x: __m512) {
        cpu!(_mm512_storeu_ps(p, x))
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> __m512 {
        cpu!(_mm512_cvtph_ps(_mm256_loadu_si256(p.cast())))
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        cpu!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        cpu!(_mm512_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        cpu!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        cpu!(_mm512_div_ps(a, b))
    }
    #[inline(always)]
    fn mul_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        cpu!(_mm512_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        cpu!(_mm512_min_ps(a, b))
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        cpu!(_mm512_max_ps(a, b))
    }
    #[inline(always)]
    fn sum(self, x: __m512) -> f32 {
        cpu!({
            let x = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x));
            let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
        })
    }
    #[inline(always)]
    fn sum4(self, [a, b, c, d]: [__m512; 4]) -> [f32; 4] {
        cpu!({
            // Quarters of two vectors side by side: i + 8 is two quarters on, i + 4 one.
            let ab = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b));
            let cd = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(c, d), _mm512_shuffle_f32x4::<0xee>(c, d));
            let x = _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(ab, cd), _mm512_shuffle_f32x4::<0xdd>(ab, cd));
            let x = _mm512_add_ps(x, _mm512_shuffle_ps::<0x4e>(x, x));
            let x = _mm512_add_ps(x, _mm512_shuffle_ps::<0xb1>(x, x));
            let index = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
            let mut sums = [0.0; 4];
            _mm_storeu_ps(sums.as_mut_ptr(), _mm512_castps512_ps128(_mm512_permutexvar_ps(index, x)));
            sums
        })
    }
    #[inline(always)]
    fn greatest(self, x: __m512) -> f32 {
        cpu!(_mm512_reduce_max_ps(x))
    }
    #[inline(always)]
    fn quads(self, abcd: [f32; 4]) -> __m512 {
        cpu!({
            let index = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
            _mm512_permutexvar_ps(index, _mm512_castps128_ps512(_mm_loadu_ps(abcd.as_ptr())))
        })
    }
    #[inline(always)]
    unsafe fn quads_bf16(self, p: *const u16) -> __m512 {
        cpu!({
            let index = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
            let four = _mm_slli_epi32::<16>(_mm_cvtepu16_epi32(_mm_loadl_epi64(p.cast())));
            _mm512_castsi512_ps(_mm512_permutexvar_epi32(index, _mm512_castsi128_si512(four)))
        })
    }

    #[inline(always)]
    fn splat_u(self, x: u32) -> __m512i {
        cpu!(_mm512_set1_epi32(x.cast_signed()))
    }
    #[inline(always)]
    unsafe fn load_u32(self, p: *const u8) -> __m512i {
        cpu!(_mm512_loadu_si512(p.cast()))
    }
    #[inline(always)]
    unsafe fn load_u8(self, p: *const u8) -> __m512i {
        cpu!(_mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast())))
    }
    #[inline(always)]
    fn nibble<const I: u32>(self, x: __m512i) -> __m512 {
        cpu!({
            // A table lookup takes the lowest four bits of each lane.
            let table =
                _mm512_setr_ps(-8.0, -7.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0);
            _mm512_permutexvar_ps(_mm512_srl_epi32(x, _mm_cvtsi32_si128((4 * I).cast_signed())), table)
        })
    }
    #[inline(always)]
    fn shl<const N: u32>(self, x: __m512i) -> __m512i {
        cpu!(_mm512_slli_epi32::<N>(x))
    }
    #[inline(always)]
    fn sar<const N: u32>(self, x: __m512i) -> __m512i {
        cpu!(_mm512_srai_epi32::<N>(x))
    }
    #[inline(always)]
    fn and(self, a: __m512i, b: __m512i) -> __m512i {
        cpu!(_mm512_and_si512(a, b))
    }
    #[inline(always)]
    fn add_u(self, a: __m512i, b: __m512i) -> __m512i {
        cpu!(_mm512_add_epi32(a, b))
    }
    #[inline(always)]
    fn nan_where(self, bits: __m512i, x: __m512) -> __m512 {
        cpu!(_mm512_mask_mov_ps(x, _mm512_test_epi32_mask(bits, bits), _mm512_set1_ps(f32::NAN)))
    }
    #[inline(always)]
    fn prefetch<T>(self, p: *const T) {
        cpu!(_mm_prefetch::<_MM_HINT_T0>(p.cast()))
    }
    #[inline(always)]
    fn as_f(self, x: __m512i) -> __m512 {
        cpu!(_mm512_castsi512_ps(x))
    }
    #[inline(always)]
    fn as_u(self, x: __m512) -> __m512i {
        cpu!(_mm512_castps_si512(x))
    }
}
