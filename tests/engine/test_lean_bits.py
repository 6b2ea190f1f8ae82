"""The compiled step gives the same bits however tokens are fed: how many at once, by what threads, in what memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel

from engine.kernels.packing import Format, Matrix
from engine.kernels.plan import SEGMENT
from engine.kv.working_cache import WorkingCache
from engine.model.forward import ForwardPass
from tests.engine import lean_models

MOST = 8
LENGTH = 2 * SEGMENT + 44
IDS = [int(number) for number in torch.randint(2, lean_models.VOCABULARY, (LENGTH,), generator=torch.manual_seed(7))]
BORDERS = [border + more for border in (SEGMENT, 2 * SEGMENT) for more in (-8, -7, -4, -1, 0, 1)]
FAMILY = lean_models.BY_NAME["llama_biased"]


class Fed:
    """What came of feeding ids in one way: logits `[tokens, vocab]`, and the cache."""

    def __init__(self, forward: ForwardPass, cache: WorkingCache) -> None:
        self.cache = cache
        self.arenas = {id(cache.arena)}
        self.logits = torch.empty(0, lean_models.VOCABULARY)
        self._forward = forward

    def feed(self, stop: int, at_once: int) -> Fed:
        rows = [self.logits]
        for start in range(self.cache.length, stop, at_once):
            rows.append(self._forward.all_logits(IDS[start : min(start + at_once, stop)], self.cache))
            self.arenas.add(id(self.cache.arena))
        self.logits = torch.cat(rows)
        return self

    def go_back(self, length: int) -> Fed:
        self.cache.rollback(length)
        self.logits = self.logits[:length]
        return self

    @property
    def contents(self) -> torch.Tensor:
        return torch.stack(self.cache.arena.read(0, self.cache.length))

    def check_same(self, other: Fed) -> None:
        assert torch.equal(self.logits, other.logits[: len(self.logits)])
        assert torch.equal(self.contents, other.contents[:, :, : self.cache.length])


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return FAMILY.build().bfloat16()


@pytest.fixture(params=list(Format), ids=lambda target: target.name)
def weights(request: pytest.FixtureRequest, model: PreTrainedModel) -> dict[str, Matrix]:
    return lean_models.packed(model, request.param)


@pytest.fixture
def fed_by(
    lean_step: Callable[..., ForwardPass], model: PreTrainedModel, weights: dict[str, Matrix]
) -> Callable[..., Fed]:
    """Feeding by so many threads begins, with memory for so many tokens."""

    def start(num_threads: int = 1, num_tokens: int = 0) -> Fed:
        return Fed(lean_step(model, weights, num_threads), lean_models.new_cache(model, num_tokens))

    return start


@pytest.fixture
def single(fed_by: Callable[..., Fed]) -> Fed:
    """One token at a time, by one thread."""
    single = fed_by().feed(LENGTH, 1)
    assert len({tuple(row) for row in single.logits.tolist()}) == LENGTH
    assert len(single.arenas) > 1  # it grew and moved
    return single


@pytest.mark.parametrize("at_once", [2, 3, 5, MOST])
def test_several_at_once_or_one_by_one(fed_by: Callable[..., Fed], single: Fed, at_once: int) -> None:
    fed_by().feed(LENGTH, at_once).check_same(single)


@pytest.mark.parametrize("num_threads", [2, 3, 5])
def test_by_several_threads_or_by_one(fed_by: Callable[..., Fed], single: Fed, num_threads: int) -> None:
    fed = fed_by(num_threads)
    fed.feed(SEGMENT - 8, MOST).feed(SEGMENT + 8, 1).feed(2 * SEGMENT + 9, 5)
    fed.check_same(single)


def test_in_memory_that_moves_or_is_reserved(fed_by: Callable[..., Fed], single: Fed) -> None:
    fed = fed_by(num_tokens=LENGTH).feed(LENGTH, MOST)
    assert len(fed.arenas) == 1
    fed.check_same(single)


def test_across_the_borders_of_segments_and_after_going_back(fed_by: Callable[..., Fed], single: Fed) -> None:
    fed = fed_by().feed(LENGTH, 3)
    for start in reversed(BORDERS):
        for at_once in (MOST, 1):
            fed.go_back(start).feed(start + MOST, at_once)
            fed.check_same(single)


def test_one_step_serves_many_caches_in_turn(fed_by: Callable[..., Fed], single: Fed, model: PreTrainedModel) -> None:
    first = fed_by()
    second = Fed(first._forward, lean_models.new_cache(model, LENGTH))
    for stop in (5, 130, LENGTH):
        for fed in (first, second):
            fed.feed(stop, MOST).check_same(single)


# long contexts


LONG = 2100


@pytest.fixture
def long_contexts(model: PreTrainedModel) -> tuple[WorkingCache, WorkingCache]:
    """The same keys and values, in bfloat16 and in float32."""
    caches = lean_models.new_cache(model, LONG), lean_models.new_cache(model.float(), LONG)
    model.bfloat16()
    torch.manual_seed(9)
    contents = [torch.randn(tensor.shape).bfloat16() for tensor in caches[0].arena.read(0, LONG)]
    for cache in caches:
        cache.reserve(LONG)
        cache.arena.write(0, contents)
        cache.publish([3] * LONG)
    return caches


def test_long_contexts_are_attended_to_as_float32_does(
    long_contexts: tuple[WorkingCache, WorkingCache], lean_step: Callable[..., ForwardPass]
) -> None:
    model = FAMILY.build()
    exact = ForwardPass(model, torch.device("cpu")).all_logits(IDS[:6], long_contexts[1])
    forward = lean_step(model.bfloat16())
    spread = (exact - exact.mean()).norm()
    errors = {}
    for at_once in (1, 6):
        long_contexts[0].rollback(LONG)
        pieces = [IDS[start : start + at_once] for start in range(0, 6, at_once)]
        logits = torch.cat([forward.all_logits(piece, long_contexts[0]) for piece in pieces])
        errors[at_once] = float((logits - exact).norm() / spread)
    long_contexts[0].rollback(LONG)
    forward.step = None
    own = float((forward.all_logits(IDS[:6], long_contexts[0]) - exact).norm() / spread)
    assert errors[1] == errors[6]
    assert errors[1] < 1.5 * own < 0.05
