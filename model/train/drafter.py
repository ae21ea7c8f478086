"""The DFlash drafter: its definition, its training on text, rollouts of the target, and tuning on those.

    drafter.py train    on windows of the corpus, all blocks anywhere
    drafter.py rollout  the target continues corpus windows; the continuations are saved
    drafter.py tune     goes on from a trained drafter, blocks only where the target wrote the text

Each command writes one thing that the next one reads. acceptance.py measures the result.

A block is a root (the last known token) and block_size - 1 mask tokens. Slot k > 0 predicts the token at root + k. A
slot attends to context features strictly before the root and to its whole block, in both directions. A context feature
is the concatenated output of the tapped decoder layers. Embedding and output head are the target's.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedModel, Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP, Qwen3RMSNorm, Qwen3RotaryEmbedding, rotate_half

import common
from common import BOS, MASK, PAD, Budget, Log, ToolError, run_tool, write_json

GAMMA = 4.0  # slots further from the root weigh exp(-(k - 1) / GAMMA): a miss there costs less
HARD_SHARE = 0.3  # of the loss: cross-entropy with the text; the rest is KL divergence from the target's distribution
WARM_UP_STEPS = 100


def tiny_config(target: PreTrainedModel) -> dict:
    """config.json of the drafter of model/tiny, for a target of any width."""
    width = target.config.hidden_size
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_size": width,
        "intermediate_size": 3 * width,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "max_position_embeddings": target.config.max_position_embeddings,
        "vocab_size": target.config.vocab_size,
        "attention_bias": False,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "block_size": 8,
        "num_target_layers": target.config.num_hidden_layers,
        "layer_types": ["full_attention"] * 3,
        "sliding_window": None,
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": [1, 3, 4]},
    }


class Attention(nn.Module):
    """Grouped-query attention of block slots over context features and the block; keys of both pass k_norm and RoPE."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.width = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, self.heads * self.width, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, self.kv_heads * self.width, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, self.kv_heads * self.width, bias=False)
        self.o_proj = nn.Linear(self.heads * self.width, config.hidden_size, bias=False)
        self.q_norm = Qwen3RMSNorm(self.width, config.rms_norm_eps)
        self.k_norm = Qwen3RMSNorm(self.width, config.rms_norm_eps)

    def forward(self, slots: torch.Tensor, context: torch.Tensor, rope: tuple, mask: torch.Tensor) -> torch.Tensor:
        """`slots` [B, Q, H], `context` [B, S, H], `rope` cos and sin [B, S + Q, width], `mask` [B, 1, Q, S + Q]."""
        sources = torch.cat([context, slots], 1)
        query = self.q_norm(self.q_proj(slots).unflatten(-1, (self.heads, self.width))).transpose(1, 2)
        key = self.k_norm(self.k_proj(sources).unflatten(-1, (self.kv_heads, self.width))).transpose(1, 2)
        value = self.v_proj(sources).unflatten(-1, (self.kv_heads, self.width)).transpose(1, 2)
        cos, sin = (part[:, None] for part in rope)
        first = context.shape[1]
        query = query * cos[:, :, first:] + rotate_half(query) * sin[:, :, first:]
        key = key * cos + rotate_half(key) * sin
        key, value = (x.to(query.dtype).repeat_interleave(self.heads // self.kv_heads, 1) for x in (key, value))
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """A pre-norm Qwen3 layer whose attention also sees the context features."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = Qwen3MLP(config)
        self.input_layernorm = Qwen3RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = Qwen3RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, slots: torch.Tensor, *attention: object) -> torch.Tensor:
        slots = slots + self.self_attn(self.input_layernorm(slots), *attention)
        return slots + self.mlp(self.post_attention_layernorm(slots))


class Drafter(nn.Module):
    """The DFlash draft model, parameters named as in published checkpoints; `config` is config.json."""

    def __init__(self, config: dict, target: PreTrainedModel) -> None:
        super().__init__()
        self.config = config
        self.block_size, self.mask_token, self.taps = check_config(config, target.config)
        qwen = Qwen3Config(**config)
        self.fc = nn.Linear(len(self.taps) * qwen.hidden_size, qwen.hidden_size, bias=False)
        self.hidden_norm = Qwen3RMSNorm(qwen.hidden_size, qwen.rms_norm_eps)
        self.layers = nn.ModuleList(Layer(qwen) for _ in range(qwen.num_hidden_layers))
        self.norm = Qwen3RMSNorm(qwen.hidden_size, qwen.rms_norm_eps)
        self.rotary = Qwen3RotaryEmbedding(qwen)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                writes_residual = "o_proj" in name or "down_proj" in name
                nn.init.normal_(parameter, 0.0, 0.02 / (math.sqrt(2 * len(self.layers)) if writes_residual else 1.0))

    def forward(
        self, slots: torch.Tensor, features: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        """Final states [B, Q, H] of `slots` [B, Q, H] (embedded), given `features` [B, S, taps * H] at positions 0..S,
        the slots' `positions` [B, Q] and `mask` bool [B, Q, S + Q]."""
        context = self.hidden_norm(self.fc(features))
        before = torch.arange(features.shape[1], device=positions.device).expand(len(positions), -1)
        rope = self.rotary(slots, torch.cat([before, positions], 1))
        for layer in self.layers:
            slots = layer(slots, context, rope, mask[:, None])
        return self.norm(slots)


def check_config(config: dict, target: object) -> tuple[int, int, list[int]]:
    """(block size, mask token, tapped layers) of a drafter config that fits the target's."""
    try:
        dflash = config["dflash_config"]
        block, mask, taps = config["block_size"], dflash["mask_token_id"], dflash["target_layer_ids"]
    except KeyError as error:
        raise ToolError(f"the drafter's config.json has no key {error}; it is never guessed") from None
    for key in ("vocab_size", "hidden_size"):
        if config[key] != getattr(target, key):
            raise ToolError(
                f"the drafter's {key} is {config[key]}, the target's {getattr(target, key)}; they must be equal"
            )
    if not 0 <= mask < config["vocab_size"]:
        raise ToolError(f"mask_token_id {mask} is outside the vocabulary of {config['vocab_size']}")
    if not taps or not all(0 <= layer < target.num_hidden_layers for layer in taps):
        raise ToolError(f"target_layer_ids {taps}: expected layers 0 to {target.num_hidden_layers - 1} of the target")
    return block, mask, taps


@torch.no_grad()
def run_target(target: PreTrainedModel, ids: torch.Tensor, taps: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Features [B, S, taps * H], the outputs of decoder layers `taps` side by side, and final normed states [B, S, H].

    The layers are hooked: `hidden_states[id + 1]` of transformers is the same, save for the last layer, whose entry
    there has passed the final norm.
    """
    outputs: dict[int, torch.Tensor] = {}
    hooks = [
        target.model.layers[layer].register_forward_hook(
            lambda _, __, output, layer=layer: outputs.__setitem__(layer, output)
        )
        for layer in taps
    ]
    try:
        final = target.model(input_ids=ids, use_cache=False).last_hidden_state
    finally:
        for hook in hooks:
            hook.remove()
    return torch.cat([outputs[layer] for layer in taps], -1), final


def block_positions(roots: torch.Tensor, block: int) -> torch.Tensor:
    """Absolute positions [B, A * block] of the slots of blocks at `roots` [B, A]."""
    return (roots[..., None] + torch.arange(block, device=roots.device)).flatten(1)


def block_mask(roots: torch.Tensor, block: int, context: int) -> torch.Tensor:
    """Who sees whom, bool [B, A * block, context + A * block]: context strictly before the root, and the own block."""
    batch, blocks = roots.shape
    before = torch.arange(context, device=roots.device) < roots.repeat_interleave(block, 1)[..., None]
    owner = torch.arange(blocks, device=roots.device).repeat_interleave(block)
    same = (owner[:, None] == owner).expand(batch, -1, -1)
    return torch.cat([before, same], -1)


def draft_logits(
    drafter: Drafter, target: PreTrainedModel, ids: torch.Tensor, features: torch.Tensor, roots: torch.Tensor
) -> torch.Tensor:
    """Logits [B, A, block, V] of blocks at `roots` [B, A] in the texts `ids` [B, S]; those of slot 0 mean nothing."""
    slots = torch.full((*roots.shape, drafter.block_size), drafter.mask_token, device=ids.device)
    slots[..., 0] = ids.gather(1, roots)
    mask = block_mask(roots, drafter.block_size, ids.shape[1])
    with common.half_precision(ids.device):
        embedded = target.model.embed_tokens(slots.flatten(1)).float()  # residual stream and RoPE in f32
        states = drafter(embedded, features, block_positions(roots, drafter.block_size), mask)
        return target.lm_head(states).float().unflatten(1, (-1, drafter.block_size))


def draw_roots(batch: int, blocks: int, first: int, length: int, block: int, draws: torch.Generator) -> torch.Tensor:
    """`blocks` distinct roots a text, ascending, in `first`..=`length - block`: i64 [batch, blocks]."""
    places = length - block - first + 1
    if places < blocks:
        raise ToolError(
            f"texts of {length} tokens have room for {places} roots from position {first}, --blocks asks for {blocks}"
        )
    return (torch.rand(batch, places, generator=draws).argsort(1)[:, :blocks] + first).sort(1).values


def loss_of(drafter: Drafter, target: PreTrainedModel, ids: torch.Tensor, roots: torch.Tensor) -> torch.Tensor:
    """The soft-label DFlash loss of the blocks at `roots` [B, A], weighted by slot."""
    features, final = run_target(target, ids, drafter.taps)
    logits = draft_logits(drafter, target, ids, features, roots)[:, :, 1:]
    block = drafter.block_size
    positions = block_positions(roots, block).view(*roots.shape, block)[..., 1:].flatten(1)
    with torch.no_grad():
        teacher = final.gather(1, (positions - 1)[..., None].expand(-1, -1, final.shape[-1]))
        teacher = target.lm_head(teacher).float().log_softmax(-1).view_as(logits)
    labels = ids.gather(1, positions).view(logits.shape[:-1])
    student = logits.log_softmax(-1)
    hard = F.nll_loss(student.flatten(0, 2), labels.flatten(), reduction="none").view_as(labels)
    soft = F.kl_div(student, teacher, log_target=True, reduction="none").sum(-1)
    weights = torch.exp(-torch.arange(block - 1, device=ids.device) / GAMMA)
    return ((HARD_SHARE * hard + (1 - HARD_SHARE) * soft) * weights).mean((0, 1)).sum() / weights.sum()


@dataclass
class Texts:
    """A source of training texts: `draw(generator)` gives i64 [batch, length]; blocks start at `first` or later."""

    draw: Callable[[torch.Generator], torch.Tensor]
    length: int
    first: int


def fit(
    drafter: Drafter, target: PreTrainedModel, texts: Texts, args: argparse.Namespace, warm_up: int, last_share: float
) -> None:
    """Trains to the end of the budget, writes the drafter. The learning rate falls linearly to `last_share` of --lr."""
    log = Log(args.out.with_name(args.out.name + ".log.jsonl"))
    log(parameters=sum(p.numel() for p in drafter.parameters()), batch=args.batch, blocks=args.blocks, seed=args.seed)
    adam = torch.optim.AdamW(drafter.parameters(), betas=(0.9, 0.95), weight_decay=0.01)
    budget, step = Budget(args.steps, args.seconds), 0
    while (progress := budget.progress(step)) < 1:
        rate = args.lr * min(1.0, (step + 1) / max(warm_up, 1)) * (1 - (1 - last_share) * progress)
        for group in adam.param_groups:
            group["lr"] = rate
        draws = common.generator(args.seed, step)
        ids = texts.draw(draws)
        roots = draw_roots(len(ids), args.blocks, texts.first, texts.length, drafter.block_size, draws).to(ids.device)
        loss = loss_of(drafter, target, ids, roots)
        loss.backward()
        nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        adam.step()
        adam.zero_grad(set_to_none=True)
        step += 1
        if step <= 3 or step % args.log_every == 0:
            log(step=step, seconds=budget.elapsed(), loss=loss.item(), lr=rate)
    log(step=step, seconds=budget.elapsed(), done=True)
    save_drafter(drafter, args.out)


def save_drafter(drafter: Drafter, out: Path) -> None:
    """Writes config.json and bf16 weights."""
    with common.atomic_dir(out) as folder:
        weights = {name: p.detach().to(torch.bfloat16).cpu().contiguous() for name, p in drafter.named_parameters()}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        write_json(folder / "config.json", drafter.config)


def load_drafter(path: Path, target: PreTrainedModel) -> Drafter:
    """A drafter for `target`, f32, every tensor accounted for."""
    drafter = Drafter(common.read_json(path / "config.json"), target)
    missing, unexpected = drafter.load_state_dict(load_file(path / "model.safetensors"), strict=False)
    if missing or unexpected:
        raise ToolError(f"{path / 'model.safetensors'}: missing tensors {missing}, unexpected tensors {unexpected}")
    return drafter.to(target.device)


@torch.no_grad()
def continue_texts(target: PreTrainedModel, prompts: torch.Tensor, new_tokens: int, temperature: float) -> torch.Tensor:
    """The target's own continuations, prompts included, i64 [B, prompt + new_tokens]; temperature 0 is greedy."""
    # Every setting is given: the checkpoint's own sampling defaults and its <|eos|> must not leak in.
    return target.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=new_tokens,
        do_sample=temperature > 0,
        temperature=temperature or 1.0,
        top_k=0 if temperature > 0 else None,
        top_p=1.0,
        pad_token_id=PAD,
        eos_token_id=None,
    )


def prompts_of(tokens: torch.Tensor, batch: int, length: int, draws: torch.Generator) -> torch.Tensor:
    """Prompts as the engine sees them: <|bos|>, then consecutive tokens."""
    prompts = common.draw_windows(tokens, batch, length, draws)
    prompts[:, 0] = BOS
    return prompts


def train(args: argparse.Namespace) -> None:
    """`drafter.py train`."""
    target, device = common.set_up_target(args)
    tokens = common.load_tokens(args.corpus, "train").to(device)
    drafter = Drafter(tiny_config(target), target).to(device)
    texts = Texts(lambda draws: common.draw_windows(tokens, args.batch, args.window, draws), args.window, first=16)
    fit(drafter, target, texts, args, WARM_UP_STEPS, last_share=0.2)


def rollout(args: argparse.Namespace) -> None:
    """`drafter.py rollout`."""
    target, device = common.set_up_target(args)
    tokens = common.load_tokens(args.corpus, "train").to(device)
    log = Log(args.out.with_name(args.out.name + ".log.jsonl"))
    budget, texts = Budget(args.steps, args.seconds), []
    while budget.progress(len(texts)) < 1:
        prompts = prompts_of(tokens, args.batch, args.prompt, common.generator(args.seed, len(texts)))
        temperature = args.temperatures[len(texts) % len(args.temperatures)]
        texts.append(continue_texts(target, prompts, args.new_tokens, temperature).cpu().numpy().astype(np.uint16))
        log(batch=len(texts), texts=len(texts) * args.batch, temperature=temperature, seconds=budget.elapsed())
    with common.atomic_file(args.out) as path:
        np.savez_compressed(path, texts=np.concatenate(texts), prompt=args.prompt)


def tune(args: argparse.Namespace) -> None:
    """`drafter.py tune`."""
    target, device = common.set_up_target(args)
    drafter = load_drafter(args.init, target)
    with np.load(args.rollouts) as data:
        rollouts, prompt = torch.from_numpy(data["texts"].astype(np.int32)).to(device), int(data["prompt"])

    def draw(draws: torch.Generator) -> torch.Tensor:
        return rollouts[torch.randint(0, len(rollouts), (args.batch,), generator=draws).to(device)].long()

    texts = Texts(draw, rollouts.shape[1], first=max(1, prompt - drafter.block_size))
    fit(drafter, target, texts, args, warm_up=0, last_share=0.02)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)

    def command(run: Callable[[argparse.Namespace], None], steps: int, batch: int) -> argparse.ArgumentParser:
        sub = commands.add_parser(run.__name__)
        sub.set_defaults(run=run)
        sub.add_argument("--target", type=Path, required=True, help="unpacked checkpoint folder written by quantise.py")
        sub.add_argument("--out", type=Path, required=True, help="what to write")
        common.add_run_flags(sub, steps=steps, batch=batch)
        return sub

    def fit_flags(sub: argparse.ArgumentParser, lr: float, blocks: int) -> None:
        sub.add_argument("--lr", type=float, default=lr, help="peak learning rate (default %(default)s)")
        sub.add_argument("--blocks", type=common.positive, default=blocks, help="blocks a text (default %(default)s)")
        sub.add_argument(
            "--log-every", type=common.positive, default=100, help="steps between log lines (default %(default)s)"
        )

    sub = command(train, steps=6000, batch=48)
    fit_flags(sub, lr=2e-3, blocks=48)
    sub.add_argument("--corpus", type=Path, required=True, help="folder written by corpus.py")
    sub.add_argument("--window", type=common.positive, default=512, help="tokens a text (default %(default)s)")

    sub = command(rollout, steps=8, batch=1024)
    sub.add_argument("--corpus", type=Path, required=True, help="folder written by corpus.py")
    sub.add_argument("--prompt", type=common.positive, default=96, help="prompt tokens (default %(default)s)")
    sub.add_argument(
        "--new-tokens", type=common.positive, default=160, help="tokens the target adds (default %(default)s)"
    )
    sub.add_argument(
        "--temperatures",
        type=float,
        nargs="+",
        default=[0.0, 0.7],
        help="taken in turn, 0 is greedy (default %(default)s)",
    )

    sub = command(tune, steps=2200, batch=96)
    fit_flags(sub, lr=4e-4, blocks=24)
    sub.add_argument("--init", type=Path, required=True, help="drafter folder to start from")
    sub.add_argument("--rollouts", type=Path, required=True, help="file written by drafter.py rollout")

    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    run_tool(main)
