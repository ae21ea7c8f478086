#!/usr/bin/env python3
"""Makes the prompts that `coppice bench` bundles: `held-out.jsonl` (short) and `documents.jsonl` (long).

Both come from crates of crates.io that the embedded model was not trained on: it was trained on the sources of Rust 1.96,
and none of these crates is among their dependencies. What is taken is drawn by a seed, not by hand, and the draw is
checked against the training sources. Needs the crates' sources, for instance by `cargo vendor`, and nothing to install:

    python make.py --crates FOLDER --rust /usr/src/rustc-1.96.0

FOLDER holds one folder a crate, named NAME-VERSION.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

# Crate, and the licence it is taken under.
CRATES = {
    "axum-0.8.9": "MIT",
    "axum-core-0.5.6": "MIT",
    "comfy-table-7.2.2": "MIT",
    "corosensei-0.3.4": "MIT OR Apache-2.0",
    "dary_heap-0.3.9": "MIT OR Apache-2.0",
    "fearless_simd-1.2.0": "MIT OR Apache-2.0",
    "minijinja-3.1.0": "Apache-2.0",
    "ndarray-0.17.2": "MIT OR Apache-2.0",
    "rhai-1.27.0": "MIT OR Apache-2.0",
    "roaring-0.12.0": "MIT OR Apache-2.0",
    "ropey-1.6.1": "MIT",
    "rstar-0.14.0": "MIT OR Apache-2.0",
    "rten-0.27.0": "MIT OR Apache-2.0",
    "rten-tensor-0.27.0": "MIT OR Apache-2.0",
    "safetensors-0.8.0": "Apache-2.0",
    "str_indices-0.4.4": "MIT OR Apache-2.0",
    "tokenizers-0.22.2": "Apache-2.0",
    "vek-0.15.10": "MIT OR Apache-2.0",
}
# Prose of these crates; their code is drawn.
PROSE = (
    "axum-0.8.9/src/docs/error_handling.md",
    "axum-0.8.9/src/docs/extract.md",
    "axum-0.8.9/src/docs/middleware.md",
    "axum-0.8.9/src/docs/response.md",
    "comfy-table-7.2.2/README.md",
    "corosensei-0.3.4/README.md",
    "minijinja-3.1.0/README.md",
    "ndarray-0.17.2/README-quick-start.md",
    "rhai-1.27.0/README.md",
    "ropey-1.6.1/README.md",
    "rten-0.27.0/docs/performance.md",
    "rten-0.27.0/docs/quantization.md",
    "safetensors-0.8.0/README.md",
)
SEED = 7
HELD_OUT = 32
LINES = range(4, 13)  # of a held-out prompt
CHARACTERS = range(140, 600)
FILE_BYTES = range(6_000, 24_000)  # of a code document
ITEM = re.compile(r"(///|#\[|(pub(\([a-z]+\))? )?(unsafe )?(const )?(fn|struct|enum|impl|trait)\b)")
IMPORTS_OR_TESTS = re.compile(r"^(pub )?(use|mod) |#\[(cfg\()?test", re.MULTILINE)
NOT_CODE_OF_THE_CRATE = ("/tests/", "/benches/", "/examples/", "test", "generated", "unicode", "tables")


def sources(crate: Path) -> Iterator[tuple[str, str]]:
    """Library code of a crate: path below the crate, and text."""
    for path in sorted(crate.glob("src/**/*.rs")):
        name = path.relative_to(crate).as_posix()
        if not any(part in f"/{name}" for part in NOT_CODE_OF_THE_CRATE):
            yield name, path.read_text(encoding="utf-8")


def openings(text: str) -> Iterator[tuple[int, str]]:
    """Beginnings of top-level items, each cut inside the item at every length that `LINES` allows: line and text."""
    lines = text.split("\n")
    for at, line in enumerate(lines):
        if ITEM.match(line) and (at == 0 or not lines[at - 1].strip()):
            for count in LINES:
                cut = lines[at : at + count]
                opening = "\n".join(cut) + "\n"
                inside = cut[-1].startswith(" ") and opening.count("{") > opening.count("}")
                if IMPORTS_OR_TESTS.search(opening):
                    break
                if inside and len(opening) in CHARACTERS and opening.isascii():
                    yield at + 1, opening


def windows(text: str) -> set[str]:
    """Runs of three consecutive lines that say something, blanks at their ends left out."""
    lines = [line.strip() for line in text.split("\n") if len(line.strip()) > 8]
    return {"\n".join(lines[i : i + 3]) for i in range(len(lines) - 2)}


def trained_on(root: Path) -> set[str]:
    """Every window of the training sources."""
    known = set()
    for directory in ("library", "compiler", "src"):
        for path in (root / directory).rglob("*.rs"):
            if "/vendor/" not in path.as_posix():
                known |= {hash(window) for window in windows(path.read_text(encoding="utf-8", errors="replace"))}
    return known


def held_out(crates: Path, known: set[str], draw: random.Random) -> list[dict]:
    """Prompts of a few lines, from every crate in turn, each from a file of its own."""
    files = {crate: list(sources(crates / crate)) for crate in CRATES}
    for listed in files.values():
        draw.shuffle(listed)
    prompts = []
    while len(prompts) < HELD_OUT:
        before = len(prompts)
        for crate, licence in CRATES.items():
            while files[crate] and len(prompts) < HELD_OUT:
                name, text = files[crate].pop()
                found = [(at, cut) for at, cut in openings(text) if not any(hash(w) in known for w in windows(cut))]
                if found:
                    at, cut = draw.choice(found)
                    stem = re.sub(r"[^a-z0-9]+", "-", name.removeprefix("src/").removesuffix(".rs").lower())
                    prompt_id = f"{crate.rsplit('-', 1)[0]}/{stem}"
                    source = " ".join(crate.rsplit("-", 1)) + f", {name}:{at}"
                    prompts.append({"id": prompt_id, "source": source, "licence": licence, "text": cut})
                    break
        if len(prompts) == before:
            sys.exit(f"error: the crates have only {before} openings that pass, expected {HELD_OUT}")
    return prompts


def documents(crates: Path, draw: random.Random) -> list[dict]:
    """Whole files: the prose, and one code file a crate, in an order that mixes the two."""
    chosen = list(PROSE)
    for crate in CRATES:
        sized = [name for name, text in sources(crates / crate) if len(text.encode()) in FILE_BYTES]
        if sized:
            chosen.append(f"{crate}/{draw.choice(sized)}")
    draw.shuffle(chosen)
    found = []
    for path in chosen:
        crate, name = path.split("/", 1)
        text = (crates / path).read_text(encoding="utf-8").replace("\r\n", "\n")
        source = " ".join(crate.rsplit("-", 1)) + f", {name}"
        found.append({"id": path, "source": source, "licence": CRATES[crate], "text": text})
    return found


def write(path: Path, records: list[dict]) -> None:
    """One JSON object a line."""
    lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
    path.write_text("".join(lines), encoding="utf-8")
    size = sum(len(record["text"].encode()) for record in records)
    print(f"{path.name}: {len(records)} texts, {size} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--crates", type=Path, required=True, help="folder with one folder NAME-VERSION a crate")
    parser.add_argument("--rust", type=Path, required=True, help="root of the Rust sources that the model was trained on")
    args = parser.parse_args()
    missing = [crate for crate in CRATES if not (args.crates / crate / "Cargo.toml").is_file()]
    if missing:
        sys.exit(f"error: --crates {args.crates} has no {', '.join(missing)}")
    names = {crate.rsplit("-", 1)[0] for crate in CRATES}
    locked = re.findall(r'^name = "(.*)"$', (args.rust / "Cargo.lock").read_text(), re.MULTILINE)
    if seen := names.intersection(locked):
        sys.exit(f"error: --rust {args.rust} depends on {', '.join(sorted(seen))}")
    here = Path(__file__).parent
    draw = random.Random(SEED)
    write(here / "held-out.jsonl", held_out(args.crates, trained_on(args.rust), draw))
    write(here / "documents.jsonl", documents(args.crates, draw))


if __name__ == "__main__":
    main()
