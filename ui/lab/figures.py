"""Measured numbers in the locale's digits: three figures at most, a dash for what is none."""

from __future__ import annotations

import math

from PySide6.QtCore import QCoreApplication, QLocale

from ui.numbers import DASH

_GIB, _MIB, _KIB = 2**30, 2**20, 2**10


def _tr(source: str) -> str:
    return QCoreApplication.translate("Figures", source)


def figure(value: object) -> str:
    """812.4 -> "812", 7.42 -> "7.42", 0.00012 -> "1.2e-4"; what is no number -> "–"."""
    number = known(value)
    if number is None:
        return DASH
    if isinstance(value, int):
        return QLocale().toString(value)
    size = abs(number)
    if size and size < 0.001:
        mantissa, exponent = f"{number:.1e}".split("e")
        return f"{QLocale().toString(float(mantissa), 'f', 1)}e{int(exponent)}"
    decimals = 0 if size >= 100 or not size else 1 if size >= 10 else 2 if size >= 1 else 3 if size >= 0.01 else 4
    return QLocale().toString(number, "f", decimals)


def known(value: object) -> float | None:
    """The number, if it is one: not None, not text, finite."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def scaled(value: object, scale: float) -> float | None:
    number = known(value)
    return None if number is None else number * scale


def milliseconds(value: object) -> str:
    return DASH if known(value) is None else f"{figure(value)} ms"


def times(value: object) -> str:
    """110.2 -> "110×"."""
    return DASH if known(value) is None else _tr("{number}×").format(number=figure(value))


def percent(value: object, decimals: int = 0) -> str:
    """0.0345 -> "3.5 %" with one decimal."""
    number = known(value)
    return DASH if number is None else f"{QLocale().toString(number * 100, 'f', decimals)} %"


def bytes_exact(value: object) -> str:
    """All digits of a number of bytes: "524,288 B"; with one decimal where it is an average."""
    number = known(value)
    if number is None:
        return DASH
    shown = QLocale().toString(int(number)) if number == int(number) else QLocale().toString(number, "f", 1)
    return f"{shown} B"


def binary_size(value: object) -> str:
    """2**30 -> "1.00 GiB"."""
    number = known(value)
    if number is None:
        return DASH
    for scale, unit in ((_GIB, "GiB"), (_MIB, "MiB"), (_KIB, "KiB")):
        if number >= scale:
            return f"{QLocale().toString(number / scale, 'f', 2)} {unit}"
    return f"{QLocale().toString(int(number))} B"


def tokens(value: object) -> str:
    number = known(value)
    if number == 1:
        return _tr("1 token")
    return DASH if number is None else _tr("{count} tokens").format(count=QLocale().toString(int(number)))


def threads(value: object) -> str:
    number = known(value)
    if number == 1:
        return _tr("1 thread")
    return DASH if number is None else _tr("{count} threads").format(count=QLocale().toString(int(number)))
