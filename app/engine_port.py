"""What the app needs of the engine. `engine.worker.EngineWorker` has this shape, and so have the fakes of the tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from app.paths import DataPaths
from app.settings import Settings
from engine.protocol.commands import Command
from engine.protocol.config import EngineConfig
from engine.protocol.events import Event


class EnginePort(Protocol):
    """Asking. Both methods may be called from any thread and never block."""

    def submit(self, command: Command) -> None: ...

    def cancel(self, request_id: str) -> None: ...


class EngineService(EnginePort, Protocol):
    """Asking, and the life of the engine's thread: for the composition root and the command line."""

    def start(self) -> None: ...

    def shutdown(self, timeout_s: float = 15.0) -> None:
        """Refuse new work, cancel, save, join."""
        ...


MakeEngine = Callable[[EngineConfig, Callable[[Event], None]], EngineService]


def engine_config(paths: DataPaths, settings: Settings) -> EngineConfig:
    return EngineConfig(
        kv_dir=paths.kv_dir,
        converted_dir=paths.converted_dir,
        memory_budget_bytes=settings.memory_budget_bytes,
        disk_cap_bytes=settings.disk_cap_bytes,
        disk_floor_bytes=settings.disk_floor_bytes,
        prefill_chunk=settings.prefill_chunk,
        kv_precision=settings.kv_precision,
        allows_compression=settings.allow_compression,
    )
