//! Whether a drafter may pay at all, judged by sizes before it was ever run.

use coppice_model::bind::{MlpWeights, MoeWeights, QueryWeights, SwigluWeights};
use coppice_model::weight::Weight;
use coppice_model::{DraftModel, TargetModel};

/// Share of the tokens of each depth that a good drafter gets accepted, given the depth before.
const ACCEPTED: f64 = 0.75;

/// What a drafter costs beside its target.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Drafting {
    /// Weights that drafting a block reads, as a share of those that a token of the target reads.
    share: f64,
    /// Slots of a block.
    block: usize,
}

impl Drafting {
    /// Of a drafter that reads `share` of what its target does, for a block of `block` slots.
    #[cfg(test)]
    pub(super) const fn of(share: f64, block: usize) -> Self {
        Self { share, block }
    }

    /// Of the weights' sizes.
    pub(super) fn new(target: &TargetModel, drafter: &DraftModel) -> Self {
        let head = size(&target.weights.lm_head);
        let layers = drafter.weights.layers.iter().map(|layer| {
            [&layer.q, &layer.k, &layer.v, &layer.o].into_iter().map(size).sum::<f64>() + swiglu(&layer.mlp)
        });
        let chosen = target.config.moe.as_ref().map_or(0, |moe| moe.num_experts_per_tok);
        let target = target.weights.layers.iter().map(|layer| {
            let attention = &layer.attention;
            let queries = match &attention.q {
                QueryWeights::Full(q) => size(q),
                QueryWeights::LowRank { a, b, .. } => size(a) + size(b),
            };
            let mlp = match &layer.mlp {
                MlpWeights::Dense(mlp) => swiglu(mlp),
                MlpWeights::Moe(MoeWeights { router, experts, shared, .. }) => {
                    let used = experts.iter().take(chosen).chain(shared);
                    size(router) + used.map(swiglu).sum::<f64>()
                }
            };
            queries + [&attention.kv_a, &attention.kv_b, &attention.o].into_iter().map(size).sum::<f64>() + mlp
        });
        let share = (layers.sum::<f64>() + size(&drafter.weights.fc) + head) / (target.sum::<f64>() + head);
        Self { share, block: drafter.config.block_size }
    }

    /// Whether a round drafted by a good drafter is likely to commit more tokens a second than a plain one: `node` is what
    /// a node costs, as a share of a plain round, and so what a slot costs of the drafter's own.
    pub(super) fn may_pay(self, node: f64) -> bool {
        let drafting = self.share * (1.0 + node * self.block.saturating_sub(1) as f64);
        let (mut tokens, mut accepted) = (1.0, 1.0);
        (1..self.block).any(|nodes| {
            accepted *= ACCEPTED;
            tokens += accepted;
            tokens > 1.0 + node * nodes as f64 + drafting
        })
    }
}

fn size(weight: &Weight) -> f64 {
    weight.rows as f64 * weight.cols as f64
}

fn swiglu(weights: &SwigluWeights) -> f64 {
    size(&weights.gate) + size(&weights.up) + size(&weights.down)
}

#[cfg(test)]
mod tests {
    use super::*;
    use coppice_model::Source;

    #[test]
    fn a_small_drafter_pays_where_rows_are_cheap() {
        let kimi = Drafting { share: 0.1, block: 8 };
        assert!(kimi.may_pay(0.02) && kimi.may_pay(0.3) && !kimi.may_pay(0.7));
        let heavy = Drafting { share: 3.0, block: 8 };
        assert!(!heavy.may_pay(0.0));
        assert!(!Drafting { share: 0.0, block: 1 }.may_pay(0.0), "a block of one slot drafts nothing");
    }

    #[test]
    fn the_embedded_drafter_reads_a_third_of_what_its_target_does() {
        let target = TargetModel::load(&Source::EmbeddedTarget).unwrap();
        let drafter = DraftModel::load(&Source::EmbeddedDraft).unwrap();
        let drafting = Drafting::new(&target, &drafter);
        assert!((0.3..0.5).contains(&drafting.share) && drafting.block == 8, "{drafting:?}");
    }
}
