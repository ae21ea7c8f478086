"""The target as the peers take it: expanded to f32 for transformers, as GGUF for llama.cpp.

GGUF: architecture deepseek2 with the unsplit `attn_kv_b`, which llama.cpp's CPU backend runs fastest. Group-32 int4
experts are Q4_0 blocks, value for value: 4 bits less 8, times a scale, which this checks to be exact in f16.
"""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from safetensors.torch import load_file, save_file

GROUP = 32
# The tensors of one layer: name in the checkpoint, name in the GGUF.
ATTENTION = {
    "input_layernorm": "attn_norm",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
}
DENSE = {f"mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")}
SHARED = {f"mlp.shared_experts.{part}_proj": f"ffn_{part}_shexp" for part in ("gate", "up", "down")}
# Variant: the type of the routed experts, the type of every other matrix; the router stays f32.
VARIANTS = {
    "f16": (Type.F16, Type.F16),
    "bf16": (Type.BF16, Type.BF16),
    "int4+f16": (Type.Q4_0, Type.F16),
    "int4+bf16": (Type.Q4_0, Type.BF16),
    "q4_0": (Type.Q4_0, Type.Q4_0),
}


class Target:
    """A checkpoint folder in the DeepSeek-V3 layout with int4 group-32 routed experts."""

    def __init__(self, folder: Path):
        self.config = json.loads((folder / "config.json").read_text())
        self.tensors: dict[str, torch.Tensor] = {}
        for path in sorted(folder.glob("*.safetensors")):
            self.tensors |= load_file(path)
        if not self.tensors:
            raise SystemExit(f"error: {folder} has no safetensors files")

    def integers(self, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        """A packed matrix: integers 0 to 15 [O, I], scales [O, I / 32]."""
        words = self.tensors[f"{name}.weight_packed"].to(torch.int64)
        nibbles = (words[..., None] >> (4 * torch.arange(8))) & 15
        return nibbles.flatten(1), self.tensors[f"{name}.weight_scale"].float()

    def matrix(self, name: str) -> torch.Tensor:
        """A matrix or vector in f32, packed or not."""
        if f"{name}.weight" in self.tensors:
            return self.tensors[f"{name}.weight"].float()
        integers, scales = self.integers(name)
        return (integers - 8).float() * scales.repeat_interleave(GROUP, dim=1)


def expand(target: Target, folder: Path) -> None:
    """A checkpoint folder of the same values in f32."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, tensor in target.tensors.items():
        stem, _, kind = name.rpartition(".")
        if kind == "weight_packed":
            tensors[f"{stem}.weight"] = target.matrix(stem)
        elif kind not in ("weight_scale", "weight_shape"):
            tensors[name] = tensor.float()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {key: value for key, value in target.config.items() if key != "quantization_config"}
    (folder / "config.json").write_text(json.dumps(config | {"dtype": "float32"}, indent=1))


def q4_0(integers: torch.Tensor, scales: torch.Tensor) -> np.ndarray:
    """Blocks of 18 bytes: an f16 scale, then 16 bytes that hold elements j (low) and j + 16 (high)."""
    halves = scales.to(torch.float16)
    if not torch.equal(halves.float(), scales):
        raise SystemExit("error: an int4 scale is not exact in f16, so that Q4_0 would not hold the same weights")
    groups = integers.reshape(*scales.shape, 2, GROUP // 2)
    nibbles = (groups[..., 0, :] | groups[..., 1, :] << 4).to(torch.uint8).numpy()
    blocks = np.concatenate([halves.numpy()[..., None].view(np.uint8), nibbles], axis=-1)
    return blocks.reshape(scales.shape[0], -1)


def experts(target: Target, layer: int, part: str, kind: Type) -> np.ndarray:
    """One matrix of every routed expert of a layer, [experts, ...]."""
    names = [
        f"model.layers.{layer}.mlp.experts.{expert}.{part}_proj" for expert in range(target.config["n_routed_experts"])
    ]
    if kind == Type.Q4_0:
        return np.stack([q4_0(*target.integers(name)) for name in names])
    return np.stack([gguf.quants.quantize(target.matrix(name).numpy(), kind) for name in names])


def write_gguf(target: Target, path: Path, variant: str) -> None:
    """The target as a GGUF file without a vocabulary: it is fed token ids."""
    config = target.config
    expert_type, matrix_type = VARIANTS[variant]
    writer = gguf.GGUFWriter(path, "deepseek2")
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_attention_heads"])
    writer.add_key_length(config["qk_nope_head_dim"] + config["qk_rope_head_dim"])
    writer.add_value_length(config["v_head_dim"])
    writer.add_q_lora_rank(config["q_lora_rank"])
    writer.add_kv_lora_rank(config["kv_lora_rank"])
    writer.add_rope_dimension_count(config["qk_rope_head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    writer.add_expert_count(config["n_routed_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    writer.add_expert_weights_norm(config["norm_topk_prob"])
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)

    def add(name: str, source: str, kind: Type | None = None) -> None:
        values = target.matrix(source).numpy()
        kind = kind or (matrix_type if values.ndim == 2 else Type.F32)
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)

    add("token_embd.weight", "model.embed_tokens")
    add("output_norm.weight", "model.norm")
    add("output.weight", "lm_head")
    for layer in range(config["num_hidden_layers"]):
        dense = layer < config["first_k_dense_replace"]
        for source, name in (ATTENTION | (DENSE if dense else SHARED)).items():
            add(f"blk.{layer}.{name}.weight", f"model.layers.{layer}.{source}")
        if dense:
            continue
        add(f"blk.{layer}.ffn_gate_inp.weight", f"model.layers.{layer}.mlp.gate", Type.F32)
        bias = target.tensors[f"model.layers.{layer}.mlp.gate.e_score_correction_bias"].float().numpy()
        writer.add_tensor(f"blk.{layer}.exp_probs_b.bias", bias)
        for part in ("gate", "up", "down"):
            writer.add_tensor(
                f"blk.{layer}.ffn_{part}_exps.weight",
                experts(target, layer, part, expert_type),
                raw_dtype=expert_type,
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
