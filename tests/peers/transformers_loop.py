"""Greedy generation by Hugging Face transformers in f32 from token ids, timed. A worker with the protocol of
`llama_loop.cpp`: `transformers_loop.py MODEL THREADS`, lines `COUNT ID ID ...` in, `FIRST_TOKEN_US TOTAL_US ID ID ...` out.

The loop is written out because `generate` does more than is wanted here and is slower.
"""

from __future__ import annotations

import sys
import time

import torch
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.utils import logging


@torch.inference_mode()
def answer(model: torch.nn.Module, count: int, prompt: list[int]) -> tuple[float, float, list[int]]:
    """Seconds to the first token, seconds to the last, the tokens."""
    cache = DynamicCache(config=model.config)
    ids: list[int] = []
    feed = torch.tensor([prompt])
    start = time.perf_counter()
    first = 0.0
    while len(ids) < count:
        logits = model(feed, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        ids.append(int(logits[0, -1].argmax()))
        feed = torch.tensor([ids[-1:]])
        first = first or time.perf_counter() - start
    return first, time.perf_counter() - start, ids


def main() -> None:
    folder, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for line in sys.stdin:
        count, *prompt = map(int, line.split())
        first, total, ids = answer(model, count, prompt)
        print(round(first * 1e6), round(total * 1e6), *ids, flush=True)


if __name__ == "__main__":
    main()
