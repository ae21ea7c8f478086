"""Quantises the routed experts to int4, groups of 32, as compressed-tensors' `pack-quantized` stores them.

Layout per matrix [O, I]: `weight_packed` i32 [O, I/8], nibble i (low first) of word j is column 8j + i, stored as
value + 8; `weight_scale` bf16 [O, I/32]; `weight_shape` i64 [O, I]. Everything else is copied as it is.

--out gets the packed checkpoint, --unpacked one of the same values with experts in f32, which transformers loads as any
other: what drafter.py trains against. The error of each kind of matrix and, with --corpus, the validation loss before
and after go to standard error and `OUT.report.json`.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections import defaultdict
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import common
from common import ToolError, run_tool, write_json

GROUP = 32
EXPERT = re.compile(r"\.mlp\.experts\.\d+\.(gate|up|down)_proj\.weight$")
# The largest magnitude of a group maps to 7 times one of these shares of itself: clipping a little often costs less.
CLIPS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75)
QUANTIZATION_CONFIG = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "quantization_status": "compressed",
    "kv_cache_scheme": None,
    "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                "num_bits": 4,
                "type": "int",
                "symmetric": True,
                "strategy": "group",
                "group_size": GROUP,
                "dynamic": False,
                "actorder": None,
                "observer": "minmax",
            },
            "input_activations": None,
            "output_activations": None,
        }
    },
}


def quantise(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Integers i8 [O, I] in -7..7 and scales bf16 [O, I/32]; each group takes the clip of least squared error."""
    rows, columns = weight.shape
    groups = weight.float().view(rows, columns // GROUP, GROUP)
    largest = groups.abs().amax(-1, keepdim=True).clamp(min=1e-8)
    best_error = torch.full_like(largest, float("inf"))
    best_scale, best = torch.empty_like(largest), torch.empty_like(groups)
    for clip in CLIPS:
        scale = (largest * clip / 7).to(torch.bfloat16).float()
        integers = (groups / scale).round().clamp(-7, 7)
        error = (integers * scale - groups).square().sum(-1, keepdim=True)
        better = error < best_error
        best_error = torch.where(better, error, best_error)
        best_scale = torch.where(better, scale, best_scale)
        best = torch.where(better, integers, best)
    return best.view(rows, columns).to(torch.int8), best_scale.squeeze(-1).to(torch.bfloat16)


def pack(integers: torch.Tensor) -> torch.Tensor:
    """i8 [O, I] in -8..7 to i32 [O, I/8], low nibble first."""
    nibbles = (integers.to(torch.int64) + 8).view(integers.shape[0], -1, 8)
    words = (nibbles << (4 * torch.arange(8))).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def unpack(words: torch.Tensor) -> torch.Tensor:
    """The inverse of `pack`."""
    nibbles = (words.to(torch.int64)[..., None] >> (4 * torch.arange(8))) & 15
    return (nibbles - 8).flatten(1).to(torch.int8)


def dequantise(integers: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """f32 [O, I]: each integer times its group's scale."""
    return integers.float() * scale.float().repeat_interleave(GROUP, dim=1)


def convert(weights: dict[str, torch.Tensor]) -> tuple[dict, dict, dict[str, list[float]]]:
    """Packed tensors, unpacked tensors, and the relative error of every expert matrix by kind (gate, up, down)."""
    packed, unpacked, errors = {}, {}, defaultdict(list)
    for name, weight in weights.items():
        expert = EXPERT.search(name)
        if expert is None:
            packed[name] = unpacked[name] = weight
            continue
        if weight.shape[1] % GROUP:
            raise ToolError(f"tensor {name} has shape {list(weight.shape)}, expected a row length that {GROUP} divides")
        integers, scale = quantise(weight)
        words = pack(integers)
        value = dequantise(unpack(words), scale)
        errors[expert[1]].append(((value - weight.float()).norm() / weight.float().norm()).item())
        stem = name.removesuffix("weight")
        packed[stem + "weight_packed"] = words
        packed[stem + "weight_scale"] = scale
        packed[stem + "weight_shape"] = torch.tensor(list(weight.shape), dtype=torch.int64)
        unpacked[name] = value
    if not errors:
        raise ToolError(
            "the checkpoint has no tensor model.layers.N.mlp.experts.N.{gate,up,down}_proj.weight: nothing to quantise"
        )
    return packed, unpacked, errors


def write_checkpoint(source: Path, out: Path, tensors: dict[str, torch.Tensor], config: dict) -> None:
    """A checkpoint folder with these tensors, this config and the other files of `source`."""
    with common.atomic_dir(out) as folder:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        write_json(folder / "config.json", config)
        for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
            shutil.copy(source / name, folder / name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True, help="checkpoint folder written by target.py")
    parser.add_argument("--out", type=Path, required=True, help="packed checkpoint folder to write")
    parser.add_argument(
        "--unpacked", type=Path, required=True, help="folder for the checkpoint of the same values, unpacked"
    )
    parser.add_argument(
        "--corpus", type=Path, help="folder written by corpus.py: report the validation loss before and after"
    )
    parser.add_argument(
        "--window", type=common.positive, default=1024, help="tokens a validation window (default %(default)s)"
    )
    parser.add_argument(
        "--validation-windows", type=common.positive, help="validate on so many windows only (default: all)"
    )
    parser.add_argument(
        "--batch", type=common.positive, default=16, help="validation windows at a time (default %(default)s)"
    )
    common.add_device_flags(parser)
    args = parser.parse_args()
    device = common.set_up(args.seed, args.device)

    source = args.target / "model.safetensors"
    if not source.exists():
        raise ToolError(f"--target {args.target}: no model.safetensors; give a single-file checkpoint")
    config = common.read_json(args.target / "config.json")
    packed, unpacked, errors = convert(load_file(source))
    write_checkpoint(args.target, args.out, packed, config | {"quantization_config": QUANTIZATION_CONFIG})
    write_checkpoint(args.target, args.unpacked, unpacked, config)

    report: dict = {
        "bytes": {"before": source.stat().st_size, "after": (args.out / "model.safetensors").stat().st_size}
    }
    report["relative_error"] = {kind: {"mean": sum(e) / len(e), "max": max(e)} for kind, e in errors.items()}
    if args.corpus is not None:
        held_out = common.load_tokens(args.corpus, "validation")
        report["validation_loss"] = {}
        for name, folder in (("before", args.target), ("after", args.unpacked)):
            model = common.load_target(folder, device, torch.float32)
            report["validation_loss"][name] = common.validation_loss(
                model, held_out, args.window, args.batch, args.validation_windows
            )
    with common.atomic_file(args.out.with_name(args.out.name + ".report.json")) as path:
        write_json(path, report)
    for name, value in report.items():
        print(name, value, file=sys.stderr)


if __name__ == "__main__":
    run_tool(main)
