use coppice_model::weight::{Slice, Storage};

use super::*;
use crate::backend::cpu::testing::{Random, bits};

fn config(experts: usize, k: usize, n_group: usize, topk_group: usize) -> MoeConfig {
    MoeConfig {
        n_routed_experts: experts,
        n_shared_experts: 0,
        moe_intermediate_size: 1,
        num_experts_per_tok: k,
        n_group,
        topk_group,
        norm_topk_prob: true,
        routed_scaling_factor: 2.5,
    }
}

/// A router whose logits are its inputs: `x` `[rows, experts]`.
fn identity(experts: usize) -> Weight {
    let mut values = vec![0.0; experts * experts];
    for i in 0..experts {
        values[i * experts + i] = 1.0;
    }
    Weight {
        name: "model.layers.3.mlp.gate.weight".into(),
        rows: experts,
        cols: experts,
        storage: Storage::F32(Slice::from_vec(values)),
    }
}

fn choose(config: &MoeConfig, bias: &[f32], logits: &[f32]) -> Result<RouteTable, String> {
    let experts = bias.len();
    let mut routes = RouteTable::default();
    let router = identity(experts);
    route(&Pool::new(1), config, &router, bias, logits, logits.len() / experts, &mut routes)?;
    Ok(routes)
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// The rule written with sorts, one row.
fn reference(config: &MoeConfig, bias: &[f32], logits: &[f32]) -> (Vec<u32>, Vec<f32>) {
    let s: Vec<f32> = logits.iter().map(|&x| sigmoid(x)).collect();
    let c: Vec<f32> = s.iter().zip(bias).map(|(s, b)| s + b).collect();
    let descending = |values: &[f32]| {
        let mut order: Vec<usize> = (0..values.len()).collect();
        order.sort_by(|&a, &b| values[b].total_cmp(&values[a]));
        order
    };
    let size = c.len() / config.n_group;
    let groups: Vec<f32> =
        c.chunks(size).map(|group| descending(group).iter().take(2).map(|&i| group[i]).sum()).collect();
    let kept = &descending(&groups)[..config.topk_group];
    let masked: Vec<f32> =
        c.iter().enumerate().map(|(i, &c)| if kept.contains(&(i / size)) { c } else { f32::NEG_INFINITY }).collect();
    let chosen = &descending(&masked)[..config.num_experts_per_tok];
    let sum: f32 = chosen.iter().map(|&i| s[i]).sum();
    let divisor = if config.norm_topk_prob { sum } else { 1.0 };
    let weights = chosen.iter().map(|&i| s[i] / divisor * config.routed_scaling_factor).collect();
    (chosen.iter().map(|&i| i as u32).collect(), weights)
}

#[test]
fn choices_and_weights_follow_the_rule() {
    let mut random = Random(12);
    for (experts, k, n_group, topk_group) in
        [(16, 4, 1, 1), (8, 8, 1, 1), (12, 3, 4, 2), (6, 2, 6, 3), (384, 8, 1, 1), (256, 8, 8, 4), (1, 1, 1, 1)]
    {
        for norm_topk_prob in [true, false] {
            let config = MoeConfig { norm_topk_prob, ..config(experts, k, n_group, topk_group) };
            let rows = 20;
            // Coarse values, so that ties occur.
            let logits: Vec<f32> = random.units(rows * experts).iter().map(|x| (x * 6.0).round() / 2.0).collect();
            let bias: Vec<f32> = random.units(experts).iter().map(|x| (x * 4.0).round() / 8.0).collect();
            let routes = choose(&config, &bias, &logits).unwrap();
            assert_eq!(routes.k, k);
            for (r, logits) in logits.chunks_exact(experts).enumerate() {
                let (ids, weights) = reference(&config, &bias, logits);
                assert_eq!(routes.ids[r * k..(r + 1) * k], ids, "{config:?} row {r}");
                assert_eq!(bits(&routes.weights[r * k..(r + 1) * k]), bits(&weights), "{config:?} row {r}");
            }
        }
    }
}

#[test]
fn s9_equal_scores_go_to_the_lower_id_and_choices_are_distinct() {
    for (n_group, topk_group) in [(1, 1), (4, 2), (16, 16)] {
        let routes = choose(&config(16, 4, n_group, topk_group), &[0.25; 16], &[0.5; 32]).unwrap();
        assert_eq!(routes.ids, [0, 1, 2, 3, 0, 1, 2, 3], "{n_group} groups");
    }
    // Every value saturated or minus infinity: still k distinct ids.
    let bias = [f32::NEG_INFINITY; 8];
    assert_eq!(choose(&config(8, 5, 1, 1), &bias, &[-200.0; 8]).unwrap().ids, [0, 1, 2, 3, 4]);
}

#[test]
fn s9_a_nan_score_is_an_error_that_names_row_and_expert() {
    let mut logits = [0.0; 24];
    logits[8 + 5] = f32::NAN;
    // x = NaN makes every expert of the row NaN: 0 x NaN is NaN. The first is named.
    let error = choose(&config(8, 2, 1, 1), &[0.0; 8], &logits).unwrap_err();
    assert_eq!(
        error,
        "router model.layers.3.mlp.gate.weight scores expert 0 for row 1 as NaN, expected a number; look for NaN in the \
         weights, or an overflow in the layers before"
    );
    let mut bias = [0.0; 8];
    bias[6] = f32::NAN;
    let error = choose(&config(8, 2, 1, 1), &bias, &[0.0; 8]).unwrap_err();
    assert!(error.contains("scores expert 6 for row 0 as NaN"), "{error}");
}

#[test]
fn m2_every_pick_is_inside_the_kept_group_though_its_values_are_below_zero() {
    let mut random = Random(13);
    let config = config(16, 4, 4, 1);
    for group in 0..4 {
        let mut logits = random.units(16);
        for x in &mut logits[group * 4..group * 4 + 4] {
            *x += 3.0;
        }
        let routes = choose(&config, &[-5.0; 16], &logits).unwrap();
        let mut ids = routes.ids;
        ids.sort_unstable();
        let expected: Vec<u32> = (group as u32 * 4..group as u32 * 4 + 4).collect();
        assert_eq!(ids, expected, "group {group}");
    }
}

#[test]
fn m3_the_bias_selects_but_does_not_weigh() {
    let mut config = config(4, 2, 1, 1);
    let logits = [2.0, 1.0, -1.0, -2.0];
    let bias = [0.0, 0.0, 1.0, 1.0];
    let routes = choose(&config, &bias, &logits).unwrap();
    assert_eq!(routes.ids, [2, 3]);
    let (a, b) = (sigmoid(-1.0), sigmoid(-2.0));
    assert_eq!(bits(&routes.weights), bits(&[a / (a + b) * 2.5, b / (a + b) * 2.5]));
    config.norm_topk_prob = false;
    let routes = choose(&config, &bias, &logits).unwrap();
    assert_eq!(bits(&routes.weights), bits(&[a * 2.5, b * 2.5]));
}

#[test]
fn m3_a_groups_score_is_the_sum_of_its_two_largest() {
    // Group 0 has the largest single value and the largest sum of all, group 1 the largest sum of two.
    let logits = [0.0; 8];
    let bias = [0.9, 0.1, 0.1, 0.8, 0.6, 0.6, -1.0, -1.0];
    // Two largest: 0.9 + 0.8 against 0.6 + 0.6.
    assert_eq!(choose(&config(8, 2, 2, 1), &bias, &logits).unwrap().ids, [0, 3]);
    let bias = [0.9, 0.2, 0.2, 0.2, 0.6, 0.6, -1.0, -1.0];
    // Two largest: 0.9 + 0.2 against 0.6 + 0.6; all: 1.5 against -0.8.
    assert_eq!(choose(&config(8, 2, 2, 1), &bias, &logits).unwrap().ids, [4, 5]);
}

#[test]
fn m3_one_group_and_groups_of_one() {
    let logits = [0.3, -0.1, 0.7, 0.1];
    assert_eq!(choose(&config(4, 2, 1, 1), &[0.0; 4], &logits).unwrap().ids, [2, 0]);
    assert_eq!(choose(&config(4, 2, 4, 3), &[0.0; 4], &logits).unwrap().ids, [2, 0]);
    assert_eq!(choose(&config(4, 2, 4, 2), &[0.0, 9.0, 0.0, 0.0], &logits).unwrap().ids, [1, 2]);
}

#[test]
fn groups_that_cannot_hold_the_choices_are_an_error() {
    let error = choose(&config(8, 3, 4, 1), &[0.0; 8], &[0.0; 8]).unwrap_err();
    assert_eq!(
        error,
        "topk_group is 1 of 4 groups of 2 experts, expected groups that hold the 3 experts a token goes to"
    );
    for n_group in [0, 3] {
        let error = choose(&config(8, 2, n_group, 1), &[0.0; 8], &[0.0; 8]).unwrap_err();
        assert_eq!(error, format!("n_group is {n_group}, expected a divisor of the 8 experts"));
    }
}
