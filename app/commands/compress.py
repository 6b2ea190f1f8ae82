"""`ember compress ID` and `ember uncompress ID`: a conversation's cache made smaller, and brought back."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict

from app.commands.call import Call, find_conversation
from app.commands.engine_run import EngineRun, Interrupted
from app.errors import EngineFailedError, InterruptedCallError, NothingToCompressError
from engine.protocol.commands import CompressMethod
from engine.protocol.config import Weights
from engine.protocol.events import Compressed, Failed, SnapshotNotSaved, SnapshotSaved

_SHOWN_ID = 8
_CANCELLED = "cancelled"
_LONGEST_SAVE_S = 120.0


def compress(call: Call) -> int:
    arguments = call.arguments
    method = CompressMethod.STREAMING if arguments.forget_middle else CompressMethod.KVZIP

    def ask(run: EngineRun, conversation_id: str) -> str:
        return run.session.cache.compress(
            conversation_id, keep=arguments.keep / 100, method=method, is_int8=arguments.int8
        )

    return _carry_out(call, ask, _compressed_words)


def uncompress(call: Call) -> int:
    return _carry_out(
        call, lambda run, conversation_id: run.session.cache.undo_compression(conversation_id), _undone_words
    )


def _carry_out(call: Call, ask: Callable[[EngineRun, str], str], words: Callable[[Compressed], str]) -> int:
    with call.own_store() as store:
        conversation = find_conversation(store, call.arguments.id)
        if not conversation.num_messages:
            raise NothingToCompressError("The conversation is empty, so nothing is kept of it; write something first.")
        settings = call.settings()
        model = call.arguments.model or conversation.model or settings.model
        weights = Weights(call.arguments.weights) if call.arguments.weights else settings.weights
        with EngineRun(call, store) as run:
            run.load_now(call, model, weights)
            compressed, is_interrupted = _answer(run, ask(run, conversation.id), conversation.id)
            unsaved = _unsaved(run, compressed.request_id)
    if unsaved is not None:
        call.note(unsaved.reason)
    if call.arguments.json:
        content = asdict(compressed)
        del content["request_id"]
        call.print_json(content)
    else:
        call.print(words(compressed))
    return InterruptedCallError.exit_code if is_interrupted else 0


def _answer(run: EngineRun, request_id: str, conversation_id: str) -> tuple[Compressed, bool]:
    """The answer, and whether the user wanted to end before it came. Raises EngineFailedError, InterruptedCallError."""
    is_interrupted = False
    for event in run.events():
        match event:
            case Interrupted():
                is_interrupted = True
                run.session.stop(conversation_id)
            case Failed() if event.request_id == request_id:
                if is_interrupted or event.code == _CANCELLED:
                    raise InterruptedCallError("Interrupted; nothing has changed.")
                raise EngineFailedError(event.code, event.message)
            case Compressed() if event.request_id == request_id:
                return event, is_interrupted
    raise AssertionError("events never end")


def _unsaved(run: EngineRun, request_id: str) -> SnapshotNotSaved | None:
    """Waits until the new form is on disk; what hindered it, where it is not."""
    deadline = time.monotonic() + _LONGEST_SAVE_S
    for event in run.events():
        match event:
            case SnapshotNotSaved() if event.request_id == request_id:
                return event
            case SnapshotSaved() if event.request_id == request_id:
                return None
        if time.monotonic() > deadline:
            return None
    raise AssertionError("events never end")


def _compressed_words(event: Compressed) -> str:
    sizes = f"{_size(event.bytes_before)} -> {_size(event.bytes_after)}"
    return (
        f"{sizes}: {event.kept:.0%} of {event.tokens:,} tokens kept ({event.precision}), in {event.seconds:.1f} s; "
        f"`ember uncompress {event.conversation_id[:_SHOWN_ID]}` brings all back."
    )


def _undone_words(event: Compressed) -> str:
    again = f", {event.read_tokens:,} of them read again" if event.read_tokens else ""
    size = _size(event.bytes_after)
    return f"Whole again: {event.tokens:,} tokens in {event.precision}, {size}{again}, in {event.seconds:.1f} s."


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.1f} MB"
