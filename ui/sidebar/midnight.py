"""Tells when a day begins: then chats of today become chats of yesterday."""

from __future__ import annotations

from datetime import datetime, timedelta

from PySide6.QtCore import QObject, QTimer, Signal, Slot


class Midnight(QObject):
    passed = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.timer = QTimer(self, singleShot=True)
        self.timer.timeout.connect(self._on_timeout)
        self._wait()

    @Slot()
    def _on_timeout(self) -> None:
        self.passed.emit()
        self._wait()

    def _wait(self) -> None:
        now = datetime.now().astimezone()
        midnight = (now + timedelta(days=1)).replace(hour=0, minute=0, second=1, microsecond=0)
        self.timer.start(max(1000, int((midnight - now).total_seconds() * 1000)))
