"""The plots of a page as a picture file: larger than on the screen, with what they are of written below."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import QRectF, QSaveFile, Qt
from PySide6.QtGui import QColor, QFont, QImage, QPainter

from app.errors import StorageError
from ui.lab.plot_data import Plot
from ui.lab.plot_painter import PlotPicture
from ui.theme import ui_font
from ui.tokens import SECONDARY_PX, Tokens

_SCALE = 2.0
_WIDTH, _PLOT_HEIGHT, _MARGIN, _HEAD, _FOOT = 960, 380, 32, 44, 24


def draw_picture(plots: Sequence[Plot], tokens: Tokens, title: str, about: str) -> QImage:
    """`about`: the line below."""
    height = _HEAD + len(plots) * (_PLOT_HEIGHT + _MARGIN) + _FOOT + _MARGIN
    image = QImage(round(_WIDTH * _SCALE), round(height * _SCALE), QImage.Format.Format_RGB32)
    image.setDevicePixelRatio(_SCALE)
    image.fill(QColor(tokens.surface))
    painter = QPainter(image)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    left = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
    inner = _WIDTH - 2 * _MARGIN
    painter.setFont(ui_font(20, QFont.Weight.DemiBold))
    painter.setPen(QColor(tokens.text))
    painter.drawText(QRectF(_MARGIN, _MARGIN / 2, inner, _HEAD), left, title)
    y = float(_HEAD + _MARGIN / 2)
    for plot in plots:
        PlotPicture(plot, tokens, QRectF(_MARGIN, y, inner, _PLOT_HEIGHT), "").draw(painter)
        y += _PLOT_HEIGHT + _MARGIN
    painter.setFont(ui_font(SECONDARY_PX))
    painter.setPen(QColor(tokens.muted))
    painter.drawText(QRectF(_MARGIN, height - _FOOT - _MARGIN / 2, inner, _FOOT), left, about)
    painter.end()
    return image


def save_picture(image: QImage, path: Path) -> None:
    """As a whole or not at all. Raises StorageError."""
    file = QSaveFile(str(path))
    if not file.open(QSaveFile.OpenModeFlag.WriteOnly) or not image.save(file, "PNG") or not file.commit():  # type: ignore[call-overload]
        raise StorageError(f"Ember cannot write {path} ({file.errorString()}); choose another place.", path=str(path))
