"""Tests of the tools here on tiny shapes, on a CPU: `pytest test_train.py`."""

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

import acceptance
import common
import corpus
import drafter as dflash
import quantise
import target as target_tool
from common import BOS, EOS, MASK, ToolError

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


def draft_config(target: DeepseekV3ForCausalLM, taps: list[int], layers: int = 2, block: int = 4) -> dict:
    config = dflash.tiny_config(target)
    config |= {"num_hidden_layers": layers, "layer_types": ["full_attention"] * layers, "head_dim": 16, "block_size": block}
    return config | {"dflash_config": {"mask_token_id": MASK, "target_layer_ids": taps}}


def make_drafter(target: DeepseekV3ForCausalLM, taps: list[int], **shape: int) -> dflash.Drafter:
    torch.manual_seed(1)
    drafter = dflash.Drafter(draft_config(target, taps, **shape), target)
    for parameter in drafter.parameters():  # far from the initial state, where every attention is near uniform
        parameter.data += 0.2 * torch.randn_like(parameter)
    return drafter.eval()


def text(batch: int, length: int, seed: int = 2) -> torch.Tensor:
    return torch.randint(4, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def corpus_folder(tmp_path: Path) -> Path:
    """A corpus folder made by corpus.py from sources written here."""
    source = tmp_path / "source" / "library"
    source.mkdir(parents=True)
    for i in range(30):
        (source / f"file{i}.rs").write_text(f"// file {i}\n" + "".join(f"pub fn f{i}_{j}(x: u32) -> u32 {{ x + {j} }}\n" for j in range(20)))
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
    source = "let s = \"<|mask|>\"; // naïve 🦀\r\n\tx\n\n"
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


def test_target_training_writes_a_loadable_checkpoint_and_a_falling_loss(corpus_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = target_tool.tiny_config
    monkeypatch.setattr(target_tool, "tiny_config", lambda vocabulary: full(vocabulary, **TINY))
    monkeypatch.setattr(target_tool, "WARM_UP_STEPS", 5)
    out = tmp_path / "target"
    args = dict(corpus=corpus_folder, out=out, steps=40, seconds=math.inf, batch=4, seed=0, device="cpu", window=32, lr=1e-2)
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


def test_a_resumed_run_ends_where_an_unbroken_one_does(corpus_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = target_tool.tiny_config
    monkeypatch.setattr(target_tool, "tiny_config", lambda vocabulary: full(vocabulary, **TINY))
    args = dict(corpus=corpus_folder, steps=8, seconds=math.inf, batch=2, seed=5, device="cpu", window=16, lr=1e-3)
    args |= dict(validation_windows=1, validate_every=100, log_every=100, save_seconds=math.inf, resume=False)
    target_tool.train(argparse.Namespace(**args, out=tmp_path / "whole"))

    class Interrupted(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupted

    with monkeypatch.context() as patch:
        # A state after every step; the run is cut after the fourth by the validation that is due there.
        patch.setattr(common, "validation_loss", interrupt)
        cut = args | dict(save_seconds=-1.0, validate_every=5)
        with pytest.raises(Interrupted):
            target_tool.train(argparse.Namespace(**cut, out=tmp_path / "cut"))
    assert torch.load(tmp_path / "cut.state.pt", weights_only=True)["step"] == 4
    target_tool.train(argparse.Namespace(**(args | dict(resume=True)), out=tmp_path / "cut"))
    whole, cut = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "cut"))
    assert [name for name in whole if not torch.equal(whole[name], cut[name])] == []


def test_resuming_without_a_state_names_the_missing_file(corpus_folder: Path, tmp_path: Path) -> None:
    args = argparse.Namespace(corpus=corpus_folder, out=tmp_path / "t", steps=1, seconds=math.inf, seed=0, device="cpu", resume=True)
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
        nibbles = np.stack([(words >> np.uint32(4 * i)) & np.uint32(15) for i in range(8)], -1).reshape(value.shape).astype(np.float32) - 8
        scale = packed[stem + "weight_scale"].float().numpy()
        assert np.array_equal(value.numpy(), (nibbles.reshape(*scale.shape, 32) * scale[..., None]).reshape(value.shape))
    save_file(unpacked, tmp_path / "target" / "model.safetensors", metadata={"format": "pt"})
    model, report = DeepseekV3ForCausalLM.from_pretrained(tmp_path / "target", dtype=torch.float32, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    assert torch.equal(model.model.layers[1].mlp.experts.down_proj[2], unpacked["model.layers.1.mlp.experts.2.down_proj.weight"])


# --- drafter


def test_s3_a_tap_is_the_output_of_its_decoder_layer_the_last_one_included() -> None:
    target, ids = make_target(), text(2, 11)
    hidden = target.model(ids, output_hidden_states=True, use_cache=False).hidden_states
    features, final = dflash.run_target(target, ids, [0, 1, 2])
    parts = features.split(64, -1)
    assert torch.equal(parts[0], hidden[1]) and torch.equal(parts[1], hidden[2])
    assert not torch.allclose(parts[2], hidden[3]), "the last entry of hidden_states has passed the final norm"
    assert torch.equal(target.model.norm(parts[2]), hidden[3]) and torch.equal(final, hidden[3])


def test_the_mask_shows_context_before_the_root_and_the_whole_own_block_only() -> None:
    roots, block, context = torch.tensor([[1, 3, 5], [2, 3, 6]]), 3, 9
    mask = dflash.block_mask(roots, block, context)
    assert mask.shape == (2, 9, 18)
    wrong = []
    for b, q, k in itertools.product(range(2), range(9), range(18)):
        own = q // block
        expected = k < roots[b, own] if k < context else (k - context) // block == own
        if mask[b, q, k] != expected:
            wrong.append((b, q, k))
    assert wrong == []


def test_blocks_drafted_together_equal_blocks_drafted_alone_from_their_context() -> None:
    target = make_target()
    drafter = make_drafter(target, [0, 2])
    ids = text(2, 20)
    features, _ = dflash.run_target(target, ids, drafter.taps)
    roots = torch.tensor([[1, 3, 4, 13], [2, 5, 9, 16]])
    together = dflash.draft_logits(drafter, target, ids, features, roots)
    for b, a in itertools.product(range(2), range(4)):
        root = int(roots[b, a])
        slots = torch.tensor([[int(ids[b, root]), MASK, MASK, MASK]])
        # As at inference: features of the tokens before the root alone, every slot seeing everything.
        alone = drafter(
            target.model.embed_tokens(slots),
            dflash.run_target(target, ids[b : b + 1, :root], drafter.taps)[0],
            torch.arange(root, root + 4)[None],
            torch.ones(1, 4, root + 4, dtype=torch.bool),
        )
        torch.testing.assert_close(together[b, a], target.lm_head(alone)[0], rtol=1e-4, atol=1e-4)


def test_a_slot_depends_on_context_root_and_position_and_on_nothing_after_the_root() -> None:
    target = make_target()
    drafter = make_drafter(target, [0, 1])
    ids, roots = text(1, 16), torch.tensor([[8]])

    def logits(changed: torch.Tensor) -> torch.Tensor:
        return dflash.draft_logits(drafter, target, changed, dflash.run_target(target, changed, drafter.taps)[0], roots)

    base = logits(ids)
    for position in range(16):
        changed = ids.clone()
        changed[0, position] = 4 + (changed[0, position] - 3) % (VOCABULARY - 4)
        difference = (logits(changed) - base).abs().max().item()
        # Not exactly zero: the experts' products change shape with the tokens that share them.
        assert (difference < 1e-4) == (position > 8), f"position {position}: {difference}"


def test_drafter_loss_falls_to_its_floor_on_one_batch() -> None:
    target = make_target()
    drafter = make_drafter(target, [0, 1])
    ids, roots = text(1, 24), torch.tensor([[2, 9, 17]])
    # 0.3 CE + 0.7 KL is least where the student is 0.3 of the label and 0.7 of the teacher.
    teacher = target(ids, use_cache=False).logits[0].softmax(-1)
    floor = weight = 0.0
    for root, k in itertools.product((2, 9, 17), (1, 2, 3)):
        p, label = teacher[root + k - 1], ids[0, root + k]
        best = 0.7 * p + 0.3 * (torch.arange(VOCABULARY) == label)
        w = math.exp(-(k - 1) / 4)
        floor += w * float(-0.3 * best[label].log() + 0.7 * (p * (p / best).log()).sum())
        weight += w
    adam = torch.optim.AdamW(drafter.parameters(), lr=2e-2, weight_decay=0.0)
    losses = []
    for _ in range(140):
        loss = dflash.loss_of(drafter, target, ids, roots)
        loss.backward()
        adam.step()
        adam.zero_grad()
        losses.append(loss.item() - floor / weight)
    assert min(losses) > -1e-5 and losses[-1] < 0.1 * losses[0]


def test_the_drafter_loss_is_the_stated_sum() -> None:
    target = make_target()
    drafter = make_drafter(target, [1])
    ids, roots = text(2, 12), torch.tensor([[1, 5], [2, 8]])
    features, final = dflash.run_target(target, ids, [1])
    student = dflash.draft_logits(drafter, target, ids, features, roots).log_softmax(-1)
    teacher = target.lm_head(final).log_softmax(-1)
    total = weight = 0.0
    for b, a, k in itertools.product(range(2), range(2), range(1, 4)):
        position = int(roots[b, a]) + k
        hard = -student[b, a, k, ids[b, position]]
        soft = (teacher[b, position - 1].exp() * (teacher[b, position - 1] - student[b, a, k])).sum()
        w = math.exp(-(k - 1) / 4)
        total += w * (0.3 * hard + 0.7 * soft)
        weight += w
    assert dflash.loss_of(drafter, target, ids, roots).item() == pytest.approx((total / weight).item(), rel=1e-5)


def test_a_saved_drafter_loads_strictly_and_keeps_published_names(tmp_path: Path) -> None:
    target = make_target()
    drafter = make_drafter(target, [0, 1])
    dflash.save_drafter(drafter, tmp_path / "draft")
    weights = load_file(tmp_path / "draft" / "model.safetensors")
    assert weights["fc.weight"].shape == (64, 128) and weights["layers.1.self_attn.k_proj.weight"].shape == (32, 64)
    assert {name.split(".")[0] for name in weights} == {"fc", "hidden_norm", "layers", "norm"}
    loaded = dflash.load_drafter(tmp_path / "draft", target)
    for name, parameter in drafter.named_parameters():
        assert torch.equal(loaded.get_parameter(name), parameter.to(torch.bfloat16).float()), name
    del weights["norm.weight"]
    save_file(weights, tmp_path / "draft" / "model.safetensors")
    with pytest.raises(ToolError, match=r"missing tensors \['norm.weight'\]"):
        dflash.load_drafter(tmp_path / "draft", target)


def test_s2_s4_s5_a_drafter_config_that_does_not_fit_is_refused() -> None:
    target = make_target()
    good = draft_config(target, [0, 1])
    cases = {
        "no key 'target_layer_ids'": good | {"dflash_config": {"mask_token_id": MASK}},
        "target_layer_ids [0, 3]: expected layers 0 to 2": good | {"dflash_config": {"mask_token_id": MASK, "target_layer_ids": [0, 3]}},
        "mask_token_id 97 is outside the vocabulary of 97": good | {"dflash_config": {"mask_token_id": 97, "target_layer_ids": [0]}},
        "vocab_size is 96, the target's 97": good | {"vocab_size": 96},
        "hidden_size is 32, the target's 64": good | {"hidden_size": 32},
    }
    wrong = {}
    for message, config in cases.items():
        try:
            dflash.Drafter(config, target)
            wrong[message] = "accepted"
        except ToolError as error:
            if message not in str(error):
                wrong[message] = str(error)
    assert wrong == {}


def test_roots_are_distinct_sorted_and_leave_room_for_their_block() -> None:
    roots = dflash.draw_roots(50, 5, 3, 15, 4, common.generator(0, 0))
    assert roots.min() == 3 and roots.max() == 11 and bool((roots.diff(dim=1) > 0).all())
    with pytest.raises(ToolError, match="room for 9 roots"):
        dflash.draw_roots(1, 10, 3, 15, 4, common.generator(0, 0))


# --- acceptance


def test_the_tree_holds_the_most_probable_prefixes_parents_first() -> None:
    rows = torch.randn(4, 5, generator=torch.Generator().manual_seed(0)).log_softmax(-1).sort(-1, descending=True).values.tolist()
    prefixes = [p for depth in range(1, 5) for p in itertools.product(range(5), repeat=depth)]
    best = sorted(prefixes, key=lambda p: -sum(rows[d][r] for d, r in enumerate(p)))
    tree = acceptance.build_tree(rows, 780)
    assert len(tree) == len(prefixes) == 780
    paths: list[tuple[int, ...]] = [()]
    for node in tree:
        assert len(paths[node.parent]) + 1 == node.depth
        paths.append((*paths[node.parent], node.rank))
    for budget in (1, 2, 7, 30, 100, 780):
        assert set(paths[1 : budget + 1]) == set(best[:budget]), budget


def test_equal_scores_order_by_depth_rank_and_parent() -> None:
    tree = acceptance.build_tree([[0.0, 0.0], [0.0, 0.0]], 6)
    assert [(n.parent, n.depth, n.rank) for n in tree] == [(0, 1, 0), (0, 1, 1), (1, 2, 0), (2, 2, 0), (1, 2, 1), (2, 2, 1)]


def test_acceptance_follows_the_text_through_the_tree() -> None:
    tree = acceptance.build_tree([[-0.1, -2.5], [-0.2, -1.8], [-0.3, -1.5]], 4)
    assert [(n.parent, n.rank) for n in tree] == [(0, 0), (1, 0), (2, 0), (2, 1)]
    cases = {(0, 0, 1): 3, (0, 0, 0): 3, (0, 1, 0): 1, (1, 0, 0): 0, (-1, 0, 0): 0, (0, 0, -1): 2}
    assert {ranks: acceptance.accepted(tree, list(ranks)) for ranks in cases} == cases


def test_rounds_start_where_the_last_one_ended_and_stay_inside_the_text() -> None:
    counts = {2: 3, 6: 0, 7: 2, 10: 1}
    assert acceptance.replay(counts.get, 2, 13) == [4, 1, 3, 2]
    assert acceptance.replay(counts.get, 2, 12) == [4, 1, 3]


def test_measured_chain_acceptance_equals_a_plain_count() -> None:
    target = make_target()
    drafter = make_drafter(target, [0, 1])
    ids = dflash.continue_texts(target, text(3, 6), 20, 0.0)
    report = acceptance.measure(drafter, target, ids, 6, [1, 3], batch=2)
    rounds = []
    for row in ids:
        root = 6
        while root + 4 <= len(row):
            features, _ = dflash.run_target(target, row[None], drafter.taps)
            drafted = dflash.draft_logits(drafter, target, row[None], features, torch.tensor([[root]]))[0, 0, 1:].argmax(-1)
            same = (drafted == row[root + 1 : root + 4]).tolist() + [False]
            count = same.index(False) + 1
            if root + count >= len(row):
                break
            rounds.append(count)
            root += count
    assert report["rounds"] == len(rounds) and report["tau_chain"] == round(sum(rounds) / len(rounds), 4)
    assert report["tau_tree"][3] >= report["tau_tree"][1] >= 1.0


def test_continuations_are_the_targets_own_whatever_its_sampling_defaults() -> None:
    target = make_target()
    prompts = text(2, 5)
    expected = prompts
    for _ in range(6):
        expected = torch.cat([expected, target(expected, use_cache=False).logits[:, -1:].argmax(-1)], 1)
    target.generation_config.update(do_sample=True, temperature=3.0, top_k=2, eos_token_id=expected[:, 6].tolist())
    assert torch.equal(dflash.continue_texts(target, prompts, 6, 0.0), expected)
    assert dflash.continue_texts(target, prompts, 6, 0.7).shape == (2, 11)


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
    expected = [common.next_token_loss(model, tokens[start : start + 9][None]).item() for start in (0, 8, 16, 24, 32, 40)]
    for batch in (1, 4, 6):
        assert common.validation_loss(model, tokens, 8, batch) == pytest.approx(sum(expected) / 6, rel=1e-5)
    assert common.validation_loss(model, tokens, 8, 4, limit=2) == pytest.approx(sum(expected[:2]) / 2, rel=1e-5)
