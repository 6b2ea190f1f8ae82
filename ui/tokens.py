"""The design tokens of one theme, read from resources/themes/*.json, and the sizes both themes share. No Qt here."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SPACE_XS, SPACE_S, SPACE_M, SPACE_L, SPACE_XL = 4, 8, 12, 16, 24
RADIUS_CONTROL, RADIUS_CARD, RADIUS_COMPOSER = 8, 12, 14
TEXT_PX, SECONDARY_PX, SMALL_PX, TITLE_PX = 14, 12, 11, 15
LINE_HEIGHT_PX = 22  # 14 px at 1.55
READING_WIDTH = 740
PRECISION_FILLS = {  # of areas; in both themes the same. Their edges, and lines, have `Tokens.precision`
    "16bit": "#D55E00",
    "int8": "#56B4E9",
    "balanced": "#009E73",
    "compact": "#CC79A7",
    "kvzip": "#E3C800",
    "on_disk": "#A39A8D",
}


@dataclass(frozen=True, slots=True)
class Tokens:
    """Colours as "#RRGGBB". `syntax` and `precision` map a kind to its colour, which stands out from every ground."""

    is_dark: bool
    window: str
    surface: str
    sidebar: str
    line: str
    selection: str
    code: str
    text: str
    muted: str
    accent: str
    accent_hover: str
    accent_behind: str
    on_accent: str
    ready: str
    working: str
    syntax: dict[str, str]
    precision: dict[str, str]


def load_tokens(themes_dir: Path, name: str) -> Tokens:
    """Read the theme `name` ("light" or "dark")."""
    values: dict[str, Any] = json.loads((themes_dir / f"{name}.json").read_text(encoding="utf-8"))
    return Tokens(**values)


def contrast(first: str, second: str) -> float:
    """Contrast ratio of two colours, 1 to 21 (WCAG 2.1, relative luminance)."""
    lighter, darker = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
