"""The step in plain torch computes what the model computes, for every family, whatever its buckets and graphs do."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from collections.abc import Callable
from functools import partial

import pytest
import torch
from transformers import PreTrainedModel

from engine.kernels.packing import Format, Matrix
from engine.kv.arena import KVArena
from engine.kv.working_cache import WorkingCache
from engine.model import acceleration, cuda_graph, torch_step
from engine.model.acceleration import Acceleration, accelerate
from engine.model.cuda_graph import GraphedCall, GraphRecorder
from engine.model.forward import ForwardPass
from engine.model.fused_projections import fuse_projections
from engine.model.lean_weights import LeanWeights, describe
from engine.model.torch_layers import join
from engine.model.torch_step import BUCKET, TorchStep
from tests.engine import lean_models
from tests.engine.lean_models import BY_NAME, LEAN_FAMILIES, LeanFamily

CPU = torch.device("cpu")
IDS = [int(number) for number in torch.randint(2, lean_models.VOCABULARY, (600,), generator=torch.manual_seed(5))]
MOST_WORSE = 1.5  # both errors are those of rounding to bfloat16 on the way, in other places
EXACT = 1e-5  # float32 sums in another order


def described(model: PreTrainedModel) -> LeanWeights:
    """The weights of `model` in its own type: what is described is bfloat16, which these weights fit."""
    dtype = model.dtype
    weights = describe(model.bfloat16())
    assert weights is not None
    model.to(dtype)
    if dtype is torch.bfloat16:
        return weights

    def converted(matrix: Matrix) -> Matrix:
        return dataclasses.replace(matrix, words=matrix.words.to(dtype))

    layers = [
        dataclasses.replace(layer, projections={name: converted(one) for name, one in layer.projections.items()})
        for layer in weights.layers
    ]
    embedding, head = converted(weights.embedding), converted(weights.head)
    return dataclasses.replace(weights, layers=layers, embedding=embedding, head=head, rotary=model.model.rotary_emb)


def torch_pass(model: PreTrainedModel) -> ForwardPass:
    forward = ForwardPass(model, CPU)
    forward.step = TorchStep(described(model), model.config.max_position_embeddings)
    return forward


def step_of(forward: ForwardPass) -> TorchStep:
    assert isinstance(forward.step, TorchStep)
    return forward.step


def logits_of(forward: ForwardPass, cache: WorkingCache, ids: list[int], at_once: int) -> torch.Tensor:
    pieces = [ids[start : start + at_once] for start in range(0, len(ids), at_once)]
    return torch.cat([forward.all_logits(piece, cache) for piece in pieces])


@torch.inference_mode()
def whole_pass(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    logits: torch.Tensor = model(torch.tensor([ids])).logits[0].float()
    return logits


def error(logits: torch.Tensor, exact: torch.Tensor) -> float:
    """Relative to the spread of the logits."""
    return float((logits - exact).norm() / (exact - exact.mean()).norm())


@pytest.mark.parametrize("family", LEAN_FAMILIES, ids=lambda family: family.name)
def test_in_float32_it_equals_the_models_own_pass(family: LeanFamily) -> None:
    model = family.build()
    expected = whole_pass(model, IDS[:24])
    forward = torch_pass(model)
    for at_once in (1, 8):
        logits = logits_of(forward, lean_models.new_cache(model), IDS[:24], at_once)
        assert error(logits, expected) < EXACT
        assert torch.equal(logits.argmax(dim=-1), expected.argmax(dim=-1))


@pytest.mark.parametrize("family", LEAN_FAMILIES, ids=lambda family: family.name)
def test_in_bfloat16_it_is_as_near_to_float32_as_the_models_own(family: LeanFamily) -> None:
    exact = whole_pass(family.build(), IDS[:48])
    model = family.build().bfloat16()
    own = error(logits_of(ForwardPass(model, CPU), lean_models.new_cache(model), IDS[:48], 1), exact)
    forward = torch_pass(model)
    errors = [error(logits_of(forward, lean_models.new_cache(model), IDS[:48], at_once), exact) for at_once in (1, 8)]
    assert 0 < own < 0.05
    assert max(errors) < MOST_WORSE * own


# buckets and graphs


class Recorder(GraphRecorder):
    """Records like CUDA: warms up once, records once, and then repeats what it recorded with the tensors of then."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.can_record = True

    def _capture(self, function: Callable[[], None]) -> torch.cuda.CUDAGraph:
        function()
        return RecordedCall(function)  # type: ignore[return-value]


class RecordedCall:
    def __init__(self, function: Callable[[], None]) -> None:
        self.replay = function


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_step, "GraphRecorder", Recorder)


@pytest.mark.usefixtures("recording")
def test_a_recorded_call_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    model = BY_NAME["qwen3"].build().bfloat16()
    recorded = logits_of(torch_pass(model), lean_models.new_cache(model), IDS[:300], 1)
    monkeypatch.setattr(torch_step, "GraphRecorder", GraphRecorder)
    plain = logits_of(torch_pass(model), lean_models.new_cache(model), IDS[:300], 1)
    assert torch.equal(recorded, plain)


@pytest.mark.parametrize("prefilled", [BUCKET - 2, BUCKET - 1, BUCKET, BUCKET + 1])
def test_a_step_over_the_end_of_a_bucket_sees_all_tokens(prefilled: int) -> None:
    model = BY_NAME["llama"].build()
    expected = whole_pass(model, IDS[: prefilled + 8])
    forward = torch_pass(model)
    for at_once in (1, 2, 8):
        cache = lean_models.new_cache(model)
        forward(IDS[:prefilled], cache)
        logits = logits_of(forward, cache, IDS[prefilled : prefilled + 8], at_once)
        assert error(logits, expected[prefilled:]) < EXACT


@pytest.mark.usefixtures("recording")
def test_one_graph_a_bucket_is_recorded_and_again_when_the_cache_moves() -> None:
    model = BY_NAME["llama"].build()
    expected = whole_pass(model, IDS)
    forward = torch_pass(model)
    cache = lean_models.new_cache(model)
    forward(IDS[:100], cache)
    logits_of(forward, cache, IDS[100:250], 1)
    assert step_of(forward).graphs_recorded == 1
    for moved, start in enumerate((250, 252, 254), 2):
        old = cache.arena
        cache.arena = KVArena(old.geometry, old.capacity, CPU)
        cache.arena.write(0, old.read(0, cache.length))
        for group in old.groups:
            group.fill_(torch.nan)  # freed, and used by others
        logits = logits_of(forward, cache, IDS[start : start + 2], 1)
        assert step_of(forward).graphs_recorded == moved
        assert error(logits, expected[start : start + 2]) < EXACT


@pytest.mark.usefixtures("recording")
def test_two_chats_that_take_turns_do_not_see_each_other() -> None:
    model = BY_NAME["olmo2"].build()
    forward = torch_pass(model)
    ids = (IDS[:20], IDS[300:320])
    expected = [whole_pass(model, one) for one in ids]
    caches = [lean_models.new_cache(model) for _ in ids]
    for start in range(20):
        for cache, one, logits in zip(caches, ids, expected, strict=True):
            assert error(forward.all_logits(one[start : start + 1], cache), logits[start : start + 1]) < EXACT


def test_what_lies_behind_the_filled_part_of_the_cache_does_not_matter() -> None:
    model = BY_NAME["llama"].build().bfloat16()
    forward = torch_pass(model)
    caches = [lean_models.new_cache(model, 400) for _ in range(2)]
    for number, cache in zip((0.0, torch.nan), caches, strict=True):
        for group in cache.arena.groups:
            group.fill_(number)
        forward(IDS[:50], cache)
    clean, dirty = (logits_of(forward, cache, IDS[50:60], 1) for cache in caches)
    assert torch.equal(clean, dirty)


def test_tokens_fed_after_a_rollback_replace_those_before_it() -> None:
    model = BY_NAME["smollm3"].build()
    forward = torch_pass(model)
    cache = lean_models.new_cache(model)
    logits_of(forward, cache, IDS[:270], 8)
    cache.rollback(200)
    logits = logits_of(forward, cache, IDS[300:310], 1)
    assert error(logits, whole_pass(model, IDS[:200] + IDS[300:310])[200:]) < EXACT


def test_its_cache_is_that_of_the_models_own_pass() -> None:
    """Either goes on where the other one was."""
    model = BY_NAME["phi3"].build()
    expected = whole_pass(model, IDS[:40])
    forward = torch_pass(model)
    cache = lean_models.new_cache(model)
    forward(IDS[:33], cache)
    logits_of(forward, cache, IDS[33:36], 1)
    forward.step = None
    assert error(forward.all_logits(IDS[36:40], cache), expected[36:]) < EXACT


@pytest.mark.usefixtures("recording")
def test_only_the_graphs_of_two_buckets_are_kept() -> None:
    model = BY_NAME["llama"].build()
    forward = torch_pass(model)
    cache = lean_models.new_cache(model, 4 * BUCKET)
    for length in (10, BUCKET, 2 * BUCKET):
        cache.rollback(0)
        logits_of(forward, cache, IDS[:length], 8)
        forward(IDS[:1], cache)
    assert len(step_of(forward)._graphs) == 2
    step_of(forward).close()
    assert not step_of(forward)._graphs


@pytest.mark.usefixtures("recording")
def test_positions_beyond_the_tables_make_them_grow() -> None:
    model = BY_NAME["qwen3_yarn"].build()
    forward = torch_pass(model)
    ids = (IDS * 3)[:1100]
    expected = whole_pass(model, ids)
    cache = lean_models.new_cache(model)
    forward(ids[:1], cache)
    assert len(step_of(forward)._cos) == 1024
    forward(ids[1:1020], cache)
    assert error(logits_of(forward, cache, ids[1020:1030], 1), expected[1020:1030]) < EXACT


@pytest.mark.usefixtures("recording")
def test_a_step_given_up_is_freed_at_once() -> None:
    model = BY_NAME["llama"].build()
    forward = torch_pass(model)
    cache = lean_models.new_cache(model)
    forward(IDS[:1], cache)
    step, arena = weakref.ref(step_of(forward)), weakref.ref(cache.arena)
    gc.disable()
    try:
        del cache
        assert arena() is None
        forward.step = None
        assert step() is None
    finally:
        gc.enable()


class Failing(Recorder):
    failure: RuntimeError

    def _capture(self, function: Callable[[], None]) -> torch.cuda.CUDAGraph:
        raise self.failure


def test_where_no_graph_can_be_recorded_the_call_is_made_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []
    recorder = Failing(CPU)
    recorder.failure = RuntimeError("operation not permitted when stream is capturing")
    for _ in range(3):
        call = GraphedCall(lambda: calls.append(1), recorder)
        assert not call.is_graph
        call.run()
    assert len(calls) == 3
    assert [record.name for record in caplog.records] == [cuda_graph.__name__]


def test_a_recording_that_ran_out_of_memory_is_tried_again_later(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Failing(CPU)
    recorder.failure = torch.OutOfMemoryError("CUDA out of memory")
    assert not GraphedCall(lambda: None, recorder).is_graph
    assert recorder.can_record
    assert not caplog.records


# where it is used


@pytest.fixture
def as_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceleration, "_is_cuda", lambda device: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 40, 1 << 40))


def accelerated(model: PreTrainedModel) -> tuple[ForwardPass, Acceleration]:
    forward = ForwardPass(model, CPU)
    new_cache = partial(lean_models.new_cache, model)
    found = accelerate(forward, model, {}, new_cache().geometry, model.config.max_position_embeddings, new_cache)
    assert found is not None
    return forward, found


@pytest.mark.usefixtures("as_on_cuda", "recording")
def test_on_cuda_it_does_the_small_steps_until_the_model_is_closed() -> None:
    model = BY_NAME["qwen3"].build().bfloat16()
    forward, found = accelerated(model)
    found.poll()
    step = weakref.ref(step_of(forward))
    assert not forward.multi_token_is_exact
    cache = lean_models.new_cache(model)
    recorded = step_of(forward).graphs_recorded
    forward(IDS[:9], cache)  # too many for steps
    assert step_of(forward).graphs_recorded == recorded
    forward(IDS[9:10], cache)
    assert step_of(forward).graphs_recorded > recorded
    found.close()
    found.close()
    assert forward.step is None
    assert step() is None


@pytest.mark.usefixtures("as_on_cuda")
def test_a_step_that_computes_something_else_is_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        acceleration, "describe", lambda *arguments: dataclasses.replace(describe(*arguments), epsilon=1.0)
    )
    model = BY_NAME["qwen3"].build().bfloat16()
    forward, _ = accelerated(model)
    assert forward.step is None
    assert forward(IDS[:3], lean_models.new_cache(model)).shape == (lean_models.VOCABULARY,)


@pytest.mark.usefixtures("as_on_cuda")
def test_a_step_that_fails_is_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("no kernel image is available for execution on the device")

    monkeypatch.setattr(TorchStep, "feed", fail)
    assert accelerated(BY_NAME["qwen3"].build().bfloat16())[0].step is None


# what it refuses


@pytest.mark.parametrize("wrong", [-1, lean_models.VOCABULARY, 2**40])
def test_an_id_outside_the_vocabulary_is_refused_and_nothing_lost(wrong: int) -> None:
    model = BY_NAME["llama"].build()
    forward = torch_pass(model)
    cache = lean_models.new_cache(model)
    forward(IDS[:4], cache)
    with pytest.raises(ValueError, match="outside the vocabulary"):
        forward([5, wrong], cache)
    assert cache.token_ids == IDS[:4]
    assert error(forward.all_logits(IDS[4:6], cache), whole_pass(model, IDS[:6])[4:]) < EXACT


def test_too_many_ids_or_none_are_refused() -> None:
    model = BY_NAME["llama"].build()
    step, cache = step_of(torch_pass(model)), lean_models.new_cache(model)
    for ids in ([], [5] * 9):
        with pytest.raises(ValueError, match="cannot be fed at once"):
            step.feed(ids, cache)
    assert step.feed([5] * 8, cache, 0).shape == (0, lean_models.VOCABULARY)


# matrices side by side


@pytest.mark.parametrize("name", ["qwen2", "llama_biased", "gemma"])
def test_fused_projections_are_one_matrix_and_the_models_own(name: str) -> None:
    model = BY_NAME[name].build()
    own = whole_pass(model, IDS[:16])
    nbytes = sum(parameter.nbytes for parameter in model.parameters())
    fuse_projections(model)
    assert torch.equal(whole_pass(model, IDS[:16]), own)
    assert sum(parameter.nbytes for parameter in model.parameters()) == nbytes
    attention = model.model.layers[0].self_attn
    storages = {
        linear.weight.untyped_storage().data_ptr() for linear in (attention.q_proj, attention.k_proj, attention.v_proj)
    }
    assert len(storages) == 1


@pytest.mark.parametrize("name", ["qwen2", "phi3", "llama_biased", "granite"])
def test_matrices_side_by_side_are_multiplied_at_once(name: str) -> None:
    model = BY_NAME[name].build().bfloat16()
    fuse_projections(model)
    weights = describe(model)
    assert weights is not None
    for layer in weights.layers:
        for names in (("q", "k", "v"), ("gate", "up")):
            joined = join([layer.projections[one] for one in names])
            assert joined is not None
            assert torch.equal(joined, torch.cat([layer.projections[one].words for one in names]))
    forward = ForwardPass(model, CPU)
    own = logits_of(forward, lean_models.new_cache(model), IDS[:30], 1)
    forward.step = TorchStep(weights, model.config.max_position_embeddings)
    assert error(logits_of(forward, lean_models.new_cache(model), IDS[:30], 1), own) < 0.05


def test_matrices_apart_or_of_other_shapes_are_not_joined() -> None:
    def matrix(words: torch.Tensor) -> Matrix:
        return Matrix(Format.BF16, *words.shape, words)

    both = torch.zeros(64, 32)
    assert join([matrix(both[:16]), matrix(both[16:])]) is not None
    assert join([matrix(both[16:]), matrix(both[:16])]) is None
    assert join([matrix(both[:16]), matrix(both[32:])]) is None
    assert join([matrix(both[:16]), matrix(both[16:].view(24, 64))]) is None
    assert join([matrix(both), matrix(torch.zeros(16, 32))]) is None
