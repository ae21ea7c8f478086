//! How experts' weights lie in memory, and the product of one record of them. The loop over records lives in `experts`.
//!
//! A matrix is cut into pairs of output tiles (16 outputs each) and chunks of 64 inputs; a pair's chunk is a record, and a
//! pair's records follow each other: a warp streams contiguous memory. Gate and up are paired tile by tile, down with
//! itself. In a record lane (g, t) owns inputs 8t..8t+8 of either half (32 inputs) of outputs g and g + 8: what a fragment
//! wants, in 16-byte vectors that lie 512 contiguous bytes a warp.
use cuda_std::{async_copy, convert, prelude::*, unroll};

/// Inputs of a record.
pub const CHUNK: u32 = 64;
/// Outputs of a tile.
pub const OUTPUTS: u32 = 16;

/// What a lane holds of eight rows of x: its inputs of the first half, then of the second.
pub type Inputs = [u32; 8];
/// Sums of a pair of tiles over `TILES` tiles of eight rows.
pub type Sums<const TILES: usize> = [[[f32; 4]; TILES]; 2];

/// A way to store weights.
pub trait Format {
    /// Bytes of a record, a multiple of 16.
    const RECORD: u32;
    /// Records of a warp in shared memory.
    const STAGES: u32;

    /// Adds a record's products. `x` holds zeros where an input or a row does not exist.
    ///
    /// # Safety
    /// All lanes come here; the record is complete.
    unsafe fn multiply<const TILES: usize>(record: Shared<u8>, lane: u32, x: &[Inputs; TILES], sums: &mut Sums<TILES>);
}

/// Starts the copy of a record.
///
/// # Safety
/// All lanes come here, and none reads the place in shared memory until the copy is waited for.
#[inline(always)]
pub unsafe fn fetch<F: Format>(to: Shared<u8>, from: Global<u8>, lane: u32) {
    // SAFETY: whole vectors of the record.
    unsafe {
        let (to, from) = (to.cast::<[u32; 4]>().add(lane), from.cast::<[u32; 4]>().add(lane as usize));
        let vectors = const { F::RECORD / 16 };
        for i in 0..vectors / 32 {
            async_copy::copy_async(to.add(32 * i), from.add(32 * i as usize));
        }
        if lane < vectors % 32 {
            async_copy::copy_async(to.add(vectors / 32 * 32), from.add((vectors / 32 * 32) as usize));
        }
    }
}

/// int4 with a bf16 scale a group of 32 inputs. Record: [tile, lane, half, step] words of eight nibbles, then scales
/// [g, tile, g or g + 8, half]. In a word, nibbles i and i + 4 are the pair of fragment register i.
pub struct Int4;

impl Format for Int4 {
    const RECORD: u32 = 1152;
    const STAGES: u32 = 5;

    #[inline(always)]
    unsafe fn multiply<const TILES: usize>(record: Shared<u8>, lane: u32, x: &[Inputs; TILES], sums: &mut Sums<TILES>) {
        // SAFETY: the caller's contract.
        unsafe {
            let words = record.cast::<[u32; 4]>().add(lane);
            let tiles = [words.read(), words.add(32).read()];
            let scales = record.byte_add(1024).cast::<[u32; 4]>().add(lane / 4).read();
            unroll!(HALF in [0 1] {
                for (n, x) in x.iter().enumerate() {
                    let x = [[x[4 * HALF], x[4 * HALF + 1]], [x[4 * HALF + 2], x[4 * HALF + 3]]];
                    // A nibble n is fed as 128 + n, and 136 of every input taken off at the start: exact products.
                    let offset = [0xc308_c308; 4];
                    let start = mma::m16n8k16_bf16(offset, x[0], [0.0; 4]);
                    let start = mma::m16n8k16_bf16(offset, x[1], start);
                    unroll!(TILE in [0 1] {
                        let words = tiles[TILE];
                        let product = mma::m16n8k16_bf16(biased(words[2 * HALF]), x[0], start);
                        let product = mma::m16n8k16_bf16(biased(words[2 * HALF + 1]), x[1], product);
                        let scale = |pair: u32| convert::bf16x2_to_f32(pair)[HALF];
                        let (low, high) = (scale(scales[2 * TILE]), scale(scales[2 * TILE + 1]));
                        let sum = &mut sums[TILE][n];
                        sum[0] = math::fma(low, product[0], sum[0]);
                        sum[1] = math::fma(low, product[1], sum[1]);
                        sum[2] = math::fma(high, product[2], sum[2]);
                        sum[3] = math::fma(high, product[3], sum[3]);
                    });
                }
            });
        }
    }
}

/// Eight nibbles as bf16 pairs, 128 too large: 0x4300 is 128, whose last mantissa bit weighs 1.
#[inline(always)]
fn biased(word: u32) -> [u32; 4] {
    let pair = |shifted: u32| shifted & 0x000f_000f | 0x4300_4300;
    [pair(word), pair(word >> 4), pair(word >> 8), pair(word >> 12)]
}

/// bf16. Record: [tile, half, g or g + 8, lane] vectors of eight.
pub struct Bf16s;

impl Format for Bf16s {
    const RECORD: u32 = 4096;
    const STAGES: u32 = 3;

    #[inline(always)]
    unsafe fn multiply<const TILES: usize>(record: Shared<u8>, lane: u32, x: &[Inputs; TILES], sums: &mut Sums<TILES>) {
        // SAFETY: the caller's contract.
        unsafe {
            let vectors = record.cast::<[u32; 4]>().add(lane);
            unroll!(TILE in [0 1] {
                unroll!(HALF in [0 1] {
                    let at = vectors.add(const { 64 * (2 * TILE + HALF) as u32 });
                    let (low, high) = (at.read(), at.add(32).read());
                    for (n, x) in x.iter().enumerate() {
                        let x = [x[4 * HALF], x[4 * HALF + 1], x[4 * HALF + 2], x[4 * HALF + 3]];
                        let sum = &mut sums[TILE][n];
                        *sum = mma::m16n8k16_bf16([low[0], high[0], low[1], high[1]], [x[0], x[1]], *sum);
                        *sum = mma::m16n8k16_bf16([low[2], high[2], low[3], high[3]], [x[2], x[3]], *sum);
                    }
                });
            });
        }
    }
}

/// fp8 e4m3 with an f32 scale a block of 128 x 128. Record: [tile, half, lane] vectors of eight weights of output g and eight
/// of g + 8, then a scale a tile and 8 bytes of padding.
pub struct Fp8;

impl Format for Fp8 {
    const RECORD: u32 = 2064;
    const STAGES: u32 = 5;

    #[inline(always)]
    unsafe fn multiply<const TILES: usize>(record: Shared<u8>, lane: u32, x: &[Inputs; TILES], sums: &mut Sums<TILES>) {
        // SAFETY: the caller's contract.
        unsafe {
            let vectors = record.cast::<[u32; 4]>().add(lane);
            let scales = record.byte_add(2048).cast::<[f32; 2]>().read();
            unroll!(TILE in [0 1] {
                let mut products = [[0.0f32; 4]; TILES];
                unroll!(HALF in [0 1] {
                    let [a, b, c, d] = vectors.add(const { 32 * (2 * TILE + HALF) as u32 }).read().map(widened);
                    for (x, product) in x.iter().zip(products.iter_mut()) {
                        let x = [x[4 * HALF], x[4 * HALF + 1], x[4 * HALF + 2], x[4 * HALF + 3]];
                        *product = mma::m16n8k16_bf16([a[0], c[0], a[1], c[1]], [x[0], x[1]], *product);
                        *product = mma::m16n8k16_bf16([b[0], d[0], b[1], d[1]], [x[2], x[3]], *product);
                    }
                });
                for (sum, product) in sums[TILE].iter_mut().zip(&products) {
                    for (sum, product) in sum.iter_mut().zip(product) {
                        *sum = math::fma(scales[TILE], *product, *sum);
                    }
                }
            });
        }
    }
}

/// Four e4m3 as bf16 pairs, exactly.
#[inline(always)]
fn widened(word: u32) -> [u32; 2] {
    let pair = |bytes: u16| {
        let halves = convert::e4m3x2_to_f16x2(bytes);
        let value = |bits: u32| convert::F16(bits as u16).to_f32();
        convert::bf16x2_from_f32(value(halves), value(halves >> 16))
    };
    [pair(word as u16), pair((word >> 16) as u16)]
}

/// A matrix as published checkpoints hold it, which can be packed into records.
#[cfg(not(target_arch = "nvptx64"))]
#[derive(Clone, Copy, Debug)]
pub enum Matrix<'a> {
    /// `words` [outputs, inputs / 8], nibble i of word j being input 8j + i; `scales` [outputs, inputs / 32].
    Int4 {
        /// Packed nibbles.
        words: &'a [u32],
        /// Scales.
        scales: &'a [Bf16],
    },
    /// [outputs, inputs].
    Bf16(&'a [Bf16]),
    /// `bytes` [outputs, inputs]; `scales` [ceil(outputs / 128), ceil(inputs / 128)].
    Fp8 {
        /// e4m3.
        bytes: &'a [u8],
        /// Factors on the values.
        scales: &'a [f32],
    },
}

#[cfg(not(target_arch = "nvptx64"))]
impl Matrix<'_> {
    /// Its outputs, with this many inputs.
    pub fn outputs(&self, inputs: usize) -> usize {
        match self {
            Self::Int4 { words, .. } => words.len() / (inputs / 8),
            Self::Bf16(values) => values.len() / inputs,
            Self::Fp8 { bytes, .. } => bytes.len() / inputs,
        }
    }

    /// Bytes of a record of this format.
    pub fn record(&self) -> u32 {
        match self {
            Self::Int4 { .. } => Int4::RECORD,
            Self::Bf16(_) => Bf16s::RECORD,
            Self::Fp8 { .. } => Fp8::RECORD,
        }
    }

    /// One weight, exactly.
    pub fn value(&self, output: usize, input: usize, inputs: usize) -> f64 {
        match self {
            Self::Int4 { words, scales } => {
                let nibble = words[output * (inputs / 8) + input / 8] >> (4 * (input % 8)) & 15;
                (f64::from(nibble) - 8.0) * f64::from(scales[output * (inputs / 32) + input / 32].to_f32())
            }
            Self::Bf16(values) => values[output * inputs + input].to_f32().into(),
            Self::Fp8 { bytes, scales } => {
                let value =
                    convert::F16(convert::e4m3x2_to_f16x2(bytes[output * inputs + input].into()) as u16).to_f32();
                f64::from(value) * f64::from(scales[output / 128 * inputs.div_ceil(128) + input / 128])
            }
        }
    }
}

/// Packs gate and up, pairing their tiles: records [tile of the width, chunk].
#[cfg(not(target_arch = "nvptx64"))]
pub fn pack_gate_up(gate: Matrix<'_>, up: Matrix<'_>, inputs: usize) -> std::vec::Vec<u8> {
    let mut packed = std::vec::Vec::new();
    for first in (0..gate.outputs(inputs)).step_by(OUTPUTS as usize) {
        pack_pair([(gate, first), (up, first)], inputs, &mut packed);
    }
    packed
}

/// Packs one matrix, pairing neighbouring tiles: records [32 outputs, chunk].
#[cfg(not(target_arch = "nvptx64"))]
pub fn pack_down(down: Matrix<'_>, inputs: usize) -> std::vec::Vec<u8> {
    let mut packed = std::vec::Vec::new();
    for first in (0..down.outputs(inputs)).step_by(2 * OUTPUTS as usize) {
        pack_pair([(down, first), (down, first + OUTPUTS as usize)], inputs, &mut packed);
    }
    packed
}

/// The records of a pair of tiles, each a matrix and its first output. What lies outside a matrix is zero.
#[cfg(not(target_arch = "nvptx64"))]
fn pack_pair(pair: [(Matrix<'_>, usize); 2], inputs: usize, packed: &mut std::vec::Vec<u8>) {
    for chunk in (0..inputs).step_by(CHUNK as usize) {
        let record = packed.len();
        for (matrix, first) in pair {
            let outputs = matrix.outputs(inputs);
            let inside = |output: usize, input: usize| output < outputs && input < inputs;
            match matrix {
                Matrix::Int4 { words, .. } => {
                    for (lane, half, step) in lane_steps() {
                        let (g, t) = (first + lane / 4, chunk + 32 * half + 8 * (lane % 4) + 4 * step);
                        let nibble = |output: usize, input: usize| match inside(output, input) {
                            true => words[output * (inputs / 8) + input / 8] >> (4 * (input % 8)) & 15,
                            false => 8,
                        };
                        let word = (0..4).fold(0, |word, i| {
                            let (output, input) = (g + i % 2 * 8, t + i / 2 * 2);
                            word | nibble(output, input) << (4 * i) | nibble(output, input + 1) << (4 * i + 16)
                        });
                        packed.extend(word.to_le_bytes());
                    }
                }
                Matrix::Bf16(values) => {
                    for (half, high, lane) in
                        (0..2).flat_map(|h| (0..2).flat_map(move |o| (0..32).map(move |l| (h, o, l))))
                    {
                        let (output, input) = (first + 8 * high + lane / 4, chunk + 32 * half + 8 * (lane % 4));
                        for input in input..input + 8 {
                            let value = if inside(output, input) { values[output * inputs + input].0 } else { 0 };
                            packed.extend(value.to_le_bytes());
                        }
                    }
                }
                Matrix::Fp8 { bytes, .. } => {
                    for (half, lane, high) in
                        (0..2).flat_map(|h| (0..32).flat_map(move |l| (0..2).map(move |o| (h, l, o))))
                    {
                        let (output, input) = (first + 8 * high + lane / 4, chunk + 32 * half + 8 * (lane % 4));
                        let byte = |input| if inside(output, input) { bytes[output * inputs + input] } else { 0 };
                        packed.extend((input..input + 8).map(byte));
                    }
                }
            }
        }
        match pair[0].0 {
            Matrix::Int4 { .. } => {
                for g in 0..8 {
                    for (matrix, first) in pair {
                        for (high, half) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                            let (output, group) = (first + g + 8 * high, chunk / 32 + half);
                            let scale = match matrix {
                                Matrix::Int4 { scales, .. }
                                    if output < matrix.outputs(inputs) && group < inputs / 32 =>
                                {
                                    scales[output * (inputs / 32) + group].0
                                }
                                _ => 0,
                            };
                            packed.extend(scale.to_le_bytes());
                        }
                    }
                }
            }
            Matrix::Bf16(_) => {}
            Matrix::Fp8 { .. } => {
                for (matrix, first) in pair {
                    let scale = match matrix {
                        Matrix::Fp8 { scales, .. } if first < matrix.outputs(inputs) => {
                            scales[first / 128 * inputs.div_ceil(128) + chunk / 128]
                        }
                        _ => 0.0,
                    };
                    packed.extend(scale.to_le_bytes());
                }
                packed.extend([0; 8]);
            }
        }
        debug_assert_eq!(packed.len() - record, pair[0].0.record() as usize);
    }
}

/// Lane, half and step of the words of an int4 tile, in order.
#[cfg(not(target_arch = "nvptx64"))]
fn lane_steps() -> impl Iterator<Item = (usize, usize, usize)> {
    (0..32).flat_map(|lane| (0..4).map(move |i| (lane, i / 2, i % 2)))
}
