//! Where a block's sums of values lie: fragments of a warp, units of its result in scratch memory, rows of the output.
use super::element::{Element, Kind};
use super::layout::Layout;
use super::split::{Parts, Target};
use core::marker::PhantomData;
use cuda_std::mma::FragmentC;
use cuda_std::{convert, prelude::*, unroll};

/// Two neighbouring fragments of a warp's `HEIGHT` x `COLUMNS`: 16 bytes a lane, the *unit* in which results are stored.
/// Words 0 and 1 are of rows g and g + 8, and so are 2 and 3; a word's columns are neighbours.
#[derive(Clone, Copy)]
pub struct Slab<E: Element, const HEIGHT: usize, const COLUMNS: usize> {
    element: PhantomData<E>,
    /// The warp's number in its team.
    member: u32,
    /// Number of the first fragment.
    fragment: u32,
}

impl<E: Element, const HEIGHT: usize, const COLUMNS: usize> Slab<E, HEIGHT, COLUMNS> {
    /// Units of a warp.
    pub const UNITS: u32 = (HEIGHT * COLUMNS / 2) as u32;

    /// The place of a unit.
    #[inline(always)]
    pub fn of_unit(unit: u32) -> Self {
        Self { element: PhantomData, member: unit / Self::UNITS, fragment: unit % Self::UNITS * 2 }
    }

    /// Row of the block that a word holds.
    #[inline(always)]
    pub fn row(self, word: usize, lane: u32) -> u32 {
        (self.fragment + word as u32 / 2) / COLUMNS as u32 * 16 + word as u32 % 2 * 8 + lane / 4
    }

    /// Column of the first of a word's two values.
    #[inline(always)]
    fn column(self, word: usize, lane: u32) -> u32 {
        let (first, half, t) = (self.member * COLUMNS as u32, word as u32 / 2, lane % 4);
        match E::KIND {
            Kind::Bf16 => (first + (self.fragment + half) % COLUMNS as u32) * 8 + 2 * t,
            // The two fragments have the even and the odd of 16 columns; see `write_sums`.
            Kind::E4m3 => (first + self.fragment % COLUMNS as u32) * 8 + 4 * t + 2 * half,
        }
    }
}

/// Multiplies rows g and g + 8 of each of a warp's row tiles by their factors.
#[inline(always)]
pub fn scale<const HEIGHT: usize, const COLUMNS: usize>(
    sums: &mut [[FragmentC; COLUMNS]; HEIGHT],
    factors: [[f32; 2]; HEIGHT],
) {
    unroll!(TILE in [0 1 2 3] {
        if TILE < HEIGHT {
            let [low, high] = factors[TILE];
            unroll!(COLUMN in [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15] {
                if COLUMN < COLUMNS {
                    let [a, b, c, d] = sums[TILE][COLUMN];
                    sums[TILE][COLUMN] = [a * low, b * low, c * high, d * high];
                }
            });
        }
    });
}

/// Writes a unit to the output.
#[inline(always)]
pub unsafe fn write_rows<E: Element, const HEIGHT: usize, const COLUMNS: usize>(
    slab: Slab<E, HEIGHT, COLUMNS>,
    target: Target,
    layout: Layout,
    values: [[f32; 2]; 4],
) {
    let lane = thread::thread_idx_x() % 32;
    let latent = layout.team * COLUMNS as u32 * 8;
    for (word, [low, high]) in values.into_iter().enumerate() {
        let row = target.row_tile * layout.rows + slab.row(word, lane);
        if row < target.rows {
            let to = target.out.add(row as usize * latent as usize + slab.column(word, lane) as usize);
            // SAFETY: inside the output.
            unsafe { to.cast().write(convert::bf16x2_from_f32(low, high)) };
        }
    }
}

/// Writes a warp's normalised sums: to the output where the context has one split, else to the split's part. Adds what the
/// second team has left, if there is one, as late as that: registers do not hold both.
#[inline(always)]
pub unsafe fn write_sums<E: Element, const HEIGHT: usize, const COLUMNS: usize>(
    sums: &[[FragmentC; COLUMNS]; HEIGHT],
    (parts, target, layout): (Parts, Target, Layout),
    (split, member): (u32, u32),
    others: Shared<[f32; 4]>,
) {
    let lane = thread::thread_idx_x() % 32;
    let sum = |i: usize| {
        let sum = sums[i / COLUMNS][i % COLUMNS];
        if layout.rings == 1 {
            return sum;
        }
        // SAFETY: the second team has left it.
        let other = unsafe { place::<HEIGHT, COLUMNS>(others, member, i).read() };
        [sum[0] + other[0], sum[1] + other[1], sum[2] + other[2], sum[3] + other[3]]
    };
    let units = HEIGHT * COLUMNS / 2;
    let first = (target.row_tile * target.splits + split) * layout.units + member * units as u32;
    unroll!(UNIT in [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15] {
        if UNIT < units {
            let ([a, b, c, d], [e, f, g, h]) = (sum(2 * UNIT), sum(2 * UNIT + 1));
            // Neighbouring columns together.
            let words = match E::KIND {
                Kind::Bf16 => [[a, b], [c, d], [e, f], [g, h]],
                Kind::E4m3 => [[a, e], [c, g], [b, f], [d, h]],
            };
            // SAFETY: inside output and parts.
            unsafe {
                if target.active == 1 {
                    let slab = Slab::<E, HEIGHT, COLUMNS>::of_unit(member * units as u32 + UNIT as u32);
                    write_rows(slab, target, layout, words);
                } else {
                    let to = parts.values.add(((first + UNIT as u32) * 32 + lane) as usize);
                    to.write(words.map(|[low, high]| convert::bf16x2_from_f32(low, high)));
                }
            }
        }
    });
}

/// Where a lane leaves fragment `i` of the second team's sums for the first, in shared memory.
#[inline(always)]
fn place<const HEIGHT: usize, const COLUMNS: usize>(
    scratch: Shared<[f32; 4]>,
    member: u32,
    i: usize,
) -> Shared<[f32; 4]> {
    scratch.add((member * (HEIGHT * COLUMNS) as u32 + i as u32) * 32 + thread::thread_idx_x() % 32)
}

/// Leaves the second team's sums for the first, in shared memory.
#[inline(always)]
pub unsafe fn leave_sums<const HEIGHT: usize, const COLUMNS: usize>(
    sums: &[[FragmentC; COLUMNS]; HEIGHT],
    (team, member): (u32, u32),
    scratch: Shared<[f32; 4]>,
) {
    // SAFETY: all threads come here together, and the scratch is free.
    unsafe {
        if team == 1 {
            unroll!(I in [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31] {
                if I < HEIGHT * COLUMNS {
                    place::<HEIGHT, COLUMNS>(scratch, member, I).write(sums[I / COLUMNS][I % COLUMNS]);
                }
            });
        }
        thread::sync_threads();
    }
}
