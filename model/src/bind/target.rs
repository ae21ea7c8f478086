//! The tensors of a target by their names in DeepSeek-V3 checkpoints; Kimi-K2.5 puts `language_model.` before each.

use super::binder::{Binder, Dim, dim};
use super::{
    AttentionWeights, Binding, LayerWeights, MlpWeights, MoeWeights, QueryWeights, SwigluWeights, TargetWeights,
};
use crate::checkpoint::Checkpoint;
use crate::config::{ModelConfig, MoeConfig};
use crate::error::{Error, Result};

impl TargetWeights {
    /// Finds the tensors that `config` asks for and checks dtype and shape of each. Data is shared with the checkpoint,
    /// except for norms and routers, which are expanded to f32.
    ///
    /// # Errors
    /// Tensors are missing, or one has another dtype or shape than the configuration asks for.
    pub fn bind(checkpoint: &Checkpoint, config: &ModelConfig) -> Result<Binding<Self>> {
        check_expert_count(checkpoint, config)?;
        let mut binder = Binder::new(checkpoint, config.quantization, "language_model.", "model.layers.");
        let hidden = hidden(config);
        let vocab = dim(config.vocab_size, "vocab_size");
        let embed = binder.linear("model.embed_tokens", vocab, hidden, "")?;
        let layers = (0..config.num_hidden_layers).map(|layer| bind_layer(&mut binder, config, layer));
        let layers = layers.collect::<Result<_>>()?;
        let norm = binder.vector("model.norm.weight", hidden)?;
        let lm_head = match config.tie_word_embeddings {
            true => embed.clone(),
            false => binder.linear("lm_head", vocab, hidden, " (config says tie_word_embeddings = false)")?,
        };
        binder.finish(Self { embed, layers, norm, lm_head })
    }
}

/// Keeps a configuration of absurdly many experts from filling memory with the names of missing tensors.
fn check_expert_count(checkpoint: &Checkpoint, config: &ModelConfig) -> Result<()> {
    let Some(moe) = &config.moe else { return Ok(()) };
    let expected = (config.num_hidden_layers - config.first_k_dense_replace) * moe.n_routed_experts * 3;
    let found = checkpoint.names().len();
    if found >= expected {
        return Ok(());
    }
    let message = format!("has {found} tensors, expected at least {expected} for the routed experts of config.json");
    Err(Error::Checkpoint { path: checkpoint.path().to_owned(), message })
}

fn hidden(config: &ModelConfig) -> Dim {
    dim(config.hidden_size, "hidden_size")
}

fn bind_layer(binder: &mut Binder, config: &ModelConfig, layer: usize) -> Result<LayerWeights> {
    let name = format!("model.layers.{layer}");
    let hidden = hidden(config);
    let mlp = match &config.moe {
        Some(moe) if layer >= config.first_k_dense_replace => {
            MlpWeights::Moe(bind_moe(binder, moe, hidden, &format!("{name}.mlp"))?)
        }
        _ => {
            let inter = dim(config.intermediate_size, "intermediate_size");
            MlpWeights::Dense(SwigluWeights::bind(binder, &format!("{name}.mlp"), hidden, inter)?)
        }
    };
    Ok(LayerWeights {
        input_norm: binder.vector(&format!("{name}.input_layernorm.weight"), hidden)?,
        attention: bind_attention(binder, config, &format!("{name}.self_attn"))?,
        post_norm: binder.vector(&format!("{name}.post_attention_layernorm.weight"), hidden)?,
        mlp,
    })
}

fn bind_attention(binder: &mut Binder, config: &ModelConfig, name: &str) -> Result<AttentionWeights> {
    let shape = &config.attention;
    let hidden = hidden(config);
    let kv_lora = dim(shape.kv_lora_rank, "kv_lora_rank");
    let kv_a = dim(shape.kv_lora_rank + shape.rope, "(kv_lora_rank + qk_rope_head_dim)");
    let kv_b = dim(shape.heads * (shape.nope + shape.v), "num_attention_heads * (qk_nope_head_dim + v_head_dim)");
    let values = dim(shape.heads * shape.v, "num_attention_heads * v_head_dim");
    let queries =
        dim(shape.heads * (shape.nope + shape.rope), "num_attention_heads * (qk_nope_head_dim + qk_rope_head_dim)");
    let q = match shape.q_lora_rank {
        None => QueryWeights::Full(binder.linear(&format!("{name}.q_proj"), queries, hidden, "")?),
        Some(rank) => {
            let rank = dim(rank, "q_lora_rank");
            QueryWeights::LowRank {
                a: binder.linear(&format!("{name}.q_a_proj"), rank, hidden, "")?,
                norm: binder.vector(&format!("{name}.q_a_layernorm.weight"), rank)?,
                b: binder.linear(&format!("{name}.q_b_proj"), queries, rank, "")?,
            }
        }
    };
    Ok(AttentionWeights {
        q,
        kv_a: binder.linear(&format!("{name}.kv_a_proj_with_mqa"), kv_a, hidden, "")?,
        kv_a_norm: binder.vector(&format!("{name}.kv_a_layernorm.weight"), kv_lora)?,
        kv_b: binder.linear(&format!("{name}.kv_b_proj"), kv_b, kv_lora, "")?,
        o: binder.linear(&format!("{name}.o_proj"), hidden, values, "")?,
    })
}

fn bind_moe(binder: &mut Binder, moe: &MoeConfig, hidden: Dim, name: &str) -> Result<MoeWeights> {
    let routed = dim(moe.n_routed_experts, "n_routed_experts");
    let inter = dim(moe.moe_intermediate_size, "moe_intermediate_size");
    let experts = (0..routed.size)
        .map(|expert| SwigluWeights::bind(binder, &format!("{name}.experts.{expert}"), hidden, inter))
        .collect::<Result<_>>()?;
    let shared_inter = dim(moe.n_shared_experts * inter.size, "n_shared_experts * moe_intermediate_size");
    let shared = (moe.n_shared_experts > 0)
        .then(|| SwigluWeights::bind(binder, &format!("{name}.shared_experts"), hidden, shared_inter));
    Ok(MoeWeights {
        router: binder.linear_f32(&format!("{name}.gate"), routed, hidden)?,
        bias: binder.vector(&format!("{name}.gate.e_score_correction_bias"), routed)?,
        experts,
        shared: shared.transpose()?,
    })
}

impl SwigluWeights {
    /// `gate_proj`, `up_proj` and `down_proj` under `name`.
    pub(super) fn bind(binder: &mut Binder, name: &str, hidden: Dim, inter: Dim) -> Result<Self> {
        Ok(Self {
            gate: binder.linear(&format!("{name}.gate_proj"), inter, hidden, "")?,
            up: binder.linear(&format!("{name}.up_proj"), inter, hidden, "")?,
            down: binder.linear(&format!("{name}.down_proj"), hidden, inter, "")?,
        })
    }
}
