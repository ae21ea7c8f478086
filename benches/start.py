#!/usr/bin/env python3
"""Time from process start to the first token of a 16-token prompt, and peak memory over 256 tokens, of the embedded model.

`python benches/start.py [--coppice FILE] [--runs N]` prints one JSON object: milliseconds from before the process is made to
its first byte of text, and bytes of peak resident memory, by mode, beside the size of the model files that are mapped.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODES = {"none": ["--spec", "none"], "auto": [], "ddtree 8": ["--spec", "ddtree", "--tree-budget", "8"]}
# `<bos>` and 15 tokens of code.
PROMPT_TOKENS = 16


def first_byte_ms(command: list[str]) -> float:
    """Milliseconds until the process has written its first byte."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout and process.stdout.read(1), f"{command} wrote nothing"
    elapsed = time.perf_counter() - started
    process.stdout.read()
    process.wait()
    return elapsed * 1e3


def peak_bytes(command: list[str]) -> int:
    """Most resident memory of the process."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, f"{command} ended with {status}"
    return usage.ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--coppice", default=str(ROOT / "target/release/coppice"))
    parser.add_argument("--threads", default="2")
    parser.add_argument("--runs", type=int, default=11)
    args = parser.parse_args()
    text = (ROOT / "host/prompts/held-out.jsonl").read_text(encoding="utf-8").splitlines()[0]
    base = [args.coppice, "generate", "--threads", args.threads, "--ignore-eos", "--temp", "0.8", "--seed", "1"]
    with tempfile.TemporaryDirectory() as folder:
        tokens = Path(folder) / "tokens.json"
        asked = subprocess.run([*base, "-n", "1", "--json", json.loads(text)["text"]], capture_output=True, check=True)
        tokens.write_text(json.dumps(json.loads(asked.stdout)["prompt_token_ids"][:PROMPT_TOKENS]))
        base += ["--tokens", str(tokens)]
        report = {"schema": "coppice.start.v1", "prompt_tokens": PROMPT_TOKENS, "runs": args.runs, "modes": {}}
        report["threads"] = int(args.threads)
        for name, flags in MODES.items():
            times = [first_byte_ms([*base, *flags, "-n", "1"]) for _ in range(args.runs)]
            peak = max(peak_bytes([*base, *flags, "-n", "256"]) for _ in range(3))
            median = {"first_token_ms": statistics.median(times), "samples_ms": times, "peak_memory_bytes": peak}
            report["modes"][name] = median
    models = [ROOT / "model/tiny/target", ROOT / "model/tiny/draft"]
    report["model_bytes"] = sum(file.stat().st_size for folder in models for file in folder.glob("*.safetensors"))
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
