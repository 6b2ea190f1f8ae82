"""`ember ask`: one turn of a conversation, streamed as it comes or told as one object."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from app.commands.call import Call, argument_text, find_conversation
from app.commands.engine_run import EngineRun, Interrupted
from app.commands.pressure import pressure_words
from app.conversation import Conversation
from app.conversation_store import ConversationStore
from app.errors import EmptyMessageError, EngineFailedError, InterruptedCallError, UnknownConversationError, UserError
from app.settings import Settings
from engine.protocol.commands import Role
from engine.protocol.config import GREEDY, Sampling, Weights
from engine.protocol.errors import ContextOverflowError, ModelError
from engine.protocol.events import (
    Event,
    Failed,
    Finished,
    ModelLoaded,
    PressureActed,
    SnapshotNotSaved,
    SnapshotSaved,
    TextArrived,
    ViewMoved,
)
from engine.protocol.misses import SaveProblem

_LONGEST_SAVE_S = 120.0


@dataclass(slots=True)
class _Turn:
    """What is known of the turn so far."""

    request_id: str
    finished: Finished | None = None
    failed: Failed | None = None
    load_failed: Failed | None = None
    saved: SnapshotSaved | SnapshotNotSaved | None = None
    is_interrupted: bool = False
    has_text: bool = False
    is_reader_gone: bool = False
    is_incognito: bool = False
    is_new: bool = False  # of a chat begun for it
    pressure: list[PressureActed] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        """Whether nothing is to be waited for: not even the save, once the user wants to leave."""
        if self.failed is not None:
            return True
        is_waiting_for_save = self.saved is None and not (self.is_interrupted or self.is_incognito)
        return self.finished is not None and not is_waiting_for_save

    def take(self, event: Event) -> None:
        if isinstance(event, PressureActed):
            self.pressure.append(event)
        elif getattr(event, "request_id", None) != self.request_id:
            return
        match event:
            case Finished():
                self.finished = event
            case Failed():
                self.failed = event
            case SnapshotSaved() | SnapshotNotSaved():
                self.saved = event


def ask(call: Call) -> int:
    text = _message(call.arguments.message)
    is_incognito: bool = call.arguments.incognito
    if is_incognito and call.arguments.conversation:
        raise UserError("An incognito conversation is always a new one; leave out --conversation, or --incognito.")
    with call.incognito_store() if is_incognito else call.own_store() as store:
        settings = call.settings()
        conversation, system_prompt = _choose(call, store)
        is_new = conversation is None and (call.arguments.new or bool(system_prompt))
        model = call.arguments.model or (conversation.model if conversation else None) or settings.model
        path = call.library().resolve(model)
        weights = Weights(call.arguments.weights) if call.arguments.weights else settings.weights
        with EngineRun(call, store) as run:
            load_id = run.session.load_model(path, weights)
            with store.transaction():  # a full disk leaves no empty conversation
                if conversation is None:
                    conversation = run.session.new_conversation(system_prompt)
                if call.arguments.model:
                    is_name = any(entry.name == model for entry in call.library().models())
                    store.set_model(conversation.id, argument_text(model if is_name else str(path)))
                request_id = run.session.turns.send(
                    conversation.id,
                    text,
                    sampling=_sampling(call, settings),
                    max_new_tokens=call.arguments.max_new_tokens,
                )
            turn = _Turn(request_id, is_incognito=is_incognito, is_new=is_new)
            _follow(call, run, turn, load_id, conversation.id)
            if is_new and turn.failed is not None and not _has_reply(store, conversation.id):
                run.session.delete(conversation.id)
        for event in run.late_events:
            turn.take(event)
        return _tell(call, run, turn, conversation.id, store)


def _follow(call: Call, run: EngineRun, turn: _Turn, load_id: str, conversation_id: str) -> None:
    """Stream the reply and wait until its cache is saved, or until nothing more is to be waited for."""
    save_deadline: float | None = None
    for event in run.events():
        match event:
            case None:
                pass
            case Interrupted():
                turn.is_interrupted = True
                if run.session.model is None:
                    return
                run.session.stop(conversation_id)
            case ModelLoaded():
                for note in event.model.notes:
                    call.note(note)
            case Failed() if event.request_id == load_id:
                turn.load_failed = event
            case TextArrived() if event.request_id == turn.request_id and event.text:
                run.progress.clear()
                _stream(call, run, turn, event.text, conversation_id)
            case ViewMoved(is_ahead=False) if event.request_id == turn.request_id:
                call.note(
                    f"The context is full: the oldest {event.num_dropped} messages are no longer read by the model."
                )
            case Finished() if event.request_id == turn.request_id:
                if turn.has_text:
                    _stream(call, run, turn, "\n", conversation_id)
                save_deadline = time.monotonic() + _LONGEST_SAVE_S
        if not isinstance(event, Interrupted | None):
            turn.take(event)
        if turn.is_over or (save_deadline is not None and time.monotonic() > save_deadline):
            return


def _stream(call: Call, run: EngineRun, turn: _Turn, text: str, conversation_id: str) -> None:
    if call.arguments.json or turn.is_reader_gone:
        return
    turn.has_text = True
    try:
        call.out.write(text)
        call.out.flush()
    except BrokenPipeError:
        turn.is_reader_gone = True
        run.session.stop(conversation_id)


def _tell(call: Call, run: EngineRun, turn: _Turn, conversation_id: str, store: ConversationStore) -> int:
    """The object, the notes, and the exit code."""
    if turn.load_failed is not None:  # the reply has failed then too, but for no reason of its own
        raise ModelError(turn.load_failed.message)
    if turn.failed is not None:
        raise EngineFailedError(turn.failed.code, _failure_words(turn.failed, is_new=turn.is_new))
    if turn.finished is None:
        kept = "nothing is kept" if turn.is_incognito else f"the message is kept in {conversation_id}"
        raise InterruptedCallError(f"Interrupted before the reply; {kept}.")
    for note in turn.finished.notes:
        call.note(note)
    if isinstance(turn.saved, SnapshotNotSaved) and turn.saved.code is not SaveProblem.INCOGNITO:
        call.note(turn.saved.reason)
    if turn.finished.statistics.miss_reason is not None:
        statistics = turn.finished.statistics
        again = statistics.prompt_tokens - statistics.reused_tokens
        call.note(f"{again:,} of {statistics.prompt_tokens:,} tokens were read again: {statistics.miss_reason}.")
    if call.arguments.json:
        call.print_json(_result(turn.finished, turn))
        return _code(run, turn)
    for step in turn.pressure:
        call.note(pressure_words(step, _title(store, step.conversation_id)))
    if turn.is_reader_gone:
        raise BrokenPipeError
    return _code(run, turn)


def _failure_words(failed: Failed, *, is_new: bool) -> str:
    """One sentence. A chat that has only just begun is too long for what this call gave it."""
    if not is_new or failed.code != ContextOverflowError.code or "prompt_tokens" not in failed.params:
        return failed.message
    num_tokens, longest = int(failed.params["prompt_tokens"]), int(failed.params["context_length"])
    given = f"The message and the system prompt have {num_tokens:,} tokens together"
    return f"{given}, but the model reads at most {longest:,}; shorten them."


def _has_reply(store: ConversationStore, conversation_id: str) -> bool:
    """False: a turn that was refused. A chat begun for it alone goes with it."""
    return any(message.role is Role.ASSISTANT for message in store.messages(conversation_id))


def _title(store: ConversationStore, conversation_id: str) -> str | None:
    try:
        return store.conversation(conversation_id).title
    except UnknownConversationError:
        return None


def _code(run: EngineRun, turn: _Turn) -> int:
    if run.storage_errors:
        raise run.storage_errors[0]
    return InterruptedCallError.exit_code if turn.is_interrupted else 0


def _result(finished: Finished, turn: _Turn) -> dict[str, Any]:
    """The object of the public contract, and more: `new_tokens`, `miss_code`, `miss_params`, `drafted_tokens`,
    `accepted_tokens`, `pressure`, and the snapshot's `save_s`, `reason` and `code`."""
    snapshot: dict[str, Any] = {"bytes_written": 0, "bytes_total": 0}
    match turn.saved:
        case SnapshotSaved() as saved:
            snapshot = {
                "bytes_written": saved.bytes_written,
                "bytes_total": saved.bytes_total,
                "save_s": saved.save_s,
            }
        case SnapshotNotSaved() as unsaved:
            snapshot |= {"reason": unsaved.reason, "code": unsaved.code.value}
    return {
        "conversation_id": finished.conversation_id,
        "reply": finished.text,
        "token_ids": list(finished.token_ids),
        "finish_reason": finished.finish_reason.value,
        **asdict(finished.statistics),
        "snapshot": snapshot,
        "pressure": [
            {
                "conversation_id": step.conversation_id,
                "action": step.action,
                "bytes_freed": step.bytes_freed,
                "comes_back_s": step.comes_back_s,
                "precision": step.precision,
            }
            for step in turn.pressure
        ],
    }


def _message(argument: str) -> str:
    """The message, with the line end that a pipe adds taken off. Raises UserError."""
    if argument == "-":
        try:
            text = sys.stdin.buffer.read().decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise UserError(
                f"Standard input is not valid UTF-8 (byte {error.start}); convert the text to UTF-8 first."
            ) from error
        text = text.rstrip("\r\n")
    else:
        text = argument_text(argument)
    if not text.strip():
        raise EmptyMessageError("The message is empty; write something first.")
    return text


def _choose(call: Call, store: ConversationStore) -> tuple[Conversation | None, str]:
    """The conversation to go on with, or None and the system prompt of a new one."""
    system_prompt = argument_text(call.arguments.system or "")
    if call.arguments.conversation:
        conversation = find_conversation(store, call.arguments.conversation)
        if system_prompt and system_prompt != conversation.system_prompt:
            raise UserError("A conversation keeps the system prompt it began with; use --system with --new.")
        return conversation, ""
    if call.arguments.new or system_prompt:
        return None, system_prompt
    return next(iter(store.conversations()), None), ""


def _sampling(call: Call, settings: Settings) -> Sampling:
    sampling = GREEDY if call.arguments.greedy else settings.sampling()
    return replace(sampling, seed=call.arguments.seed)
