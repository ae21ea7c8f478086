//! Tensors of a checkpoint, grouped by what they are to the model.

use coppice_model::checkpoint::Checkpoint;
use serde::Serialize;

/// Tensors of one role.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TensorGroup {
    /// What they are to the model.
    pub role: Role,
    /// Their name, numbers replaced by `*`.
    pub name: String,
    /// How many.
    pub count: usize,
    /// Stored element type.
    pub dtype: String,
    /// Sizes of the axes.
    pub shape: Vec<usize>,
    /// Of all of them together.
    pub bytes: u64,
}

/// What a tensor is to the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Token embedding.
    Embedding,
    /// The drafter's projection of tapped features.
    Features,
    /// Attention projections.
    Attention,
    /// Dense MLP.
    Mlp,
    /// Choice of experts.
    Router,
    /// Shared experts.
    SharedExperts,
    /// Routed experts.
    RoutedExperts,
    /// Norm weights.
    Norm,
    /// lm_head.
    Head,
    /// Anything else that is used.
    Other,
    /// Not used.
    Unused,
}

impl Role {
    /// The name in JSON and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Embedding => "embedding",
            Self::Features => "features",
            Self::Attention => "attention",
            Self::Mlp => "mlp",
            Self::Router => "router",
            Self::SharedExperts => "shared_experts",
            Self::RoutedExperts => "routed_experts",
            Self::Norm => "norm",
            Self::Head => "head",
            Self::Other => "other",
            Self::Unused => "unused",
        }
    }

    fn of(name: &str) -> Self {
        let has = |part: &str| name.split('.').any(|component| component == part);
        if name.split('.').any(|component| component.ends_with("norm")) {
            Self::Norm
        } else if has("embed_tokens") {
            Self::Embedding
        } else if has("lm_head") {
            Self::Head
        } else if has("fc") {
            Self::Features
        } else if has("self_attn") {
            Self::Attention
        } else if has("shared_experts") {
            Self::SharedExperts
        } else if has("experts") {
            Self::RoutedExperts
        } else if has("gate") {
            Self::Router
        } else if has("mlp") {
            Self::Mlp
        } else {
            Self::Other
        }
    }
}

/// The tensors of a checkpoint, `unused` of which the model does not use, in the order of their roles.
pub(super) fn groups(checkpoint: &Checkpoint, unused: &[String]) -> Vec<TensorGroup> {
    let mut groups: Vec<TensorGroup> = checkpoint
        .names()
        .filter_map(|name| {
            let tensor = checkpoint.get(name)?;
            let is_unused = unused.binary_search_by(|unused| unused.as_str().cmp(name)).is_ok();
            Some(TensorGroup {
                role: if is_unused { Role::Unused } else { Role::of(name) },
                name: pattern(name),
                count: 1,
                dtype: format!("{:?}", tensor.dtype),
                shape: tensor.shape.clone(),
                bytes: tensor.bytes().len() as u64,
            })
        })
        .collect();
    let key = |group: &TensorGroup| (group.role, group.name.clone(), group.dtype.clone(), group.shape.clone());
    groups.sort_by_cached_key(key);
    groups.dedup_by(|next, group| {
        let same = key(next) == key(group);
        if same {
            group.count += 1;
            group.bytes += next.bytes;
        }
        same
    });
    groups
}

fn pattern(name: &str) -> String {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    name.split('.').map(|part| if is_number(part) { "*" } else { part }).collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_published_name_has_its_role() {
        let cases = [
            ("model.embed_tokens.weight", Role::Embedding),
            ("language_model.lm_head.weight", Role::Head),
            ("model.norm.weight", Role::Norm),
            ("model.layers.3.input_layernorm.weight", Role::Norm),
            ("model.layers.3.self_attn.kv_a_layernorm.weight", Role::Norm),
            ("layers.0.self_attn.q_norm.weight", Role::Norm),
            ("model.layers.3.self_attn.kv_a_proj_with_mqa.weight", Role::Attention),
            ("model.layers.0.mlp.gate_proj.weight", Role::Mlp),
            ("model.layers.3.mlp.gate.weight", Role::Router),
            ("model.layers.3.mlp.gate.e_score_correction_bias", Role::Router),
            ("model.layers.3.mlp.experts.17.up_proj.weight_packed", Role::RoutedExperts),
            ("model.layers.3.mlp.shared_experts.up_proj.weight", Role::SharedExperts),
            ("fc.weight", Role::Features),
            ("hidden_norm.weight", Role::Norm),
            ("vision_tower.patch.weight", Role::Other),
        ];
        let wrong: Vec<_> = cases.iter().filter(|(name, role)| Role::of(name) != *role).collect();
        assert!(wrong.is_empty(), "{wrong:?}");
    }

    #[test]
    fn names_that_differ_in_numbers_share_a_pattern() {
        assert_eq!(
            pattern("model.layers.12.mlp.experts.7.up_proj.weight"),
            "model.layers.*.mlp.experts.*.up_proj.weight"
        );
        assert_eq!(pattern("fc.weight"), "fc.weight");
    }
}
