"""A fake engine for the window: it keeps the commands it gets, and a test (or a script) tells the events."""

from __future__ import annotations

from pathlib import Path

from app.engine_bridge import EngineBridge
from engine.protocol.commands import Command, Compress, Generate, LoadModel, ReportCache, Undo
from engine.protocol.config import Weights
from engine.protocol.events import (
    CacheReading,
    CacheReported,
    CacheState,
    Compressed,
    ConversationCache,
    Event,
    Failed,
    Finished,
    FinishReason,
    LoadStage,
    MemoryReading,
    ModelInfo,
    ModelLoaded,
    ModelLoading,
    Phase,
    PhaseChanged,
    SnapshotSaved,
    StatisticsChanged,
    TextArrived,
    TurnStatistics,
)

MB = 1_000_000
GB = 1_000_000_000


def model_info(name: str = "SmolLM2-135M-Instruct", weights: Weights = Weights.BITS_16) -> ModelInfo:
    return ModelInfo(
        name=name,
        path=Path("models") / name,
        family="llama",
        num_layers=30,
        num_kv_heads=3,
        num_heads=9,
        head_dim=64,
        context_length=8192,
        kv_bytes_per_token=23_040,
        weights=weights,
        weights_bytes=269 * MB,
        dtype="bfloat16",
        device="cpu",
        tokenizer_id="smol",
        load_s=1.2,
    )


def turn_statistics(
    *, decode_tps: float | None = 138.2, ttft_s: float | None = 0.061, miss_reason: str | None = None
) -> TurnStatistics:
    return TurnStatistics(
        prompt_tokens=6408,
        reused_tokens=6371,
        prefilled_tokens=37,
        new_tokens=210,
        miss_reason=miss_reason,
        load_s=0.0,
        restore_s=0.0,
        ttft_s=ttft_s,
        prefill_tps=2100.0,
        decode_tps=decode_tps,
        cache=CacheReading(6412, 148 * MB, "bf16", "cpu"),
    )


class FakeEngine:
    """An `EnginePort` that answers nothing by itself. `cancelled` holds request ids."""

    def __init__(self, bridge: EngineBridge) -> None:
        self.commands: list[Command] = []
        self.cancelled: list[str] = []
        self._bridge = bridge

    def submit(self, command: Command) -> None:
        self.commands.append(command)

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)

    @property
    def generates(self) -> list[Generate]:
        return [command for command in self.commands if isinstance(command, Generate)]

    @property
    def compressions(self) -> list[Compress | Undo]:
        return [command for command in self.commands if isinstance(command, Compress | Undo)]

    @property
    def loads(self) -> list[LoadModel]:
        return [command for command in self.commands if isinstance(command, LoadModel)]

    @property
    def reports(self) -> list[ReportCache]:
        return [command for command in self.commands if isinstance(command, ReportCache)]

    def tell(self, *events: Event) -> None:
        """As the worker would; they arrive when the GUI thread's event loop runs."""
        for event in events:
            self._bridge.deliver(event)

    def load(self, request_id: str = "start", model: ModelInfo | None = None) -> None:
        self.tell(ModelLoading(request_id, LoadStage.WEIGHTS, 0.4), ModelLoaded(request_id, model or model_info()))

    def begin(self, request: Generate, text: str = "", decode_tps: float | None = None) -> None:
        ids = (request.conversation_id, request.request_id)
        self.tell(PhaseChanged(*ids, Phase.ANSWERING))
        if text:
            self.tell(TextArrived(*ids, text, (1,)))
        self.tell(self.statistics(request, decode_tps))

    def text(self, request: Generate, text: str) -> None:
        self.tell(TextArrived(request.conversation_id, request.request_id, text, (1,)))

    def statistics(
        self, request: Generate, decode_tps: float | None = None, ttft_s: float | None = None
    ) -> StatisticsChanged:
        return StatisticsChanged(
            request.conversation_id,
            request.request_id,
            context_tokens=6412,
            context_length=8192,
            cache=CacheReading(6412, 148 * MB, "bf16", "cpu"),
            all_caches_bytes=310 * MB,
            memory=MemoryReading(1200 * MB, 4800 * MB, 8 * GB),
            ttft_s=ttft_s,
            decode_tps=decode_tps,
        )

    def finish(
        self,
        request: Generate,
        text: str,
        reason: FinishReason = FinishReason.STOP,
        statistics: TurnStatistics | None = None,
    ) -> None:
        ids = (request.conversation_id, request.request_id)
        self.tell(Finished(*ids, text, (1,), True, reason, statistics or turn_statistics()))

    def fail(self, request: Generate, code: str, message: str, **params: str) -> None:
        self.tell(Failed(request.request_id, request.conversation_id, code, message, params))

    def saved(self, request: Generate) -> None:
        self.tell(SnapshotSaved(request.conversation_id, request.request_id, 6412, MB, 148 * MB, 0.2))

    def compressed(
        self, request: Compress | Undo, precision: str = "kvzip", kept: float = 0.3, num_bytes: int = 44 * MB
    ) -> None:
        ids = (request.conversation_id, request.request_id)
        self.tell(Compressed(*ids, 6412, kept, precision, 148 * MB, num_bytes, 8.2))

    def report(
        self, request_id: str | None, states: dict[str, tuple[CacheState, str]], num_bytes: int = 148 * MB
    ) -> None:
        conversations = tuple(
            ConversationCache(one, 6412, num_bytes, 148 * MB, 0, precision, "cpu", state)
            for one, (state, precision) in states.items()
        )
        self.tell(CacheReported(request_id, 512 * MB, 310 * MB, 900 * MB, 0, 0.1, conversations))
