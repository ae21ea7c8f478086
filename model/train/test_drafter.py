"""Tests of the drafter and of its acceptance measurement on tiny shapes, on a CPU."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import DeepseekV3ForCausalLM

import acceptance
import common
import drafter as dflash
from common import MASK, ToolError
from test_train import VOCABULARY, make_target, text


def draft_config(target: DeepseekV3ForCausalLM, taps: list[int], layers: int = 2, block: int = 4) -> dict:
    config = dflash.tiny_config(target)
    config |= {
        "num_hidden_layers": layers,
        "layer_types": ["full_attention"] * layers,
        "head_dim": 16,
        "block_size": block,
    }
    return config | {"dflash_config": {"mask_token_id": MASK, "target_layer_ids": taps}}


def make_drafter(target: DeepseekV3ForCausalLM, taps: list[int], **shape: int) -> dflash.Drafter:
    torch.manual_seed(1)
    drafter = dflash.Drafter(draft_config(target, taps, **shape), target)
    for parameter in drafter.parameters():  # far from the initial state, where every attention is near uniform
        parameter.data += 0.2 * torch.randn_like(parameter)
    return drafter.eval()


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
        "target_layer_ids [0, 3]: expected layers 0 to 2": good
        | {"dflash_config": {"mask_token_id": MASK, "target_layer_ids": [0, 3]}},
        "mask_token_id 97 is outside the vocabulary of 97": good
        | {"dflash_config": {"mask_token_id": 97, "target_layer_ids": [0]}},
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
    rows = (
        torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
        .log_softmax(-1)
        .sort(-1, descending=True)
        .values.tolist()
    )
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
    assert [(n.parent, n.depth, n.rank) for n in tree] == [
        (0, 1, 0),
        (0, 1, 1),
        (1, 2, 0),
        (2, 2, 0),
        (1, 2, 1),
        (2, 2, 1),
    ]


def test_acceptance_follows_the_text_through_the_tree() -> None:
    tree = acceptance.build_tree([[-0.1, -2.5], [-0.2, -1.8], [-0.3, -1.5]], 4)
    assert [(n.parent, n.rank) for n in tree] == [(0, 0), (1, 0), (2, 0), (2, 1)]
    cases = {(0, 0, 1): 3, (0, 0, 0): 3, (0, 1, 0): 1, (1, 0, 0): 0, (-1, 0, 0): 0, (0, 0, -1): 2}
    assert {ranks: acceptance.accepted(tree, list(ranks)) for ranks in cases} == cases


def test_rounds_start_where_the_last_one_ended_and_stay_inside_the_text() -> None:
    accepted = [3, 9, 9, 9, 0, 2, 9, 9, 1]  # at roots 2 to 10; a 9 is a root that no round may start from
    assert acceptance.replay(accepted, 2, 13) == [4, 1, 3, 2]
    assert acceptance.replay(accepted, 2, 12) == [4, 1, 3]


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
            drafted = dflash.draft_logits(drafter, target, row[None], features, torch.tensor([[root]]))[
                0, 0, 1:
            ].argmax(-1)
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
