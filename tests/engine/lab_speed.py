"""Experiments as short as they get: times are measured fewer times over, and nobody looks at how long things took."""

from __future__ import annotations

import pytest

from engine.fidelity import speed
from engine.lab import lab, precisions


def measure_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab, "_MOST_S", 0.0)
    monkeypatch.setattr(speed, "MOST_STEPS", speed.STEPS)
    monkeypatch.setattr(precisions, "REPLY_TOKENS", 24)
