//! Query fragments: loaded once, kept in registers.
use super::element::Kind;
use super::layout::Layout;
use cuda_std::mma::FragmentA;
use cuda_std::{prelude::*, unroll};

/// Hands word i of the vector of lane 4 g + t to lane 4 g + i, as its word t.
#[inline(always)]
pub unsafe fn transpose_quad(mut v: [u32; 4], t: u32) -> [u32; 4] {
    // SAFETY: whole warps come here.
    unsafe {
        let mut exchange = |low: usize, high: usize, bit: u32| {
            let upper = t & bit != 0;
            let sent = if upper { v[low] } else { v[high] };
            let got = warp::warp_shuffle_xor(warp::FULL_MASK, sent, bit, 32);
            v[low] = if upper { got } else { v[low] };
            v[high] = if upper { v[high] } else { got };
        };
        exchange(0, 1, 1);
        exchange(2, 3, 1);
        exchange(0, 2, 2);
        exchange(1, 3, 2);
    }
    v
}

/// The fragments of a warp: a slice of the width of its group's rows, zeros where there is no row or no such step.
///
/// The group's 8-row blocks are permuted: register block j holds block j ^ (slice % blocks), so that the block whose softmax
/// this warp does is always register block 0.
#[inline(always)]
pub unsafe fn load_query<const STEPS: usize, const TILES: usize>(
    query: Global<Bf16>,
    layout: Layout,
    (first_row, rows): (u32, u32),
    slice: u32,
) -> [[FragmentA; STEPS]; TILES] {
    let lane = thread::thread_idx_x() % 32;
    let (g, t) = (lane / 4, lane % 4);
    let mut fragments = [[[0; 4]; STEPS]; TILES];
    unroll!(BLOCK in [0 1 2 3] {
        if BLOCK < 2 * TILES {
            let row = first_row + 8 * (BLOCK as u32 ^ (slice % (2 * TILES as u32))) + g;
            let from = query.add(row as usize * layout.width as usize);
            if matches!(layout.kind, Kind::E4m3) {
                // In the order in which keys are widened: elements 4t with 4t + 2 and 4t + 1 with 4t + 3 of a step.
                unroll!(STEP in [0 1 2 3 4 5 6 7 8] {
                    let step = slice * STEPS as u32 + STEP as u32;
                    if STEP < STEPS && row < rows && step < layout.steps {
                        // SAFETY: inside the query.
                        let [low, high] =
                            unsafe { from.add((16 * step + 4 * t) as usize).cast::<[u32; 2]>().read_cached() };
                        let fragment = &mut fragments[BLOCK / 2][STEP];
                        fragment[BLOCK % 2] = (low & 0xffff) | (high << 16);
                        fragment[BLOCK % 2 + 2] = (low >> 16) | (high & 0xffff_0000);
                    }
                });
            } else {
                // Two steps are four vectors of 8 elements, one a lane of the quad; a fragment wants two elements of each.
                let mut vectors = [[0; 4]; STEPS];
                unroll!(PAIR in [0 1 2 3 4] {
                    let (local, vector) = (4 * PAIR as u32 + t, 2 * slice * STEPS as u32 + 4 * PAIR as u32 + t);
                    if 2 * PAIR < STEPS && row < rows && local < 2 * STEPS as u32 && vector < 2 * layout.steps {
                        // SAFETY: inside the query.
                        vectors[PAIR] = unsafe { from.add(8 * vector as usize).cast::<[u32; 4]>().read_cached() };
                    }
                });
                let (fragments, half) = (&mut fragments[BLOCK / 2], BLOCK % 2);
                unroll!(PAIR in [0 1 2 3 4] {
                    if 2 * PAIR < STEPS {
                        // SAFETY: whole warps come here.
                        let words = unsafe { transpose_quad(vectors[PAIR], t) };
                        (fragments[2 * PAIR][half], fragments[2 * PAIR][half + 2]) = (words[0], words[1]);
                        if 2 * PAIR + 1 < STEPS {
                            (fragments[2 * PAIR + 1][half], fragments[2 * PAIR + 1][half + 2]) = (words[2], words[3]);
                        }
                    }
                });
            }
        }
    });
    fragments
}

/// Leaves the last `PARKED` steps of a warp's fragments in shared memory: registers do not hold all. Each lane reads back its own.
/// `to` holds the lane's vectors, tile by tile, 512 bytes from one to the next.
#[inline(always)]
pub unsafe fn park<const STEPS: usize, const TILES: usize, const PARKED: usize>(
    query: &[[FragmentA; STEPS]; TILES],
    to: Shared<[u32; 4]>,
) {
    for (tile, query) in query.iter().enumerate() {
        for (i, fragment) in query[STEPS - PARKED..].iter().enumerate() {
            // SAFETY: inside the lane's place.
            unsafe { to.add(32 * (tile * PARKED + i) as u32).write(*fragment) };
        }
    }
}
