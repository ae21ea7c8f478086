//! The `noaux_tc` router (DeepSeek-V3, section 2.1.2): which experts a row goes to, and with what weights.

use coppice_model::config::MoeConfig;
use coppice_model::weight::Weight;

use super::buffer::Buffer;
use super::linear::linear;
use super::pool::Pool;

/// Expert choices of some rows.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RouteTable {
    /// Choices a row.
    pub k: usize,
    /// Chosen experts `[rows, k]`, distinct within a row, best first.
    pub ids: Vec<u32>,
    /// Their weights `[rows, k]`.
    pub weights: Vec<f32>,
}

/// Chooses each row's experts, in f32.
///
/// s = sigmoid(x W^T); c = s + bias. A group's score is the sum of its two largest c (the largest, where a group is one
/// expert); the `topk_group` best groups are kept; the k largest c in them are chosen. Equal values: the lower id. The
/// weights are s at the chosen, divided by their sum if `norm_topk_prob`, times `routed_scaling_factor`.
///
/// `x` `[rows, hidden]` row major, `router` `[experts, hidden]`, `bias` `[experts]`.
///
/// # Errors
/// A score is NaN; the configuration keeps fewer experts than it chooses, or its groups do not divide the experts.
///
/// # Panics
/// If a slice is not as long as its shape says.
pub fn route(
    pool: &Pool,
    config: &MoeConfig,
    router: &Weight,
    bias: &[f32],
    x: &[f32],
    rows: usize,
    routes: &mut RouteTable,
) -> Result<(), String> {
    let experts = router.rows;
    assert_eq!(bias.len(), experts, "score correction bias beside {}", router.name);
    let selection = Selection::new(config, experts)?;
    routes.k = selection.k;
    routes.ids.clear();
    routes.weights.clear();
    let mut scores = Buffer::default();
    let scores = scores.get(rows * experts);
    linear(pool, router, x, rows, scores);
    for (row, scores) in scores.chunks_exact_mut(experts.max(1)).enumerate() {
        for score in &mut *scores {
            *score = 1.0 / (1.0 + (-*score).exp());
        }
        selection.choose(scores, bias, routes).map_err(|expert| {
            format!(
                "router {} scores expert {expert} for row {row} as NaN, expected a number; look for NaN in the weights, or \
                 an overflow in the layers before",
                router.name
            )
        })?;
    }
    Ok(())
}

/// The rule of selection for one layer.
struct Selection<'a> {
    config: &'a MoeConfig,
    k: usize,
    /// Experts a group.
    group: usize,
}

impl<'a> Selection<'a> {
    fn new(config: &'a MoeConfig, experts: usize) -> Result<Self, String> {
        let MoeConfig { num_experts_per_tok: k, n_group, topk_group, .. } = *config;
        if n_group == 0 || !experts.is_multiple_of(n_group) {
            return Err(format!("n_group is {n_group}, expected a divisor of the {experts} experts"));
        }
        let group = experts / n_group;
        if topk_group > n_group || topk_group * group < k {
            return Err(format!(
                "topk_group is {topk_group} of {n_group} groups of {group} experts, expected groups that hold the {k} \
                 experts a token goes to"
            ));
        }
        Ok(Self { config, k, group })
    }

    /// Appends one row's choices; the expert whose score is NaN otherwise.
    fn choose(&self, scores: &[f32], bias: &[f32], routes: &mut RouteTable) -> Result<(), usize> {
        let mut buffer = Buffer::default();
        let (choice, groups) = buffer.get(scores.len() + self.config.n_group).split_at_mut(scores.len());
        for (expert, ((c, s), b)) in choice.iter_mut().zip(scores).zip(bias).enumerate() {
            *c = s + b;
            if c.is_nan() {
                return Err(expert);
            }
        }
        for (score, group) in groups.iter_mut().zip(choice.chunks_exact(self.group)) {
            *score = top(group.iter().copied().enumerate(), 2).iter().map(|(_, c)| c).sum();
        }
        let mut kept = top(groups.iter().copied().enumerate(), self.config.topk_group);
        kept.sort_unstable_by_key(|&(group, _)| group);
        let candidates = kept.iter().flat_map(|&(group, _)| {
            let first = group * self.group;
            (first..first + self.group).map(|expert| (expert, choice[expert]))
        });
        let chosen = top(candidates, self.k);
        let sum = if self.config.norm_topk_prob {
            // As published: keeps 0 / 0 away when every score underflowed.
            chosen.iter().map(|&(expert, _)| scores[expert]).sum::<f32>() + 1e-20
        } else {
            1.0
        };
        for (expert, _) in chosen {
            routes.ids.push(expert as u32);
            routes.weights.push(scores[expert] / sum * self.config.routed_scaling_factor);
        }
        Ok(())
    }
}

/// The `k` largest values with their ids, largest first; equal ones by the order they come in. No value is NaN.
fn top(values: impl Iterator<Item = (usize, f32)>, k: usize) -> Vec<(usize, f32)> {
    let mut best: Vec<(usize, f32)> = Vec::with_capacity(k + 1);
    for (id, value) in values {
        if best.len() == k && best.last().is_none_or(|&(_, least)| value <= least) {
            continue;
        }
        let place = best.partition_point(|&(_, other)| other >= value);
        best.insert(place, (id, value));
        best.truncate(k);
    }
    best
}

#[cfg(test)]
mod tests;
