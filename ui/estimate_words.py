"""How long something will take, in words: no more figures than an estimate has, and none of them wrong by rounding."""

from __future__ import annotations

from PySide6.QtCore import QCoreApplication, QLocale

from ui import numbers

_FINER = 0.0295, 0.295, 9.95  # seconds: below each of them, one more decimal


def _tr(source: str) -> str:
    return QCoreApplication.translate("Numbers", source)


def about(duration_s: float | None) -> str:
    """0.064 -> "0.06 s", 0.1 -> "0.1 s", 0.34 -> "0.3 s", 3.24 -> "3.2 s", 14.4 -> "14 s", 75.2 -> "1 min 15 s".

    Rounding takes less than 20 % of it, from 0.003 s on; never 0.
    """
    if duration_s is None or not 0 < duration_s < 59.5:
        return numbers.seconds(round(duration_s) if duration_s is not None and 59.5 <= duration_s < 1e9 else duration_s)
    decimals = sum(duration_s < limit for limit in _FINER)
    rounded = max(round(duration_s, decimals), 0.001)
    if decimals > 1:  # "0.1 s", not "0.10 s"
        decimals = next(fewer for fewer in range(1, 4) if round(rounded, fewer) == rounded)
    return _tr("{number} s").format(number=QLocale().toString(rounded, "f", decimals))
