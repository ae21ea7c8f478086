//! Stored weights to f32, a row at a time: the exact reference that fast kernels must equal.

use std::mem::size_of_val;

use super::fp8::E4M3;
use super::{Storage, Weight};

/// int4 values in a 32-bit word.
const PER_WORD: usize = 8;

impl Weight {
    /// Row `row` as f32 into `out` `[cols]`. bf16, f16, fp8 and int4 values are exact; a scaled one is the f32 product of
    /// value and scale.
    ///
    /// # Panics
    /// If `row >= rows`, `out` is not `cols` long, or the storage is not as long as rows and columns ask for.
    pub fn expand_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows, "row {row} of {} with {} rows", self.name, self.rows);
        assert_eq!(out.len(), self.cols, "output length for a row of {}", self.name);
        let cells = row * self.cols..(row + 1) * self.cols;
        match &self.storage {
            Storage::F32(values) => out.copy_from_slice(&values[cells]),
            Storage::Bf16(values) => out.iter_mut().zip(&values[cells]).for_each(|(out, value)| *out = value.to_f32()),
            Storage::F16(values) => out.iter_mut().zip(&values[cells]).for_each(|(out, value)| *out = value.to_f32()),
            Storage::Fp8Block { values, scale_inv, block: [block_rows, block_cols] } => {
                let per_row = self.cols.div_ceil(*block_cols);
                let scales = &scale_inv[row / block_rows * per_row..][..per_row];
                let blocks = out.chunks_mut(*block_cols).zip(values[cells].chunks(*block_cols));
                for ((out, values), scale) in blocks.zip(scales) {
                    out.iter_mut().zip(values).for_each(|(out, &value)| *out = E4M3[usize::from(value)] * scale);
                }
            }
            Storage::Int4Group { packed, scale, group } => {
                let (words_per_row, groups_per_row) = (self.cols / PER_WORD, self.cols / group);
                let words = &packed[row * words_per_row..][..words_per_row];
                let scales = &scale[row * groups_per_row..][..groups_per_row];
                for (j, out) in out.iter_mut().enumerate() {
                    let nibble = words[j / PER_WORD] >> (4 * (j % PER_WORD)) & 15;
                    *out = (nibble as i32 - 8) as f32 * scales[j / group].to_f32();
                }
            }
        }
    }

    /// Bytes of the stored elements, scales included.
    pub fn bytes(&self) -> usize {
        match &self.storage {
            Storage::F32(values) => size_of_val(&**values),
            Storage::Bf16(values) => size_of_val(&**values),
            Storage::F16(values) => size_of_val(&**values),
            Storage::Fp8Block { values, scale_inv, .. } => size_of_val(&**values) + size_of_val(&**scale_inv),
            Storage::Int4Group { packed, scale, .. } => size_of_val(&**packed) + size_of_val(&**scale),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weight::Slice;
    use half::{bf16, f16};

    fn weight(rows: usize, cols: usize, storage: Storage) -> Weight {
        Weight { name: "w".into(), rows, cols, storage }
    }

    fn expand(weight: &Weight) -> Vec<f32> {
        let mut all = vec![f32::NAN; weight.rows * weight.cols];
        all.chunks_mut(weight.cols).enumerate().for_each(|(row, out)| weight.expand_row(row, out));
        all
    }

    /// Numbers without a pattern that a wrong index could hit by chance.
    fn numbers(seed: u32) -> impl Iterator<Item = u32> {
        std::iter::successors(Some(seed), |x| Some(x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223)))
            .map(|x| x >> 8)
            .skip(1)
    }

    #[test]
    fn float_rows_expand_to_their_values() {
        let values: Vec<f32> = numbers(1).take(3 * 7).map(|x| f16::from_bits(x as u16 & 0x7bff).to_f32()).collect();
        let f16s = values.iter().map(|&x| f16::from_f32(x)).collect();
        assert_eq!(expand(&weight(3, 7, Storage::F16(Slice::from_vec(f16s)))), values);
        let bf16s: Vec<bf16> = values.iter().map(|&x| bf16::from_f32(x)).collect();
        let expected: Vec<f32> = bf16s.iter().map(|x| f32::from_bits(u32::from(x.to_bits()) << 16)).collect();
        assert_eq!(expand(&weight(3, 7, Storage::Bf16(Slice::from_vec(bf16s)))), expected);
        assert_eq!(expand(&weight(3, 7, Storage::F32(Slice::from_vec(values.clone())))), values);
    }

    #[test]
    fn m4_fp8_scales_apply_to_their_block_at_ragged_edges() {
        for (rows, cols, block) in [
            (576usize, 300usize, [128, 128]),
            (128, 128, [128, 128]),
            (129, 1, [128, 128]),
            (1, 129, [128, 128]),
            (5, 7, [2, 3]),
            (3, 4, [8, 8]),
        ] {
            let [block_rows, block_cols] = block;
            let per_row = cols.div_ceil(block_cols);
            let blocks = rows.div_ceil(block_rows) * per_row;
            let values: Vec<u8> = numbers(2).map(|x| x as u8).filter(|x| x & 0x7f != 0x7f).take(rows * cols).collect();
            let scales: Vec<f32> = numbers(3).take(blocks).map(|x| x as f32 * 1e-6).collect();
            let mut expected = Vec::new();
            for row in 0..rows {
                for col in 0..cols {
                    let scale = scales[(row / block_rows) * per_row + col / block_cols];
                    expected.push(crate::weight::e4m3_to_f32(values[row * cols + col]) * scale);
                }
            }
            let storage =
                Storage::Fp8Block { values: Slice::from_vec(values), scale_inv: Slice::from_vec(scales), block };
            assert!(expand(&weight(rows, cols, storage)) == expected, "{rows} x {cols} in {block:?}");
        }
    }

    #[test]
    fn m7_int4_nibbles_unpack_low_first_with_their_groups_scale() {
        for (rows, cols, group) in [(3, 64, 32), (1, 8, 8), (5, 96, 32), (2, 48, 16), (2, 120, 24)] {
            // Pack known values rather than unpack known words: the other direction of the format.
            let values: Vec<i32> = numbers(4).take(rows * cols).map(|x| (x % 16) as i32 - 8).collect();
            let mut packed = vec![0u32; rows * cols / 8];
            for (i, value) in values.iter().enumerate() {
                packed[i / 8] |= ((value + 8) as u32) << (4 * (i % 8));
            }
            let scales: Vec<bf16> =
                numbers(5).take(rows * cols / group).map(|x| bf16::from_f32(x as f32 * 1e-7)).collect();
            let expected: Vec<f32> =
                values.iter().enumerate().map(|(i, &value)| value as f32 * scales[i / group].to_f32()).collect();
            let storage = Storage::Int4Group { packed: Slice::from_vec(packed), scale: Slice::from_vec(scales), group };
            assert_eq!(expand(&weight(rows, cols, storage)), expected, "{rows} x {cols} in groups of {group}");
        }
    }

    #[test]
    fn bytes_count_values_and_scales() {
        let fp8 = Storage::Fp8Block {
            values: Slice::from_vec(vec![0; 15]),
            scale_inv: Slice::from_vec(vec![1.0; 4]),
            block: [2, 3],
        };
        assert_eq!(weight(3, 5, fp8).bytes(), 15 + 16);
        let int4 = Storage::Int4Group {
            packed: Slice::from_vec(vec![0; 6]),
            scale: Slice::from_vec(vec![bf16::ONE; 3]),
            group: 16,
        };
        assert_eq!(weight(3, 16, int4).bytes(), 24 + 6);
        assert_eq!(weight(3, 1, Storage::F16(Slice::from_vec(vec![f16::ONE; 3]))).bytes(), 6);
    }
}
