"""Guessing ahead: the same reply in fewer passes, and only while it pays."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.generation.decode import Decode
from engine.generation.prefill import prefill
from engine.generation.sampler import Sampler
from engine.generation.speculation import MOST_FED, Speculation
from engine.kv.working_cache import WorkingCache
from engine.model.forward import ForwardPass
from engine.model.loader import LoadedModel, load_model
from engine.protocol.config import GREEDY, EngineConfig, Sampling, Weights
from engine.protocol.events import FinishReason, StatisticsChanged
from tests.engine.conftest import Engine, build_model, user

PROMPT = "the quick brown fox jumps over the lazy dog and " * 5
SAMPLED = Sampling(temperature=0.9, top_p=0.95, seed=11)
SAMPLINGS = [
    pytest.param(GREEDY, id="greedy"),
    pytest.param(Sampling(temperature=0.0, top_p=1.0, repetition_penalty=1.05), id="greedy-penalty"),
    pytest.param(SAMPLED, id="sampled"),
    pytest.param(Sampling(temperature=0.8, top_k=20, top_p=0.9, repetition_penalty=1.02, seed=3), id="sampled-penalty"),
]


def tells_nobody(*arguments: object) -> None:
    pass


@pytest.fixture(scope="module")
def looping_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with a leaning: after each token it likes the next one of a ring of twelve."""
    folder = build_model(tmp_path_factory.mktemp("models") / "looping", seed=1)
    network = AutoModelForCausalLM.from_pretrained(folder)
    ids = torch.arange(network.config.vocab_size)
    following = torch.where(ids % 12 == 11, ids - 11, (ids + 1) % len(ids))
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.mul_(0.028)
        network.lm_head.weight.index_add_(0, following, network.get_input_embeddings().weight * 2)
    network.save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def stock_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model as transformers runs it: what is exact, and when, is for the tests to say."""
    monkeypatch.setattr("engine.model.loader.accelerate", lambda *arguments: None)


@pytest.fixture
def model(looping_model: Path, engine_config: EngineConfig) -> LoadedModel:
    """Its forward pass is exact for several tokens, since it feeds them one by one."""
    loaded = load(looping_model, engine_config)
    feed_one_by_one(loaded.forward)
    return loaded


def load(folder: Path, config: EngineConfig) -> LoadedModel:
    return load_model(folder, Weights.BITS_16, config, tells_nobody)


def feed_one_by_one(forward: ForwardPass) -> None:
    def all_logits(token_ids: list[int], cache: WorkingCache) -> torch.Tensor:
        return torch.stack([forward([token_id], cache) for token_id in token_ids])

    forward.all_logits = all_logits


@dataclass
class Reply:
    """A reply about to be made on a cache that holds the prompt."""

    decode: Decode
    cache: WorkingCache
    logits: torch.Tensor
    prompt: list[int]
    is_cancelled: bool = False

    def tokens(self) -> Iterator[int]:
        """The ids; at each of them the cache holds all but the last."""
        ids: list[int] = []
        for token_id in self.decode.run(self.logits):
            ids.append(token_id)
            self.check_cache(ids[:-1])
            yield token_id

    def check_cache(self, fed: list[int]) -> None:
        assert self.cache.token_ids == [*self.prompt, *fed]
        assert {layer.length for layer in self.cache._full} == {len(self.prompt) + len(fed)}

    @property
    def contents(self) -> torch.Tensor:
        return torch.stack(self.cache.arena.read(0, self.cache.length))


def start(
    model: LoadedModel,
    sampling: Sampling = GREEDY,
    *,
    is_ahead: bool = True,
    said: list[int] | None = None,
    max_new_tokens: int = 160,
    stop_ids: frozenset[int] = frozenset(),
) -> Reply:
    """Read the prompt and what was `said` after it. By the clock every pass takes a second, however many it feeds."""
    prompt: list[int] = [*model.tokenizer.encode(PROMPT), *(said or [])]
    cache = model.new_cache(len(prompt))
    logits = prefill(model.forward, cache, prompt, 32, lambda: False, tells_nobody)
    assert logits is not None
    sampler = Sampler(sampling, prompt, model.device)
    clock = itertools.count().__next__
    model.forward.multi_token_is_exact = is_ahead
    decode = Decode(model.forward, cache, sampler, stop_ids, max_new_tokens, lambda: reply.is_cancelled, clock)
    reply = Reply(decode, cache, logits, prompt)
    return reply


@pytest.fixture
def said(model: LoadedModel) -> list[int]:
    """The beginning of the greedy reply, which then goes round one ring of twelve tokens."""
    return list(start(model, is_ahead=False, max_new_tokens=130).tokens())


# the reply


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_reply_and_cache_are_those_of_one_token_at_a_time(model: LoadedModel, sampling: Sampling) -> None:
    plain, ahead = start(model, sampling, is_ahead=False), start(model, sampling)
    expected = list(plain.tokens())
    assert list(ahead.tokens()) == expected
    assert ahead.decode.finish_reason is plain.decode.finish_reason is FinishReason.LENGTH
    assert plain.decode.drafted_tokens == plain.decode.accepted_tokens == 0
    assert 10 < ahead.decode.accepted_tokens < ahead.decode.drafted_tokens
    ahead.check_cache(expected[:-1])
    assert torch.equal(ahead.contents, plain.contents)


def test_a_real_pass_over_several_tokens_says_the_same(looping_model: Path, engine_config: EngineConfig) -> None:
    model = load(looping_model, engine_config)
    fed_before = model.forward.tokens_fed
    plain, ahead = start(model, is_ahead=False), start(model)
    assert list(ahead.tokens()) == list(plain.tokens())
    rejected = ahead.decode.drafted_tokens - ahead.decode.accepted_tokens
    assert ahead.decode.accepted_tokens > 10
    assert model.forward.tokens_fed - fed_before == ahead.cache.length + plain.cache.length + rejected
    torch.testing.assert_close(ahead.contents, plain.contents, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("keeps_logits", [True, False])
def test_all_logits_are_those_after_each_token(
    looping_model: Path, engine_config: EngineConfig, keeps_logits: bool
) -> None:
    model = load(looping_model, engine_config)
    model.forward._keeps_logits = keeps_logits
    ids = [5, 9, 9, 14, 3, 200, 7]
    single, several = model.new_cache(), model.new_cache()
    for cache in (single, several):
        model.forward([30, 40, 50], cache)
    expected = torch.stack([model.forward([token_id], single) for token_id in ids])
    logits = model.forward.all_logits(ids, several)
    assert logits.dtype == torch.float32
    assert several.token_ids == single.token_ids
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


def test_fewer_passes_are_made(model: LoadedModel, said: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    fed: list[int] = []
    all_logits = model.forward.all_logits

    def counted(token_ids: list[int], cache: WorkingCache) -> torch.Tensor:
        fed.append(len(token_ids))
        return all_logits(token_ids, cache)

    monkeypatch.setattr(model.forward, "all_logits", counted)
    ahead = start(model, said=said, max_new_tokens=60)
    assert len(list(ahead.tokens())) == 60
    assert max(fed) == MOST_FED
    assert sum(fed) - len(fed) == ahead.decode.drafted_tokens
    assert ahead.decode.accepted_tokens > 2 * len(fed)


# how it ends


def finish(reply: Reply, *, cancel_at: int | None = None, close_at: int | None = None) -> list[int]:
    ids: list[int] = []
    for token_id in reply.tokens():
        ids.append(token_id)
        reply.is_cancelled = len(ids) == cancel_at
        if len(ids) == close_at:
            break
    return ids


def check_end(plain: Reply, ahead: Reply, fed: list[int]) -> None:
    ahead.check_cache(fed)
    plain.check_cache(fed)
    assert torch.equal(ahead.contents, plain.contents)
    assert ahead.decode.finish_reason is plain.decode.finish_reason
    assert 0 < ahead.decode.accepted_tokens < len(fed)


IN_A_RUN = range(4, 12)  # by then guesses are accepted: the ring is known, and the pass over one token measured


def test_the_reply_ends_at_its_limit_amid_guesses(model: LoadedModel, said: list[int]) -> None:
    whole = list(start(model, said=said, is_ahead=False, max_new_tokens=20).tokens())
    for length in IN_A_RUN:
        plain, ahead = (start(model, said=said, is_ahead=way, max_new_tokens=length) for way in (False, True))
        assert finish(plain) == finish(ahead) == whole[:length]
        assert ahead.decode.finish_reason is FinishReason.LENGTH
        check_end(plain, ahead, whole[: length - 1])


def test_the_reply_ends_at_a_stop_id_amid_guesses(model: LoadedModel, said: list[int]) -> None:
    whole = list(start(model, said=said, is_ahead=False, max_new_tokens=20).tokens())
    for length in IN_A_RUN:
        stop = frozenset({whole[length]})
        plain, ahead = (start(model, said=said, is_ahead=way, stop_ids=stop) for way in (False, True))
        assert finish(plain) == finish(ahead) == whole[:length]
        assert ahead.decode.finish_reason is FinishReason.STOP
        check_end(plain, ahead, whole[:length])


def test_the_reply_is_cancelled_amid_guesses(model: LoadedModel, said: list[int]) -> None:
    whole = list(start(model, said=said, is_ahead=False, max_new_tokens=20).tokens())
    for length in IN_A_RUN:
        plain, ahead = (start(model, said=said, is_ahead=way) for way in (False, True))
        assert finish(plain, cancel_at=length) == finish(ahead, cancel_at=length) == whole[:length]
        assert ahead.decode.finish_reason is FinishReason.CANCELLED
        check_end(plain, ahead, whole[: length - 1])


def test_nobody_asks_for_the_rest_amid_guesses(model: LoadedModel, said: list[int]) -> None:
    whole = list(start(model, said=said, is_ahead=False, max_new_tokens=20).tokens())
    for length in IN_A_RUN:
        plain, ahead = (start(model, said=said, is_ahead=way) for way in (False, True))
        assert finish(plain, close_at=length) == finish(ahead, close_at=length) == whole[:length]
        check_end(plain, ahead, whole[: length - 1])
        for reply in (plain, ahead):  # what comes next is fed where the guesses stood
            reply.logits = model.forward([7], reply.cache)
        assert torch.equal(ahead.contents, plain.contents)
        assert torch.equal(ahead.logits, plain.logits)


def test_nothing_is_guessed_beyond_the_end(model: LoadedModel, said: list[int]) -> None:
    """The reply's limit is also the context's: no position behind it may be fed."""
    for length in range(1, 20):
        ahead = start(model, said=said, max_new_tokens=length)
        before = ahead.cache.arena.touched_tokens
        assert len(finish(ahead)) == length
        assert ahead.cache.arena.touched_tokens <= max(before, len(ahead.prompt) + length - 1)


def test_no_end_of_turn_is_fed_as_a_guess(model: LoadedModel, said: list[int]) -> None:
    fed: list[int] = []
    single = model.forward.all_logits

    def watched(token_ids: list[int], cache: WorkingCache) -> torch.Tensor:
        fed.extend(token_ids)
        return single(token_ids, cache)

    model.forward.all_logits = watched
    stop_id = list(start(model, said=said, is_ahead=False, max_new_tokens=20).tokens())[9]
    ahead = start(model, said=said, stop_ids=frozenset({stop_id}))
    assert len(finish(ahead)) == 9
    assert fed
    assert stop_id not in fed


def test_a_pass_that_runs_out_of_memory_is_tried_again(looping_model: Path, engine_config: EngineConfig) -> None:
    model = load(looping_model, engine_config)
    expected = finish(start(model, is_ahead=False))
    network, failed = model.forward._model, []

    def failing(input_ids: torch.Tensor, **options: object) -> object:
        output = network(input_ids=input_ids, **options)
        if input_ids.shape[1] > 1 and len(failed) % 2 == 0:
            failed.append(input_ids.shape[1])
            raise RuntimeError("not enough memory")
        failed.extend([1] * (input_ids.shape[1] > 1))
        return output

    ahead = start(model)
    model.forward._model = failing
    with pytest.raises(RuntimeError, match="memory"):
        finish(ahead)
    assert ahead.cache.token_ids == [*ahead.prompt, *expected][: ahead.cache.length]
    assert {layer.length for layer in ahead.cache._full} == {ahead.cache.length}
    model.forward._model = network
    ahead = start(model)
    model.forward._model, model.forward.on_out_of_memory = failing, lambda: True
    failed.clear()
    assert finish(ahead) == expected
    assert failed


def test_a_cache_that_cannot_be_cropped_is_never_fed_guesses(window_model: Path, engine_config: EngineConfig) -> None:
    model = load(window_model, engine_config)
    plain, ahead = start(model, is_ahead=False), start(model)
    assert not ahead.cache.can_crop
    assert list(ahead.decode.run(ahead.logits)) == list(plain.decode.run(plain.logits))
    assert ahead.decode.drafted_tokens == 0


# through the engine


def test_a_turn_tells_what_was_guessed_and_ends_at_a_stop_string(
    start_engine: Callable[..., Engine], looping_model: Path
) -> None:
    engine = start_engine(looping_model)
    question = user("1 2 3")  # it answers with letters, and goes round in the end
    plain = engine.reply("plain", [question], max_new_tokens=160)
    stop = plain.text[-16:]
    plain_stopped = engine.reply("plain stopped", [question], max_new_tokens=160, stop=(stop,))
    feed_one_by_one(engine.runtime._model.forward)
    engine.runtime._model.forward.multi_token_is_exact = True
    engine.events.clear()
    ahead = engine.reply("ahead", [question], max_new_tokens=160)
    stopped = engine.reply("stopped", [question], max_new_tokens=160, stop=(stop,))
    assert (ahead.text, ahead.token_ids) == (plain.text, plain.token_ids)
    assert (stopped.text, stopped.token_ids) == (plain_stopped.text, plain_stopped.token_ids)
    assert stopped.finish_reason is FinishReason.STOP
    assert plain.statistics.drafted_tokens == plain.statistics.accepted_tokens == 0
    for reply in (ahead, stopped):
        assert reply.statistics.drafted_tokens >= reply.statistics.accepted_tokens > 0
        assert reply.statistics.cache.tokens == reply.statistics.prompt_tokens + len(reply.token_ids) - 1
    readings = [e.context_tokens for e in engine.events if isinstance(e, StatisticsChanged)]
    half = next(at for at in range(1, len(readings)) if readings[at] < readings[at - 1])
    assert readings[:half] == sorted(readings[:half])
    assert readings[half:] == sorted(readings[half:])


# the policy


class Machine:
    """A reply on a machine where a pass over n tokens takes `cost(n)` seconds, by a chat repeated with `chance`."""

    def __init__(self, chance: float, cost: Callable[[int], float], seed: int = 0) -> None:
        self.chance = chance
        self.cost = cost
        self.policy = Speculation()
        self.num_guesses: list[int] = []
        self._draw = random.Random(seed)

    def run(self, num_tokens: int, match_length: int = 3) -> float:
        """Returns tokens a second."""
        done, elapsed = 0, 0.0
        self.num_guesses = []
        while done < num_tokens:
            guesses = self.policy.num_guesses(match_length, MOST_FED - 1)
            self.num_guesses.append(guesses)
            seconds = self.cost(1 + guesses)
            self.policy.pass_took(1 + guesses, seconds)
            elapsed += seconds
            done += 1
            for index in range(guesses + 1):
                is_right = self._draw.random() < self.chance
                self.policy.guess_was(match_length + index, is_right)
                if not is_right or index == guesses:
                    break
                done += 1
        return done / elapsed


def linear(share: float) -> Callable[[int], float]:
    return lambda num_fed: 0.01 * (1 + share * (num_fed - 1))


def test_nothing_is_guessed_before_a_pass_over_one_token_was_measured() -> None:
    policy = Speculation()
    assert policy.num_guesses(8, 7) == 0
    policy.pass_took(1, 0.01)
    assert policy.num_guesses(8, 7) == 1
    assert policy.num_guesses(8, 0) == 0
    assert policy.num_guesses(0, 7) == 0


def test_short_matches_have_to_prove_themselves_first() -> None:
    policy = Speculation()
    policy.pass_took(1, 0.01)
    assert policy.num_guesses(2, 7) == 0
    for _ in range(3):
        policy.guess_was(2, True)
    assert policy.num_guesses(2, 7) == 1


def test_guesses_that_come_true_become_more_by_doubling_passes() -> None:
    machine = Machine(1.0, linear(0.1))
    machine.run(100)
    assert machine.num_guesses[0] == 0
    first = [number for number in machine.num_guesses if number]
    assert all(later <= 2 * max(first[:at]) + 1 for at, later in enumerate(first) if at)
    assert first[0] == 1
    assert set(machine.num_guesses[-5:]) == {MOST_FED - 1}


def test_it_stops_when_guesses_come_wrong_and_returns_when_they_come_right() -> None:
    machine = Machine(1.0, linear(0.2))
    machine.run(200)
    machine.chance = 0.0
    assert machine.run(400) > 0.94 / 0.01
    assert not any(machine.num_guesses[20:])
    machine.chance = 1.0
    machine.run(200)
    assert not any(machine.num_guesses[:3])  # what is not fed is compared all the same
    assert set(machine.num_guesses[-5:]) == {MOST_FED - 1}


def test_the_lengths_of_matches_are_judged_apart() -> None:
    machine = Machine(0.0, linear(0.2))
    machine.run(50, match_length=2)
    assert machine.policy.num_guesses(2, 7) == 0
    assert machine.policy.num_guesses(4, 7) > 0


def test_where_more_tokens_take_as_long_as_passes_it_tries_ever_more_rarely() -> None:
    machine = Machine(0.9, linear(1.0))
    assert machine.run(3000) > 0.98 / 0.01
    tries = [at for at, number in enumerate(machine.num_guesses) if number]
    assert 3 < len(tries) < 20
    assert tries[-1] - tries[-2] > 8 * (tries[2] - tries[1])


def test_a_disturbance_is_forgotten() -> None:
    machine = Machine(0.9, lambda num_fed: 0.01 if num_fed == 1 else 1.0)
    machine.run(100)
    machine.cost = linear(0.1)
    machine.run(2000)
    assert max(machine.num_guesses[-50:]) == MOST_FED - 1


def test_the_first_pass_of_a_size_may_take_long() -> None:
    """Kernels are prepared then."""
    seen: set[int] = set()

    def cost(num_fed: int) -> float:
        is_first = num_fed not in seen
        seen.add(num_fed)
        return 5.0 if is_first else linear(0.1)(num_fed)

    machine = Machine(0.9, cost)
    machine.run(1000)
    assert machine.run(500) > 2 / 0.01


def test_the_fastest_size_is_found_where_times_go_in_steps() -> None:
    machine = Machine(0.9, lambda num_fed: 0.01 if num_fed == 1 else 0.014 if num_fed <= 4 else 0.03)
    machine.run(300)
    machine.run(300)
    assert machine.num_guesses.count(3) > 0.9 * len(machine.num_guesses)


@pytest.mark.parametrize("chance", [0.0, 0.2, 0.5, 0.8, 0.95])
@pytest.mark.parametrize("share", [0.02, 0.1, 0.3, 0.6, 1.0])
def test_it_is_near_the_best_fixed_number_and_never_slower_than_none(share: float, chance: float) -> None:
    cost = linear(share)
    best = max(sum(chance**index for index in range(guesses + 1)) / cost(1 + guesses) for guesses in range(MOST_FED))
    speed = Machine(chance, cost).run(3000)
    assert speed > 0.97 / cost(1)
    assert speed > 0.92 * best
