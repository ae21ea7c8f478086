//! [`Simd`] in plain Rust, for CPUs without the instruction sets of the other files; the compiler vectorises what it can.

use half::f16;

use super::{LANES, Outlined, Simd};

/// Any CPU.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Portable;

#[inline(always)]
fn zip<A: Copy, B: Copy, C>(a: [A; LANES], b: [B; LANES], f: impl Fn(A, B) -> C) -> [C; LANES] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

impl Simd for Portable {
    type F = [f32; LANES];
    type U = [u32; LANES];
    const WIDE: bool = false;

    #[inline(never)]
    fn outlined(self, code: impl Outlined<Self>) {
        code.run(self);
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> Self::F {
        // SAFETY: the caller's promise.
        unsafe { p.cast::<Self::F>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, x: Self::F) {
        // SAFETY: the caller's promise.
        unsafe { p.cast::<Self::F>().write_unaligned(x) }
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> Self::F {
        // SAFETY: the caller's promise.
        let bits = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        bits.map(|bits| f16::from_bits(bits).to_f32())
    }

    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // Not `f32::mul_add`, which is a function call on CPUs without the instruction.
        self.add(self.mul(a, b), c)
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn sum(self, x: Self::F) -> f32 {
        let mut x = x;
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                x[i] += x[i + half];
            }
        }
        x[0]
    }
    #[inline(always)]
    fn sum4(self, x: [Self::F; 4]) -> [f32; 4] {
        x.map(|x| self.sum(x))
    }
    #[inline(always)]
    fn greatest(self, x: Self::F) -> f32 {
        x.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
    #[inline(always)]
    fn quads(self, abcd: [f32; 4]) -> Self::F {
        std::array::from_fn(|i| abcd[i / 4])
    }
    #[inline(always)]
    unsafe fn quads_bf16(self, p: *const u16) -> Self::F {
        // SAFETY: the caller's promise.
        let four = unsafe { p.cast::<[u16; 4]>().read_unaligned() };
        self.quads(four.map(|bits| f32::from_bits(u32::from(bits) << 16)))
    }

    #[inline(always)]
    fn splat_u(self, x: u32) -> Self::U {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn load_u32(self, p: *const u8) -> Self::U {
        // SAFETY: the caller's promise.
        unsafe { p.cast::<Self::U>().read_unaligned() }.map(u32::from_le)
    }
    #[inline(always)]
    unsafe fn load_u8(self, p: *const u8) -> Self::U {
        // SAFETY: the caller's promise.
        unsafe { p.cast::<[u8; LANES]>().read() }.map(u32::from)
    }
    #[inline(always)]
    fn nibble<const I: u32>(self, x: Self::U) -> Self::F {
        x.map(|x| (x >> (4 * I) & 0xf) as f32 - 8.0)
    }
    #[inline(always)]
    fn shl<const N: u32>(self, x: Self::U) -> Self::U {
        x.map(|x| x << N)
    }
    #[inline(always)]
    fn sar<const N: u32>(self, x: Self::U) -> Self::U {
        x.map(|x| (x.cast_signed() >> N).cast_unsigned())
    }
    #[inline(always)]
    fn and(self, a: Self::U, b: Self::U) -> Self::U {
        zip(a, b, |a, b| a & b)
    }
    #[inline(always)]
    fn add_u(self, a: Self::U, b: Self::U) -> Self::U {
        zip(a, b, u32::wrapping_add)
    }
    #[inline(always)]
    fn nan_where(self, bits: Self::U, x: Self::F) -> Self::F {
        zip(bits, x, |bits, x| if bits == 0 { x } else { f32::NAN })
    }
    #[inline(always)]
    fn prefetch<T>(self, _: *const T) {}
    #[inline(always)]
    fn as_f(self, x: Self::U) -> Self::F {
        x.map(f32::from_bits)
    }
    #[inline(always)]
    fn as_u(self, x: Self::F) -> Self::U {
        x.map(f32::to_bits)
    }
}
