"""Icons from resources/icons: the program's own, and small line icons drawn in a colour of the theme."""

from __future__ import annotations

from functools import lru_cache

from PySide6.QtCore import QByteArray, QRectF, QSize, Qt
from PySide6.QtGui import QIcon, QPainter, QPixmap
from PySide6.QtSvg import QSvgRenderer

from app.paths import resources_dir

_SCALES = (1.0, 1.5, 2.0, 3.0)
_APP_SIZES = (16, 24, 32, 48, 64, 128, 256, 512)


def app_icon() -> QIcon:
    """Ember's icon, from the PNG files rendered from ember.svg."""
    icon = QIcon()
    for size in _APP_SIZES:
        icon.addFile(str(resources_dir() / "icons" / f"ember_{size}.png"), QSize(size, size))
    return icon


@lru_cache(maxsize=64)
def icon(name: str, colour: str, size: int = 16) -> QIcon:
    """The line icon `name` in `colour` ("#RRGGBB"), sharp at every usual scale."""
    result = QIcon()
    for scale in _SCALES:
        result.addPixmap(pixmap(name, colour, size, scale))
    return result


@lru_cache(maxsize=256)
def pixmap(name: str, colour: str, size: int, scale: float) -> QPixmap:
    """`name` rendered at `size` logical pixels for a screen of `scale` device pixels each."""
    source = (resources_dir() / "icons" / f"{name}.svg").read_text(encoding="utf-8")
    renderer = QSvgRenderer(QByteArray(source.replace("currentColor", colour).encode()))
    pixels = max(1, round(size * scale))
    result = QPixmap(pixels, pixels)
    result.fill(Qt.GlobalColor.transparent)
    painter = QPainter(result)
    renderer.render(painter, QRectF(0, 0, pixels, pixels))
    painter.end()
    result.setDevicePixelRatio(scale)
    return result
