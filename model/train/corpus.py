"""Makes the corpus: collects Rust sources, drops duplicates, splits by document, trains the tokenizer, encodes.

Writes into --out: `tokens.npz` (u16 runs `train` and `validation`, each document as <|bos|> text <|eos|>),
`tokenizer.json`, `tokenizer_config.json`, and `corpus.json` (what went in).
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from common import BOS, EOS, MASK, PAD, SPECIAL_TOKENS, ToolError, atomic_dir, positive, run_tool, write_json

# MIT or Apache-2.0, save for what EXCLUDED leaves out.
DIRECTORIES = (
    "library",
    "compiler",
    "src/tools/rust-analyzer",
    "src/tools/cargo",
    "src/tools/clippy",
    "src/tools/rustfmt",
    "src/librustdoc",
    "src/bootstrap",
    "src/tools/compiletest",
    "src/doc",
)
# Substrings of a path below the source root: copies of other projects, generated tables, and other licences
# (the embedded book's prose is CC-BY-SA-4.0, the Fuchsia mutex BSD-2-Clause, the Unicode tables Unicode's own).
EXCLUDED = ("/vendor/", "/stdarch/", "unicode", "/embedded-book/", "/fuchsia.rs")
MIN_BYTES, MAX_BYTES = 200, 200_000
MAX_MEAN_LINE = 120  # longer lines on average: generated data, not code

# The pre-tokenizer of the Llama-3 family: words, numbers of up to three digits, punctuation, line ends, blanks.
SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def candidates(root: Path) -> Iterator[Path]:
    """Source files under the chosen directories, as paths below `root`, in an order that no file system changes."""
    for directory in DIRECTORIES:
        suffixes = (".rs", ".md") if directory == "src/doc" else (".rs",)
        for path in sorted((root / directory).rglob("*")):
            name = path.relative_to(root)
            if (
                path.suffix in suffixes
                and path.is_file()
                and not any(part in f"/{name.as_posix()}" for part in EXCLUDED)
            ):
                yield name


def collect(root: Path) -> tuple[list[tuple[str, str]], Counter]:
    """Documents (name, text) that pass the filters, each text once, and how many files each filter dropped."""
    seen: set[bytes] = set()
    documents, dropped = [], Counter()
    for name in candidates(root):
        data = (root / name).read_bytes()
        try:
            text = data.decode("utf-8").replace("\r\n", "\n")
        except UnicodeDecodeError:
            dropped["not utf-8"] += 1
            continue
        digest = hashlib.sha256("\n".join(line.rstrip() for line in text.split("\n")).encode()).digest()
        if not MIN_BYTES <= len(data) <= MAX_BYTES:
            dropped["size"] += 1
        elif len(text) / max(1, text.count("\n")) > MAX_MEAN_LINE:
            dropped["long lines"] += 1
        elif digest in seen:
            dropped["duplicate"] += 1
        else:
            seen.add(digest)
            documents.append((name.as_posix(), text))
    if not documents:
        raise ToolError(
            f"--source {root}: no document under {', '.join(DIRECTORIES)}; give the root of the Rust sources"
        )
    return documents, dropped


def split(documents: list, seed: int, share: float, max_bytes: int | None) -> tuple[list, list]:
    """Shuffles, keeps documents up to `max_bytes` of text, and takes the last `share` of them for validation."""
    documents = documents.copy()
    random.Random(seed).shuffle(documents)
    if max_bytes is not None:
        total, kept = 0, []
        for document in documents:
            total += len(document[1].encode())
            if total > max_bytes:
                break
            kept.append(document)
        documents = kept
    cut = len(documents) - max(1, round(len(documents) * share))
    if cut < 1:
        raise ToolError(f"{len(documents)} documents leave none to train on; raise --max-bytes")
    return documents[:cut], documents[cut:]


def train_tokenizer(texts: list[str], vocabulary: int) -> Tokenizer:
    """Byte-level BPE. No post-processor: the engine adds <|bos|> where tokenizer_config.json says so."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, texts: list[str]) -> np.ndarray:
    """All texts as one run of ids, u16. Special tokens spelled out in a source stay plain text."""
    tokenizer.encode_special_tokens = True
    runs = []
    for start in range(0, len(texts), 256):
        for encoding in tokenizer.encode_batch(texts[start : start + 256], add_special_tokens=False):
            runs.append(np.array([BOS, *encoding.ids, EOS], dtype=np.uint16))
    return np.concatenate(runs)


def tokenizer_config(max_length: int) -> dict:
    """tokenizer_config.json as the engine and transformers read it."""
    return {
        "add_bos_token": True,
        "add_eos_token": False,
        "bos_token": SPECIAL_TOKENS[BOS],
        "eos_token": SPECIAL_TOKENS[EOS],
        "pad_token": SPECIAL_TOKENS[PAD],
        "mask_token": SPECIAL_TOKENS[MASK],
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
        "tokenizer_class": "LlamaTokenizerFast",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--source", type=Path, required=True, help="root of the Rust sources, e.g. /usr/src/rustc-1.96.0"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument(
        "--vocabulary", type=positive, default=4096, help="tokens, specials included (default %(default)s)"
    )
    parser.add_argument(
        "--validation", type=float, default=0.01, help="share of the documents held out (default %(default)s)"
    )
    parser.add_argument("--max-bytes", type=positive, help="keep only so much text, for a short run")
    parser.add_argument(
        "--tokenizer-share",
        type=positive,
        default=4,
        help="train the tokenizer on every n-th document (default %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the shuffle (default %(default)s)")
    args = parser.parse_args()
    if not len(SPECIAL_TOKENS) + 256 < args.vocabulary <= 65536:
        raise ToolError(
            f"--vocabulary {args.vocabulary}: expected {len(SPECIAL_TOKENS) + 257} to 65536 (every byte, ids in u16)"
        )

    documents, dropped = collect(args.source)
    print(f"{len(documents)} documents, dropped {dict(dropped)}", file=sys.stderr)
    training, validation = split(documents, args.seed, args.validation, args.max_bytes)
    tokenizer = train_tokenizer([text for _, text in training[:: args.tokenizer_share]], args.vocabulary)
    if tokenizer.get_vocab_size() != args.vocabulary:
        raise ToolError(
            f"the text yields {tokenizer.get_vocab_size()} tokens, --vocabulary asks for {args.vocabulary}; lower it"
        )
    runs = {
        "train": encode(tokenizer, [t for _, t in training]),
        "validation": encode(tokenizer, [t for _, t in validation]),
    }
    report = {
        "documents": {"train": len(training), "validation": len(validation)},
        "bytes": {
            "train": sum(len(t.encode()) for _, t in training),
            "validation": sum(len(t.encode()) for _, t in validation),
        },
        "tokens": {name: len(run) for name, run in runs.items()},
        "dropped": dict(dropped),
        "directories": DIRECTORIES,
        "excluded": EXCLUDED,
        "vocabulary": args.vocabulary,
        "seed": args.seed,
        "validation_documents": sorted(name for name, _ in validation),
    }
    with atomic_dir(args.out) as out:
        np.savez_compressed(out / "tokens.npz", **runs)
        tokenizer.save(str(out / "tokenizer.json"))
        write_json(out / "tokenizer_config.json", tokenizer_config(2048))
        write_json(out / "corpus.json", report)
    print(f"{report['documents']} documents, {report['bytes']} bytes, {report['tokens']} tokens", file=sys.stderr)


if __name__ == "__main__":
    run_tool(main)
