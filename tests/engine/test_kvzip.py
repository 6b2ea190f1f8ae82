"""Which pairs matter: scores against attention written out, and what attends to the pairs that are left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AttentionInterface, AutoModelForCausalLM, PreTrainedModel

from engine.kv import kvzip
from engine.kv.block_keys import root_key
from engine.kv.blocks import BlockPool
from engine.kv.codecs.registry import INT8
from engine.kv.kvzip import RepeatPrompts, most_attention, score, select, streaming_kept
from engine.kv.resident import Resident
from engine.model.loader import LoadedModel, load_model
from engine.protocol.config import EngineConfig, Weights
from tests.engine.conftest import build_model

PROMPTS = RepeatPrompts((7, 8, 9), (11, 12, 13, 14), (15,))
LENGTH, STOP = 600, 512


def never() -> bool:
    return False


def ignore(done: int, total: int) -> None:
    pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    family, options = getattr(request, "param", ("llama", {}))
    path = tmp_path_factory.mktemp("models") / family
    return build_model(path, family, max_position_embeddings=2048, **options)


@pytest.fixture
def model(folder: Path, engine_config: EngineConfig) -> Iterator[LoadedModel]:
    loaded = load_model(folder, Weights.BITS_16, engine_config, lambda stage: None)
    yield loaded
    loaded.close()


@pytest.fixture
def chat(model: LoadedModel) -> Resident:
    """An active one of random tokens."""
    ids = torch.randint(20, 280, (LENGTH,), generator=torch.Generator().manual_seed(1)).tolist()
    resident = Resident("chat", BlockPool(root_key("00"), model.geometry))
    cache = model.new_cache(LENGTH)
    model.forward(ids, cache)
    resident.activate(cache, None)
    return resident


def scores_of(model: LoadedModel, chat: Resident, chunk: int = 200) -> torch.Tensor:
    assert chat.working is not None
    found = score(model.forward, chat.working, PROMPTS, STOP, never, ignore, chunk)
    assert found is not None
    return found


def written_out(folder: Path, attend: Callable[..., Any] | None = None) -> PreTrainedModel:
    """The model with attention that can be looked at."""
    name = "eager"
    if attend is not None:
        name = "written-out"
        AttentionInterface.register(name, attend)
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, attn_implementation=name, dtype=torch.float32)
    model.eval()
    return model


@torch.inference_mode()
@pytest.mark.parametrize("folder", [("llama", {}), ("granite", {"attention_multiplier": 0.4})], indirect=True)
def test_scores_are_the_most_attention_while_the_context_is_repeated(
    model: LoadedModel, chat: Resident, folder: Path
) -> None:
    reference = written_out(folder)
    ids, chunk = chat.token_ids, 200
    expected = torch.zeros(model.geometry.num_lanes, STOP)
    for start in range(0, STOP, chunk):
        end = min(start + chunk, STOP)
        fed = [*ids, *PROMPTS.before(ids, start), *ids[start:end]]
        seen = reference(torch.tensor([fed]), output_attentions=True).attentions
        for layer, weights in enumerate(seen):
            lanes = model.geometry.lanes(layer)
            most = weights[0, :, LENGTH:, start:end].amax(1).reshape(len(lanes), -1, end - start).amax(1)
            expected[lanes.start : lanes.stop, start:end] = most
    before = list(ids)
    found = scores_of(model, chat)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6)
    assert chat.token_ids == before


def test_scores_do_not_depend_on_how_much_is_looked_at_together(
    model: LoadedModel, chat: Resident, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = scores_of(model, chat)
    monkeypatch.setattr(kvzip, "_SLICE_NUMBERS", 2 * 200 * 7)
    torch.testing.assert_close(scores_of(model, chat), expected)


def test_a_cold_part_is_scored_where_it_lies(model: LoadedModel, chat: Resident) -> None:
    expected = scores_of(model, chat)
    assert chat.encode_cold(INT8, 128) > 0
    assert 0 < chat.working.hot_start < STOP  # type: ignore[union-attr]
    found = scores_of(model, chat)
    assert not torch.equal(found, expected)
    torch.testing.assert_close(found, expected, rtol=0.3, atol=0.02)


def test_a_pruned_cache_is_not_scored(model: LoadedModel, chat: Resident) -> None:
    chat.prune("kvzip", torch.ones(model.geometry.num_lanes, 256, dtype=torch.bool))
    with pytest.raises(ValueError, match="pruned"):
        scores_of(model, chat)


def test_cancelling_acts_between_chunks_and_leaves_the_cache(model: LoadedModel, chat: Resident) -> None:
    assert chat.working is not None
    told: list[tuple[int, int]] = []
    ids, step = list(chat.token_ids), model.forward.step
    held = [tensor.clone() for tensor in chat.working.arena.read(0, LENGTH)]
    found = score(
        model.forward,
        chat.working,
        PROMPTS,
        STOP,
        lambda: len(told) == 2,
        lambda *one: told.append(one),
        chunk=200,
    )
    assert found is None
    assert told == [(0, STOP), (200, STOP)]
    assert chat.token_ids == ids
    assert model.forward.step is step
    assert all(torch.equal(*pair) for pair in zip(chat.working.arena.read(0, LENGTH), held, strict=True))


@pytest.mark.parametrize("group", [1, 3])
def test_attention_in_16_bits_is_that_in_64(group: int) -> None:
    torch.manual_seed(group)
    query = (torch.randn(1, 2 * group, 50, 64) * 3).bfloat16()
    keys = torch.randn(2, 90, 64).bfloat16()
    logs = query.double().reshape(2, group * 50, 64) @ keys.double().transpose(1, 2) * 0.2
    lse = logs.logsumexp(2)
    expected = (logs - lse[..., None]).exp().amax(1)
    found = most_attention(query, keys, lse.reshape(1, 2 * group, 50).float(), 0.2)
    torch.testing.assert_close(found.double(), expected, rtol=0.05, atol=1e-3)
    is_large = expected > 0.3
    assert is_large.any()
    torch.testing.assert_close(found.double()[is_large], expected[is_large], rtol=0.03, atol=0)


@pytest.mark.parametrize("keep", [0.1, 0.37, 0.9])
def test_one_threshold_holds_for_all_lanes(keep: float) -> None:
    scores = torch.rand(6, 320, generator=torch.Generator().manual_seed(0)) * torch.arange(1, 7)[:, None]
    protected = torch.arange(320) < 9
    kept = select(scores, keep, protected)
    assert int(kept.sum()) == round(keep * 6 * 320)
    assert kept[:, :9].all()
    assert scores[:, 9:][kept[:, 9:]].min() >= scores[:, 9:][~kept[:, 9:]].max()
    assert len(set(kept.sum(1).tolist())) > 1  # uneven budgets are the method


def test_of_equal_scores_the_first_win_every_time() -> None:
    protected = torch.zeros(8, dtype=torch.bool)
    kept = select(torch.ones(3, 8), 0.5, protected)
    assert torch.equal(kept.flatten(), torch.arange(24) < 12)


def test_what_is_protected_stays_even_where_it_is_more_than_the_share() -> None:
    protected = torch.arange(10) < 4
    assert torch.equal(select(torch.rand(2, 10), 0.2, protected), protected.expand(2, 10))


def test_streaming_keeps_the_first_and_the_most_recent(model: LoadedModel) -> None:
    kept = streaming_kept(model.geometry, 0.3, torch.arange(20) < 4)
    assert kept.shape == (model.geometry.num_lanes, 20)
    assert all(row.nonzero().flatten().tolist() == [0, 1, 2, 3, 18, 19] for row in kept)
    assert int(streaming_kept(model.geometry, 0.0, torch.arange(20) < 4)[0].sum()) == 4


@torch.inference_mode()
@pytest.mark.parametrize("is_int8", [False, True])
def test_what_is_left_is_attended_as_a_mask_would_have_it(
    model: LoadedModel, chat: Resident, folder: Path, is_int8: bool
) -> None:
    """A question read at once and then token by token, the rest of the pairs hidden from them alone."""
    kept = select(scores_of(model, chat), 0.3, torch.arange(STOP) < 4)
    more = [41, 42, 43, 44, 45, 46]

    def attend(module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **more: Any) -> Any:
        group, length = query.shape[1] // key.shape[1], query.shape[2]
        visible = torch.ones(length, length, dtype=torch.bool).tril().repeat(query.shape[1], 1, 1)
        lanes = model.geometry.lanes(module.layer_idx)
        visible[:, LENGTH:, :STOP] &= kept[lanes.start : lanes.stop].repeat_interleave(group, 0)[:, None]
        logs = query @ key.repeat_interleave(group, 1).transpose(2, 3) * more["scaling"]
        weights = logs.masked_fill(~visible, -torch.inf).softmax(-1)
        return (weights @ value.repeat_interleave(group, 1)).transpose(1, 2), None

    expected = written_out(folder, attend)(torch.tensor([[*chat.token_ids, *more]])).logits[0, LENGTH:]
    chat.prune("kvzip", kept, is_int8=is_int8)
    assert chat.working is not None
    found = [model.forward(more[:3], chat.working), *(model.forward([one], chat.working) for one in more[3:])]
    tolerance = 0.15 if is_int8 else 1e-3
    spread = float(expected.std())
    torch.testing.assert_close(torch.stack(found), expected[2:], rtol=0, atol=tolerance * spread)


@torch.inference_mode()
@pytest.mark.parametrize("recent", [LENGTH - STOP, 200])  # encoded up to the end of what is pruned, and not as far
def test_an_encoded_cache_is_pruned_from_where_it_lies(model: LoadedModel, chat: Resident, recent: int) -> None:
    kept = select(scores_of(model, chat), 0.3, torch.arange(STOP) < 4)
    assert chat.working is not None
    assert chat.encode_cold(INT8, recent) > 0
    assert 0 < chat.working.hot_start <= STOP
    cache = model.new_cache(LENGTH)
    model.forward(chat.token_ids, cache)
    exact = Resident("exact", BlockPool(root_key("00"), model.geometry))
    exact.activate(cache, None)
    assert chat.prune("kvzip", kept) > 0
    exact.prune("kvzip", kept)
    assert not chat.working.is_exact
    assert chat.own_bytes == pytest.approx(exact.own_bytes, rel=0.1)
    found, expected = model.forward([41, 42, 43], chat.working), model.forward([41, 42, 43], cache)
    torch.testing.assert_close(found, expected, rtol=0, atol=0.15 * float(expected.std()))
    chat.give_up()
    assert chat._pool.nbytes == 0


@torch.inference_mode()
def test_with_all_pairs_kept_nothing_changes(model: LoadedModel, chat: Resident) -> None:
    assert chat.working is not None
    expected = model.forward([41, 42, 43], chat.working).clone()
    chat.working.rollback(LENGTH)
    chat.prune("kvzip", torch.ones(model.geometry.num_lanes, STOP, dtype=torch.bool))
    torch.testing.assert_close(model.forward([41, 42, 43], chat.working), expected, rtol=1e-3, atol=1e-3)
