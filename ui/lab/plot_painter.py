"""Draws a plot into a rectangle: for the window, and larger and with its words for a picture file.

Everything is lines and text in logical pixels, so that it is crisp at any scale. `PlotPicture.place_at` tells what
lies under the mouse.
"""

from __future__ import annotations

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QFont, QFontMetricsF, QPainter, QPen, QPolygonF

from ui.lab import marks
from ui.lab.figures import figure
from ui.lab.plot_data import Plot, PlotKind, Series
from ui.lab.plot_scale import tick_words, ticks
from ui.theme import ui_font
from ui.tokens import SECONDARY_PX, SMALL_PX, TEXT_PX, Tokens

_TITLE = 24.0
_PAD = 10.0
_SWATCH = 14.0
_TICK_PX = 44.0  # between two lines of the grid, about
_MOST_BAR = 46.0
_GROUP_SHARE = 0.72  # of a place's width, for its bars


class PlotPicture:
    """One plot at one size, in one theme's colours."""

    def __init__(self, plot: Plot, tokens: Tokens, bounds: QRectF, nothing: str) -> None:
        """`nothing`: what is written while there is no value."""
        self._plot = plot
        self._tokens = tokens
        self._bounds = bounds
        self._nothing = nothing
        self._small, self._title_font = ui_font(SMALL_PX), ui_font(TEXT_PX, QFont.Weight.DemiBold)
        self._legend_font = ui_font(SECONDARY_PX)
        self._metrics = QFontMetricsF(self._small)
        self._levels = self._ticks()
        self._label_lines = 1
        self.area = self._area()

    def draw(self, painter: QPainter, hovered: int | None = None) -> None:
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        self._draw_head(painter)
        self._draw_grid(painter)
        if self._plot.is_empty:
            painter.setFont(self._legend_font)
            painter.setPen(QColor(self._tokens.muted))
            painter.drawText(self.area, Qt.AlignmentFlag.AlignCenter, self._nothing)
            return
        if hovered is not None and hovered < len(self._plot.places):
            self._draw_hover(painter, hovered)
        if self._plot.kind is PlotKind.LINES:
            for series in self._plot.series:
                self._draw_line(painter, series)
            self._draw_note(painter)
        else:
            for place in range(len(self._plot.places)):
                self._draw_bars(painter, place)

    def place_at(self, x: float) -> int | None:
        """The index of the place that is nearest."""
        if self._plot.is_empty or not self._plot.places or not self.area.left() - 12 <= x <= self.area.right() + 12:
            return None
        return min(range(len(self._plot.places)), key=lambda place: abs(self._x(place) - x))

    # places

    def _ticks(self) -> list[float]:
        height = max(60.0, self._bounds.height() - 80)
        if self._plot.most is not None:
            return ticks(self._plot.most, max(2, min(6, round(height / _TICK_PX))))
        return ticks(self._plot.top * (1.0 if self._plot.kind is PlotKind.LINES else 1.08), round(height / _TICK_PX))

    def _step(self) -> float:
        return self._levels[1] - self._levels[0]

    def _area(self) -> QRectF:
        """Between the axes."""
        widest = max(self._metrics.horizontalAdvance(tick_words(one, self._step())) for one in self._levels)
        left = self._bounds.left() + widest + _PAD
        top = self._bounds.top() + _TITLE + (self._legend_height() + _PAD)
        self._label_lines = self._needed_lines(self._bounds.width() - widest - _PAD - 2)
        below = self._metrics.height() * (self._label_lines + bool(self._plot.x_title)) + _PAD
        right = self._bounds.right() - (16 if self._plot.kind is PlotKind.LINES else 2)
        return QRectF(QPointF(left, top), QPointF(right, self._bounds.bottom() - below))

    def _needed_lines(self, width: float) -> int:
        """Words below bars stand on two lines in turn where one has no room for them."""
        if self._plot.kind is PlotKind.LINES or not self._plot.places:
            return 1
        widest = max(self._metrics.horizontalAdvance(words) for words in self._plot.places)
        return 1 if widest + 6 <= width / len(self._plot.places) else 2

    def _x(self, place: int) -> float:
        if self._plot.kind is PlotKind.LINES:
            low, high = self._plot.x_range or (min(self._plot.xs), max(self._plot.xs))
            return self.area.left() + (self._plot.xs[place] - low) / ((high - low) or 1.0) * self.area.width()
        return self.area.left() + (place + 0.5) * self.area.width() / len(self._plot.places)

    def _y(self, value: float) -> float:
        return self.area.bottom() - value / self._levels[-1] * self.area.height()

    # parts

    def _legend_width(self) -> float:
        metrics = QFontMetricsF(self._legend_font)
        return sum(metrics.horizontalAdvance(one.name) + _SWATCH + 6 + 14 for one in self._plot.series) - 14

    def _has_legend(self) -> bool:
        return len(self._plot.series) > 1

    def _title_width(self) -> float:
        return QFontMetricsF(self._title_font).horizontalAdvance(self._plot.heading)

    def _is_legend_beside(self) -> bool:
        return self._title_width() + 24 + self._legend_width() <= self._bounds.width()

    def _legend_lines(self) -> list[list[Series]]:
        """Of a legend that stands below the title."""
        metrics, lines, width = QFontMetricsF(self._legend_font), [[]], 0.0  # type: ignore[var-annotated]
        for one in self._plot.series:
            wide = metrics.horizontalAdvance(one.name) + _SWATCH + 20
            if lines[-1] and width + wide > self._bounds.width():
                lines.append([])
                width = 0.0
            lines[-1].append(one)
            width += wide
        return lines

    def _legend_height(self) -> float:
        if not self._has_legend() or self._is_legend_beside():
            return 0.0
        return 20.0 * len(self._legend_lines())

    def _draw_head(self, painter: QPainter) -> None:
        bounds = self._bounds
        painter.setFont(self._title_font)
        painter.setPen(QColor(self._tokens.text))
        elided = QFontMetricsF(self._title_font).elidedText(
            self._plot.heading, Qt.TextElideMode.ElideRight, bounds.width()
        )
        line = QRectF(bounds.left(), bounds.top(), bounds.width(), _TITLE - 4)
        painter.drawText(line, Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft, elided)
        if not self._has_legend():
            return
        if self._is_legend_beside():
            self._draw_legend(
                painter, list(self._plot.series), bounds.right() - self._legend_width(), line.center().y()
            )
            return
        for number, series in enumerate(self._legend_lines()):
            self._draw_legend(painter, series, bounds.left(), bounds.top() + _TITLE + 20 * number + 8)

    def _draw_legend(self, painter: QPainter, series: list[Series], x: float, y: float) -> None:
        painter.setFont(self._legend_font)
        metrics = QFontMetricsF(self._legend_font)
        for one in series:
            if self._plot.kind is PlotKind.LINES:
                painter.setPen(marks.stroke(self._tokens, one.colours[0], is_fit=one.is_fit))
                painter.drawLine(QPointF(x, y), QPointF(x + _SWATCH, y))
                if not one.is_fit:
                    marks.mark(painter, QPointF(x + _SWATCH / 2, y), self._tokens, one.colours[0])
            else:
                marks.fill(painter, QRectF(x, y - 5, _SWATCH, 10), self._tokens, one.colours[0])
            painter.setPen(QColor(self._tokens.text))
            painter.drawText(QPointF(x + _SWATCH + 6, y + metrics.ascent() / 2 - 1.5), one.name)
            x += _SWATCH + 6 + metrics.horizontalAdvance(one.name) + 14

    def _draw_grid(self, painter: QPainter) -> None:
        painter.setFont(self._small)
        if self._plot.is_empty:
            painter.setPen(QPen(QColor(self._tokens.line), 1))
            painter.drawLine(self.area.bottomLeft(), self.area.bottomRight())
            return
        for level in self._levels:
            y = self._y(level)
            painter.setPen(QPen(QColor(self._tokens.line), 1))
            painter.drawLine(QPointF(self.area.left(), y), QPointF(self.area.right(), y))
            painter.setPen(QColor(self._tokens.muted))
            words = tick_words(level, self._step())
            wide = self._metrics.horizontalAdvance(words)
            painter.drawText(QPointF(self.area.left() - 8 - wide, y + self._metrics.ascent() / 2 - 1.5), words)
        self._draw_below(painter)

    def _draw_below(self, painter: QPainter) -> None:
        painter.setPen(QColor(self._tokens.muted))
        base = self.area.bottom() + self._metrics.ascent() + 7
        if self._plot.kind is PlotKind.LINES:
            last = float("-inf")
            for place in sorted(range(len(self._plot.places)), key=self._x):
                words = self._plot.places[place]
                wide = self._metrics.horizontalAdvance(words)
                x = min(self._x(place) - wide / 2, self._bounds.right() - wide)
                if x >= last + 8:
                    painter.drawText(QPointF(x, base), words)
                    last = x + wide
        elif self._plot.places:
            lines = self._label_lines
            wide = self.area.width() / len(self._plot.places)
            for place, words in enumerate(self._plot.places):
                shown = self._metrics.elidedText(words, Qt.TextElideMode.ElideRight, wide * lines - 4)
                x = self._x(place) - self._metrics.horizontalAdvance(shown) / 2
                x = max(self._bounds.left(), min(x, self._bounds.right() - self._metrics.horizontalAdvance(shown)))
                painter.drawText(QPointF(x, base + place % lines * self._metrics.height()), shown)
            base += (lines - 1) * self._metrics.height()
        if self._plot.x_title:
            below = QRectF(self.area.left(), base + 2, self.area.width(), self._metrics.height() + 2)
            painter.drawText(below, Qt.AlignmentFlag.AlignCenter, self._plot.x_title)

    def _draw_hover(self, painter: QPainter, place: int) -> None:
        x = self._x(place)
        if self._plot.kind is PlotKind.LINES:
            pen = QPen(QColor(self._tokens.muted), 1)
            pen.setDashPattern([2, 3])
            painter.setPen(pen)
            painter.drawLine(QPointF(x, self.area.top()), QPointF(x, self.area.bottom()))
            return
        wide = self.area.width() / len(self._plot.places)
        painter.fillRect(QRectF(x - wide / 2, self.area.top(), wide, self.area.height()), QColor(self._tokens.code))

    def _draw_line(self, painter: QPainter, series: Series) -> None:
        painter.setPen(marks.stroke(self._tokens, series.colours[0], is_fit=series.is_fit))
        painter.setBrush(Qt.BrushStyle.NoBrush)
        points: list[QPointF | None] = [
            None if value is None else QPointF(self._x(place), self._y(max(0.0, value)))
            for place, value in enumerate(series.values)
        ]
        run: list[QPointF] = []
        for point in [*points, None]:
            if point is not None:
                run.append(point)
            elif run:
                painter.drawPolyline(QPolygonF(run))
                run = []
        if not series.is_fit:
            for point in points:
                if point is not None:
                    marks.mark(painter, point, self._tokens, series.colours[0])

    def _draw_note(self, painter: QPainter) -> None:
        """At the last value of the first series."""
        values = self._plot.series[0].values
        place = next((place for place in reversed(range(len(values))) if values[place] is not None), None)
        if not self._plot.note or place is None:
            return
        value = values[place]
        assert value is not None
        font = ui_font(SECONDARY_PX, QFont.Weight.DemiBold)
        painter.setFont(font)
        painter.setPen(QColor(self._tokens.text))
        wide = QFontMetricsF(font).horizontalAdvance(self._plot.note)
        painter.drawText(QPointF(self._x(place) - wide - 4, self._y(value) - 9), self._plot.note)

    def _draw_bars(self, painter: QPainter, place: int) -> None:
        is_stacked = self._plot.kind is PlotKind.STACKED
        count = 1 if is_stacked else len(self._plot.series)
        gap = 3.0 if count > 1 else 0.0
        group = min(self.area.width() / len(self._plot.places) * _GROUP_SHARE, count * (_MOST_BAR + gap))
        wide = (group - gap * (count - 1)) / count
        left, base = self._x(place) - group / 2, self.area.bottom()
        for number, series in enumerate(self._plot.series):
            value = series.values[place]
            x = left if is_stacked else left + number * (wide + gap)
            top = base - (value or 0.0) / self._levels[-1] * self.area.height()
            if value is not None and base - top > 0.4:
                marks.fill(painter, QRectF(x, top, wide, base - top), self._tokens, series.colour(place))
            if not is_stacked:
                self._draw_value(painter, value, x + wide / 2, top, group / count + gap)
            else:
                base = top
        if is_stacked:
            total = sum(series.values[place] or 0.0 for series in self._plot.series)
            self._draw_value(painter, total, self._x(place), base, self.area.width() / len(self._plot.places))

    def _draw_value(self, painter: QPainter, value: float | None, x: float, top: float, room: float) -> None:
        words = figure(value)
        wide = self._metrics.horizontalAdvance(words)
        if wide + 2 <= room:
            painter.setFont(self._small)
            painter.setPen(QColor(self._tokens.text))
            painter.drawText(QPointF(x - wide / 2, top - 4), words)
