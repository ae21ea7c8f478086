#!/usr/bin/env python3
"""Coppice against llama.cpp and Hugging Face transformers on the CPU: one run, one table of ratios.

Every round takes each prompt through every system in turn, so that whatever else the machine does falls on all alike. All
systems get the same token ids, number of tokens and threads, and ignore end-of-text. A figure is the median over rounds of
tokens a second after the first token, all prompts together. A peer's time counts only if it generates Coppice's greedy
ids, or departs from them where Coppice's two largest logits are closer than --gap.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tarfile
from dataclasses import dataclass, field
from pathlib import Path

from safetensors.numpy import load_file
from tokenizers import Tokenizer

import convert

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# The plain arm must come first: its ids are what the others are compared with.
MODES = {
    "plain": ["--spec", "none"],
    "default": [],
    "ddtree 8": ["--spec", "ddtree", "--tree-budget", "8"],
    "ngram": ["--spec", "ngram"],
}
COUNTED, ORIENTATION = "counted", "orientation"


def check_call(*command: str | Path) -> None:
    """Runs a command whose output only matters when it fails."""
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"error: {' '.join(map(str, command))} failed\n{done.stdout}")


@dataclass
class Answer:
    """One generation: tokens, seconds to the first of them, seconds to the last."""

    ids: list[int]
    first: float
    total: float


@dataclass
class System:
    """One line of the table."""

    name: str
    weights: str
    status: str = COUNTED
    note: str = ""
    rounds: list[float] = field(default_factory=list)
    prefill: list[float] = field(default_factory=list)

    def answer(self, prompt: list[int], count: int) -> Answer:
        """Generates `count` tokens."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends what was started."""


class Coppice(System):
    """The binary, a process a generation; its own clock leaves the start out."""

    def __init__(self, binary: Path, name: str, flags: list[str], args: argparse.Namespace):
        super().__init__(f"coppice {name}", "int4+bf16")
        self.tokens = args.work / "tokens.json"
        self.command = [str(binary), "generate", "--json", "--ignore-eos", "--threads", str(args.threads), *flags]
        self.command += ["--tokens", str(self.tokens)]

    def answer(self, prompt: list[int], count: int) -> Answer:
        self.tokens.write_text(json.dumps(prompt))
        done = subprocess.run([*self.command, "-n", str(count)], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"error: {' '.join(self.command)}: {done.stderr}")
        report = json.loads(done.stdout)
        first, each = report["timings"]["ttft_ms"] / 1e3, report["timings"]["tpot_ms"] / 1e3
        ids = report["token_ids"]
        return Answer(ids, first, first + each * (len(ids) - 1))


class Worker(System):
    """A process that is asked by lines; see `llama_loop.cpp` for the protocol."""

    def __init__(self, name: str, weights: str, command: list[str | Path], threads: int):
        super().__init__(name, weights)
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
        self.process = subprocess.Popen(
            list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def answer(self, prompt: list[int], count: int) -> Answer:
        self.process.stdin.write(" ".join(map(str, [count, *prompt])) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"error: {self.name} {self.weights} ended with {self.process.wait()}")
        first, total, *ids = map(int, line.split())
        return Answer(ids, first / 1e6, total / 1e6)

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def build_llama(args: argparse.Namespace) -> Path:
    """The decode loop over llama.cpp, built in the work folder unless it is there."""
    binary = args.work / "build" / "llama_loop"
    source = args.llama_source or args.work / "llama_cpp_python"
    if not source.is_dir():
        check_call(
            *(sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", "llama-cpp-python"),
            *("--dest", args.work, f"llama-cpp-python=={args.llama_version}"),
        )
        archive = args.work / f"llama_cpp_python-{args.llama_version}.tar.gz"
        with tarfile.open(archive) as packed:
            packed.extractall(args.work, filter="data")
        (args.work / archive.name.removesuffix(".tar.gz")).rename(source)
    vendored = source / "vendor" / "llama.cpp"
    if not binary.exists():
        print("building llama.cpp ...", file=sys.stderr)
    options = ("-DCMAKE_BUILD_TYPE=Release", f"-DLLAMA_SOURCE={vendored.resolve()}")
    check_call("cmake", "-G", "Ninja", "-S", HERE, "-B", binary.parent, *options)
    check_call("cmake", "--build", binary.parent, "--target", "llama_loop")
    return binary


def coppice_arms(args: argparse.Namespace, temperature: str) -> list[System]:
    """The binary in every mode at one temperature."""
    named = {} if temperature == "0" else {"suffix": f", temperature {temperature}"}
    sampling = ["--temp", temperature, "--top-p", "1", "--top-k", "0", "--min-p", "0", "--seed", str(args.seed)]
    model = ["--model", str(args.model), "--draft", str(args.draft)] if args.model else []
    return [
        Coppice(args.coppice, name + named.get("suffix", ""), [*model, *flags, *sampling], args)
        for name, flags in MODES.items()
    ]


def peers(args: argparse.Namespace, folder: Path, context: int) -> list[System]:
    """llama.cpp in every variant and transformers, each with its form of the target."""
    target = convert.Target(folder)
    systems: list[System] = []
    if "llama" in args.peers:
        binary = build_llama(args)
        for variant in convert.VARIANTS:
            path = args.work / f"target-{variant}.gguf"
            convert.write_gguf(target, path, variant)
            command = [binary, path, args.threads, context]
            systems.append(Worker("llama.cpp", variant, command, args.threads))
            if variant == "q4_0":
                systems[-1].status = ORIENTATION
    if "transformers" in args.peers:
        expanded = args.work / "expanded"
        convert.expand(target, expanded)
        command = [sys.executable, HERE / "transformers_loop.py", expanded, args.threads]
        systems.append(Worker("transformers", "f32", command, args.threads))
    return systems


def top2_gap(args: argparse.Namespace, prefix: list[int]) -> float:
    """Distance of Coppice's two largest logits after `prefix`."""
    tokens, out = args.work / "prefix.json", args.work / "logits.safetensors"
    tokens.write_text(json.dumps(prefix))
    model = [args.model] if args.model else []
    check_call(args.coppice, "logits", *model, "--tokens", tokens, "--out", out, "--threads", args.threads)
    last = sorted(load_file(out)["logits"][-1])
    return float(last[-1] - last[-2])


def judge(args: argparse.Namespace, system: System, prompts: list[list[int]], expected: list, got: list) -> None:
    """Says how a peer's ids compare with Coppice's, and leaves its time out where they are others."""
    gaps = []
    for prompt, want, ids in zip(prompts, expected, got):
        if want != ids:
            at = next((i for i, (a, b) in enumerate(zip(want, ids)) if a != b), min(len(want), len(ids)))
            gaps.append(top2_gap(args, prompt + want[:at]))
    system.note = f"{len(prompts) - len(gaps)}/{len(prompts)}"
    if gaps:
        system.note += f", gaps to {max(gaps):.1e}"
    if gaps and max(gaps) > args.gap and system.status == COUNTED:
        system.status = "other ids"


def measure(systems: list[System], prompts: list[list[int]], args: argparse.Namespace) -> None:
    """The rounds. Every second one takes the systems in reverse."""
    for number in range(args.rounds):
        decode = {id(system): 0.0 for system in systems}
        first = dict(decode)
        tokens = 0
        for prompt in prompts:
            tokens += args.n - 1
            for system in systems[:: -1 if number % 2 else 1]:
                answer = system.answer(prompt, args.n)
                decode[id(system)] += answer.total - answer.first
                first[id(system)] += answer.first
        for system in systems:
            system.rounds.append(tokens / decode[id(system)])
            system.prefill.append(sum(map(len, prompts)) / first[id(system)])
        print(f"round {number + 1} of {args.rounds}", file=sys.stderr)


def table(systems: list[System]) -> str:
    """Markdown; ratios are of medians, and only to systems whose time counts."""
    median = {system.name + system.weights: statistics.median(system.rounds) for system in systems}
    reference = {
        title: next((s for s in systems if (s.name, s.weights) == key and s.status == COUNTED), None)
        for title, key in {
            "x llama.cpp int4+f16": ("llama.cpp", "int4+f16"),
            "x llama.cpp int4+bf16": ("llama.cpp", "int4+bf16"),
            "x transformers": ("transformers", "f32"),
        }.items()
    }
    heads = ["system", "weights", "tok/s (min-max)", *reference, "prefill tok/s", "same greedy ids"]
    lines = [heads, ["---"] * len(heads)]
    for system in systems:
        own = median[system.name + system.weights]
        ratios = [f"{own / statistics.median(of.rounds):.2f}" if of else "-" for of in reference.values()]
        speed = f"{own:.0f} ({min(system.rounds):.0f}-{max(system.rounds):.0f})"
        if system.status not in (COUNTED, ORIENTATION):
            speed, ratios = f"not counted: {system.status}", ["-"] * len(ratios)
        prefill = f"{statistics.median(system.prefill):.0f}"
        lines.append([system.name, system.weights, speed, *ratios, prefill, system.note])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--coppice", type=Path, default=ROOT / "target/release/coppice", help="the program")
    parser.add_argument("--model", type=Path, help="target in the DeepSeek-V3 layout [default: the built-in one]")
    parser.add_argument("--draft", type=Path, help="its drafter; needed with --model")
    parser.add_argument("--work", type=Path, default=ROOT / "target/peers", help="folder for what is built and converted")
    parser.add_argument("--llama-source", type=Path, help="unpacked source distribution of llama-cpp-python")
    parser.add_argument("--llama-version", default="0.3.36", help="which one to download where none is given")
    parser.add_argument("--prompts", type=Path, default=ROOT / "host/prompts/held-out.jsonl", help="JSON lines with text")
    parser.add_argument("--limit", type=int, help="take the first so many prompts")
    parser.add_argument("-n", type=int, default=256, help="tokens to generate")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--temperature", default="0.8", help="of the sampled Coppice arms, beside the greedy ones")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--gap", type=float, default=0.05, help="top-2 logit distance at which a peer may depart")
    parser.add_argument("--peers", nargs="*", choices=["llama", "transformers"], default=["llama", "transformers"])
    parser.add_argument("--json", type=Path, help="write every sample to this file")
    args = parser.parse_args()
    if args.n < 2 or args.rounds < 1 or args.threads < 1:
        parser.error("-n must be at least 2, --rounds and --threads at least 1")
    if (args.model is None) != (args.draft is None):
        parser.error("--model and --draft go together")
    if not args.coppice.is_file():
        parser.error(f"--coppice {args.coppice} is no file: build it with `cargo build --release`")
    return args


def main() -> None:
    args = arguments()
    args.work.mkdir(parents=True, exist_ok=True)
    folder = args.model or ROOT / "model/tiny/target"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    bos = json.loads((folder / "config.json").read_text())["bos_token_id"]
    texts = [json.loads(line)["text"] for line in args.prompts.read_text(encoding="utf-8").splitlines()][: args.limit]
    prompts = [[bos, *tokenizer.encode(text, add_special_tokens=False).ids] for text in texts]
    context = max(map(len, prompts)) + args.n

    greedy, others = coppice_arms(args, "0"), peers(args, folder, context)
    systems = greedy + coppice_arms(args, args.temperature) + others
    # Once through everything: it warms up, and its ids say whose time counts.
    expected = [greedy[0].answer(prompt, args.n).ids for prompt in prompts]
    for system in greedy[1:] + others:
        judge(args, system, prompts, expected, [system.answer(prompt, args.n).ids for prompt in prompts])
    print("the ids are compared", file=sys.stderr)

    measure(systems, prompts, args)
    for system in systems:
        system.close()
    settings = f"{len(prompts)} prompts of {sum(map(len, prompts)) / len(prompts):.0f} tokens, {args.n} tokens each"
    print(f"{settings}, {args.threads} threads, medians of {args.rounds} interleaved rounds\n\n{table(systems)}")
    if args.json:
        keys = ("name", "weights", "status", "note", "rounds", "prefill")
        report = {
            "schema": "coppice.peers.v1",
            "settings": {"n": args.n, "threads": args.threads, "rounds": args.rounds, "prompts": len(prompts)}
            | {"temperature": args.temperature, "seed": args.seed, "llama_cpp_python": args.llama_version},
            "systems": [{key: getattr(system, key) for key in keys} for system in systems],
        }
        args.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
