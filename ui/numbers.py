"""Numbers as words, in the digits and grouping of the chosen language. What is not known is a dash, never 0 or nan."""

from __future__ import annotations

import math

from PySide6.QtCore import QCoreApplication, QLocale

DASH = "–"
_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def _tr(source: str) -> str:
    return QCoreApplication.translate("Numbers", source)


def count(number: int | None) -> str:
    """6412 -> "6,412"."""
    return DASH if number is None else QLocale().toString(number)


def percent(fraction: float | None) -> str:
    """0.62 -> "62 %"."""
    if not _is_known(fraction):
        return DASH
    assert fraction is not None
    return f"{QLocale().toString(math.floor(min(max(fraction, 0.0), 1.0) * 100))} %"


def share(fraction: float | None) -> str:
    """What is left of a whole, rounded: 0.336 -> "34 %"; less than all is never "100 %"."""
    if not _is_known(fraction):
        return DASH
    assert fraction is not None
    rounded = round(min(fraction, 1.0) * 100)
    return f"{QLocale().toString(min(rounded, 99) if fraction < 1.0 else 100)} %"


def size(num_bytes: int | None) -> str:
    """Bytes in decimal units: 148_000_000 -> "148 MB", 3_210_000_000 -> "3.2 GB"."""
    if num_bytes is None:
        return DASH
    scale, unit = _unit(num_bytes)
    return f"{_short(num_bytes / scale)} {unit}"


def size_of(part: int | None, whole: int | None) -> str:
    """Two sizes in the unit of the whole: "3.2 / 8.0 GB"."""
    if part is None or whole is None:
        return DASH
    scale, unit = _unit(whole)
    decimals = 1 if whole / scale < 9.95 else 0
    shown = (QLocale().toString(number / scale, "f", decimals) for number in (part, whole))
    return f"{' / '.join(shown)} {unit}"


def speed(tokens_per_s: float | None) -> str:
    """138.2 -> "138 tok/s"; below ten one decimal."""
    if not _is_known(tokens_per_s) or not tokens_per_s:
        return DASH
    return _tr("{number} tok/s").format(number=_short(tokens_per_s))


def seconds(duration_s: float | None) -> str:
    """0.064 -> "0.06 s", 3.2 -> "3.2 s", 14.4 -> "14 s", 95 -> "1 min 35 s"."""
    if not _is_known(duration_s):
        return DASH
    assert duration_s is not None
    if duration_s >= 60:
        minutes, rest = divmod(round(duration_s), 60)
        return _tr("{minutes} min {seconds} s").format(minutes=count(minutes), seconds=count(rest))
    decimals = 2 if duration_s < 1 else 1 if duration_s < 10 else 0
    least = 0.01 if duration_s > 0 else 0.0
    return _tr("{number} s").format(number=QLocale().toString(max(duration_s, least), "f", decimals))


def whole_seconds(duration_s: float | None) -> str:
    """For time left, which is an estimate: 3.2 -> "3 s", never less than one second."""
    if not _is_known(duration_s):
        return DASH
    assert duration_s is not None
    rounded = max(1, round(duration_s))
    return seconds(rounded) if rounded >= 60 else _tr("{number} s").format(number=count(rounded))


def _is_known(number: float | None) -> bool:
    return number is not None and math.isfinite(number) and number >= 0


def _unit(num_bytes: int) -> tuple[float, str]:
    for scale, unit in _SIZES:
        if num_bytes >= scale * 0.9995:
            return scale, unit
    return 1.0, "B"


def _short(number: float) -> str:
    """Two figures below ten, whole numbers above."""
    decimals = 1 if 0 < number < 9.95 and number != int(number) else 0
    return QLocale().toString(float(number), "f", decimals)
