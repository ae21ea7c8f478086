//! Embedding gather: the first values of the residual stream.
#[cfg(not(target_arch = "nvptx64"))]
use cuda_std::launch::LaunchShape;
use cuda_std::{convert::bf16x2_to_f32, grid, prelude::*};

/// Threads of a block.
const THREADS: u32 = 128;

/// Gathers a row of the embedding table for each token.
///
/// out[t, i] = table[ids[t], i]
///
/// * Shapes: `ids` [rows] u32; `table` [vocab, width] bf16, packed by [`linear::pack`](crate::linear::pack), so that one copy
///   serves as embedding and as output head; `out` [rows, width] f32.
/// * Work: a block of 128 threads a row; a thread takes eight neighbouring elements, then steps by 1024. Of a row 64 bytes
///   lie together.
/// * Shared memory: none.
/// * Registers: under 32.
/// * Bytes: 6 an element; FLOPs: none.
/// * Alignment: `table` and `out` 16 B; `width` a multiple of 32. Ids are below the table's rows.
/// * Tolerance: exact.
///
/// # Safety
/// The buffers have those shapes and alignments, and the ids are in range.
#[kernel(threads = 128)]
pub unsafe fn embed(ids: Global<u32>, table: Global<Bf16>, out: GlobalMut<f32>, width: u32) {
    // SAFETY: one row a block, inside the buffers by the contract.
    unsafe {
        grid::dependency_wait();
        let row = thread::block_idx_x() as usize;
        let id = ids.add(row).read();
        // [tile of 16 rows, chunk of 32 columns, row of the tile, column of the chunk]
        let from = table.add((id / 16) as usize * 16 * width as usize + (id % 16 * 32) as usize);
        let to = out.add(row * width as usize);
        let mut i = thread::thread_idx_x() * 8;
        while i < width {
            let [a, b, c, d] = from.add((i / 32 * 512 + i % 32) as usize).cast::<[u32; 4]>().read_cached();
            let ([a0, a1], [b0, b1]) = (bf16x2_to_f32(a), bf16x2_to_f32(b));
            let ([c0, c1], [d0, d1]) = (bf16x2_to_f32(c), bf16x2_to_f32(d));
            let to = to.add(i as usize).cast::<[f32; 4]>();
            to.write([a0, a1, b0, b1]);
            to.add(1).write([c0, c1, d0, d1]);
            i += THREADS * 8;
        }
        grid::dependency_launch();
    }
}

/// Launch of [`embed`] over `rows` tokens.
#[cfg(not(target_arch = "nvptx64"))]
pub fn shape(rows: u32) -> LaunchShape {
    LaunchShape::new(rows, THREADS)
}

/// [`embed`] by its formula.
#[cfg(not(target_arch = "nvptx64"))]
pub fn embed_reference(ids: &[u32], table: &[Bf16], width: usize) -> std::vec::Vec<f32> {
    ids.iter().flat_map(|id| table[*id as usize * width..][..width].iter().map(|x| x.to_f32())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linear::pack;
    use crate::testing::Random;
    use cuda_std::simulate::{Buffer, FaultKind, launch};
    use std::vec::Vec;

    fn table(vocab: u32, width: u32) -> Vec<Bf16> {
        Random::new(width.into()).normals((vocab * width) as usize).into_iter().map(Bf16::from_f32).collect()
    }

    #[test]
    fn each_token_gets_its_row() {
        for (rows, vocab, width) in [
            (1, 1, 32),
            (1, 2, 64),
            (3, 5, 96),
            (2, 17, 160),
            (5, 33, 96),
            (7, 11, 128),
            (1, 9, 768),
            (2, 4, 992),
            (2, 4, 1024),
            (2, 40, 1056),
            (1, 3, 2080),
            (1, 2, 7168),
        ] {
            let mut random = Random::new((rows * width).into());
            let table = table(vocab, width);
            let ids: Vec<u32> = (0..rows).map(|_| random.below(vocab)).collect();
            let (i, t) = (Buffer::input("ids", &ids), Buffer::input("table", &pack(&table, width as usize)));
            let out = Buffer::<f32>::poisoned("out", (rows * width) as usize);
            launch(&embed::KERNEL, shape(rows), (i.ptr(), t.ptr(), out.ptr_mut(), width)).unwrap();
            assert_eq!(out.to_vec(), embed_reference(&ids, &table, width as usize), "{rows} of {vocab} x {width}");
        }
    }

    #[test]
    fn an_id_beyond_the_table_is_caught() {
        let table = Buffer::input("table", &pack(&table(4, 32), 32));
        let ids = Buffer::input("ids", &[16u32]);
        let out = Buffer::<f32>::poisoned("out", 32);
        let fault = launch(&embed::KERNEL, shape(1), (ids.ptr(), table.ptr(), out.ptr_mut(), 32)).unwrap_err();
        assert!(matches!(&fault.kind, FaultKind::GlobalOutOfBounds { buffer, .. } if buffer == "table"), "{fault}");
    }
}
