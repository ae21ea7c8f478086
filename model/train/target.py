"""Trains the target: a small DeepSeek-V3-architecture model (MLA, mixture of experts) on the token file of corpus.py.

Experts are balanced without an auxiliary loss: after each step the router's selection bias moves by a fixed amount
against each expert's load (DeepSeek-V3, section 2.1.2).

Writes into --out a bf16 checkpoint that transformers and coppice load, tokenizer included; beside it `OUT.log.jsonl`
and, until the run ends, `OUT.state.pt`, from which --resume goes on.
"""

from __future__ import annotations

import argparse
import math
import shutil
from pathlib import Path

import torch
from torch import nn
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

import common
from common import BOS, EOS, PAD, Budget, Log, ToolError, run_tool, write_json

WARM_UP_STEPS = 100
GRADIENT_NORM = 1.0
BIAS_STEP = 1e-3
GENERATION = {
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "pad_token_id": PAD,
    "do_sample": True,
    "temperature": 0.7,
    "top_p": 0.95,
}


def tiny_config(vocabulary: int, **overrides: object) -> DeepseekV3Config:
    """The shape of model/tiny: 17M parameters, true latent and rope widths, no multi-token-prediction layer."""
    shape = dict(
        vocab_size=vocabulary,
        hidden_size=256,
        intermediate_size=768,
        moe_intermediate_size=160,
        num_hidden_layers=6,
        first_k_dense_replace=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=192,
        kv_lora_rank=512,
        qk_nope_head_dim=64,
        qk_rope_head_dim=64,
        v_head_dim=64,
        n_routed_experts=16,
        n_shared_experts=1,
        num_experts_per_tok=4,
        n_group=1,
        topk_group=1,
        norm_topk_prob=True,
        routed_scaling_factor=1.0,
        max_position_embeddings=2048,
        rope_theta=10000.0,
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=PAD,
        num_mtp_layers=0,
    )
    return DeepseekV3Config(**(shape | overrides))


def initialise(model: DeepseekV3ForCausalLM) -> None:
    """Normal 0.02; matrices that write to the residual stream are scaled down by the square root of their number."""
    residual = 0.02 / math.sqrt(2 * model.config.num_hidden_layers)
    for name, parameter in model.named_parameters():
        if parameter.dim() >= 2:
            writes_residual = "o_proj" in name or "down_proj" in name
            nn.init.normal_(parameter, 0.0, residual if writes_residual else 0.02)


def optimiser(model: nn.Module, device: torch.device) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only; the learning rate is set each step."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=device.type == "cuda")


def learning_rate(peak: float, step: int, progress: float) -> float:
    """Linear warm-up, constant until half of the run, then linear down to 2% of the peak."""
    return peak * min(1.0, (step + 1) / WARM_UP_STEPS) * min(1.0, max(0.02, 2 * (1 - progress)))


class Balancer:
    """Counts the tokens each expert gets in the forward pass and moves the router's selection bias against it."""

    def __init__(self, model: DeepseekV3ForCausalLM) -> None:
        self._routers = [layer.mlp.gate for layer in model.model.layers if hasattr(layer.mlp, "gate")]
        self._loads: list[torch.Tensor] = [torch.empty(0)] * len(self._routers)
        for i, router in enumerate(self._routers):
            router.register_forward_hook(lambda module, _, output, i=i: self._count(i, module.num_experts, output[2]))

    def _count(self, i: int, experts: int, chosen: torch.Tensor) -> None:
        self._loads[i] = torch.bincount(chosen.flatten(), minlength=experts).float()

    @torch.no_grad()
    def step(self, amount: float) -> None:
        """Raises the bias of experts under the mean load by `amount` and lowers that of those above it."""
        for router, load in zip(self._routers, self._loads, strict=True):
            router.e_score_correction_bias += amount * torch.sign(load.mean() - load)

    def imbalance(self) -> float:
        """The largest load over the mean load, of the worst layer."""
        return max((load.max() / load.mean()).item() for load in self._loads)


def save_checkpoint(model: DeepseekV3ForCausalLM, corpus: Path, out: Path) -> None:
    """Writes bf16 weights (selection biases stay f32), config, generation defaults and the tokenizer."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    model.config.dtype = torch.bfloat16
    with common.atomic_dir(out) as folder:
        model.save_pretrained(folder)
        write_json(folder / "generation_config.json", GENERATION)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(corpus / name, folder / name)


def train(args: argparse.Namespace) -> None:
    """Trains to the end of the budget and writes the checkpoint."""
    device = common.set_up(args.seed, args.device)
    tokens = common.load_tokens(args.corpus, "train").to(device)
    held_out = common.load_tokens(args.corpus, "validation").to(device)
    vocabulary = len(common.read_json(args.corpus / "tokenizer.json")["model"]["vocab"])

    model = DeepseekV3ForCausalLM(tiny_config(vocabulary)).float()
    initialise(model)
    model.to(device)
    common.use_fast_experts(model)
    adam = optimiser(model, device)
    balancer = Balancer(model)

    state_path = args.out.with_name(args.out.name + ".state.pt")
    step, spent = 0, 0.0
    if args.resume:
        if not state_path.exists():
            raise ToolError(f"--resume: there is no {state_path}; start without --resume")
        state = torch.load(state_path, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        adam.load_state_dict(state["adam"])
        step, spent = state["step"], state["seconds"]

    log = Log(args.out.with_name(args.out.name + ".log.jsonl"), append=args.resume)
    count = sum(p.numel() for p in model.parameters())
    log(
        parameters=count,
        train_tokens=len(tokens),
        batch=args.batch,
        window=args.window,
        device=device.type,
        seed=args.seed,
    )

    def validate() -> None:
        model.eval()
        with common.half_precision(device):
            loss = common.validation_loss(model, held_out, args.window, args.batch, args.validation_windows)
        log(step=step, tokens=step * args.batch * args.window, seconds=budget.elapsed(), validation_loss=loss)
        model.train()

    budget = Budget(args.steps, args.seconds, spent)
    saved = budget.elapsed()
    model.train()
    while (progress := budget.progress(step)) < 1:
        for group in adam.param_groups:
            group["lr"] = learning_rate(args.lr, step, progress)
        windows = common.draw_windows(tokens, args.batch, args.window + 1, common.generator(args.seed, step))
        with common.half_precision(device):
            loss = common.next_token_loss(model, windows)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), GRADIENT_NORM)
        adam.step()
        adam.zero_grad(set_to_none=True)
        balancer.step(BIAS_STEP * (1 - progress))
        step += 1
        if step <= 3 or step % args.log_every == 0:
            seen = step * args.batch * args.window
            log(
                step=step,
                tokens=seen,
                seconds=budget.elapsed(),
                loss=loss.item(),
                lr=adam.param_groups[0]["lr"],
                imbalance=balancer.imbalance(),
            )
        if step % args.validate_every == 0:
            validate()
        if budget.elapsed() - saved > args.save_seconds:
            with common.atomic_file(state_path) as path:
                torch.save(
                    {"model": model.state_dict(), "adam": adam.state_dict(), "step": step, "seconds": budget.elapsed()},
                    path,
                )
            saved = budget.elapsed()
    validate()
    save_checkpoint(model, args.corpus, args.out)
    state_path.unlink(missing_ok=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True, help="folder written by corpus.py")
    parser.add_argument("--out", type=Path, required=True, help="checkpoint folder to write")
    common.add_run_flags(parser, steps=3050, batch=64)
    parser.add_argument("--window", type=common.positive, default=1024, help="tokens a sequence (default %(default)s)")
    parser.add_argument("--lr", type=float, default=3e-3, help="peak learning rate (default %(default)s)")
    parser.add_argument(
        "--validation-windows", type=common.positive, help="validate on so many windows only (default: all)"
    )
    parser.add_argument(
        "--validate-every", type=common.positive, default=500, help="steps between validations (default %(default)s)"
    )
    parser.add_argument(
        "--log-every", type=common.positive, default=50, help="steps between log lines (default %(default)s)"
    )
    parser.add_argument(
        "--save-seconds", type=float, default=300.0, help="seconds between resumable states (default %(default)s)"
    )
    parser.add_argument("--resume", action="store_true", help="go on from OUT.state.pt")
    train(parser.parse_args())


if __name__ == "__main__":
    run_tool(main)
