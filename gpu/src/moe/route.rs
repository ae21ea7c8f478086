//! The `noaux_tc` choice of experts (DeepSeek-V3, section 2.1.2) from router logits. The product before it is `router`.
#[cfg(not(target_arch = "nvptx64"))]
use cuda_std::launch::LaunchShape;
use cuda_std::{grid, prelude::*, shared, unroll};

/// Scores a lane holds: up to 384 experts a row.
const HELD: usize = 12;
/// Most experts.
pub const MOST_EXPERTS: u32 = 32 * HELD as u32;

/// 1 / (1 + e^-x), in operations that every machine rounds alike: host and device agree to the bit. Error 2^-22 relative.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    /// Adding it rounds to an integer.
    const ROUND: f32 = 12_582_912.0;
    if x.is_nan() {
        return x;
    }
    // Beyond, the result is 1, or less than 1e-37.
    let y = (-x).clamp(-87.0, 87.0);
    let n = (y * core::f32::consts::LOG2_E + ROUND) - ROUND;
    let r = (y - n * LN_2[0]) - n * LN_2[1];
    let mut p = 1.0 / 5040.0;
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = p * r + c;
    }
    let power = f32::from_bits(((n as i32 + 127) << 23) as u32);
    1.0 / (1.0 + p * power)
}

/// An integer that orders as the value does; NaN comes with -inf, -0 with 0.
#[inline(always)]
fn key(value: f32) -> u32 {
    let bits = if value.is_nan() { f32::NEG_INFINITY } else { value + 0.0 }.to_bits();
    if bits >> 31 == 0 { bits | 1 << 31 } else { !bits }
}

/// The experts of each row, best first, and their weights.
///
/// l[t, e] = sum_p partial[p, t, e]; s = sigmoid(l); c = s + bias. A group's score is the sum of its two largest c (the
/// largest, where it is one expert); the `kept` best groups stay; ids[t] = the k largest c in them, ties to the lower id;
/// weights[t, j] = s[ids] / (sum_j s[ids] + 1e-20 if `normalise` is 1, else 1) * scale.
///
/// * Shapes: `partial` [parts, rows, experts] f32; `bias` [experts] f32; `ids` [rows, k] u32, `weights` [rows, k] f32.
/// * Work: a block of one warp a row; a lane holds 12 scores; k rounds of a maximum and a minimum over the warp.
/// * Shared memory: 4 B an expert and a group.
/// * Registers: 24 of scores and keys; under 80.
/// * Bytes: 4 x parts x experts a row; FLOPs: 25 an expert.
/// * Alignment: 4 B. Up to 384 experts; `groups` divides them; kept groups hold at least k.
/// * Tolerance: exact, given the same logits. A NaN logit counts as the least; its weight is NaN.
///
/// # Safety
/// The buffers have those shapes and alignments.
#[kernel(threads = 32)]
pub unsafe fn route(
    partial: Global<f32>,
    bias: Global<f32>,
    ids: GlobalMut<u32>,
    weights: GlobalMut<f32>,
    parts: u32,
    experts: u32,
    groups: u32,
    kept: u32,
    k: u32,
    normalise: u32,
    scale: f32,
) {
    // SAFETY: one row a block, inside the buffers by the contract; bounds of loops are uniform in the warp.
    unsafe {
        grid::dependency_wait();
        let (row, rows, lane) = (thread::block_idx_x(), thread::grid_dim_x(), thread::thread_idx_x());
        let (mut scores, mut keys) = ([0.0f32; HELD], [0u32; HELD]);
        let choice = shared::dynamic_shared_mem::<u32>();
        unroll!(J in [0 1 2 3 4 5 6 7 8 9 10 11] {
            let expert = J as u32 * 32 + lane;
            if expert < experts {
                let mut logit = 0.0;
                for part in 0..parts {
                    let value = partial.add(((part * rows + row) * experts + expert) as usize).read();
                    logit = if part == 0 { value } else { logit + value };
                }
                scores[J] = sigmoid(logit);
                let c = scores[J] + bias.add(expert as usize).read();
                keys[J] = key(c);
                choice.add(expert).write(c.to_bits());
            }
        });
        if kept < groups {
            warp::sync_warp(warp::FULL_MASK);
            let (size, group_keys) = (experts / groups, choice.add(experts));
            let mut group = lane;
            while group < groups {
                let (mut first, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
                for i in 0..size {
                    let c = f32::from_bits(choice.add(group * size + i).read());
                    if c > first {
                        (first, second) = (c, first);
                    } else if c > second {
                        second = c;
                    }
                }
                group_keys.add(group).write(key(if size > 1 { first + second } else { first }));
                group += 32;
            }
            warp::sync_warp(warp::FULL_MASK);
            unroll!(J in [0 1 2 3 4 5 6 7 8 9 10 11] {
                let expert = J as u32 * 32 + lane;
                if expert < experts {
                    let group = expert / size;
                    let own = group_keys.add(group).read();
                    let mut better = 0;
                    for other in 0..groups {
                        let value = group_keys.add(other).read();
                        better += u32::from(value > own || value == own && other < group);
                    }
                    if better >= kept {
                        keys[J] = 0;
                    }
                }
            });
        }
        let (mut sum, mut mine, mut mine_id) = (0.0, 0.0, 0);
        for round in 0..k {
            let mut best = 0;
            for key in &keys {
                best = best.max(*key);
            }
            let best = warp::warp_reduce_max(warp::FULL_MASK, best);
            let mut id = u32::MAX;
            unroll!(J in [0 1 2 3 4 5 6 7 8 9 10 11] {
                if keys[J] == best {
                    id = id.min(J as u32 * 32 + lane);
                }
            });
            let id = warp::warp_reduce_min(warp::FULL_MASK, id);
            let mut score = 0.0;
            unroll!(J in [0 1 2 3 4 5 6 7 8 9 10 11] {
                if id / 32 == J as u32 {
                    score = scores[J];
                    if id % 32 == lane {
                        keys[J] = 0;
                    }
                }
            });
            let score = warp::warp_shuffle_idx(warp::FULL_MASK, score, id % 32, 32);
            sum += score;
            if round == lane {
                (mine, mine_id) = (score, id);
            }
        }
        if lane < k {
            let total = if normalise == 1 { sum + 1e-20 } else { 1.0 };
            ids.add((row * k + lane) as usize).write(mine_id);
            weights.add((row * k + lane) as usize).write(mine / total * scale);
        }
        grid::dependency_launch();
    }
}

/// Launch of [`route`].
#[cfg(not(target_arch = "nvptx64"))]
pub fn shape(rows: u32, experts: u32, groups: u32) -> LaunchShape {
    LaunchShape::new(rows, 32).shared(4 * (experts + groups))
}

/// The rule's numbers.
#[cfg(not(target_arch = "nvptx64"))]
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Groups of experts.
    pub groups: usize,
    /// Groups that stay.
    pub kept: usize,
    /// Experts a row.
    pub k: usize,
    /// Whether weights are divided by their sum.
    pub normalise: bool,
    /// Factor on the weights.
    pub scale: f32,
}

/// One row of [`route`] by its rule, with sorts: ids and weights.
#[cfg(not(target_arch = "nvptx64"))]
pub fn route_reference(logits: &[f32], bias: &[f32], rule: Rule) -> (std::vec::Vec<u32>, std::vec::Vec<f32>) {
    use std::vec::Vec;
    let scores: Vec<f32> = logits.iter().map(|x| sigmoid(*x)).collect();
    let choice: Vec<f32> = scores.iter().zip(bias).map(|(s, b)| s + b).collect();
    let descending = |values: &[f32]| {
        let mut order: Vec<usize> = (0..values.len()).collect();
        order.sort_by(|a, b| key(values[*b]).cmp(&key(values[*a])));
        order
    };
    let size = choice.len() / rule.groups;
    let totals: Vec<f32> =
        choice.chunks(size).map(|group| descending(group).iter().take(2).map(|i| group[*i]).sum()).collect();
    let kept = &descending(&totals)[..rule.kept];
    let chosen: Vec<usize> =
        descending(&choice).into_iter().filter(|e| kept.contains(&(e / size))).take(rule.k).collect();
    let sum = if rule.normalise { chosen.iter().map(|e| scores[*e]).sum::<f32>() + 1e-20 } else { 1.0 };
    (chosen.iter().map(|e| *e as u32).collect(), chosen.iter().map(|e| scores[*e] / sum * rule.scale).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Failures, Random};
    use cuda_std::simulate::{Buffer, launch};
    use std::vec::Vec;

    fn run(logits: &[f32], bias: &[f32], rule: Rule, parts: usize) -> (Vec<u32>, Vec<f32>) {
        let experts = bias.len();
        let rows = logits.len() / parts / experts;
        let inputs = (Buffer::input("partial", logits), Buffer::input("bias", bias));
        let ids = Buffer::<u32>::poisoned("ids", rows * rule.k);
        let weights = Buffer::<f32>::poisoned("weights", rows * rule.k);
        let [p, e, g, m, k, n] =
            [parts, experts, rule.groups, rule.kept, rule.k, rule.normalise.into()].map(|n| n as u32);
        let pointers = (inputs.0.ptr(), inputs.1.ptr(), ids.ptr_mut(), weights.ptr_mut());
        let arguments = (pointers.0, pointers.1, pointers.2, pointers.3, p, e, g, m, k, n, rule.scale);
        launch(&route::KERNEL, shape(rows as u32, e, g), arguments).unwrap();
        (ids.to_vec(), weights.to_vec())
    }

    #[test]
    fn choices_are_the_rules_to_the_bit() {
        let mut failures = Failures::default();
        for (rows, experts, groups, kept, k, normalise) in [
            (1, 1, 1, 1, 1, true),
            (3, 2, 1, 1, 2, true),
            (5, 8, 1, 1, 3, true),
            (64, 16, 4, 2, 4, true),
            (7, 16, 16, 5, 5, false),
            (2, 31, 1, 1, 6, true),
            (9, 33, 3, 2, 8, true),
            (4, 64, 8, 1, 8, true),
            (33, 100, 10, 7, 8, false),
            (16, 256, 8, 4, 8, true),
            (3, 257, 1, 1, 9, true),
            (8, 384, 1, 1, 8, true),
            (2, 384, 48, 17, 32, true),
        ] {
            let rule = Rule { groups, kept, k, normalise, scale: 2.827 };
            let mut random = Random::new((experts + rows) as u64);
            // Steps of 1/4, so that there are ties.
            let logits: Vec<f32> = (0..rows * experts).map(|_| (random.normal() * 8.0).round() / 4.0).collect();
            let bias: Vec<f32> = (0..experts).map(|_| random.below(3) as f32 / 8.0).collect();
            let (ids, weights) = run(&logits, &bias, rule, 1);
            for (row, logits) in logits.chunks(experts).enumerate() {
                let case = std::format!("{rule:?} of {experts}, row {row}");
                let (expected, expected_weights) = route_reference(logits, &bias, rule);
                failures.check(ids[row * k..][..k] == expected, &case, "ids differ");
                failures.check(weights[row * k..][..k] == expected_weights, &case, "weights differ");
            }
        }
        failures.report();
    }

    #[test]
    fn parts_are_added_in_order_and_nan_is_never_preferred() {
        let rule = Rule { groups: 1, kept: 1, k: 2, normalise: false, scale: 1.0 };
        let n = f32::NAN;
        assert_eq!(run(&[1.0, 5.0, n, 4.0, 2.0, -6.0, 1.0, 0.0], &[0.0; 4], rule, 2).0, [3, 0]);
        assert_eq!(run(&[n, n, n], &[0.0; 3], rule, 1).0, [0, 1]);
        let i = f32::INFINITY;
        assert_eq!(run(&[-i, i, i], &[0.0; 3], rule, 1), (std::vec![1, 2], std::vec![1.0, 1.0]));
    }

    #[test]
    fn sigmoid_is_within_its_error() {
        for i in -4000..4000 {
            let x = i as f32 * 0.02;
            let exact = 1.0 / (1.0 + (-f64::from(x)).exp());
            assert!((f64::from(sigmoid(x)) / exact - 1.0).abs() < 2f64.powi(-22), "{x}");
        }
        assert!(sigmoid(f32::NAN).is_nan());
    }
}
