//! Warp collectives by their definition, evaluated when all lanes have arrived. Waiting for them lives in `scheduler`.
use super::block::Block;
use super::fault::FaultKind;
use super::lane::{Lane, SHARED_BASE};
use super::shadow::Access;
use crate::convert::host::e4m3_to_f32;

/// Which lane a shuffle reads from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shuffle {
    /// The lane given.
    Index,
    /// The lane whose index differs by XOR.
    Xor,
    /// A lower lane.
    Up,
    /// A higher lane.
    Down,
}

/// A warp collective; lanes meet when theirs are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Collective {
    SyncWarp,
    Shuffle(Shuffle, u32),
    VoteAll,
    VoteAny,
    Ballot,
    MatchAny,
    ReduceAdd,
    ReduceMin,
    ReduceMax,
    ReduceAnd,
    ReduceOr,
    ReduceXor,
    MmaBf16,
    MmaE4m3,
    Ldmatrix { tiles: u32, transposed: bool },
}

/// Evaluates `kind` for the lanes of `mask`: reads their operands, writes their results.
pub fn evaluate(kind: Collective, mask: u32, lanes: &mut [Lane], block: &mut Block) -> Result<(), (usize, FaultKind)> {
    match kind {
        Collective::SyncWarp => {
            let first = lanes[0].thread;
            block.order.synchronise((0..32).filter(|i| mask >> i & 1 == 1).map(|i| first + i));
        }
        Collective::Shuffle(mode, control) => shuffle(mode, control, mask, lanes),
        Collective::Ldmatrix { tiles, transposed } => return ldmatrix(tiles, transposed, lanes, block),
        Collective::MmaBf16 => mma::<16>(lanes, |word, half| f32::from_bits((word >> (16 * half)) << 16)),
        Collective::MmaE4m3 => mma::<32>(lanes, |word, byte| e4m3_to_f32((word >> (8 * byte)) as u8)),
        Collective::MatchAny => {
            let values: Vec<u32> = lanes.iter().map(|l| l.operands[0]).collect();
            for (lane, value) in named(lanes, mask).zip(values_of(&values, mask)) {
                lane.result[0] = masked(&values, mask).filter(|(_, v)| *v == value).fold(0, |m, (i, _)| m | 1 << i);
            }
        }
        _ => {
            let values: Vec<u32> = lanes.iter().map(|l| l.operands[0]).collect();
            let result = reduce(kind, masked(&values, mask));
            named(lanes, mask).for_each(|lane| lane.result[0] = result);
        }
    }
    Ok(())
}

fn named(lanes: &mut [Lane], mask: u32) -> impl Iterator<Item = &mut Lane> {
    lanes.iter_mut().enumerate().filter(move |(i, _)| mask >> i & 1 == 1).map(|(_, lane)| lane)
}

fn masked(values: &[u32], mask: u32) -> impl Iterator<Item = (usize, u32)> + '_ {
    values.iter().copied().enumerate().filter(move |(i, _)| mask >> i & 1 == 1)
}

fn values_of(values: &[u32], mask: u32) -> impl Iterator<Item = u32> + '_ {
    masked(values, mask).map(|(_, v)| v)
}

fn reduce(kind: Collective, values: impl Iterator<Item = (usize, u32)>) -> u32 {
    use Collective as C;
    match kind {
        C::VoteAll => values.map(|(_, v)| v).min().unwrap_or(1),
        C::VoteAny => values.map(|(_, v)| v).max().unwrap_or(0),
        C::Ballot => values.fold(0, |bits, (i, v)| bits | v << i),
        C::ReduceMin => values.map(|(_, v)| v).min().unwrap_or(u32::MAX),
        C::ReduceMax => values.map(|(_, v)| v).max().unwrap_or(0),
        C::ReduceAnd => values.fold(u32::MAX, |a, (_, v)| a & v),
        C::ReduceOr => values.fold(0, |a, (_, v)| a | v),
        C::ReduceXor => values.fold(0, |a, (_, v)| a ^ v),
        _ => values.fold(0, |a, (_, v)| a.wrapping_add(v)),
    }
}

/// `shfl.sync`, after the pseudocode of the PTX manual. A source outside the segment gives the lane its own value.
fn shuffle(mode: Shuffle, control: u32, mask: u32, lanes: &mut [Lane]) {
    let (clamp, segment) = ((control & 31) as i64, (control >> 8 & 31) as i64);
    let values: Vec<u32> = lanes.iter().map(|l| l.operands[0]).collect();
    for (lane, me) in named(lanes, mask).zip((0..32i64).filter(|i| mask >> i & 1 == 1)) {
        let by = i64::from(lane.operands[1] & 31);
        let highest = (me & segment) | (clamp & !segment);
        let lowest = me & segment;
        let (source, inside) = match mode {
            Shuffle::Up => (me - by, me - by >= highest),
            Shuffle::Down => (me + by, me + by <= highest),
            Shuffle::Xor => (me ^ by, me ^ by <= highest),
            Shuffle::Index => (lowest | (by & !segment), (lowest | (by & !segment)) <= highest),
        };
        let source = if inside { source } else { me };
        // A lane that takes no part has nothing to give: the hardware's answer is undefined, ours is conspicuous.
        let takes_part = mask >> source & 1 == 1;
        lane.result[0] = values.get(source as usize).copied().filter(|_| takes_part).unwrap_or(0xdead_beef);
    }
}

/// `mma.sync` m16n8kK: K elements a row, `decode` takes a register and the element in it.
fn mma<const K: usize>(lanes: &mut [Lane], decode: impl Fn(u32, u32) -> f32) {
    let per_word = (K / 8) as u32;
    let mut a = [[0f32; K]; 16];
    let mut b = [[0f32; 8]; K];
    for (i, lane) in lanes.iter().enumerate() {
        let (g, t) = (i / 4, i % 4 * per_word as usize);
        for e in 0..per_word {
            for (register, row) in [(0, g), (1, g + 8)] {
                a[row][t + e as usize] = decode(lane.operands[register], e);
                a[row][K / 2 + t + e as usize] = decode(lane.operands[register + 2], e);
            }
            b[t + e as usize][g] = decode(lane.operands[4], e);
            b[K / 2 + t + e as usize][g] = decode(lane.operands[5], e);
        }
    }
    let mut d = [[0f32; 8]; 16];
    for (row, out) in a.iter().zip(&mut d) {
        for (x, column) in row.iter().zip(&b) {
            for (sum, y) in out.iter_mut().zip(column) {
                *sum += x * y;
            }
        }
    }
    for (i, lane) in lanes.iter_mut().enumerate() {
        let (g, t) = (i / 4, i % 4 * 2);
        for (r, (row, column)) in [(g, t), (g, t + 1), (g + 8, t), (g + 8, t + 1)].into_iter().enumerate() {
            lane.result[r] = (f32::from_bits(lane.operands[6 + r]) + d[row][column]).to_bits();
        }
    }
}

fn ldmatrix(tiles: u32, transposed: bool, lanes: &mut [Lane], block: &mut Block) -> Result<(), (usize, FaultKind)> {
    let mut rows = [[0u16; 8]; 32];
    for (i, row) in rows.iter_mut().enumerate().take(8 * tiles as usize) {
        let at = lanes[i].at;
        let mut read = || {
            let offset = block.shared.locate(SHARED_BASE, lanes[i].operands[0], 16, 16)?;
            block.shared.check(&block.order, lanes[i].thread, (offset, 16), Access::Read, at)?;
            Ok(offset)
        };
        let offset = read().map_err(|fault| (i, fault))?;
        for (element, bytes) in row.iter_mut().zip(block.shared.slice(offset, 16).chunks_exact(2)) {
            *element = u16::from_le_bytes([bytes[0], bytes[1]]);
        }
    }
    for (i, lane) in lanes.iter_mut().enumerate() {
        let (g, t) = (i / 4, i % 4 * 2);
        for tile in 0..tiles as usize {
            let tile_rows = &rows[8 * tile..8 * tile + 8];
            let pair = if transposed {
                [tile_rows[t][g], tile_rows[t + 1][g]]
            } else {
                [tile_rows[g][t], tile_rows[g][t + 1]]
            };
            lane.result[tile] = u32::from(pair[0]) | u32::from(pair[1]) << 16;
        }
    }
    Ok(())
}
