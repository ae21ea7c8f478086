use super::*;
use crate::testing::Random;
use cuda_std::simulate::{Buffer, Simulator};
use std::vec::Vec;

/// The set without the words that nothing writes: the header's spares and the ends of fields.
fn used(words: &[u32], capacity: u32) -> Vec<u32> {
    let layout = RowLayout { capacity };
    let fields = [RowLayout::IDS, layout.positions(), layout.parents(), layout.slots()];
    let field = |at: u32| words[at as usize..(at + capacity) as usize].iter();
    let rows = fields.into_iter().flat_map(field);
    words[..2].iter().chain(rows).chain(&words[layout.mask() as usize..]).copied().collect()
}

fn state(len: u32, done: u32) -> Buffer<u32> {
    let state = SequenceState { len, done, root: 77, ..SequenceState::new(1000, 50) };
    Buffer::new("state", &state.words())
}

fn chain(count: usize) -> Vec<u32> {
    (0..count as u32).map(|row| row.wrapping_sub(1)).collect()
}

#[test]
fn a_prompt_chunk_is_a_chain_after_the_context() {
    for (capacity, chunk, len, done) in [
        (1u32, 1u32, 0u32, 0u32),
        (2, 1, 5, 0),
        (3, 3, 0, 0),
        (8, 5, 100, 0),
        (16, 16, 7, 0),
        (31, 30, 1, 0),
        (32, 32, 0, 0),
        (33, 33, 9, 0),
        (64, 1, 64, 0),
        (65, 64, 3, 0),
        (130, 129, 11, 0),
        (256, 200, 0, 0),
        (16, 9, 40, 1),
        (7, 0, 4, 0),
    ] {
        let ids: Vec<u32> = (0..chunk).map(|row| 3 * row + 1).collect();
        let (s, i, c) = (state(len, done), Buffer::input("ids", &ids), Buffer::input("chunk", &[chunk]));
        let rows = Buffer::<u32>::poisoned("rows", RowLayout { capacity }.words() as usize);
        let arguments = (s.ptr_mut().cast(), i.ptr(), c.ptr(), rows.ptr_mut(), capacity);
        Simulator::default().seed(chunk.into()).launch(&prompt_rows::KERNEL, chain_shape(), arguments).unwrap();
        let ids = if done == 0 { &ids[..] } else { &[] };
        let expected = rows_reference(ids, &chain(ids.len()), len, capacity);
        assert_eq!(used(&rows.to_vec(), capacity), used(&expected, capacity), "{chunk} of {capacity}");
    }
}

#[test]
fn a_block_is_the_root_and_mask_tokens() {
    for (capacity, block, len, done) in [
        (1u32, 1u32, 0u32, 0u32),
        (1, 1, 17, 1),
        (2, 2, 4, 0),
        (8, 8, 30, 0),
        (8, 7, 2, 0),
        (16, 16, 1, 0),
        (16, 1, 3, 0),
        (16, 16, 99, 1),
        (33, 32, 5, 0),
        (33, 33, 6, 0),
        (40, 15, 7, 0),
        (129, 128, 8, 0),
    ] {
        let s = state(len, done);
        let rows = Buffer::<u32>::poisoned("rows", RowLayout { capacity }.words() as usize);
        let arguments = (s.ptr_mut().cast(), rows.ptr_mut(), capacity, block, 2);
        Simulator::default().seed(block.into()).launch(&block_rows::KERNEL, chain_shape(), arguments).unwrap();
        let mut ids = std::vec![2; if done == 0 { block as usize } else { 0 }];
        ids.iter_mut().take(1).for_each(|root| *root = 77);
        let expected = rows_reference(&ids, &chain(ids.len()), len, capacity);
        assert_eq!(used(&rows.to_vec(), capacity), used(&expected, capacity), "{block} of {capacity}");
    }
}

#[test]
fn a_given_tree_is_laid_out() {
    for (capacity, nodes, len, done) in [
        (1u32, 0u32, 3u32, 0u32),
        (2, 1, 0, 0),
        (4, 1, 9, 0),
        (8, 7, 20, 0),
        (16, 15, 1, 0),
        (32, 30, 2, 0),
        (33, 32, 0, 0),
        (64, 63, 5, 0),
        (65, 64, 5, 0),
        (100, 70, 6, 0),
        (257, 256, 7, 0),
        (16, 15, 8, 1),
    ] {
        let mut random = Random::new((capacity + nodes).into());
        let tokens: Vec<u32> = (0..nodes).map(|_| random.below(1000)).collect();
        let parents: Vec<u32> = (0..nodes).map(|node| node - random.below((node + 1).min(4))).collect();
        let s = state(len, done);
        let (t, p) = (Buffer::input("tokens", &tokens), Buffer::input("parents", &parents));
        let rows = Buffer::<u32>::poisoned("rows", RowLayout { capacity }.words() as usize);
        let arguments = (s.ptr_mut().cast(), t.ptr(), p.ptr(), rows.ptr_mut(), capacity, nodes);
        Simulator::default().seed(len.into()).launch(&given_rows::KERNEL, given_shape(nodes), arguments).unwrap();
        let (ids, above) = match done {
            0 => ([&[77], &tokens[..]].concat(), [&[u32::MAX], &parents[..]].concat()),
            _ => (Vec::new(), Vec::new()),
        };
        let expected = rows_reference(&ids, &above, len, capacity);
        assert_eq!(used(&rows.to_vec(), capacity), used(&expected, capacity), "{nodes} of {capacity}");
    }
}

#[test]
fn the_last_row_is_copied_and_of_no_rows_nothing() {
    for (count, row_bytes) in [
        (1u32, 16usize),
        (2, 16),
        (3, 48),
        (5, 176),
        (1, 2032),
        (2, 2048),
        (3, 2064),
        (7, 4112),
        (4, 96),
        (9, 32),
        (6, 1168),
        (0, 64),
    ] {
        let mut random = Random::new(row_bytes as u64);
        let data: Vec<u8> = (0..(count as usize + 1) * row_bytes).map(|_| random.below(255) as u8).collect();
        let (c, x) = (Buffer::input("count", &[count]), Buffer::input("x", &data));
        let out = Buffer::<u8>::poisoned("out", row_bytes);
        let arguments = (c.ptr(), x.ptr(), out.ptr_mut(), row_bytes as u32);
        let shape = last_row_shape(row_bytes as u32);
        Simulator::default().launch(&last_row::KERNEL, shape, arguments).unwrap();
        let expected = match count {
            0 => std::vec![u8::MAX; row_bytes],
            _ => data[(count as usize - 1) * row_bytes..][..row_bytes].to_vec(),
        };
        assert_eq!(out.to_vec(), expected, "{count} rows of {row_bytes} B");
    }
}
