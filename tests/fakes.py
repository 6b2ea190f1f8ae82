"""An engine without a model: it keeps what it was asked and answers by a script, in the caller's thread."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from engine.protocol.commands import (
    Command,
    Compress,
    Forget,
    Generate,
    LoadModel,
    ReportCache,
    RunBench,
    Undo,
    Verify,
)
from engine.protocol.config import EngineConfig, Weights
from engine.protocol.errors import EngineError
from engine.protocol.events import (
    BenchFinished,
    CacheReading,
    CacheReported,
    Compressed,
    EngineStopped,
    Event,
    Failed,
    Finished,
    FinishReason,
    LoadStage,
    ModelInfo,
    ModelLoaded,
    ModelLoading,
    Phase,
    PhaseChanged,
    SnapshotNotSaved,
    SnapshotSaved,
    TextArrived,
    TurnStatistics,
    Verified,
)

CACHE = CacheReading(tokens=12, bytes=276_480, precision="float32", place="cpu")


def a_model(name: str = "tiny", tokenizer_id: str = "tokenizer-1") -> ModelInfo:
    return ModelInfo(
        name=name,
        path=Path("models") / name,
        family="llama",
        num_layers=2,
        num_kv_heads=1,
        num_heads=2,
        head_dim=8,
        context_length=2048,
        kv_bytes_per_token=64,
        weights=Weights.BITS_16,
        weights_bytes=1000,
        dtype="float32",
        device="cpu",
        tokenizer_id=tokenizer_id,
        load_s=0.5,
    )


def some_statistics(new_tokens: int = 2) -> TurnStatistics:
    return TurnStatistics(
        prompt_tokens=10,
        reused_tokens=4,
        prefilled_tokens=6,
        new_tokens=new_tokens,
        miss_reason=None,
        load_s=0.5,
        restore_s=0.01,
        ttft_s=0.1,
        prefill_tps=60.0,
        decode_tps=20.0,
        cache=CACHE,
    )


def text_arrived(request_id: str, text: str, *token_ids: int, conversation_id: str = "") -> TextArrived:
    return TextArrived(conversation_id, request_id, text, token_ids)


def finished(
    request_id: str,
    text: str,
    *token_ids: int,
    conversation_id: str = "",
    reason: FinishReason = FinishReason.STOP,
    ids_match_text: bool = True,
) -> Finished:
    return Finished(
        conversation_id=conversation_id,
        request_id=request_id,
        text=text,
        token_ids=token_ids,
        ids_match_text=ids_match_text,
        finish_reason=reason,
        statistics=some_statistics(len(token_ids)),
    )


def failed(request_id: str, error: EngineError, conversation_id: str | None = None) -> Failed:
    return Failed(request_id, conversation_id, error.code, str(error), error.params)


class SilentEngine:
    """Keeps what it was asked; the test tells the events."""

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.cancelled: list[str] = []

    def submit(self, command: Command) -> None:
        self.commands.append(command)

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)

    @property
    def generated(self) -> list[Generate]:
        return [command for command in self.commands if isinstance(command, Generate)]


class ScriptedEngine(SilentEngine):
    """Answers every command at once.

    load_error, reply_error: fail so. parts: the reply, piece by piece. on_part: called after each piece is told.
    not_saved: the reason why the cache is not saved. is_open_ended: the reply, or compressing, goes on until it is
    cancelled. compress_error: compressing fails so. on_compress: called in the middle of it.
    """

    def __init__(
        self,
        *,
        parts: tuple[str, ...] = ("Hello", " there", "."),
        load_error: EngineError | None = None,
        reply_error: EngineError | None = None,
        not_saved: str | None = None,
        compress_error: EngineError | None = None,
        is_open_ended: bool = False,
        on_compress: Callable[[], None] | None = None,
        on_part: Callable[[], None] | None = None,
        on_load: Callable[[], None] | None = None,
        config: EngineConfig | None = None,
        on_event: Callable[[Event], None] = lambda event: None,
    ) -> None:
        super().__init__()
        self.config = config
        self.on_event = on_event
        self.parts = parts
        self.load_error = load_error
        self.reply_error = reply_error
        self.not_saved = not_saved
        self.compress_error = compress_error
        self.on_compress = on_compress
        self.is_open_ended = is_open_ended
        self.on_part = on_part
        self.on_load = on_load
        self.is_running = False
        self._open: Generate | None = None
        self._compressing: Compress | Undo | None = None
        self.save_error: str | None = None
        self._is_loaded = False

    def start(self) -> None:
        self.is_running = True

    def shutdown(self, timeout_s: float = 15.0) -> None:
        assert self.is_running, "shut down without a start"
        self.is_running = False
        if self._open is not None:
            self._finish(self._open, FinishReason.CANCELLED)
        self.on_event(EngineStopped())

    def submit(self, command: Command) -> None:
        super().submit(command)
        match command:
            case LoadModel():
                self._load(command)
            case Generate():
                self._generate(command)
            case ReportCache():
                self.on_event(CacheReported(command.request_id, 0, 0, 0, 0, 0.0, ()))
            case Verify():
                self.on_event(
                    Verified(command.conversation_id, command.request_id, True, 32, None, 0.0, 0.0, "float32")
                )
            case Compress() | Undo():
                self._compress(command)
            case RunBench():
                self.on_event(BenchFinished(command.request_id, {"context": command.context, "decode_tps": 12.5}))
            case Forget():
                pass

    def cancel(self, request_id: str) -> None:
        super().cancel(request_id)
        if self._open is not None and self._open.request_id == request_id:
            self._finish(self._open, FinishReason.CANCELLED)
        if self._compressing is not None and self._compressing.request_id == request_id:
            conversation_id, self._compressing = self._compressing.conversation_id, None
            self.on_event(Failed(request_id, conversation_id, "cancelled", "Stopped."))

    def _load(self, command: LoadModel) -> None:
        self.on_event(ModelLoading(command.request_id, LoadStage.WEIGHTS, 0.5))
        if self.on_load is not None:
            self.on_load()
        elif self.load_error is not None:
            self.on_event(failed(command.request_id, self.load_error))
        else:
            self._is_loaded = True
            model = dataclasses.replace(a_model(command.path.name), path=command.path, weights=command.weights)
            self.on_event(ModelLoaded(command.request_id, model))

    def _compress(self, command: Compress | Undo) -> None:
        told = (command.conversation_id, command.request_id)
        self.on_event(PhaseChanged(*told, Phase.COMPRESSING, 5, 10, 1.0))
        if self.is_open_ended:
            self._compressing = command
        if self.on_compress is not None:
            self.on_compress()
        if self.is_open_ended:
            return
        if self.compress_error is not None:
            self.on_event(failed(command.request_id, self.compress_error, command.conversation_id))
            return
        if isinstance(command, Undo):
            self.on_event(Compressed(*told, 12, 1.0, "float32", 82_944, CACHE.bytes, 0.1, read_tokens=4))
        else:
            method = command.method
            precision = f"{method}-int8" if command.is_int8 else str(method)
            left = round(CACHE.bytes * command.keep)
            self.on_event(Compressed(*told, 12, command.keep, precision, CACHE.bytes, left, 0.8))
        if self.save_error is not None:
            self.on_event(SnapshotNotSaved(*told, self.save_error))
        else:
            self.on_event(SnapshotSaved(*told, 12, 4096, 8192, 0.01))

    def _generate(self, command: Generate) -> None:
        told = (command.conversation_id, command.request_id)
        if not self._is_loaded:
            self.on_event(Failed(command.request_id, command.conversation_id, "no_model_loaded", "No model is loaded."))
            return
        self.on_event(PhaseChanged(*told, Phase.PREFILL, 5, 10, 1.0))
        for number, part in enumerate(self.parts):
            self.on_event(TextArrived(*told, part, (number,)))
            if self.on_part is not None:
                self.on_part()
        if self.is_open_ended:
            self._open = command
        elif self.reply_error is not None:
            self.on_event(failed(command.request_id, self.reply_error, command.conversation_id))
        else:
            self._finish(command, FinishReason.STOP)

    def _finish(self, command: Generate, reason: FinishReason) -> None:
        self._open = None
        told = (command.conversation_id, command.request_id)
        ids = tuple(range(len(self.parts)))
        self.on_event(Finished(*told, "".join(self.parts), ids, True, reason, some_statistics(len(ids))))
        if self.not_saved is None:
            self.on_event(SnapshotSaved(*told, tokens=12, bytes_written=100, bytes_total=300, save_s=0.01))
        else:
            self.on_event(SnapshotNotSaved(*told, self.not_saved))
