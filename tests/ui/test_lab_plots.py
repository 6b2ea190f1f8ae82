"""The lab's plots: what is drawn, at which size, and what the mouse and a screen reader are told."""

from __future__ import annotations

import math

import numpy as np
import pytest
from PySide6.QtCore import QPoint, QRectF
from PySide6.QtGui import QColor, QImage, QPainter
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QToolTip
from pytestqt.qtbot import QtBot

from ui.lab import figures
from ui.lab.plot_data import Plot, PlotKind, Series
from ui.lab.plot_painter import PlotPicture
from ui.lab.plot_scale import tick_words, ticks
from ui.lab.plot_view import PlotView
from ui.lab.token_words import token_words
from ui.theme import Theme

LINES = Plot(
    "Time",
    "ms",
    PlotKind.LINES,
    ("1", "2", "4"),
    (Series("slow", ("int8",), (1.0, None, 4.0)), Series("fast", ("16bit",), (0.5, 0.5, 0.5))),
    xs=(1.0, 2.0, 4.0),
    x_title="tokens",
)
BARS = Plot("Size", "MB", PlotKind.BARS, ("a", "b"), (Series("size", ("int8", "16bit"), (10.0, 0.0)),))
STACKED = Plot(
    "Held",
    "MB",
    PlotKind.STACKED,
    ("a",),
    (Series("used", ("16bit",), (3.0,)), Series("waste", ("balanced",), (1.0,))),
)


def drawn(plot: Plot, theme: Theme, scale: float = 1.0) -> QImage:
    image = QImage(round(400 * scale), round(260 * scale), QImage.Format.Format_RGB32)
    image.setDevicePixelRatio(scale)
    image.fill(QColor(theme.tokens.surface))
    painter = QPainter(image)
    PlotPicture(plot, theme.tokens, QRectF(0, 0, 400, 260), "nothing").draw(painter)
    painter.end()
    return image


def pixels(image: QImage, colour: str) -> int:
    """How much of the picture has this colour, in logical pixels."""
    seen = np.frombuffer(image.constBits(), np.uint32).reshape(image.height(), -1)[:, : image.width()]
    count = int((seen == np.uint32(QColor(colour).rgb())).sum())
    return round(count / image.devicePixelRatio() ** 2)


@pytest.mark.parametrize(
    ("top", "most", "expected"),
    [
        (812.0, 5, [0, 250, 500, 750, 1000]),
        (0.013, 4, [0, 0.005, 0.01, 0.015]),
        (100.0, 5, [0, 25, 50, 75, 100]),
        (0.0, 5, [0, 1]),
        (math.inf, 5, [0, 1]),
        (3.0, 2, [0, 5]),
    ],
)
def test_an_axis_has_round_numbers(top: float, most: int, expected: list[float]) -> None:
    assert ticks(top, most) == pytest.approx(expected)


def test_an_axis_writes_as_many_decimals_as_its_steps_need() -> None:
    assert [tick_words(value, 0.005) for value in (0.0, 0.005)] == ["0.000", "0.005"]
    assert [tick_words(value, 2.5) for value in (0.0, 2.5)] == ["0.0", "2.5"]
    assert tick_words(1000, 250) == "1,000"


def test_numbers_have_three_figures_and_none_is_a_dash() -> None:
    numbers = [812.4, 58.84, 7.416, 0.0123, 0.00134, 0.00012, 0.0, 12_345]
    words = ["812", "58.8", "7.42", "0.012", "0.0013", "1.2e-4", "0", "12,345"]
    assert [figures.figure(one) for one in numbers] == words
    assert [figures.figure(one) for one in (None, math.nan, math.inf, "x", True)] == ["–"] * 5
    assert [figures.milliseconds(None), figures.times(math.nan), figures.percent(None)] == ["–"] * 3
    assert figures.binary_size(2**30) == "1.00 GiB"
    assert figures.percent(0.0345, 1) == "3.5 %" or figures.percent(0.0345, 1) == "3.4 %"


def test_a_token_is_seen_whole() -> None:
    assert [token_words(one) for one in (" the", "\n", "", "a\x00b")] == ["·the", "↵", "∅", "a�b"]


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_bars_are_as_high_as_their_values(theme: Theme, mode: str) -> None:
    theme.set_mode(mode)
    tokens = theme.tokens
    low, high = drawn(STACKED, theme), drawn(Plot("Held", "MB", PlotKind.BARS, ("a",), STACKED.series), theme)
    used, waste = tokens.precision["16bit"], tokens.precision["balanced"]
    assert pixels(low, used) > 2 * pixels(low, waste) > 0
    assert pixels(high, used) > 2 * pixels(high, waste) > 0
    assert pixels(drawn(BARS, theme), tokens.precision["16bit"]) == 0, "a value of 0 has no bar"


@pytest.mark.parametrize("scale", [1.25, 2.0])
def test_a_plot_is_the_same_at_every_scale(theme: Theme, scale: float) -> None:
    once, scaled = drawn(STACKED, theme), drawn(STACKED, theme, scale)
    colour = theme.tokens.precision["16bit"]
    assert pixels(scaled, colour) == pytest.approx(pixels(once, colour), rel=0.05)


def test_a_value_that_is_missing_breaks_the_line(theme: Theme) -> None:
    whole = Plot(
        "Time",
        "ms",
        PlotKind.LINES,
        LINES.places,
        (Series("slow", ("int8",), (1.0, 2.5, 4.0)), LINES.series[1]),
        xs=LINES.xs,
    )
    colour = theme.tokens.precision["int8"]
    assert pixels(drawn(LINES, theme), colour) < pixels(drawn(whole, theme), colour)


def test_nothing_measured_is_said_in_words(theme: Theme) -> None:
    empty = Plot("Time", "ms", PlotKind.LINES, (), (Series("slow", ("int8",), ()),))
    assert empty.is_empty
    drawn(empty, theme)
    picture = PlotPicture(empty, theme.tokens, QRectF(0, 0, 400, 260), "nothing")
    assert picture.place_at(200) is None
    assert PlotPicture(LINES, theme.tokens, QRectF(0, 0, 400, 260), "").place_at(200) is not None


def test_the_mouse_and_a_screen_reader_are_told_the_values(qtbot: QtBot, theme: Theme) -> None:
    view = PlotView(theme)
    qtbot.addWidget(view)
    view.resize(400, 260)
    view.show_plot(LINES)
    view.show()
    assert view.accessibleName() == "Time (ms)"
    assert "tokens 4, slow: 4.00 ms, fast: 0.500 ms" in view.accessibleDescription()
    assert "tokens 2, slow: –, fast: 0.500 ms" in view.accessibleDescription()

    def is_told() -> bool:  # moved again each time: a tip may go before it is looked at
        QTest.mouseMove(view, QPoint(200, 130))
        QTest.mouseMove(view, QPoint(380, 130))
        return QToolTip.text().startswith("tokens 4\nslow: 4.00 ms")

    qtbot.waitUntil(is_told)
    QToolTip.hideText()
    painted = view.num_paints
    view.show_plot(LINES)
    assert view.num_paints == painted, "the same again is not drawn again"
