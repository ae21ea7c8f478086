//! Which rows a row descends from, as bitmasks and as paths. No context: every row sees all of it.

/// Bits in a word of a mask.
const WORD: usize = u64::BITS as usize;

/// The ancestors of each row, itself included: bit `col % 64` of word `col / 64` of a row says whether it sees row
/// `col`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mask {
    rows: usize,
    words: Vec<u64>,
}

impl Mask {
    /// The number of rows, and of meaningful bits in each.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Words in each row.
    pub fn words_per_row(&self) -> usize {
        self.rows.div_ceil(WORD)
    }

    /// Whether `row` sees `col`; false if either is out of range.
    pub fn get(&self, row: usize, col: usize) -> bool {
        self.words(row).get(col / WORD).is_some_and(|word| word >> (col % WORD) & 1 == 1)
    }

    /// The words of a row, the lowest columns first, unused bits 0; none if it is out of range.
    pub fn words(&self, row: usize) -> &[u64] {
        let width = self.words_per_row();
        self.words.chunks_exact(width.max(1)).nth(row).unwrap_or_default()
    }
}

/// The row of a parent; none for a root. A parent that does not precede its row counts as none.
fn parent_of(parents: &[i32], row: usize) -> Option<usize> {
    usize::try_from(*parents.get(row)?).ok().filter(|&parent| parent < row)
}

/// The mask of rows whose parents are `parents` (-1 for a root; there may be several).
pub fn ancestors(parents: &[i32]) -> Mask {
    let width = parents.len().div_ceil(WORD);
    let mut words = vec![0; parents.len() * width];
    for row in 0..parents.len() {
        if let Some(parent) = parent_of(parents, row) {
            words.copy_within(parent * width..(parent + 1) * width, row * width);
        }
        words[row * width + row / WORD] |= 1 << (row % WORD);
    }
    Mask { rows: parents.len(), words }
}

/// Replaces `out` by the rows from the root of `row` (whose parent is -1) down to `row`, itself included; by nothing
/// if there is no such row.
pub fn path_to(parents: &[i32], row: usize, out: &mut Vec<usize>) {
    out.clear();
    let start = (row < parents.len()).then_some(row);
    out.extend(std::iter::successors(start, |&row| parent_of(parents, row)));
    out.reverse();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::any_tree;
    use proptest::prelude::*;

    /// Whether `row` is `col` or descends from it, by climbing.
    fn sees(parents: &[i32], row: usize, col: usize) -> bool {
        row == col || parents[row] >= 0 && sees(parents, parents[row] as usize, col)
    }

    #[test]
    fn a_chain_is_causal_and_unused_bits_are_zero() {
        for rows in [1, 2, 63, 64, 65, 130] {
            let parents: Vec<i32> = (-1..rows - 1).collect();
            let mask = ancestors(&parents);
            for row in 0..rows as usize {
                assert_eq!(mask.words(row).iter().map(|word| word.count_ones()).sum::<u32>(), row as u32 + 1);
                assert!((0..=row).all(|col| mask.get(row, col)), "row {row} of {rows}");
            }
        }
    }

    #[test]
    fn no_rows_and_rows_out_of_range_see_nothing() {
        let (empty, one) = (ancestors(&[]), ancestors(&[-1]));
        assert_eq!((empty.rows(), empty.words_per_row(), empty.words(0)), (0, 0, &[][..]));
        assert_eq!([one.get(0, 0), one.get(0, 1), one.get(0, 64), one.get(1, 0)], [true, false, false, false]);
        let mut path = vec![9];
        path_to(&[-1], 1, &mut path);
        assert!(path.is_empty());
    }

    #[test]
    fn several_roots_do_not_see_each_other() {
        let parents = [-1, 0, -1, 2];
        let mut path = Vec::new();
        path_to(&parents, 3, &mut path);
        assert_eq!(path, [2, 3]);
        assert_eq!([ancestors(&parents).words(1), ancestors(&parents).words(3)], [&[0b11], &[0b1100]]);
    }

    #[test]
    fn a_parent_that_does_not_precede_its_row_counts_as_none() {
        let parents = [-1, 1, 7, -5, i32::MAX];
        let mut path = Vec::new();
        for row in 0..parents.len() {
            path_to(&parents, row, &mut path);
            assert_eq!((path.as_slice(), ancestors(&parents).words(row)), (&[row][..], &[1 << row][..]));
        }
    }

    proptest! {
        #[test]
        fn s12_a_row_sees_its_path_and_nothing_else(tree in any_tree(150, 9)) {
            let mask = ancestors(&tree.parents);
            let mut path = Vec::new();
            for row in 0..tree.len() {
                path_to(&tree.parents, row, &mut path);
                let closure: Vec<_> = (0..tree.len()).filter(|&col| sees(&tree.parents, row, col)).collect();
                let seen: Vec<_> = (0..mask.words_per_row() * 64).filter(|&col| mask.get(row, col)).collect();
                prop_assert_eq!(&seen, &closure);
                prop_assert_eq!(&path, &closure);
                prop_assert_eq!(path.len(), tree.depths[row] as usize + 1);
            }
        }
    }
}
