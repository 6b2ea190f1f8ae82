"""The cold part of an active cache, in every form: attention over it, cutting it, keeping it, its memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from engine.kv.attention import attend_causal
from engine.kv.block_keys import BLOCK_TOKENS, root_key
from engine.kv.blocks import Block, BlockPool
from engine.kv.codecs.registry import INT8, LADDER, NAMES, codec_named, without_ends
from engine.kv.geometry import KVGeometry, LayerShape
from engine.kv.pruned import PrunedBlock
from engine.kv.resident import Resident
from engine.kv.working_cache import WorkingCache
from engine.model.forward import ForwardPass
from tests.engine import lean_models
from tests.engine.lean_models import LEAN_FAMILIES, LeanFamily
from tests.engine.random_caches import FINGERPRINT, bits, new_cache, random_arena

GEOMETRY = KVGeometry((LayerShape(2, 32, 32), LayerShape(1, 64, 64), LayerShape(2, 32, 32)), torch.bfloat16)
FORMS = ("full", "int8", "balanced", "compact", "mixed", "kvzip", "kvzip-int8", "streaming")
TOKENS, REST = 600, 600 - 64 * 9
HOT = 24


def resident_of(form: str, source: list[torch.Tensor], geometry: KVGeometry, cache: WorkingCache) -> Resident:
    """An active chat whose first tokens, but for about `HOT`, have the given form. `source`: per group, all tokens."""
    pool = BlockPool(root_key(FINGERPRINT.digest), geometry)
    resident = Resident("chat", pool)
    count = source[0].shape[1]
    resident.working = cache
    cache.reserve(count)
    cache.arena.write(0, source)
    cache.publish(list(range(2, count + 2)))
    if form.startswith(("kvzip", "streaming")):
        stop = (count - HOT) // 32 * 32
        kept = torch.rand(geometry.num_lanes, stop, generator=torch.manual_seed(1)) < 0.4
        kept[0] = False  # a head may lose everything
        if form == "streaming":
            kept[:] = False
            kept[:, :4] = True
        resident.prune(form.removesuffix("-int8"), kept, is_int8=form.endswith("-int8"))
    elif form == "mixed":
        resident.park()
        resident.blocks[3].refs += 1  # shared: stays in full precision
        resident.quantize(INT8)
        resident.blocks[1].refs += 1
        resident.quantize(without_ends(LADDER[2]))
        resident.resume(new_cache(count, geometry=geometry))
    elif form == "full":
        resident.park()
        working = new_cache(count, geometry=geometry)
        blocks = resident.blocks[: (count - HOT) // 32]
        working.start_cold(blocks, "")
        position = working.hot_start
        for block in resident.blocks[len(blocks) :]:
            working.reserve(position + block.num_tokens)
            block.copy_to(working.arena, position, block.num_tokens)
            position += block.num_tokens
            pool.release(block)
        working.publish(resident.token_ids)
        resident.blocks, resident.working = blocks, working
    else:
        resident.encode_cold(without_ends(codec_named(form)), HOT)
    return resident


def random_groups(geometry: KVGeometry, count: int, seed: int = 0) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in random_arena(count, seed, geometry=geometry).groups]


def decoded_lane(block: Block, layer: int, head: int, geometry: KVGeometry) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of one KV head as they are to be read, `[pairs, dim]`."""
    if isinstance(block.encoded, PrunedBlock):
        return block.encoded.lane(layer, head, geometry)
    groups = [torch.empty(group.shape(block.num_tokens)) for group in geometry.groups]
    block.decode(groups, geometry)
    sides = []
    for is_key in (True, False):
        group, region = geometry.place(layer, is_key=is_key)
        sides.append(groups[group][region, :, head])
    return sides[0], sides[1]


def expected_attention(resident: Resident, layer: int, query: torch.Tensor, scale: float) -> torch.Tensor:
    """In float64, head by head, of the last `q` tokens over everything before and themselves."""
    working = resident.working
    assert working is not None
    assert working.cold is not None
    geometry, arena = working.geometry, working.arena
    rows = working.length - working.hot_start
    heads, q_length = query.shape[1:3]
    out = torch.empty(query.shape, dtype=torch.float64)
    for head in range(heads):
        kv_head = head * geometry.layers[layer].kv_heads // heads
        lanes = [decoded_lane(block, layer, kv_head, geometry) for block in working.cold.blocks]
        keys = torch.cat([*(key for key, _ in lanes), arena.keys[layer][:rows, kv_head]]).double()
        values = torch.cat([*(value for _, value in lanes), arena.values[layer][:rows, kv_head]]).double()
        scores = query[0, head].double() @ keys.T * scale
        hidden = torch.ones(scores.shape, dtype=torch.bool).triu(len(keys) - q_length + 1)
        out[0, head] = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ values
    return out


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("q_length", [1, 7, HOT])
def test_attention_in_pieces_is_attention(form: str, q_length: int) -> None:
    resident = resident_of(form, random_groups(GEOMETRY, TOKENS), GEOMETRY, new_cache(TOKENS, geometry=GEOMETRY))
    working = resident.working
    assert working is not None
    assert working.length - working.hot_start >= HOT
    for layer, shape in enumerate(GEOMETRY.layers):
        query = torch.randn(1, 4, q_length, shape.key_dim)
        rows = working.length - working.hot_start
        sides = (working.arena.keys, working.arena.values)
        keys, values = (side[layer][:rows].transpose(0, 1)[None].float() for side in sides)
        got = attend_causal(query, keys, values, 0.2, working.cold, layer)
        torch.testing.assert_close(got.double(), expected_attention(resident, layer, query, 0.2), rtol=1e-4, atol=1e-4)


def test_a_layer_is_decoded_into_a_scratch_memory_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.kv.cold.PIECE_TOKENS", 128)
    resident = resident_of("int8", random_groups(GEOMETRY, TOKENS), GEOMETRY, new_cache(TOKENS, geometry=GEOMETRY))
    assert resident.working is not None
    assert resident.working.cold is not None
    pieces = [keys.shape[2] for keys, _ in resident.working.cold.read(1, torch.float32)]
    assert max(pieces) == 128
    assert sum(pieces) == resident.working.hot_start


# -- the compiled step -------------------------------------------------------------------------------------------------


def lean_cache(family: LeanFamily, form: str) -> Resident:
    cache = lean_models.new_cache(family.build().bfloat16())
    return resident_of(form, random_groups(cache.geometry, TOKENS), cache.geometry, cache)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["llama", "phi3", "qwen3", "gemma"])
def test_the_compiled_step_reads_it_as_the_model_does(
    lean_step: Callable[..., ForwardPass], name: str, form: str
) -> None:
    family = lean_models.BY_NAME[name]
    model = family.build().bfloat16()
    model.set_attn_implementation("ember")
    forward = lean_step(model)
    resident = lean_cache(family, form)
    cache = resident.working
    assert cache is not None
    assert cache.cold is not None
    assert forward.step is not None
    assert forward.step.takes(cache)
    ids = list(range(40, 49))
    length = cache.length
    step, logits = forward.step, {}
    for at_once in (1, 3, 8):
        rows = [forward.all_logits(ids[start : start + at_once], cache) for start in range(0, len(ids), at_once)]
        logits[at_once] = torch.cat(rows)
        cache.rollback(length)
    forward.step = None
    own = torch.cat([forward.all_logits([token_id], cache) for token_id in ids])
    forward.step = step
    assert torch.equal(logits[1], logits[3])
    assert torch.equal(logits[1], logits[8])
    assert float((logits[1] - own).norm() / (own - own.mean()).norm()) < 0.04


@pytest.mark.parametrize("form", FORMS)
def test_the_number_of_threads_changes_no_bit(lean_step: Callable[..., ForwardPass], form: str) -> None:
    family = LEAN_FAMILIES[0]
    model = family.build().bfloat16()
    results = []
    for num_threads in (1, 2, 5):
        forward = lean_step(model, None, num_threads)
        cache = lean_cache(family, form).working
        assert cache is not None
        results.append(forward.all_logits([7, 8, 9], cache))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_everything_kept_is_nearly_the_full_cache(lean_step: Callable[..., ForwardPass]) -> None:
    family = LEAN_FAMILIES[0]
    forward = lean_step(family.build().bfloat16())
    full = lean_cache(family, "full")
    source = random_groups(full.working.geometry, TOKENS)  # type: ignore[union-attr]
    cache = lean_models.new_cache(family.build().bfloat16())
    resident = Resident("chat", BlockPool(b"", cache.geometry))
    resident.working = cache
    cache.reserve(TOKENS)
    cache.arena.write(0, source)
    cache.publish(full.token_ids)
    resident.prune("kvzip", torch.ones(cache.geometry.num_lanes, 544, dtype=torch.bool))
    assert full.working is not None
    expected, got = forward([9], full.working), forward([9], cache)
    assert float((got - expected).norm() / (expected - expected.mean()).norm()) < 0.02


# -- cutting it --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [form for form in FORMS if not form.startswith(("kvzip", "streaming"))])
@pytest.mark.parametrize("length", [0, 1, 31, 32, 33, 63, 64, 65, 127, 128, 300, 511, 512, 513, 575, 599])
def test_it_can_be_cut_anywhere(form: str, length: int) -> None:
    resident = resident_of(form, random_groups(GEOMETRY, TOKENS), GEOMETRY, new_cache(TOKENS, geometry=GEOMETRY))
    working = resident.working
    assert working is not None
    assert working.cold is not None
    ids = list(working.token_ids)
    whole = new_cache(TOKENS, geometry=GEOMETRY)
    resident.copy_to(whole, 0, TOKENS)
    before = bits(whole.arena.read(0, length))
    assert working.reachable(length) == length
    assert working.rollback(length) == length
    assert working.token_ids == ids[:length]
    resident.release_doubled()
    again = new_cache(TOKENS, geometry=GEOMETRY)
    resident.copy_to(again, 0, length)
    assert bits(again.arena.read(0, length)) == before
    assert working.nbytes <= length * GEOMETRY.bytes_per_token
    assert working.is_exact == (form == "full" or length == 0 or (form == "mixed" and length <= 0))


@pytest.mark.parametrize("form", ["kvzip", "kvzip-int8", "streaming"])
@pytest.mark.parametrize(("length", "reached"), [(599, 599), (576, 576), (575, 512), (300, 256), (256, 256), (255, 0)])
def test_amid_what_was_pruned_it_is_cut_to_the_start_of_the_block(form: str, length: int, reached: int) -> None:
    resident = resident_of(form, random_groups(GEOMETRY, TOKENS), GEOMETRY, new_cache(TOKENS, geometry=GEOMETRY))
    working = resident.working
    assert working is not None
    assert working.reachable(length) == reached
    assert working.rollback(length) == reached
    assert len(working.token_ids) == reached
    assert working.hot_start <= reached
    assert working.is_exact == (reached == 0)


# -- resting and coming back -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_a_chat_rests_and_comes_back_as_it_was(form: str) -> None:
    resident = resident_of(form, random_groups(GEOMETRY, TOKENS), GEOMETRY, new_cache(TOKENS, geometry=GEOMETRY))
    working = resident.working
    assert working is not None
    assert working.cold is not None
    cold, loss = working.cold.blocks, working.loss
    ids, hot = list(working.token_ids), bits(working.arena.read(working.hot_start, TOKENS))
    resident.park()
    assert resident.length == TOKENS
    assert resident.token_ids == ids
    assert resident.loss == loss
    cache = new_cache(TOKENS, geometry=GEOMETRY)
    resident.resume(cache)
    if form != "full":
        assert cache.cold is not None
        assert all(mine is theirs for mine, theirs in zip(cache.cold.blocks, cold, strict=True)), "copied"
        assert bits(cache.arena.read(cache.hot_start, TOKENS)) == hot
    assert cache.token_ids == ids
    assert cache.loss == loss
    resident.give_up()
    pool = resident._pool
    assert pool.nbytes == sum(block.nbytes for block in cold if block.refs > 0)


@pytest.mark.parametrize("name", NAMES)
def test_what_rests_is_encoded_but_for_a_rest_and_shared_blocks(name: str) -> None:
    codec = without_ends(codec_named(name))
    geometry = KVGeometry((LayerShape(3, 64, 64),) * 2, torch.bfloat16)
    source = random_groups(geometry, TOKENS)
    pool = BlockPool(root_key(FINGERPRINT.digest), geometry)
    resident = Resident("chat", pool)
    resident.working = new_cache(TOKENS, geometry=geometry)
    resident.working.arena.write(0, source)
    resident.working.publish(list(range(TOKENS)))
    resident.park()
    shared = pool.retain(resident.blocks[4])
    before = resident.own_bytes
    freed = resident.quantize(codec)
    assert freed == before - resident.own_bytes > 0
    assert shared in resident.blocks
    assert shared.is_full_precision
    assert sum(block.num_tokens for block in resident.blocks) == TOKENS
    in_full = sum(block.num_tokens for block in resident.blocks if block.is_full_precision)
    assert in_full == REST + BLOCK_TOKENS
    assert resident.precision("bf16") == name
    assert resident.quantize(codec) == 0, "encoded twice"
    assert not resident.is_exact


def test_each_rung_of_the_ladder_makes_it_smaller() -> None:
    geometry = KVGeometry((LayerShape(3, 64, 64),) * 2, torch.bfloat16)
    resident = resident_of("int8", random_groups(geometry, TOKENS), geometry, new_cache(TOKENS, geometry=geometry))
    resident.park()
    sizes = [resident.own_bytes]
    for codec in LADDER[1:]:
        assert resident.quantizable_bytes + resident.encoded_bytes > 0
        resident.quantize(codec)
        sizes.append(resident.own_bytes)
        assert resident.quantize(LADDER[0]) == 0, "went up again"
    assert sizes == sorted(sizes, reverse=True)
    assert resident.lossiest == "compact" or resident.precision("bf16") == "mixed"  # its first 64 tokens are not


def test_a_pruned_chat_goes_no_further_down() -> None:
    resident = resident_of("kvzip", random_groups(GEOMETRY, TOKENS), GEOMETRY, new_cache(TOKENS, geometry=GEOMETRY))
    blocks = list(resident.blocks)
    resident.park()
    resident.quantize(LADDER[2])
    assert resident.blocks[: len(blocks)] == blocks


@pytest.mark.parametrize("bad", [70, 130, 400])
def test_numbers_that_are_not_finite_cost_none_of_the_others(bad: int) -> None:
    """Compact keeps the first 64 tokens in full: they are lost least of all when nothing after them can be encoded."""
    source = random_groups(GEOMETRY, TOKENS)
    source[0][0, bad, 0, 3] = torch.nan
    pool = BlockPool(root_key(FINGERPRINT.digest), GEOMETRY)
    resident = Resident("chat", pool)
    resident.working = new_cache(TOKENS, geometry=GEOMETRY)
    resident.working.arena.write(0, source)
    resident.working.publish(list(range(TOKENS)))
    with pytest.raises(ValueError, match="finite"):
        resident.encode_cold(LADDER[2], HOT)
    resident.park()
    assert sum(block.num_tokens for block in resident.blocks) == TOKENS
    whole = new_cache(TOKENS, geometry=GEOMETRY)
    resident.copy_to(whole, 0, TOKENS)
    got = whole.arena.read(0, 64)
    assert bits(got) == bits([tensor[:, :64] for tensor in source])
    assert bits(whole.arena.read(512, TOKENS)) == bits([tensor[:, 512:] for tensor in source])
    resident.give_up()
    assert pool.nbytes == 0


def test_numbers_that_are_not_finite_leave_what_comes_after_them_in_full() -> None:
    source = random_groups(GEOMETRY, TOKENS)
    source[0][0, 200, 0, 3] = torch.nan
    resident = Resident("chat", BlockPool(b"", GEOMETRY))
    resident.working = new_cache(TOKENS, geometry=GEOMETRY)
    resident.working.arena.write(0, source)
    resident.working.publish(list(range(TOKENS)))
    with pytest.raises(ValueError, match="finite"):
        resident.encode_cold(INT8, HOT)
    assert resident.working.hot_start == 192
    assert resident.length == TOKENS
    expected = [tensor[:, 192:].view(torch.int16) for tensor in source]
    got = [tensor.view(torch.int16) for tensor in resident.working.arena.read(192, TOKENS)]
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(got, expected, strict=True))


@pytest.mark.parametrize("form", ["int8", "compact"])
def test_guesses_that_stand_behind_the_end_outlive_encoding(form: str) -> None:
    """A reply that repeats itself: what was fed ahead is counted in later, perhaps after the cache was encoded."""
    source = random_groups(GEOMETRY, TOKENS)
    resident = Resident("chat", BlockPool(b"", GEOMETRY))
    resident.working = cache = new_cache(TOKENS, geometry=GEOMETRY)
    cache.arena.write(0, source)
    cache.publish(list(range(TOKENS)))
    guessed = cache.token_ids[-5:]
    cache.rollback(TOKENS - 5, may_return=True)
    resident.encode_cold(without_ends(codec_named(form)), HOT)
    assert cache.hot_start > 0
    for token_id in guessed:
        cache.readmit([token_id])
    assert cache.length == TOKENS
    start = cache.hot_start
    assert bits(cache.arena.read(start, TOKENS)) == bits([tensor[:, start:] for tensor in source])


@pytest.mark.parametrize("length", [1, 40, 200, 599])
def test_what_was_overwritten_since_is_not_carried_along(length: int) -> None:
    resident = Resident("chat", BlockPool(b"", GEOMETRY))
    resident.working = cache = new_cache(TOKENS, geometry=GEOMETRY)
    cache.arena.write(0, random_groups(GEOMETRY, TOKENS))
    cache.publish(list(range(TOKENS)))
    cache.rollback(length, may_return=True)
    cache.append_ids([7])
    held = cache.arena.held_bytes(cache.length - cache.hot_start)
    resident.encode_cold(without_ends(INT8), HOT)
    assert cache.arena.held_bytes(cache.length - cache.hot_start) <= held
    assert cache.length == length + 1


@pytest.mark.parametrize("is_int8", [False, True])
def test_a_pruned_block_holds_the_pairs_that_were_chosen_of_each_head(is_int8: bool) -> None:
    source = random_groups(GEOMETRY, 200)
    kept = torch.rand(GEOMETRY.num_lanes, 200, generator=torch.manual_seed(4)) < 0.3
    block = PrunedBlock.of("kvzip", source, kept, GEOMETRY)
    if is_int8:
        block = block.quantized(GEOMETRY)
    positions = torch.cat([marks.nonzero()[:, 0] for marks in kept])
    assert torch.equal(block.positions.long(), positions)
    for layer, shape in enumerate(GEOMETRY.layers):
        for head in range(shape.kv_heads):
            marks = kept[GEOMETRY.lanes(layer)[head]]
            for got, is_key in zip(block.lane(layer, head, GEOMETRY), (True, False), strict=True):
                group, region = GEOMETRY.place(layer, is_key=is_key)
                expected = source[group][region, :, head][marks]
                torch.testing.assert_close(got, expected, rtol=0, atol=0.05 if is_int8 else 0)
