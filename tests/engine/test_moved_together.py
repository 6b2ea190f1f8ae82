"""A cache thinned out and moved together: against keys made anew, and a model written out with places and masks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AttentionInterface, AutoModelForCausalLM, DynamicCache

from engine.kv.block_keys import root_key
from engine.kv.blocks import BlockPool
from engine.kv.codecs.registry import INT8
from engine.kv.cold import ColdPrefix
from engine.kv.compaction import Closing
from engine.kv.compressed_chunks import encoded_tensors, pieces_of
from engine.kv.pruned import PrunedBlock
from engine.kv.resident import Resident
from engine.kv.rotation import Rotation, find_rotation
from engine.model.loader import LoadedModel, load_model
from engine.protocol.config import EngineConfig, Weights
from tests.engine import lean_models
from tests.engine.conftest import build_model

LENGTH, STOP, MOST, HEAD = 700, 600, 250, 8
LINEAR = {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}}
DYNAMIC = {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}}


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


def rotation_of(model: LoadedModel) -> Rotation:
    found = find_rotation(model.forward.model, model.config, model.device)
    assert found is not None
    return found


def random_ids(count: int, seed: int = 1) -> list[int]:
    return torch.randint(20, 280, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def random_scores(model: LoadedModel, stop: int, seed: int = 2) -> torch.Tensor:
    return torch.rand(model.geometry.num_lanes, stop, generator=torch.Generator().manual_seed(seed))


def new_chat(model: LoadedModel, ids: list[int]) -> Resident:
    resident = Resident("chat", BlockPool(root_key("00"), model.geometry))
    cache = model.new_cache(len(ids))
    model.forward(ids, cache)
    resident.activate(cache, None)
    return resident


families = pytest.mark.parametrize(
    "folder",
    [("llama", {}), ("llama", LINEAR), ("qwen3", {}), ("glm", {"partial_rotary_factor": 0.5})],
    indirect=True,
    ids=["llama", "linear", "qwen3", "glm"],
)


@torch.inference_mode()
@families
def test_a_key_moved_is_the_key_of_the_new_place(model: LoadedModel, folder: Path) -> None:
    """In the first layer, whose keys know nothing of other tokens: there a chat is read at other places."""
    rotation = rotation_of(model)
    reference: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.tensor([random_ids(60)])

    def first_keys(places: torch.Tensor) -> torch.Tensor:
        cache = DynamicCache(config=reference.config)
        reference(input_ids=ids, position_ids=places[None], cache=cache)
        keys: torch.Tensor = cache.layers[0].keys[0].transpose(0, 1)
        return keys

    before = torch.arange(900, 960)
    after = torch.arange(60) * 3
    moved = rotation.moved(0, first_keys(before), after - before)
    torch.testing.assert_close(moved, first_keys(after), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(first_keys(before), moved, atol=0.1)


def test_scores_of_attention_depend_on_the_distance_alone(model: LoadedModel) -> None:
    rotation = rotation_of(model)
    query, key = torch.randn(2, 1, 16, generator=torch.Generator().manual_seed(0))
    far, near = (
        (rotation.moved(0, query, torch.tensor([place])) * rotation.moved(0, key, torch.tensor([place - 9]))).sum()
        for place in (1200, 40)
    )
    torch.testing.assert_close(far, near, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "folder", [("llama", DYNAMIC), ("gpt2", {"n_embd": 64, "n_layer": 2, "n_head": 4})], indirect=True
)
def test_where_places_are_not_rotations_nothing_is_moved(model: LoadedModel) -> None:
    assert find_rotation(model.forward.model, model.config, model.device) is None


@pytest.mark.parametrize("folder", [("smollm3", {"no_rope_layers": [1, 0, 1]})], indirect=True)
def test_layers_without_places_stay_as_they_are(model: LoadedModel) -> None:
    rotation = rotation_of(model)
    assert rotation.is_rotated == (True, False, True)
    keys = torch.randn(3, 2, 16)
    assert torch.equal(rotation.moved(1, keys, torch.tensor([5, 6, 7])), keys)


class Written:
    """A reference: every token there ever was, its keys unrotated by place, and who may see what where, per lane.

    It feeds with transformers' own model and attention written out: before the products, a lane's keys are made anew
    for the places that they have for it.
    """

    def __init__(self, folder: Path, model: LoadedModel) -> None:
        AttentionInterface.register("moved", self._attend)
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="moved", dtype=torch.float32)
        self.model.eval()
        self.lanes = model.geometry.lanes
        self.num_lanes = model.geometry.num_lanes
        self.cache = DynamicCache(config=self.model.config)
        self.places = torch.zeros(self.num_lanes, 0, dtype=torch.long)  # that keys have for queries, per lane
        self.made = torch.zeros(0, dtype=torch.long)  # that they were rotated for when they were fed
        self.seen = torch.zeros(self.num_lanes, 0, dtype=torch.bool)
        self.frequencies = self.model.model.rotary_emb.inv_freq.double()

    def feed(self, ids: list[int], place: int) -> torch.Tensor:
        places = torch.arange(place, place + len(ids))
        self.made = torch.cat([self.made, places])
        self.places = torch.cat([self.places, places.expand(self.num_lanes, -1)], 1)
        self.seen = torch.cat([self.seen, torch.ones(self.num_lanes, len(ids), dtype=torch.bool)], 1)
        logits: torch.Tensor = self.model(
            input_ids=torch.tensor([ids]), position_ids=places[None], cache=self.cache
        ).logits[0]
        return logits

    def close_up(self, kept: torch.Tensor) -> int:
        """Keep only these of the first tokens, counted from the end of the longest lane. Returns the next place."""
        stop = kept.shape[1]
        most = int(kept.sum(1).max())
        tail = self.places.shape[1] - stop
        for lane in range(self.num_lanes):
            at = kept[lane].nonzero().flatten()
            self.seen[lane, :stop] = kept[lane]
            self.places[lane, at] = torch.arange(most - len(at), most)
            self.places[lane, stop:] = torch.arange(most, most + tail)
        return most + tail

    def _attend(
        self, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **more: Any
    ) -> Any:
        group, new = query.shape[1] // key.shape[1], query.shape[2]
        lanes = self.lanes(module.layer_idx)
        turned = []
        for head, lane in enumerate(lanes):  # complex numbers: another way to rotate than the one that is tested
            half = len(self.frequencies)
            numbers = torch.complex(key[0, head, :, :half].double(), key[0, head, :, half:].double())
            angles = (self.places[lane] - self.made)[:, None] * self.frequencies * getattr(module, "use_rope", True)
            numbers = numbers * torch.polar(torch.ones_like(angles), angles)
            turned.append(torch.cat([numbers.real, numbers.imag], 1).float())
        keys = torch.stack(turned)[None]
        total = key.shape[2]
        visible = torch.ones(new, total, dtype=torch.bool).tril(total - new)
        mask = visible & self.seen[lanes.start : lanes.stop][:, None]
        logs = query @ keys.repeat_interleave(group, 1).transpose(2, 3) * more["scaling"]
        weights = logs.masked_fill(~mask.repeat_interleave(group, 0), -torch.inf).softmax(-1)
        return (weights @ value.repeat_interleave(group, 1)).transpose(1, 2), None


def best(scores: torch.Tensor, there: torch.Tensor, head: int, most: int) -> torch.Tensor:
    """One by one: the first tokens, then the best that are there."""
    kept = torch.zeros_like(there)
    for lane in range(len(scores)):
        wanted = sorted(
            (token for token in range(scores.shape[1]) if there[lane, token]),
            key=lambda token: (token >= head, -float(scores[lane, token])),
        )
        kept[lane, wanted[:most]] = True
    return kept


@torch.inference_mode()
@pytest.mark.parametrize("folder", [("llama", {}), ("llama", LINEAR), ("qwen3", {})], indirect=True)
def test_what_follows_equals_a_model_written_out_with_the_same_places_and_masks(
    model: LoadedModel, folder: Path
) -> None:
    """Twice, with text between: what was moved once is moved again."""
    rotation, written = rotation_of(model), Written(folder, model)
    ids = random_ids(LENGTH)
    chat = new_chat(model, ids)
    assert chat.working is not None
    written.feed(ids, 0)
    scores = random_scores(model, STOP)
    kept = best(scores, torch.ones_like(scores, dtype=torch.bool), HEAD, MOST)
    assert chat.move_together(scores, HEAD, MOST, rotation) > 0
    place = written.close_up(kept)
    assert chat.length == LENGTH
    assert chat.length - chat.working.shift == place == MOST + LENGTH - STOP
    more = random_ids(200, 7)
    found = model.forward(more, chat.working)
    expected = written.feed(more, place)[-1]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-3 * float(expected.std()))
    place += len(more)

    later = random_scores(model, 850, 5)
    later[:, :STOP] = scores.half().float()
    there = torch.ones_like(later, dtype=torch.bool)
    there[:, :STOP] = kept
    kept = best(later, there, HEAD, 300)
    assert chat.move_together(random_scores(model, 850, 5), HEAD, 300, rotation) > 0
    place = written.close_up(kept)
    assert chat.length - chat.working.shift == place == 300 + 50
    found_each = torch.stack([model.forward([one], chat.working) for one in more[:4]])
    expected = written.feed(more[:4], place)
    torch.testing.assert_close(found_each, expected, rtol=0, atol=1e-3 * float(expected.std()))


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / (expected - expected.mean()).norm())


@torch.inference_mode()
@pytest.mark.parametrize("name", ["llama", "qwen3", "smollm3"])
def test_the_compiled_step_goes_on_at_the_new_places(
    name: str, tmp_path: Path, compiled_kernels: None, load_in_bfloat16: Callable[..., LoadedModel]
) -> None:
    """As near to the model written out as the model's own pass: both round to 16 bits."""
    family = lean_models.BY_NAME[name]
    saved = family.save(tmp_path / name)
    model = load_in_bfloat16(saved)
    assert model.forward.step is not None
    written = Written(saved, model)
    ids, more = random_ids(LENGTH), random_ids(24, 9)
    scores = random_scores(model, STOP)
    written.feed(ids, 0)
    place = written.close_up(best(scores, torch.ones_like(scores, dtype=torch.bool), HEAD, MOST))
    expected = written.feed(more, place)
    errors: list[float] = []
    step = model.forward.step
    for at_once in (None, 1, 3, 8):
        chat = new_chat(model, ids)
        other = new_chat(model, ids)  # the step has seen another cache, not moved, before and in between
        chat.move_together(scores, HEAD, MOST, rotation_of(model))
        assert chat.working is not None
        assert other.working is not None
        model.forward.step = step if at_once else None
        rows: list[torch.Tensor] = []
        for start in range(0, len(more), at_once or len(more)):
            rows.append(model.forward.all_logits(more[start : start + (at_once or len(more))], chat.working))
            model.forward(more[:1], other.working)
        errors.append(relative_error(torch.cat(rows), expected))
    model.forward.step = step
    own, *steps = errors
    assert 0 < own < 0.08
    assert max(steps) < 1.5 * own


# -- what is moved -------------------------------------------------------------------------------------------------


@torch.inference_mode()
def test_an_encoded_part_is_moved_from_where_it_lies(model: LoadedModel) -> None:
    """After a first move too: then it follows what was moved."""
    rotation, ids = rotation_of(model), random_ids(LENGTH)
    chat, exact = new_chat(model, ids), new_chat(model, ids)
    for one in (chat, exact):
        assert one.working is not None
        one.move_together(random_scores(model, 300), HEAD, 100, rotation)
    assert chat.encode_cold(INT8, 64) > 0
    assert chat.working is not None
    assert exact.working is not None
    assert chat.working.hot_start > 300
    for one in (chat, exact):
        one.move_together(random_scores(model, 650, 4), HEAD, 200, rotation)
    assert chat.working.shift == exact.working.shift == 450
    found, expected = (model.forward(ids[:3], one.working) for one in (chat, exact) if one.working is not None)
    torch.testing.assert_close(found, expected, rtol=0, atol=0.15 * float(expected.std()))
    for one in (chat, exact):
        one.give_up()
        assert one._pool.nbytes == 0


@torch.inference_mode()
def test_with_nothing_left_out_nothing_changes(model: LoadedModel) -> None:
    chat = new_chat(model, random_ids(LENGTH))
    assert chat.working is not None
    expected = model.forward([41, 42, 43], chat.working).clone()
    chat.working.rollback(LENGTH)
    chat.move_together(random_scores(model, STOP), HEAD, STOP, rotation_of(model))
    assert chat.working.shift == 0
    torch.testing.assert_close(model.forward([41, 42, 43], chat.working), expected, rtol=1e-3, atol=1e-3)


@torch.inference_mode()
def test_parked_and_active_again_it_is_the_same(model: LoadedModel) -> None:
    chat = new_chat(model, random_ids(LENGTH))
    chat.move_together(random_scores(model, STOP), HEAD, MOST, rotation_of(model))
    assert chat.working is not None
    shift = chat.working.shift
    expected = model.forward([41, 42, 43], chat.working).clone()
    chat.working.rollback(LENGTH)
    chat.park()
    assert chat.moved_together == (STOP, shift)
    chat.resume(model.new_cache(LENGTH - STOP))
    assert chat.working.shift == shift > 0
    assert torch.equal(model.forward([41, 42, 43], chat.working), expected)


def test_it_cannot_be_cut_amid_what_was_moved(model: LoadedModel) -> None:
    chat = new_chat(model, random_ids(LENGTH))
    chat.move_together(random_scores(model, STOP), HEAD, MOST, rotation_of(model))
    cache = chat.working
    assert cache is not None
    assert cache.reachable(STOP + 5) == STOP + 5
    assert cache.rollback(STOP) == STOP
    assert cache.shift == STOP - MOST
    assert cache.reachable(STOP - 1) == 0
    assert cache.rollback(STOP - 1) == 0
    assert cache.shift == 0
    assert cache.is_exact


def test_lanes_that_keep_less_end_where_the_others_end(model: LoadedModel) -> None:
    chat = new_chat(model, random_ids(64))
    assert chat.working is not None
    chat.move_together(random_scores(model, 60), 2, 20, rotation_of(model))
    first = chat.blocks[0].encoded
    assert isinstance(first, PrunedBlock)
    lanes = model.geometry.num_lanes
    # as if lanes had kept fewer: all of lane 0 but its last 5 pairs are gone
    counts = first.counts.clone()
    counts[0] = 5
    positions = torch.cat([first.positions[15:20], first.positions[20:]])
    scores = torch.cat([first.scores[15:20], first.scores[20:]])  # type: ignore[index]
    dim = model.geometry.layers[0].key_dim
    chat.blocks[0].encoded = dataclasses.replace(
        first,
        counts=counts,
        positions=positions,
        scores=scores,
        keys=first.keys[15 * dim :],
        values=first.values[15 * dim :],
    )
    closing = Closing(chat.blocks, torch.zeros(lanes, 60), 2, 10)
    assert int(closing.kept[0].sum()) == 5
    assert int(closing.kept[1].sum()) == closing.num_positions == 10
    assert set(closing.distances[0][closing.kept[0]].tolist()) == {-10}  # from the places 15 to 19 to 5 to 9


def test_a_block_comes_back_from_its_tensors_and_no_damaged_one_does(model: LoadedModel) -> None:
    chat = new_chat(model, random_ids(300))
    chat.move_together(random_scores(model, 256), HEAD, MOST, rotation_of(model))
    block = chat.blocks[0].encoded
    assert isinstance(block, PrunedBlock)
    tensors = block.tensors()
    again = PrunedBlock.from_tensors("kvzip", tensors, model.geometry, 256)
    assert ColdPrefix(chat.blocks, model.geometry).shift == 256 - MOST
    assert all(torch.equal(tensors[name], tensor) for name, tensor in again.tensors().items())
    stored = [(one.spec, tensor) for one, tensor in zip(encoded_tensors(0, 256, block), tensors.values(), strict=True)]
    (piece,) = pieces_of(stored, model.geometry, 256)
    assert isinstance(piece.encoded, PrunedBlock)
    assert piece.encoded.moved is not None
    for name, bad in (
        ("moved", torch.tensor([255, 10], dtype=torch.int32)),
        ("moved", torch.tensor([256, 257], dtype=torch.int32)),
        ("moved", torch.tensor([256, 0], dtype=torch.int32)),
        ("scores", tensors["scores"][:-1]),
        ("scores", tensors["scores"].float()),
    ):
        with pytest.raises(ValueError, match=r"place|scores"):
            PrunedBlock.from_tensors("kvzip", {**tensors, name: bad}, model.geometry, 256)
    for missing in ("moved", "scores"):
        with pytest.raises(ValueError, match="without"):
            PrunedBlock.from_tensors("kvzip", {n: t for n, t in tensors.items() if n != missing}, model.geometry, 256)
