"""What every tool here shares: special tokens, errors, budget, log, atomic output, token windows, the loaded target."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

SPECIAL_TOKENS = ("<|bos|>", "<|eos|>", "<|mask|>", "<|pad|>")
BOS, EOS, MASK, PAD = range(4)

transformers_logging.disable_progress_bar()  # progress is told by `Log`


class ToolError(Exception):
    """Bad input or a bad flag; the message says what was found, what was expected and what to do."""


def run_tool(main: Callable[[], None]) -> None:
    """Runs a tool's `main`: a `ToolError` or a missing file becomes one line on standard error and exit code 1."""
    try:
        main()
    except (ToolError, OSError) as error:
        sys.exit(f"error: {error}")


def add_run_flags(parser: argparse.ArgumentParser, *, steps: int, batch: int) -> None:
    """Adds the flags that every training run takes."""
    parser.add_argument("--steps", type=positive, default=steps, help="optimiser steps (default %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="end sooner, after this many seconds of training"
    )
    parser.add_argument("--batch", type=positive, default=batch, help="sequences a step (default %(default)s)")
    add_device_flags(parser)


def add_device_flags(parser: argparse.ArgumentParser) -> None:
    """Adds `--seed` and `--device`."""
    parser.add_argument("--seed", type=int, default=0, help="seed of every random draw (default %(default)s)")
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:N, or auto: cuda where there is one")


def positive(text: str) -> int:
    """An integer of at least 1, for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return value


def set_up(seed: int, device: str) -> torch.device:
    """Seeds torch, allows TF32 matrix products and resolves `auto`."""
    torch.manual_seed(seed)
    torch.set_float32_matmul_precision("high")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ToolError(f"--device {device}: torch sees no CUDA device; pass --device cpu")
    return torch.device(device)


def half_precision(device: torch.device) -> contextlib.AbstractContextManager:
    """bf16 autocast on a GPU; f32 on a CPU, where bf16 products are slow."""
    if device.type == "cuda":
        return torch.autocast("cuda", torch.bfloat16)
    return contextlib.nullcontext()


def generator(seed: int, step: int) -> torch.Generator:
    """A CPU generator that depends on (seed, step) only, so that a resumed run draws what an unbroken one draws."""
    return torch.Generator().manual_seed(seed * 1_000_003 + step)


class Budget:
    """How far a run is that ends after `steps` steps or `seconds` seconds, whichever comes first."""

    def __init__(self, steps: int, seconds: float, spent: float = 0.0) -> None:
        self.steps, self.seconds = steps, seconds
        self._start = time.monotonic() - spent

    def elapsed(self) -> float:
        """Seconds of training so far, those before a resume included."""
        return time.monotonic() - self._start

    def progress(self, step: int) -> float:
        """The share done, at least 1 when the run is over."""
        return max(step / self.steps, self.elapsed() / self.seconds)


class Log:
    """Appends one JSON object a line to `path` and shows the same on standard error."""

    def __init__(self, path: Path, *, append: bool = False) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a" if append else "w", encoding="utf-8")

    def __call__(self, **record: object) -> None:
        record = {k: round(v, 5) if isinstance(v, float) else v for k, v in record.items()}
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()
        print("  ".join(f"{k} {v}" for k, v in record.items()), file=sys.stderr, flush=True)


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yields a temporary sibling of `path` (same suffix) and renames it into place if the body succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}.partial{path.suffix}")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_dir(path: Path) -> Iterator[Path]:
    """Yields an empty temporary sibling of the folder `path` and puts it in its place if the body succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary, old = (path.with_name(f".{path.name}.{word}") for word in ("partial", "old"))
    for stale in (temporary, old):
        shutil.rmtree(stale, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        if path.exists():
            path.replace(old)
        temporary.replace(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def write_json(path: Path, value: object) -> None:
    """Writes indented JSON with a final newline."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def read_json(path: Path) -> dict:
    """Reads a JSON object."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ToolError(f"{path} is not JSON: {error}") from error


def load_tokens(corpus: Path, split: str) -> torch.Tensor:
    """The split `train` or `validation` of a corpus folder: one run of ids, i32 [tokens]."""
    path = corpus / "tokens.npz"
    try:
        with np.load(path) as data:
            return torch.from_numpy(data[split].astype(np.int32))
    except (OSError, KeyError, ValueError) as error:
        raise ToolError(f"{path}: no token split {split!r} ({error}); make the folder with corpus.py") from error


def draw_windows(tokens: torch.Tensor, batch: int, length: int, draws: torch.Generator) -> torch.Tensor:
    """`batch` windows of `length` consecutive tokens at random places, i64 [batch, length], where `tokens` is."""
    if len(tokens) < length:
        raise ToolError(
            f"the split has {len(tokens)} tokens, a window takes {length}; use a larger corpus or a shorter window"
        )
    starts = torch.randint(0, len(tokens) - length + 1, (batch,), generator=draws).to(tokens.device)
    return tokens[starts[:, None] + torch.arange(length, device=tokens.device)].long()


def next_token_loss(model: PreTrainedModel, windows: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy in nats of each next token; `windows` is i64 [batch, length + 1]."""
    hidden = model.model(input_ids=windows[:, :-1], use_cache=False).last_hidden_state
    logits = model.lm_head(hidden).float()
    return F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


@torch.no_grad()
def validation_loss(
    model: PreTrainedModel, tokens: torch.Tensor, length: int, batch: int, limit: int | None = None
) -> float:
    """Mean loss over consecutive windows of `length` predictions that cover `tokens` (all, or the first `limit`)."""
    count = min((len(tokens) - 1) // length, limit or len(tokens))
    if count < 1:
        raise ToolError(f"the validation split has {len(tokens)} tokens, a window takes {length + 1}")
    windows = tokens[: count * length + 1].unfold(0, length + 1, length)
    total = 0.0
    for part in windows.split(batch):
        total += next_token_loss(model, part.to(model.device).long()).item() * len(part)
    return total / count


def use_fast_experts(model: PreTrainedModel) -> None:
    """Grouped expert products on a GPU (bf16 only); the plain loop over experts elsewhere."""
    model.set_experts_implementation("grouped_mm" if model.device.type == "cuda" else "eager")


def load_target(path: Path, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """A frozen target from an unquantised checkpoint folder."""
    config = read_json(path / "config.json")
    if "quantization_config" in config:
        raise ToolError(f"{path} is quantised; pass the folder that quantise.py wrote to --unpacked")
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype).to(device).eval()
    if dtype == torch.bfloat16:
        use_fast_experts(model)
    return model.requires_grad_(False)


def set_up_target(args: argparse.Namespace) -> tuple[PreTrainedModel, torch.device]:
    """The target of `--target` on `--device`, bf16 on a GPU and f32 on a CPU."""
    device = set_up(args.seed, args.device)
    return load_target(args.target, device, torch.bfloat16 if device.type == "cuda" else torch.float32), device
