#!/usr/bin/env python3
"""What one would otherwise run for verify attention, timed: a Triton tree-verify kernel and unfused PyTorch.

Both compute what `coppice kernels attention` computes: heads x tree rows queries of 576 over a latent cache of context + tree
rows, whose first 512 elements are the values, with a tree mask on the last rows. Run it beside that command, on the same device.

* `triton`: in the style of today's engines' extend kernels: one program a (block of tree rows, head) walks the whole prefix
  serially, then the tree with its mask. The cache is one KV head shared by all heads, so nothing is split over the context.
* `torch`: scores = Q K^T through cuBLAS in bf16, masked softmax in f32, times V through cuBLAS.

Times are medians of replays of a graph of several calls whose caches take turns, six second-level caches in all. Each peer's
result is compared with float64 before it is timed.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys

import torch
import triton
import triton.language as tl

LATENT, ROPE = 512, 64
WIDTH = LATENT + ROPE
TOLERANCE = 1e-2


@triton.jit
def tree_verify(
    query, cache, mask, out, tree_rows, context, scale,
    HEADS: tl.constexpr, LATENT: tl.constexpr, ROPE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):
    """One block of ROWS tree rows of one head over all keys."""
    head, block = tl.program_id(0), tl.program_id(1)
    row = block * ROWS + tl.arange(0, ROWS)
    column, rope = tl.arange(0, LATENT), LATENT + tl.arange(0, ROPE)
    present = row[:, None] < tree_rows
    width = LATENT + ROPE
    start = query + (row[:, None] * HEADS + head) * width
    q = tl.load(start + column[None, :], mask=present, other=0.0)
    q_rope = tl.load(start + rope[None, :], mask=present, other=0.0)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, LATENT], tl.float32)
    for first in range(0, context, KEYS):
        key = first + tl.arange(0, KEYS)
        there = key < context
        at = cache + key.to(tl.int64)[:, None] * width
        k = tl.load(at + column[None, :], mask=there[:, None], other=0.0)
        k_rope = tl.load(at + rope[None, :], mask=there[:, None], other=0.0)
        scores = (tl.dot(q, tl.trans(k)) + tl.dot(q_rope, tl.trans(k_rope))) * scale
        scores = tl.where(there[None, :], scores, float("-inf"))
        new = tl.maximum(top, tl.max(scores, 1))
        factor = tl.exp(top - new)
        weights = tl.exp(scores - new[:, None])
        total = total * factor + tl.sum(weights, 1)
        sums = sums * factor[:, None] + tl.dot(weights.to(k.dtype), k)
        top = new
    for first in range(0, tree_rows, KEYS):
        node = first + tl.arange(0, KEYS)
        there = node < tree_rows
        at = cache + (context + node).to(tl.int64)[:, None] * width
        k = tl.load(at + column[None, :], mask=there[:, None], other=0.0)
        k_rope = tl.load(at + rope[None, :], mask=there[:, None], other=0.0)
        sees = tl.load(mask + row[:, None] * tree_rows + node[None, :], mask=present & there[None, :], other=0)
        scores = (tl.dot(q, tl.trans(k)) + tl.dot(q_rope, tl.trans(k_rope))) * scale
        scores = tl.where(sees != 0, scores, float("-inf"))
        new = tl.maximum(top, tl.max(scores, 1))
        # Rows beyond the last see nothing: without the test, -inf less -inf would be NaN.
        base = tl.where(new == float("-inf"), 0.0, new)
        factor = tl.exp(top - base)
        weights = tl.exp(scores - base[:, None])
        total = total * factor + tl.sum(weights, 1)
        sums = sums * factor[:, None] + tl.dot(weights.to(k.dtype), k)
        top = new
    to = out + (row[:, None] * HEADS + head) * LATENT + column[None, :]
    tl.store(to, (sums / total[:, None]).to(out.dtype.element_ty), mask=present)


def run_triton(query, cache, mask, out, context, scale, shape):
    tree_rows, heads, _ = query.shape
    rows, keys, warps, stages = shape
    grid = (heads, triton.cdiv(tree_rows, rows))
    tree_verify[grid](
        query, cache, mask, out, tree_rows, context, scale,
        HEADS=heads, LATENT=LATENT, ROPE=ROPE, ROWS=rows, KEYS=keys, num_warps=warps, num_stages=stages,
    )


def run_torch(query, cache, bias, out, scale):
    """`bias` is 0 or -inf [tree_rows, 1, context + tree_rows]."""
    tree_rows, heads, _ = query.shape
    scores = torch.matmul(query.view(-1, WIDTH), cache.t()).view(tree_rows, heads, -1)
    weights = torch.softmax(scores.float() * scale + bias, dim=-1).to(query.dtype)
    torch.matmul(weights.view(tree_rows * heads, -1), cache[:, :LATENT], out=out.view(-1, LATENT))


def tree_mask(tree_rows: int, generator: torch.Generator) -> torch.Tensor:
    """What each node of a random tree sees: its ancestors and itself."""
    sees = torch.eye(tree_rows, dtype=torch.int8)
    for node in range(1, tree_rows):
        parent = int(torch.randint(node, (1,), generator=generator))
        sees[node] |= sees[parent]
    return sees


def error(out, query, cache, mask, context, scale) -> float:
    """Largest relative error of the first and last rows, against float64."""
    worst, tree_rows = 0.0, query.shape[0]
    for row in sorted({0, tree_rows - 1}):
        sees = torch.cat([torch.ones(context, dtype=torch.bool, device="cuda"), mask[row] != 0])
        keys = cache[: context + tree_rows][sees].double()
        weights = torch.softmax(query[row].double() @ keys.t() * scale, dim=-1)
        expected = weights @ keys[:, :LATENT]
        worst = max(worst, float((out[row].double() - expected).norm() / expected.norm()))
    return worst


def time(call, sets: int, calls: int) -> float:
    """Median seconds of a call over replays of a graph of `calls`."""
    calls = -(-calls // sets) * sets
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        call(0)
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        for i in range(calls):
            call(i % sets)
    graph.replay()
    taken = []
    for _ in range(5):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        taken.append(start.elapsed_time(end) * 1e-3 / calls)
    return statistics.median(taken)


def measure(heads: int, tree_rows: int, context: int, seed: int):
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    keys = context + tree_rows
    cached = torch.cuda.get_device_properties(0).L2_cache_size
    sets = max(1, min(64, -(-6 * cached // (keys * WIDTH * 2))))
    caches = [torch.randn(keys, WIDTH, dtype=torch.bfloat16, device="cuda") for _ in range(sets)]
    query = torch.randn(tree_rows, heads, WIDTH, dtype=torch.bfloat16, device="cuda")
    mask = tree_mask(tree_rows, generator).cuda()
    out = torch.full((tree_rows, heads, LATENT), float("nan"), dtype=torch.bfloat16, device="cuda")
    scale = WIDTH**-0.5
    bias = torch.zeros(tree_rows, 1, keys, device="cuda")
    bias[:, 0, context:].masked_fill_(mask == 0, float("-inf"))
    shapes = [(16, 32, 4, 2), (16, 64, 8, 2), (16, 32, 8, 3)]
    if tree_rows > 16:
        shapes += [(32, 32, 8, 2), (64, 32, 8, 2)]
    triton_calls = [(f"triton {s}", lambda i, s=s: run_triton(query, caches[i], mask, out, context, scale, s)) for s in shapes]
    best, name_of_best, wrong = float("inf"), "", 0.0
    for name, call in triton_calls:
        try:
            out.fill_(float("nan"))
            call(0)
            found = error(out, query, caches[0], mask, context, scale)
            if not found <= TOLERANCE:
                sys.exit(f"wrong results of {name} at {heads} heads, {tree_rows} rows, context {context}: {found:.1e}")
            seconds = time(call, sets, 1)
        except triton.runtime.errors.OutOfResources:
            continue
        if seconds < best:
            best, name_of_best, wrong = seconds, name, found
    yield "triton", name_of_best, best, wrong
    # Scores in bf16 and f32, weights: 14 bytes a score at the worst.
    if 14 * heads * tree_rows * keys > 0.6 * torch.cuda.mem_get_info()[0]:
        return
    out.fill_(float("nan"))
    run_torch(query, caches[0], bias, out, scale)
    found = error(out, query, caches[0], mask, context, scale)
    yield "torch", "unfused", time(lambda i: run_torch(query, caches[i], bias, out, scale), sets, 1), found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = lambda text: [int(part) for part in text.split(",")]  # noqa: E731
    parser.add_argument("--heads", type=numbers, default=[8, 64])
    parser.add_argument("--tree-rows", type=numbers, default=[1, 16, 64])
    parser.add_argument("--context", type=numbers, default=[1024, 16384, 65536])
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("error: PyTorch finds no CUDA device; run this where `coppice kernels attention` runs")
    print(f"# {torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}", file=sys.stderr)
    table = csv.writer(sys.stdout)
    table.writerow(["heads", "tree_rows", "context", "peer", "variant", "us", "error"])
    for context in args.context:
        for heads in args.heads:
            for tree_rows in args.tree_rows:
                for peer, variant, seconds, found in measure(heads, tree_rows, context, args.seed):
                    table.writerow([heads, tree_rows, context, peer, variant, f"{seconds * 1e6:.2f}", f"{found:.1e}"])
                    sys.stdout.flush()
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
