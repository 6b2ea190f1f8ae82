"""Compressing a chat and bringing it back, from outside: what is said, what is kept, and what a reply is worth then."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine.compression import Extent, compress_active
from engine.kv.codecs.registry import INT8
from engine.kv.pruned import PRUNED_TOKENS
from engine.kv.resident import Resident
from engine.protocol.commands import ChatMessage, Compress, CompressMethod, Role, Undo
from engine.protocol.events import Compressed, Event, Failed, ModelLoaded, Phase, PhaseChanged
from tests.engine.conftest import ColdReply, Engine, build_model, user

StartEngine = Callable[..., Engine]
CHAT = "chat"
QUESTION = "and then?"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny, but of 2,048 tokens of context."""
    return build_model(tmp_path_factory.mktemp("models") / "roomy", max_position_embeddings=2048)


def digits(num_tokens: int, seed: int) -> str:
    rng = random.Random(seed)
    return "".join(rng.choice("0123456789") for _ in range(num_tokens))


def long_chat() -> list[ChatMessage]:
    """Of about 1,000 tokens, ended by a reply that was not generated."""
    return [
        ChatMessage(Role.SYSTEM, digits(20, 0)),
        user(digits(300, 1)),
        ChatMessage(Role.ASSISTANT, digits(100, 2)),
        user(digits(300, 3)),
        ChatMessage(Role.ASSISTANT, digits(200, 4)),
    ]


def start(start_engine: StartEngine, model: Path) -> tuple[Engine, list[ChatMessage]]:
    """An engine with a long chat in memory and on disk."""
    engine = start_engine(model)
    messages = long_chat()
    messages.append(user("go on"))
    engine.reply(CHAT, messages)
    return engine, messages


def compress(
    engine: Engine,
    messages: list[ChatMessage],
    keep: float = 0.3,
    method: CompressMethod = CompressMethod.KVZIP,
    *,
    is_int8: bool = False,
) -> Compressed | Failed:
    engine._count += 1
    request = f"compress-{engine._count}"
    engine.worker.submit(Compress(CHAT, request, tuple(messages), keep, method, is_int8))
    return ended(engine, request)


def compressed(engine: Engine, messages: list[ChatMessage], keep: float = 0.3, *, is_int8: bool = False) -> Compressed:
    result = compress(engine, messages, keep, is_int8=is_int8)
    assert isinstance(result, Compressed), result
    return result


def undo(engine: Engine, messages: list[ChatMessage]) -> Compressed:
    engine._count += 1
    request = f"undo-{engine._count}"
    engine.worker.submit(Undo(CHAT, request, tuple(messages)))
    result = ended(engine, request)
    assert isinstance(result, Compressed), result
    return result


def ended(engine: Engine, request: str) -> Compressed | Failed:
    result = engine.wait(Compressed, Failed, request_id=request)
    assert isinstance(result, Compressed | Failed)
    engine.report()  # the memory is tidied by now
    return result


def resident(engine: Engine, conversation: str = CHAT) -> Resident:
    _, caches = engine.runtime._loaded()
    return next(one for one in caches.residents if one.conversation_id == conversation)


def row_precision(engine: Engine) -> str:
    return next(one.precision for one in engine.report().conversations if one.conversation_id == CHAT)


def contents(engine: Engine) -> tuple[list[int], list[torch.Tensor]]:
    cache = resident(engine).working
    assert cache is not None
    return list(cache.token_ids), [one.clone() for one in cache.arena.read(cache.hot_start, cache.length)]


def check_same(one: tuple[list[int], list[torch.Tensor]], other: tuple[list[int], list[torch.Tensor]]) -> None:
    assert one[0] == other[0]
    assert all(torch.equal(*pair) for pair in zip(one[1], other[1], strict=True))


def cancel_when(engine: Engine, monkeypatch: pytest.MonkeyPatch, is_time: Callable[[PhaseChanged], bool]) -> None:
    """As a user does who watches the progress."""
    tell = engine.runtime._emit

    def emit(event: Event) -> None:
        tell(event)
        if isinstance(event, PhaseChanged) and is_time(event):
            engine.worker.cancel(event.request_id)

    monkeypatch.setattr(engine.runtime, "_emit", emit)


def is_amid_scoring(event: PhaseChanged) -> bool:
    return event.phase is Phase.COMPRESSING and 0 < (event.done_tokens or 0) < (event.total_tokens or 0)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.compression.CHUNK_TOKENS", 128)


def test_a_chat_is_compressed_asked_brought_back_and_asked_again(
    start_engine: StartEngine, model: Path, small_chunks: None
) -> None:
    engine, messages = start(start_engine, model)
    expected = engine.reply(CHAT, [*messages, user(QUESTION)])

    result = compressed(engine, messages)
    assert 0.3 < result.kept < 0.45  # of the whole: the most recent tokens are kept as well
    assert result.precision == row_precision(engine) == "kvzip"
    assert result.bytes_after < 0.5 * result.bytes_before
    assert result.read_tokens == 0
    assert resident(engine).is_pruned
    steps = [one for one in engine.events if isinstance(one, PhaseChanged) and one.phase is Phase.COMPRESSING]
    done = [one.done_tokens for one in steps]
    assert done[0] == 0
    assert done == sorted(done, key=lambda count: count or 0)
    assert done[-1] == steps[-1].total_tokens
    assert steps[-1].remaining_s == 0.0
    reply = engine.reply(CHAT, [*messages, user(QUESTION)])
    assert reply.statistics.reused_tokens > expected.statistics.reused_tokens - 4
    assert resident(engine).is_pruned

    result = undo(engine, messages)
    assert result.kept == 1.0
    assert result.precision == "fp32"
    assert result.bytes_after > 2 * result.bytes_before
    assert resident(engine).is_exact
    assert engine.reply(CHAT, [*messages, user(QUESTION)]).token_ids == expected.token_ids


def test_cancelling_midway_changes_nothing(
    start_engine: StartEngine, model: Path, small_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, messages = start(start_engine, model)
    before = contents(engine)
    cancel_when(engine, monkeypatch, is_amid_scoring)
    failed = compress(engine, messages)
    assert isinstance(failed, Failed)
    assert failed.code == "cancelled"
    check_same(contents(engine), before)
    assert row_precision(engine) == "fp32"


def test_a_compressed_chat_whose_next_compression_is_cancelled_stays_as_it_was(
    start_engine: StartEngine, model: Path, small_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, messages = start(start_engine, model)
    first = compressed(engine, messages, 0.5)
    memory = resident(engine).own_bytes
    cancel_when(engine, monkeypatch, is_amid_scoring)
    assert isinstance(compress(engine, messages, 0.2), Failed)
    assert resident(engine).is_pruned
    assert resident(engine).own_bytes == pytest.approx(memory, rel=0.1)
    assert resident(engine).length == first.tokens
    engine.reply(CHAT, [*messages, user(QUESTION)])
    assert resident(engine).is_pruned


def test_a_request_cancelled_before_it_starts_does_nothing(start_engine: StartEngine, model: Path) -> None:
    engine, messages = start(start_engine, model)
    before = contents(engine)
    engine.worker.submit(Compress(CHAT, "late", tuple(messages)))
    engine.worker.cancel("late")
    engine.wait(Failed, Compressed, request_id="late")
    if resident(engine).is_exact:
        check_same(contents(engine), before)


def test_compressing_again_begins_with_all_pairs(start_engine: StartEngine, model: Path) -> None:
    engine, messages = start(start_engine, model)
    compressed(engine, messages, 0.1)
    result = compressed(engine, messages, 0.7)
    assert result.kept > 0.7
    assert result.precision == "kvzip"


def test_int8_and_streaming(start_engine: StartEngine, model: Path) -> None:
    engine, messages = start(start_engine, model)
    full = compressed(engine, messages, 0.5)
    small = compressed(engine, messages, 0.5, is_int8=True)
    assert small.precision == "kvzip-int8"
    assert small.kept == full.kept
    assert small.bytes_after < 0.6 * full.bytes_after
    engine.reply(CHAT, [*messages, user(QUESTION)])
    streamed = compress(engine, messages, 0.3, CompressMethod.STREAMING)
    assert isinstance(streamed, Compressed)
    assert streamed.precision == "streaming"
    assert 0.3 < streamed.kept < 0.45
    engine.reply(CHAT, [*messages, user(QUESTION)])


def test_a_compressed_chat_stays_so_while_another_one_is_active(start_engine: StartEngine, model: Path) -> None:
    engine, messages = start(start_engine, model)
    compressed(engine, messages)
    expected = engine.reply(CHAT, [*messages, user(QUESTION)])
    engine.reply("other", [user("hello")])
    assert resident(engine).working is None
    again = engine.reply(CHAT, [*messages, user(QUESTION)])
    assert again.token_ids == expected.token_ids
    assert row_precision(engine) == "kvzip"


def test_after_a_restart_the_chat_is_as_it_was_left(
    start_engine: StartEngine, model: Path, cold_reply: ColdReply
) -> None:
    engine, messages = start(start_engine, model)
    compressed(engine, messages)
    expected = engine.reply(CHAT, [*messages, user(QUESTION)])
    before = engine.report().conversations[0]
    engine = start_engine(model)
    engine.reply("other", [user("hello")])
    on_disk = next(one for one in engine.report().conversations if one.conversation_id == CHAT)
    assert (on_disk.place, on_disk.precision) == ("disk", "kvzip")
    assert on_disk.kept == pytest.approx(before.kept, abs=1e-3)
    assert on_disk.kept < 0.5
    reply = engine.reply(CHAT, [*messages, user(QUESTION)])
    assert reply.statistics.reused_tokens > 900
    assert reply.token_ids == expected.token_ids
    assert row_precision(engine) == "kvzip"
    undo(engine, messages)
    engine = start_engine(model)
    reply = engine.reply(CHAT, [*messages, user(QUESTION)])
    assert reply.statistics.reused_tokens > 900
    assert reply.token_ids == cold_reply(model, [*messages, user(QUESTION)]).token_ids


def test_turns_after_a_compression_are_read_again_when_it_is_undone(
    start_engine: StartEngine, model: Path, cold_reply: ColdReply
) -> None:
    engine, messages = start(start_engine, model)
    compressed(engine, messages)
    messages.append(user(digits(150, 9)))
    engine.reply(CHAT, messages)
    result = undo(engine, messages)
    assert 150 < result.read_tokens < 400
    assert result.tokens == resident(engine).length
    reply = engine.reply(CHAT, [*messages, user(QUESTION)])
    assert reply.token_ids == cold_reply(model, [*messages, user(QUESTION)]).token_ids


def test_undo_without_anything_kept_reads_the_chat(
    start_engine: StartEngine, model: Path, cold_reply: ColdReply
) -> None:
    engine, messages = start(start_engine, model)
    compressed(engine, messages)
    _, caches = engine.runtime._loaded()
    caches.persistence.writer.delete_conversation(CHAT)
    result = undo(engine, messages)
    assert result.read_tokens == result.tokens
    reply = engine.reply(CHAT, [*messages, user(QUESTION)])
    assert reply.token_ids == cold_reply(model, [*messages, user(QUESTION)]).token_ids


def test_undo_of_a_whole_chat_leaves_it_whole(start_engine: StartEngine, model: Path) -> None:
    engine, messages = start(start_engine, model)
    before = contents(engine)
    engine.worker.submit(Undo(CHAT, "undo", tuple(messages)))
    result = ended(engine, "undo")
    assert isinstance(result, Failed)
    assert result.code == "nothing_to_undo"
    check_same(contents(engine), before)


def test_a_chat_that_is_only_on_disk_is_compressed(start_engine: StartEngine, model: Path) -> None:
    _, messages = start(start_engine, model)
    engine = start_engine(model)
    result = compressed(engine, messages)
    assert result.read_tokens < 32
    assert result.kept < 0.45


def test_a_chat_that_was_never_read_is_read_and_saved_first(start_engine: StartEngine, model: Path) -> None:
    engine = start_engine(model)
    messages = long_chat()
    result = compressed(engine, messages)
    assert result.read_tokens == result.tokens > 900
    _, caches = engine.runtime._loaded()
    manifest = caches.persistence.exact_manifest(CHAT)
    assert manifest is not None
    assert len(manifest.token_ids) == result.tokens
    assert undo(engine, messages).read_tokens < 32


def test_an_incognito_chat_is_compressed_and_not_saved(start_engine: StartEngine, model: Path, tmp_path: Path) -> None:
    engine = start_engine(model)
    messages = [*long_chat(), user("go on")]
    engine.reply(CHAT, messages, is_incognito=True)
    compressed(engine, messages)
    assert not list((tmp_path / "kv").glob("*/conversations/*"))
    result = undo(engine, messages)
    assert result.kept == 1.0
    assert not list((tmp_path / "kv").glob("*/conversations/*"))


def test_an_edited_message_cuts_at_the_beginning_of_a_pruned_block(start_engine: StartEngine, model: Path) -> None:
    engine, messages = start(start_engine, model)
    compressed(engine, messages)
    edited = [*messages[:3], user("something else")]  # the first reply ends after some 450 tokens
    reply = engine.reply(CHAT, edited)
    assert reply.statistics.reused_tokens == PRUNED_TOKENS
    assert resident(engine).is_pruned
    undo(engine, edited)
    assert resident(engine).is_exact


def test_another_reply_to_the_last_message_reads_only_that(start_engine: StartEngine, model: Path) -> None:
    engine, messages = start(start_engine, model)
    messages.append(user(QUESTION))
    engine.reply(CHAT, messages)
    compressed(engine, messages)
    first = engine.reply(CHAT, messages[:-1])
    again = engine.reply(CHAT, messages[:-1])
    assert first.token_ids == again.token_ids
    assert again.statistics.prefilled_tokens < 32
    assert resident(engine).is_pruned


def test_a_fork_gets_nothing_of_what_was_pruned(start_engine: StartEngine, model: Path, cold_reply: ColdReply) -> None:
    engine, messages = start(start_engine, model)
    compressed(engine, messages)
    forked = [*messages[:-1], user("another way")]
    reply = engine.reply("fork", list(forked))
    assert reply.token_ids == cold_reply(model, forked).token_ids
    assert reply.statistics.reused_tokens > 900  # from disk
    assert resident(engine, "fork").is_exact
    engine.reply(CHAT, [*messages, user(QUESTION)])
    assert resident(engine).is_pruned


@pytest.mark.parametrize("method", list(CompressMethod))
def test_a_chat_that_pressure_encoded_is_compressed_as_it_is(
    start_engine: StartEngine, model: Path, method: CompressMethod
) -> None:
    engine, _ = start(start_engine, model)
    loaded, _ = engine.runtime._loaded()
    chat = resident(engine)
    assert chat.encode_cold(INT8, 128) > 0
    extent, before = Extent.of(chat.length, 4, 128), chat.own_bytes
    assert not compress_active(loaded, chat, extent, 0.3, method, is_int8=True, is_cancelled=lambda: True)
    assert chat.own_bytes == before
    assert compress_active(loaded, chat, extent, 0.3, method, is_int8=True)
    assert chat.is_pruned
    assert chat.own_bytes < 0.6 * before
    with pytest.raises(ValueError, match="whole"):
        compress_active(loaded, chat, extent, 0.3, method)


@pytest.mark.parametrize(
    ("tokens", "head", "last_turn", "expected"),
    [
        (4000, 20, 40, Extent(20, 3872)),  # at least 128 tokens at the end
        (4000, 20, 200, Extent(20, 3776)),
        (4000, 0, 900, Extent(4, 3744)),  # at most a sixteenth of the chat
        (20000, 20, 900, Extent(20, 19488)),  # and at most 512
        (600, 550, 40, Extent(448, 448)),
    ],
)
def test_the_beginning_and_the_end_are_kept_whole(tokens: int, head: int, last_turn: int, expected: Extent) -> None:
    assert Extent.of(tokens, head, last_turn) == expected


@pytest.mark.parametrize("keep", [0.05, 0.95])
def test_a_share_out_of_bounds_is_refused(start_engine: StartEngine, model: Path, keep: float) -> None:
    failed = compress(start_engine(model), long_chat(), keep)
    assert isinstance(failed, Failed)
    assert failed.code == "compression_share"


def test_a_short_chat_is_refused(start_engine: StartEngine, model: Path) -> None:
    engine = start_engine(model)
    failed = compress(engine, [user("hello")])
    assert isinstance(failed, Failed)
    assert failed.code == "too_short_to_compress"
    assert failed.params["least"] == "512"
    failed = compress(engine, [])
    assert isinstance(failed, Failed)
    assert failed.code == "too_short_to_compress"


def test_a_model_with_other_layers_is_refused(start_engine: StartEngine, window_model: Path) -> None:
    failed = compress(start_engine(window_model), long_chat())
    assert isinstance(failed, Failed)
    assert failed.code == "cannot_compress"


def test_a_chat_that_fills_the_context_can_only_be_streamed(start_engine: StartEngine, model: Path) -> None:
    engine = start_engine(model)
    messages = [user(digits(1975, 1))]
    failed = compress(engine, messages)
    assert isinstance(failed, Failed)
    assert failed.code == "cannot_compress"
    assert isinstance(compress(engine, messages, 0.3, CompressMethod.STREAMING), Compressed)


def test_without_a_model_nothing_is_compressed(start_engine: StartEngine) -> None:
    failed = compress(start_engine(), long_chat())
    assert isinstance(failed, Failed)
    assert failed.code == "no_model_loaded"


def test_another_model_is_loaded_after_a_compressed_chat(
    start_engine: StartEngine, model: Path, tiny_model: Path
) -> None:
    """What attention was told about the chat's blocks is forgotten with it."""
    engine, messages = start(start_engine, model)
    compressed(engine, messages)
    engine.reply(CHAT, [*messages, user(digits(60, 5))])
    assert isinstance(engine.load(tiny_model), ModelLoaded)
