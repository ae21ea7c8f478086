"""Measures a drafter: tokens committed a round by the chain of likeliest tokens and by DDTree, on held-out prompts.

The target continues held-out prompts, greedily and by sampling. Rounds are then replayed over each text: with exact
verification the text is the same drafted or not, so a round commits the longest drafted prefix that the text goes on
with, and the bonus token. The report goes to standard output as JSON.
"""

from __future__ import annotations

import argparse
import heapq
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel

import common
from common import run_tool
from drafter import Drafter, continue_texts, draft_logits, load_drafter, prompts_of, run_target


@dataclass(frozen=True)
class Node:
    """A tree node: nodes count from 1, parent 0 is the root; `rank` 0 is the likeliest token of its depth."""

    parent: int
    depth: int
    rank: int


def build_tree(log_probs: list[list[float]], budget: int) -> list[Node]:
    """The `budget` most probable prefixes of independent marginals `log_probs` [depth][rank], each descending.

    Best-first: popping a node offers its next sibling and its first child. Order: score descending, depth, rank,
    parent. The first n nodes are the tree of budget n.
    """
    nodes: list[Node] = []
    scores = [0.0]
    heap = [(-log_probs[0][0], 1, 0, 0)]
    while heap and len(nodes) < budget:
        negative, depth, rank, parent = heapq.heappop(heap)
        nodes.append(Node(parent, depth, rank))
        scores.append(-negative)
        if rank + 1 < len(log_probs[depth - 1]):
            heapq.heappush(heap, (-(scores[parent] + log_probs[depth - 1][rank + 1]), depth, rank + 1, parent))
        if depth < len(log_probs):
            heapq.heappush(heap, (-(scores[-1] + log_probs[depth][0]), depth + 1, 0, len(nodes)))
    return nodes


def accepted(tree: list[Node], ranks: list[int]) -> int:
    """How many tokens the text shares with the tree; `ranks[d]` ranks its token at depth d + 1, -1 if unranked."""
    children = {(node.parent, node.rank): i for i, node in enumerate(tree, 1)}
    at = depth = 0
    while depth < len(ranks) and (child := children.get((at, ranks[depth]))) is not None:
        at, depth = child, depth + 1
    return depth


def replay(accepted_at: list[int], first: int, length: int) -> list[int]:
    """Tokens committed by each round over a text of `length`; a round at root `first + i` accepts `accepted_at[i]`.

    A last round that would pass the end is left out.
    """
    committed, root = [], first
    while root - first < len(accepted_at) and root + (step := accepted_at[root - first] + 1) < length:
        committed.append(step)
        root += step
    return committed


@torch.no_grad()
def ranked(
    drafter: Drafter, target: PreTrainedModel, ids: torch.Tensor, first: int, width: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """For blocks at every root from `first`: the `width` largest log-probabilities [B, A, block - 1, width], and the
    rank of the text's token among them, -1 if outside, [B, A, block - 1]."""
    block = drafter.block_size
    roots = torch.arange(first, ids.shape[1] - block + 1, device=ids.device).expand(len(ids), -1)
    features, _ = run_target(target, ids, drafter.taps)
    log_probs, tokens = draft_logits(drafter, target, ids, features, roots)[:, :, 1:].log_softmax(-1).topk(width, -1)
    text = ids.unfold(1, block, 1)[:, first:, 1:]
    hit = tokens == text[..., None]
    ranks = torch.where(hit.any(-1), hit.int().argmax(-1), -1)
    return log_probs.cpu(), ranks.cpu()


def measure(
    drafter: Drafter, target: PreTrainedModel, ids: torch.Tensor, first: int, budgets: list[int], batch: int
) -> dict:
    """Mean tokens a round by chain and by tree budget, and the chain's share of rounds accepted down to each depth."""
    depths, largest = drafter.block_size - 1, max(budgets)
    rounds: dict[str, list[int]] = {"chain": [], **{str(b): [] for b in budgets}}
    for part in ids.split(batch):
        log_probs, ranks = ranked(drafter, target, part, first, largest)
        for text_log_probs, text_ranks in zip(log_probs, ranks.tolist(), strict=True):
            trees = [build_tree(marginals, largest) for marginals in text_log_probs.tolist()]
            chain = [next((d for d, rank in enumerate(row) if rank), depths) for row in text_ranks]
            rounds["chain"] += replay(chain, first, part.shape[1])
            for budget in budgets:
                counts = [accepted(tree[:budget], row) for tree, row in zip(trees, text_ranks, strict=True)]
                rounds[str(budget)] += replay(counts, first, part.shape[1])
    chain = rounds["chain"]
    return {
        "rounds": len(chain),
        "tau_chain": mean(chain),
        "accept_rate_uncond": [mean([committed > d for committed in chain]) for d in range(1, depths + 1)],
        "tau_tree": {budget: mean(rounds[str(budget)]) for budget in budgets},
    }


def mean(values: list) -> float:
    """The mean, to four digits."""
    return round(sum(values) / max(1, len(values)), 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True, help="unpacked checkpoint folder written by quantise.py")
    parser.add_argument("--draft", type=Path, required=True, help="drafter folder written by drafter.py")
    parser.add_argument(
        "--corpus", type=Path, required=True, help="folder written by corpus.py; its validation split is used"
    )
    parser.add_argument("--texts", type=common.positive, default=256, help="held-out prompts (default %(default)s)")
    parser.add_argument("--prompt", type=common.positive, default=96, help="prompt tokens (default %(default)s)")
    parser.add_argument(
        "--new-tokens", type=common.positive, default=160, help="tokens the target adds (default %(default)s)"
    )
    parser.add_argument(
        "--temperatures", type=float, nargs="+", default=[0.0, 0.8], help="0 is greedy (default %(default)s)"
    )
    parser.add_argument(
        "--budgets", type=common.positive, nargs="+", default=[8, 16, 32, 64], help="tree nodes (default %(default)s)"
    )
    parser.add_argument(
        "--batch", type=common.positive, default=8, help="texts drafted at a time (default %(default)s)"
    )
    common.add_device_flags(parser)
    args = parser.parse_args()

    target, device = common.set_up_target(args)
    drafter = load_drafter(args.draft, target).eval()
    tokens = common.load_tokens(args.corpus, "validation").to(device)
    report = {}
    for temperature in args.temperatures:
        prompts = prompts_of(tokens, args.texts, args.prompt, common.generator(args.seed, 0))
        ids = continue_texts(target, prompts, args.new_tokens, temperature)
        report[f"temperature {temperature}"] = measure(drafter, target, ids, args.prompt, args.budgets, args.batch)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    run_tool(main)
