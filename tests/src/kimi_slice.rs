//! Checkpoints of random weights in Kimi-K2.6's layout: two layers, one dense and one of experts, at any width. For
//! measurements at true widths, where no checkpoint of 595 GB can be had; what such a model says means nothing.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use serde_json::{Map, Value, json};

/// Columns that share an int4 scale.
const GROUP: usize = 32;

/// The sizes of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Width of the compressed queries.
    pub q_lora: usize,
    /// Width of the latent.
    pub kv_lora: usize,
    /// Width of a head without position.
    pub nope: usize,
    /// Width of a head with rotary position.
    pub rope: usize,
    /// Width of a head's values.
    pub v: usize,
    /// Width of the dense layer's MLP.
    pub dense: usize,
    /// Width of an expert.
    pub expert: usize,
    /// Routed experts.
    pub experts: usize,
    /// Routed experts a token.
    pub top_k: usize,
    /// Tokens.
    pub vocab: usize,
}

impl Shape {
    /// Kimi-K2.6, but for 16 experts of 384 and 8,192 tokens of 163,840: 1.9 GB.
    pub const KIMI_K2_6: Self = Self {
        hidden: 7168,
        heads: 64,
        q_lora: 1536,
        kv_lora: 512,
        nope: 128,
        rope: 64,
        v: 128,
        dense: 18432,
        expert: 2048,
        experts: 16,
        top_k: 8,
        vocab: 8192,
    };
}

/// What a tensor is filled with.
#[derive(Debug, Clone, Copy)]
enum Fill {
    /// Uniform in +-`bound`, bf16.
    Random { bound: f32 },
    /// Ones, bf16: norm weights.
    Ones,
    /// Zeros, f32: the router's bias.
    Zeros,
    /// Eight integers from -7 to 7 a word.
    Packed,
    /// Scales that give the integers of [`Fill::Packed`] a bound of `bound`, bf16.
    Scale { bound: f32 },
    /// A matrix's shape.
    Shape([usize; 2]),
}

struct Tensor {
    name: String,
    shape: Vec<usize>,
    fill: Fill,
}

impl Tensor {
    fn new(name: String, shape: &[usize], fill: Fill) -> Self {
        Self { name, shape: shape.to_vec(), fill }
    }

    /// Its type, and the bytes of an element.
    fn dtype(&self) -> (&'static str, usize) {
        match self.fill {
            Fill::Random { .. } | Fill::Ones | Fill::Scale { .. } => ("BF16", 2),
            Fill::Zeros => ("F32", 4),
            Fill::Packed => ("I32", 4),
            Fill::Shape(_) => ("I64", 8),
        }
    }

    fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    fn write(&self, out: &mut impl Write, seed: u64) -> io::Result<()> {
        let mut random = Random::new(&self.name, seed);
        match self.fill {
            Fill::Random { bound } => {
                (0..self.elements()).try_for_each(|_| out.write_all(&bf16(random.uniform() * bound)))
            }
            Fill::Ones => (0..self.elements()).try_for_each(|_| out.write_all(&bf16(1.0))),
            Fill::Zeros => (0..self.elements()).try_for_each(|_| out.write_all(&0f32.to_le_bytes())),
            Fill::Packed => (0..self.elements()).try_for_each(|_| {
                // 1 to 15 and not 0, so that the integers, which are these less 8, have no mean.
                let word = (0..8).fold(0, |word, _| word << 4 | (1 + random.next() % 15) as u32);
                out.write_all(&word.to_le_bytes())
            }),
            Fill::Scale { bound } => (0..self.elements()).try_for_each(|_| out.write_all(&bf16(bound / 7.0))),
            Fill::Shape(shape) => shape.iter().try_for_each(|size| out.write_all(&(*size as i64).to_le_bytes())),
        }
    }
}

/// Writes a checkpoint, `tokens.json` (a prompt for `generate --tokens`) and `prompts.jsonl` (for `bench --prompts`) to
/// `folder`, which is made. Tensors are written one after another and never held.
///
/// # Errors
/// The file system's.
pub fn write(folder: &Path, shape: &Shape, seed: u64) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    fs::write(folder.join("config.json"), format!("{:#}\n", config(shape)))?;
    let mut random = Random::new("prompts", seed);
    let mut prompt = || -> Vec<u64> { (0..16).map(|_| 2 + random.next() % (shape.vocab as u64 - 2)).collect() };
    fs::write(folder.join("tokens.json"), json!(prompt()).to_string())?;
    let lines: Vec<String> =
        (0..8).map(|i| format!("{}\n", json!({"id": i.to_string(), "tokens": prompt()}))).collect();
    fs::write(folder.join("prompts.jsonl"), lines.concat())?;

    let mut tensors = tensors(shape);
    // The widest elements first: each tensor is then aligned to its own.
    tensors.sort_by_key(|tensor| std::cmp::Reverse(tensor.dtype().1));
    let (mut header, mut end) = (Map::new(), 0);
    for tensor in &tensors {
        let (dtype, bytes) = tensor.dtype();
        let start = end;
        end += tensor.elements() * bytes;
        let entry = json!({"dtype": dtype, "shape": tensor.shape, "data_offsets": [start, end]});
        header.insert(tensor.name.clone(), entry);
    }
    let mut header = Value::Object(header).to_string();
    header += &" ".repeat(header.len().next_multiple_of(8) - header.len());
    let mut out = BufWriter::with_capacity(1 << 20, File::create(folder.join("model.safetensors"))?);
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(header.as_bytes())?;
    tensors.iter().try_for_each(|tensor| tensor.write(&mut out, seed))?;
    out.flush()
}

fn tensors(shape: &Shape) -> Vec<Tensor> {
    let Shape { hidden, heads, q_lora, kv_lora, nope, rope, v, dense, expert, experts, vocab, .. } = *shape;
    let mut tensors = Vec::new();
    let mut add = |name: &str, shape: &[usize], fill| {
        tensors.push(Tensor::new(format!("language_model.{name}"), shape, fill));
    };
    // Uniform in +-sqrt(3 / inputs): outputs of the size of the inputs.
    let random = |inputs: usize| Fill::Random { bound: (3.0 / inputs as f32).sqrt() };
    add("model.embed_tokens.weight", &[vocab, hidden], Fill::Random { bound: 1.0 });
    add("model.norm.weight", &[hidden], Fill::Ones);
    add("lm_head.weight", &[vocab, hidden], random(hidden));
    for layer in 0..2 {
        let layer = format!("model.layers.{layer}");
        let attention = [
            ("q_a_proj", q_lora, hidden),
            ("q_b_proj", heads * (nope + rope), q_lora),
            ("kv_a_proj_with_mqa", kv_lora + rope, hidden),
            ("kv_b_proj", heads * (nope + v), kv_lora),
            ("o_proj", hidden, heads * v),
        ];
        for (name, outputs, inputs) in attention {
            add(&format!("{layer}.self_attn.{name}.weight"), &[outputs, inputs], random(inputs));
        }
        let norms = [
            ("input_layernorm", hidden),
            ("post_attention_layernorm", hidden),
            ("self_attn.q_a_layernorm", q_lora),
            ("self_attn.kv_a_layernorm", kv_lora),
        ];
        for (name, width) in norms {
            add(&format!("{layer}.{name}.weight"), &[width], Fill::Ones);
        }
    }
    let mlp = |width| [("gate_proj", width, hidden), ("up_proj", width, hidden), ("down_proj", hidden, width)];
    for (name, outputs, inputs) in mlp(dense) {
        add(&format!("model.layers.0.mlp.{name}.weight"), &[outputs, inputs], random(inputs));
    }
    let moe = "model.layers.1.mlp";
    add(&format!("{moe}.gate.weight"), &[experts, hidden], random(hidden));
    add(&format!("{moe}.gate.e_score_correction_bias"), &[experts], Fill::Zeros);
    for (name, outputs, inputs) in mlp(expert) {
        add(&format!("{moe}.shared_experts.{name}.weight"), &[outputs, inputs], random(inputs));
        for index in 0..experts {
            let stem = format!("{moe}.experts.{index}.{name}");
            let bound = (3.0 / inputs as f32).sqrt();
            add(&format!("{stem}.weight_packed"), &[outputs, inputs / 8], Fill::Packed);
            add(&format!("{stem}.weight_scale"), &[outputs, inputs / GROUP], Fill::Scale { bound });
            add(&format!("{stem}.weight_shape"), &[2], Fill::Shape([outputs, inputs]));
        }
    }
    tensors
}

fn config(shape: &Shape) -> Value {
    let weights = json!({"num_bits": 4, "type": "int", "symmetric": true, "strategy": "group", "group_size": GROUP,
                         "dynamic": false, "actorder": null});
    let ignore = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"];
    let group =
        json!({"targets": ["Linear"], "weights": weights, "input_activations": null, "output_activations": null});
    let quantization = json!({"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ignore,
                              "quantization_status": "compressed", "config_groups": {"group_0": group}});
    let rope = json!({"type": "yarn", "factor": 64.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0,
                      "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096});
    json!({
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "text_config": {
            "architectures": ["DeepseekV3ForCausalLM"],
            "model_type": "kimi_k2",
            "attention_bias": false,
            "bos_token_id": 0,
            "eos_token_id": 1,
            "first_k_dense_replace": 1,
            "hidden_act": "silu",
            "hidden_size": shape.hidden,
            "intermediate_size": shape.dense,
            "kv_lora_rank": shape.kv_lora,
            "max_position_embeddings": 262_144,
            "moe_intermediate_size": shape.expert,
            "n_group": 1,
            "n_routed_experts": shape.experts,
            "n_shared_experts": 1,
            "norm_topk_prob": true,
            "num_attention_heads": shape.heads,
            "num_experts_per_tok": shape.top_k,
            "num_hidden_layers": 2,
            "num_key_value_heads": shape.heads,
            "num_nextn_predict_layers": 0,
            "q_lora_rank": shape.q_lora,
            "qk_nope_head_dim": shape.nope,
            "qk_rope_head_dim": shape.rope,
            "rms_norm_eps": 1e-5,
            "rope_theta": 50_000.0,
            "rope_scaling": rope,
            "routed_scaling_factor": 2.827,
            "scoring_func": "sigmoid",
            "tie_word_embeddings": false,
            "topk_group": 1,
            "topk_method": "noaux_tc",
            "torch_dtype": "bfloat16",
            "v_head_dim": shape.v,
            "vocab_size": shape.vocab,
            "quantization_config": quantization,
        },
    })
}

/// The upper half of the nearest f32, ties away from zero.
fn bf16(value: f32) -> [u8; 2] {
    let bits = value.to_bits().wrapping_add(0x8000);
    ((bits >> 16) as u16).to_le_bytes()
}

/// SplitMix64, a stream of its own for every name.
struct Random(u64);

impl Random {
    fn new(name: &str, seed: u64) -> Self {
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64 ^ seed, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Self(hash)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// From -1 to 1.
    fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}
