"""A chat that has grown to the length its model reads goes on with a thinned-out memory of all of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.kv.resident import Resident
from engine.protocol.commands import ChatMessage, Role, Undo
from engine.protocol.config import ContextPolicy
from engine.protocol.events import (
    Compressed,
    Event,
    Failed,
    Finished,
    FinishReason,
    Phase,
    PhaseChanged,
    PressureActed,
    ViewMoved,
)
from tests.engine.conftest import ColdReply, Engine, user
from tests.engine.test_compressed_snapshots import damage

StartEngine = Callable[..., Engine]
COMPRESS = ContextPolicy.COMPRESS
SYSTEM = ChatMessage(Role.SYSTEM, "answer briefly")
CONTEXT = 512


def digits(num_tokens: int, seed: int = 0) -> str:
    return "".join(random.Random(seed).choices("0123456789", k=num_tokens))


def resident(engine: Engine, conversation: str = "a") -> Resident:
    found = engine.runtime._loaded()[1].resident(conversation)
    assert found is not None
    return found


def told(engine: Engine) -> list[PressureActed]:
    return [event for event in engine.events if isinstance(event, PressureActed) and event.action == "compress"]


def ask(engine: Engine, messages: list[ChatMessage], text: str, **options: object) -> Finished:
    """A turn that costs what was estimated, and moves no view."""
    messages.append(user(text))
    branch = options.get("branch", "")
    estimated = engine.estimate("a", messages, on_overflow=COMPRESS, max_new_tokens=12, branch=branch)
    finished = engine.reply("a", messages, on_overflow=COMPRESS, **options)  # type: ignore[arg-type]
    assert estimated.new_tokens == finished.statistics.prefilled_tokens
    assert estimated.prompt_tokens == finished.statistics.prompt_tokens
    assert estimated.fits
    assert estimated.num_dropped == 0
    assert not any(isinstance(event, ViewMoved) for event in engine.events)
    return finished


def test_a_chat_goes_on_to_four_times_its_context_and_reads_little(start_engine: StartEngine, tiny_model: Path) -> None:
    engine = start_engine(tiny_model)
    messages = [SYSTEM]
    ask(engine, messages, digits(300, 1))
    number, before = 0, None
    while resident(engine).length < 4 * CONTEXT:
        number += 1
        finished = ask(engine, messages, digits(70, number))
        assert finished.statistics.miss_code is None
        assert finished.statistics.prefilled_tokens < 110
        engine.report()
        cache = resident(engine).working
        assert cache is not None
        assert cache.length - cache.shift <= CONTEXT
        if cache.cold is not None:
            first = cache.cold.blocks[0].encoded
            head = [first.lane(layer, 0, cache.geometry)[0][:20].clone() for layer in range(3)]
            if before is not None:
                assert all((one - other).abs().max() < 1e-4 for one, other in zip(head, before, strict=True))
            before = head
    assert len(told(engine)) >= 4


def grown(engine: Engine, messages: list[ChatMessage], tokens: int) -> None:
    """A chat of so many tokens at least, in turns."""
    while not messages or resident(engine).length < tokens:
        messages[:] = messages or [SYSTEM]
        ask(engine, messages, digits(60, len(messages)))
        engine.report()


def test_a_question_that_does_not_fit_waits_for_the_compression_and_is_told(
    start_engine: StartEngine, tiny_model: Path
) -> None:
    engine = start_engine(tiny_model)
    messages: list[ChatMessage] = []
    grown(engine, messages, 350)
    assert not resident(engine).moved_together[0]
    engine.events.clear()
    finished = ask(engine, messages, digits(140, 99))
    assert resident(engine).moved_together[0]
    assert any("thinned out" in note for note in finished.notes)
    (step,) = told(engine)
    assert step.precision == "kvzip"
    assert step.conversation_id == "a"
    done = [e for e in engine.events if isinstance(e, PhaseChanged) and e.phase is Phase.COMPRESSING]
    assert done[-1].done_tokens == done[-1].total_tokens
    assert ask(engine, messages, "and?").notes == ()


def test_the_compressed_chat_comes_back_after_a_restart(start_engine: StartEngine, tiny_model: Path) -> None:
    engine = start_engine(tiny_model)
    messages: list[ChatMessage] = []
    grown(engine, messages, 2 * CONTEXT)
    before, kept = list(messages), resident(engine).moved_together
    never_closed = ask(engine, messages, "and then?")
    engine.forget("a")
    # the same again, up to the same point, and closed
    messages = []
    grown(engine, messages, 2 * CONTEXT)
    assert [one.text for one in messages] == [one.text for one in before]
    assert resident(engine).moved_together == kept
    engine = start_engine(tiny_model)
    resumed = ask(engine, messages, "and then?")
    assert resumed.token_ids == never_closed.token_ids
    assert resumed.statistics.reused_tokens == never_closed.statistics.reused_tokens > CONTEXT
    assert resumed.statistics.miss_code is None
    grown(engine, messages, 3 * CONTEXT)


def test_to_undo_it_is_refused_with_the_numbers(start_engine: StartEngine, tiny_model: Path) -> None:
    engine = start_engine(tiny_model)
    messages: list[ChatMessage] = []
    grown(engine, messages, 600)
    before = resident(engine).moved_together
    engine.worker.submit(Undo("a", "undo", tuple(messages)))
    failed = engine.wait(Failed, Compressed, request_id="undo")
    assert isinstance(failed, Failed)
    assert failed.code == "context_overflow"
    engine.report()
    assert resident(engine).moved_together == before
    assert ask(engine, messages, "and?").statistics.prefilled_tokens < 64


def test_what_still_fits_by_itself_is_brought_back(
    start_engine: StartEngine, tiny_model: Path, cold_reply: ColdReply
) -> None:
    engine = start_engine(tiny_model)
    messages: list[ChatMessage] = []
    grown(engine, messages, 350)
    messages.append(user(digits(465 - resident(engine).length, 5)))
    engine.reply("a", messages, on_overflow=COMPRESS)
    engine.report()
    assert resident(engine).moved_together[0]
    engine.worker.submit(Undo("a", "undo", tuple(messages)))
    assert isinstance(engine.wait(Failed, Compressed, request_id="undo"), Compressed)
    engine.report()
    assert resident(engine).is_exact
    asked = [*messages, user("")]
    found = engine.reply("a", list(asked), max_new_tokens=2)
    assert found.token_ids == cold_reply(tiny_model, asked, max_new_tokens=2).token_ids


@pytest.mark.parametrize("how", ["missing", "truncated", "token_ids"])
def test_a_damaged_snapshot_costs_the_oldest_messages_never_a_wrong_word(
    start_engine: StartEngine, tiny_model: Path, tmp_path: Path, how: str, cold_reply: ColdReply
) -> None:
    engine = start_engine(tiny_model)
    messages: list[ChatMessage] = []
    grown(engine, messages, 2 * CONTEXT)
    engine = start_engine(tiny_model)
    manifest = engine.runtime._loaded()[1].persistence.compressed.catalog.manifest("a")
    assert manifest is not None
    assert manifest.moved_tokens > 256
    (path,) = (tmp_path / "kv").glob(f"*/chunks/*/{manifest.chunks[1].key}.safetensors")
    damage(path, how)
    messages.append(user("and?"))
    finished = engine.reply("a", messages, on_overflow=COMPRESS)
    (move,) = [event for event in engine.events if isinstance(event, ViewMoved) and not event.is_ahead]
    assert any("left the model's view" in note for note in finished.notes)
    shown = [SYSTEM, *messages[1 + move.num_dropped : -1]]
    assert finished.token_ids == cold_reply(tiny_model, shown).token_ids


def test_an_edit_amid_what_was_moved_begins_anew(
    start_engine: StartEngine, tiny_model: Path, cold_reply: ColdReply
) -> None:
    engine = start_engine(tiny_model)
    messages: list[ChatMessage] = []
    grown(engine, messages, 2 * CONTEXT)
    short = [*messages[:5], user("something else")]
    finished = engine.reply("a", list(short), on_overflow=COMPRESS)
    assert finished.token_ids == cold_reply(tiny_model, short).token_ids
    assert finished.statistics.reused_tokens > 0  # the exact snapshot is there still
    assert resident(engine).is_exact
    long = [*messages[:3], user("something else"), *messages[4:]]
    engine.events.clear()
    long.append(user("and?"))
    finished = engine.reply("a", list(long), on_overflow=COMPRESS)
    (move,) = [event for event in engine.events if isinstance(event, ViewMoved) and not event.is_ahead]
    assert finished.token_ids == cold_reply(tiny_model, [SYSTEM, *long[1 + move.num_dropped :]]).token_ids


def test_stopping_amid_the_compression_leaves_the_chat_as_it_was(
    start_engine: StartEngine, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start_engine(tiny_model)
    messages: list[ChatMessage] = []
    grown(engine, messages, 350)
    ids = list(resident(engine).token_ids)
    tell = engine.runtime._emit

    def emit(event: Event) -> None:
        tell(event)
        if isinstance(event, PhaseChanged) and event.phase is Phase.COMPRESSING and event.done_tokens:
            engine.worker.cancel(event.request_id)

    monkeypatch.setattr(engine.runtime, "_emit", emit)
    asked = [*messages, user(digits(140, 99))]
    finished = engine.reply("a", asked, on_overflow=COMPRESS)
    assert finished.finish_reason is FinishReason.CANCELLED
    assert resident(engine).is_exact
    assert resident(engine).token_ids[: len(ids) - 4] == ids[: len(ids) - 4]
    assert not any(isinstance(event, ViewMoved) for event in engine.events)
    monkeypatch.undo()
    assert ask(engine, messages, digits(140, 99)).finish_reason is not FinishReason.CANCELLED


def test_other_models_drop_the_oldest_and_say_so(start_engine: StartEngine, window_model: Path) -> None:
    engine = start_engine(window_model)
    messages = [user(digits(250)), ChatMessage(Role.ASSISTANT, "y"), user(digits(250, 1))]
    finished = engine.reply("a", messages, on_overflow=COMPRESS)
    assert any(isinstance(event, ViewMoved) for event in engine.events)
    assert any("left the model's view" in note for note in finished.notes)


def test_an_incognito_chat_goes_on_and_writes_nothing(
    start_engine: StartEngine, tiny_model: Path, tmp_path: Path
) -> None:
    engine = start_engine(tiny_model)
    messages: list[ChatMessage] = [SYSTEM]
    for number in range(16):
        messages.append(user(digits(40, number)))
        engine.reply("a", messages, on_overflow=COMPRESS, is_incognito=True)
    engine.report()
    assert resident(engine).moved_together[0]
    assert resident(engine).length > CONTEXT
    assert not list((tmp_path / "kv").glob("*/conversations/*"))


@pytest.mark.parametrize("is_restarted", [False, True])
def test_another_reply_on_another_branch_goes_on_from_the_same_memory(
    start_engine: StartEngine, tiny_model: Path, *, is_restarted: bool
) -> None:
    engine = start_engine(tiny_model)
    messages: list[ChatMessage] = []
    grown(engine, messages, 2 * CONTEXT)
    while CONTEXT - (resident(engine).length - resident(engine).moved_together[1]) < 100:  # none is due amid this
        ask(engine, messages, digits(60, len(messages)))
        engine.report()
    first = ask(engine, messages, "and then?")
    del messages[-2:]
    if is_restarted:
        engine = start_engine(tiny_model)
    again = ask(engine, messages, "and then?", branch="b")
    assert again.token_ids == first.token_ids
    del messages[-2:]
    assert ask(engine, messages, "and then?").token_ids == first.token_ids
    del messages[-2:]
    ask(engine, messages, digits(140, 3), branch="b")
    ask(engine, messages, digits(140, 4), branch="b")
    del messages[-4:]
    assert ask(engine, messages, "and then?").token_ids == first.token_ids
    engine.forget("a")
    assert engine.runtime._loaded()[1].pool.nbytes == 0
