"""Round numbers for an axis."""

from __future__ import annotations

import math

from PySide6.QtCore import QLocale

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


def ticks(top: float, most: int) -> list[float]:
    """From 0 up to the first round number that is not below `top`; at most `most` of them, at least two."""
    if not math.isfinite(top) or top <= 0:
        return [0.0, 1.0]
    raw = top / max(1, most - 1)
    scale = 10.0 ** math.floor(math.log10(raw))
    step = next(one * scale for one in _STEPS if one * scale >= raw * (1 - 1e-9))
    count = math.ceil(top / step - 1e-9)
    return [step * number for number in range(count + 1)]


def tick_words(value: float, step: float) -> str:
    """With as many decimals as the step between two ticks needs."""
    if step and (step < 0.0005 or value >= 1e9):
        return f"{value:.1e}" if value else "0"
    decimals = 0
    while decimals < 4 and abs(step * 10**decimals - round(step * 10**decimals)) > 1e-9:
        decimals += 1
    return QLocale().toString(float(value), "f", decimals)
