"""Tests of corpus, target, int4 and shared parts on tiny shapes, on a CPU; test_drafter.py has the drafter's."""

from __future__ import annotations

import argparse
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import DeepseekV3ForCausalLM

import common
import corpus
import quantise
import target as target_tool
from common import BOS, EOS, ToolError

torch.set_num_threads(1)  # shapes are tiny
VOCABULARY = 97
TINY = dict(
    hidden_size=64,
    intermediate_size=96,
    moe_intermediate_size=32,
    num_hidden_layers=3,
    num_attention_heads=2,
    num_key_value_heads=2,
    q_lora_rank=24,
    kv_lora_rank=32,
    qk_nope_head_dim=16,
    qk_rope_head_dim=8,
    v_head_dim=16,
    n_routed_experts=4,
    num_experts_per_tok=2,
    max_position_embeddings=256,
)


def make_target(seed: int = 0) -> DeepseekV3ForCausalLM:
    torch.manual_seed(seed)
    model = DeepseekV3ForCausalLM(target_tool.tiny_config(VOCABULARY, **TINY))
    target_tool.initialise(model)
    return model.eval().requires_grad_(False)


def text(batch: int, length: int, seed: int = 2) -> torch.Tensor:
    return torch.randint(4, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def corpus_folder(tmp_path: Path) -> Path:
    """A corpus folder made by corpus.py from sources written here."""
    source = tmp_path / "source" / "library"
    source.mkdir(parents=True)
    for i in range(30):
        (source / f"file{i}.rs").write_text(
            f"// file {i}\n" + "".join(f"pub fn f{i}_{j}(x: u32) -> u32 {{ x + {j} }}\n" for j in range(20))
        )
    documents, _ = corpus.collect(tmp_path / "source")
    training, held_out = corpus.split(documents, 0, 0.1, None)
    out = tmp_path / "corpus"
    out.mkdir()
    tokenizer = corpus.train_tokenizer([t for _, t in training], 280)
    np.savez_compressed(
        out / "tokens.npz",
        train=corpus.encode(tokenizer, [t for _, t in training]),
        validation=corpus.encode(tokenizer, [t for _, t in held_out]),
    )
    tokenizer.save(str(out / "tokenizer.json"))
    common.write_json(out / "tokenizer_config.json", corpus.tokenizer_config(256))
    return out


# --- corpus


def test_collect_keeps_each_text_once_and_names_what_it_dropped(tmp_path: Path) -> None:
    body = "pub fn answer() -> u32 { 42 }\n" * 10
    files = {
        "library/a.rs": body,
        "library/b.rs": body.replace("\n", "  \r\n"),  # the same but for blanks at line ends
        "library/c.rs": body + "// another\n",
        "library/short.rs": "fn f() {}\n",
        "library/long.rs": "x" * 5000,
        "library/vendor/copied.rs": body + "// vendored\n",
        "library/readme.md": body + "prose outside src/doc\n",
        "src/doc/book/ch01.md": body + "prose\n",
        "src/doc/embedded-book/src/ch01.md": body + "other licence\n",
        "elsewhere/d.rs": body + "// not a chosen directory\n",
    }
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode())
    (tmp_path / "library/binary.rs").write_bytes(b"\xff\xfe" * 200)
    documents, dropped = corpus.collect(tmp_path)
    assert [name for name, _ in documents] == ["library/a.rs", "library/c.rs", "src/doc/book/ch01.md"]
    assert dropped == {"duplicate": 1, "size": 1, "long lines": 1, "not utf-8": 1}


def test_the_split_is_by_document_and_repeats_by_seed() -> None:
    documents = [(f"{i}", "x" * 100) for i in range(50)]
    training, held_out = corpus.split(documents, 3, 0.1, None)
    assert (training, held_out) == corpus.split(documents, 3, 0.1, None)
    assert len(held_out) == 5 and sorted(training + held_out) == sorted(documents)
    assert corpus.split(documents, 4, 0.1, None) != (training, held_out)
    assert sum(map(len, corpus.split(documents, 3, 0.1, 1050))) == 10


def test_the_tokenizer_round_trips_and_reads_special_names_as_text(corpus_folder: Path) -> None:
    tokenizer = corpus.train_tokenizer([(corpus_folder / "tokenizer.json").read_text()], 300)
    source = 'let s = "<|mask|>"; // naïve 🦀\r\n\tx\n\n'
    ids = corpus.encode(tokenizer, [source])
    assert ids[0] == BOS and ids[-1] == EOS and not set(ids[1:-1].tolist()) & {0, 1, 2, 3}
    assert tokenizer.decode(ids[1:-1].tolist()) == source
    written = json.loads((corpus_folder / "tokenizer.json").read_text())
    assert written["post_processor"] is None
    assert [t["content"] for t in written["added_tokens"]] == list(common.SPECIAL_TOKENS)


# --- target


def test_the_learning_rate_warms_up_holds_and_falls() -> None:
    expected = {(0, 0.0): 0.01, (49, 0.1): 0.5, (99, 0.2): 1.0, (500, 0.5): 1.0, (750, 0.75): 0.5, (999, 0.999): 0.02}
    found = {key: round(target_tool.learning_rate(1.0, *key), 6) for key in expected}
    assert found == expected


def test_the_balancer_moves_the_bias_against_the_load() -> None:
    model = make_target()
    balancer = target_tool.Balancer(model)
    chosen: list[torch.Tensor] = []
    router = model.model.layers[1].mlp.gate
    router.register_forward_hook(lambda _, __, output: chosen.append(output[2]))
    model(text(2, 20), use_cache=False)
    load = torch.tensor([(chosen[0] == expert).sum().item() for expert in range(4)])
    balancer.step(0.01)
    expected = [0.01 * math.copysign(1, 20 - n) if n != 20 else 0.0 for n in load.tolist()]
    assert router.e_score_correction_bias.tolist() == pytest.approx(expected)
    assert load.max() != load.min(), "a balanced load would make this test empty"


def test_target_training_writes_a_loadable_checkpoint_and_a_falling_loss(
    corpus_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = target_tool.tiny_config
    monkeypatch.setattr(target_tool, "tiny_config", lambda vocabulary: full(vocabulary, **TINY))
    monkeypatch.setattr(target_tool, "WARM_UP_STEPS", 5)
    out = tmp_path / "target"
    args = dict(
        corpus=corpus_folder, out=out, steps=40, seconds=math.inf, batch=4, seed=0, device="cpu", window=32, lr=1e-2
    )
    args |= dict(validation_windows=4, validate_every=20, log_every=10, save_seconds=math.inf, resume=False)
    target_tool.train(argparse.Namespace(**args))
    records = [json.loads(line) for line in (tmp_path / "target.log.jsonl").read_text().splitlines()]
    losses = [r["loss"] for r in records if "loss" in r]
    assert losses[0] == pytest.approx(math.log(280), rel=0.05), "an untrained model is as good as a uniform guess"
    assert losses[-1] < 0.6 * losses[0]
    assert [r["step"] for r in records if "validation_loss" in r] == [20, 40, 40]

    weights = load_file(out / "model.safetensors")
    assert weights["model.layers.1.mlp.experts.3.down_proj.weight"].shape == (64, 32)
    assert weights["model.layers.1.mlp.gate.e_score_correction_bias"].dtype == torch.float32
    assert {w.dtype for name, w in weights.items() if "bias" not in name} == {torch.bfloat16}
    _, report = DeepseekV3ForCausalLM.from_pretrained(out, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    assert json.loads((out / "generation_config.json").read_text()) == target_tool.GENERATION
    assert not list(tmp_path.glob("*.state.pt"))


def test_a_resumed_run_ends_where_an_unbroken_one_does(
    corpus_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = target_tool.tiny_config
    monkeypatch.setattr(target_tool, "tiny_config", lambda vocabulary: full(vocabulary, **TINY))
    args = dict(corpus=corpus_folder, steps=8, seconds=math.inf, batch=2, seed=5, device="cpu", window=16, lr=1e-3)
    args |= dict(validation_windows=1, validate_every=100, log_every=100, save_seconds=math.inf, resume=False)
    target_tool.train(argparse.Namespace(**args, out=tmp_path / "whole"))

    class InterruptedRunError(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise InterruptedRunError

    with monkeypatch.context() as patch:
        # A state after every step; the run is cut after the fourth by the validation that is due there.
        patch.setattr(common, "validation_loss", interrupt)
        cut = args | dict(save_seconds=-1.0, validate_every=5)
        with pytest.raises(InterruptedRunError):
            target_tool.train(argparse.Namespace(**cut, out=tmp_path / "cut"))
    assert torch.load(tmp_path / "cut.state.pt", weights_only=True)["step"] == 4
    target_tool.train(argparse.Namespace(**(args | dict(resume=True)), out=tmp_path / "cut"))
    whole, cut = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "cut"))
    assert [name for name in whole if not torch.equal(whole[name], cut[name])] == []


def test_resuming_without_a_state_names_the_missing_file(corpus_folder: Path, tmp_path: Path) -> None:
    args = argparse.Namespace(
        corpus=corpus_folder, out=tmp_path / "t", steps=1, seconds=math.inf, seed=0, device="cpu", resume=True
    )
    with pytest.raises(ToolError, match=r"there is no .*t\.state\.pt"):
        target_tool.train(args)


# --- int4


def test_packing_puts_column_8j_plus_i_in_nibble_i_of_word_j() -> None:
    integers = torch.randint(-8, 8, (5, 64), generator=torch.Generator().manual_seed(0)).to(torch.int8)
    words = quantise.pack(integers)
    assert words.dtype == torch.int32 and words.shape == (5, 8)
    for row, column in itertools.product(range(5), range(64)):
        raw = int(words[row, column // 8].numpy().view(np.uint32))
        assert (raw >> 4 * (column % 8)) % 16 - 8 == integers[row, column]
    assert torch.equal(quantise.unpack(words), integers)


def test_quantised_values_are_within_half_a_step_unless_clipped() -> None:
    weight = torch.randn(7, 96, generator=torch.Generator().manual_seed(0))
    integers, scale = quantise.quantise(weight)
    value = quantise.dequantise(integers, scale)
    for row, column in itertools.product(range(7), range(96)):
        step = float(scale[row, column // 32])
        assert float(value[row, column]) == int(integers[row, column]) * step
        clipped = abs(int(integers[row, column])) == 7
        assert clipped or abs(float(weight[row, column]) - float(value[row, column])) <= 0.5001 * step
    plain = weight.view(7, 3, 32).abs().amax(-1).div(7).to(torch.bfloat16)
    plain_value = quantise.dequantise((weight / plain.float().repeat_interleave(32, 1)).round().clamp(-7, 7), plain)
    assert (value - weight).norm() < (plain_value - weight).norm(), "the clip search must beat no clip"
    assert torch.equal(quantise.quantise(torch.zeros(1, 32))[0], torch.zeros(1, 32, dtype=torch.int8))


def test_both_exports_hold_the_same_values_and_load(tmp_path: Path) -> None:
    make_target().to(torch.bfloat16).save_pretrained(tmp_path / "target")
    source = load_file(tmp_path / "target" / "model.safetensors")
    packed, unpacked, errors = quantise.convert(source)
    assert set(errors) == {"gate", "up", "down"} and len(errors["up"]) == 8
    assert all(0 < e < 0.15 for kind in errors.values() for e in kind)
    for name, value in unpacked.items():
        stem = name.removesuffix("weight")
        if stem + "weight_packed" not in packed:
            assert torch.equal(value, source[name]) and torch.equal(packed[name], source[name])
            continue
        assert packed[stem + "weight_shape"].tolist() == list(source[name].shape)
        assert packed[stem + "weight_scale"].dtype == torch.bfloat16
        words = packed[stem + "weight_packed"].numpy().view(np.uint32)
        nibbles = (
            np.stack([(words >> np.uint32(4 * i)) & np.uint32(15) for i in range(8)], -1)
            .reshape(value.shape)
            .astype(np.float32)
            - 8
        )
        scale = packed[stem + "weight_scale"].float().numpy()
        assert np.array_equal(
            value.numpy(), (nibbles.reshape(*scale.shape, 32) * scale[..., None]).reshape(value.shape)
        )
    save_file(unpacked, tmp_path / "target" / "model.safetensors", metadata={"format": "pt"})
    model, report = DeepseekV3ForCausalLM.from_pretrained(
        tmp_path / "target", dtype=torch.float32, output_loading_info=True
    )
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    assert torch.equal(
        model.model.layers[1].mlp.experts.down_proj[2], unpacked["model.layers.1.mlp.experts.2.down_proj.weight"]
    )


# --- shared


def test_an_interrupted_write_leaves_the_old_output(tmp_path: Path) -> None:
    folder, file = tmp_path / "folder", tmp_path / "file.txt"
    with common.atomic_dir(folder) as out, common.atomic_file(file) as path:
        (out / "old").touch()
        path.write_text("old")
    with pytest.raises(RuntimeError), common.atomic_dir(folder) as out, common.atomic_file(file) as path:
        (out / "new").touch()
        path.write_text("new")
        raise RuntimeError
    assert [p.name for p in folder.iterdir()] == ["old"] and file.read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file.txt", "folder"]


def test_validation_covers_consecutive_windows_whatever_the_batch() -> None:
    model, tokens = make_target(), text(1, 50)[0]
    expected = [
        common.next_token_loss(model, tokens[start : start + 9][None]).item() for start in (0, 8, 16, 24, 32, 40)
    ]
    for batch in (1, 4, 6):
        assert common.validation_loss(model, tokens, 8, batch) == pytest.approx(sum(expected) / 6, rel=1e-5)
    assert common.validation_loss(model, tokens, 8, 4, limit=2) == pytest.approx(sum(expected[:2]) / 2, rel=1e-5)
