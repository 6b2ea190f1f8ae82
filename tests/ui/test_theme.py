from __future__ import annotations

import re

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QGuiApplication
from PySide6.QtWidgets import QApplication

from app.paths import resources_dir
from engine.protocol.events import CacheState
from tests.ui.conftest import Desk, OpenDesk
from ui.style_sheet import style_sheet
from ui.tokens import Tokens, contrast, load_tokens

THEMES = {name: load_tokens(resources_dir() / "themes", name) for name in ("light", "dark")}
GROUNDS = ("window", "surface", "sidebar", "selection", "code", "accent_behind")
TEXT_PAIRS = [
    *(("text", ground) for ground in (*GROUNDS, "line")),
    *(("muted", ground) for ground in GROUNDS),
    *(("accent", ground) for ground in ("window", "surface", "sidebar", "code", "accent_behind")),  # links
    ("on_accent", "accent"),
    ("on_accent", "accent_hover"),
]
MARK_GROUNDS = ("window", "surface", "sidebar", "selection", "code", "line")
# As in the design, but for the accent and the muted of the light theme, which were too pale on their tinted grounds.
DESIGN = {
    "light": "#FBFAF8 #FFFFFF #F4F1EC #E4DFD7 #EAE4DB #F6F3EE #1F1B16 #6C645A #B84908 #FCEBDD",
    "dark": "#171513 #1F1C19 #131110 #332E29 #2A2521 #25211D #EDE8E1 #A39A8D #FF8A3D #33231A",
}
ORDER = ("window", "surface", "sidebar", "line", "selection", "code", "text", "muted", "accent", "accent_behind")
RULE = re.compile(r"([^{}]+){([^}]*)}")


@pytest.mark.parametrize("name", THEMES)
def test_the_tokens_are_those_of_the_design(name: str) -> None:
    assert " ".join(getattr(THEMES[name], token) for token in ORDER) == DESIGN[name]


@pytest.mark.parametrize("name", THEMES)
def test_text_is_legible_on_every_ground(name: str) -> None:
    tokens = THEMES[name]
    pairs = {pair: contrast(getattr(tokens, pair[0]), getattr(tokens, pair[1])) for pair in TEXT_PAIRS}
    assert {pair: round(ratio, 2) for pair, ratio in pairs.items() if ratio < 4.5} == {}


@pytest.mark.parametrize("name", THEMES)
def test_marks_and_focus_stand_out_from_every_ground(name: str) -> None:
    tokens = THEMES[name]
    marks = {**tokens.precision, "ready": tokens.ready, "working": tokens.working, "focus": tokens.accent}
    pairs = {
        (kind, ground): contrast(mark, getattr(tokens, ground))
        for kind, mark in marks.items()
        for ground in MARK_GROUNDS
    }
    assert {pair: round(ratio, 2) for pair, ratio in pairs.items() if ratio < 3} == {}


@pytest.mark.parametrize("name", THEMES)
def test_every_rule_of_the_style_sheet_is_legible(name: str) -> None:
    """A rule with a colour for text is held against its own ground, or against all that may lie behind it."""
    tokens = THEMES[name]
    faint = []
    num_held = 0
    for selector, body in RULE.findall(style_sheet(tokens)):
        if "disabled" in selector:
            continue
        values = dict(
            re.findall(r"(?<![\w-])(background|color|selection-color|selection-background-color):\s*(\S+?);", body)
        )
        pairs = [(values.get("selection-color"), values.get("selection-background-color"))]
        if values.get("background", "").startswith("#"):
            pairs.append((values.get("color"), values["background"]))
        else:
            pairs.extend(
                (values.get("color"), getattr(tokens, ground)) for ground in ("window", "surface", "sidebar", "code")
            )
        for front, ground in pairs:
            if front and ground and front.startswith("#") and ground.startswith("#"):
                num_held += 1
                if contrast(front, ground) < 4.5:
                    faint.append((selector.strip(), front, ground, round(contrast(front, ground), 2)))
    assert num_held > 60
    assert faint == []


@pytest.mark.parametrize("name", THEMES)
def test_code_is_legible_in_every_colour(name: str) -> None:
    tokens = THEMES[name]
    assert {
        kind: contrast(colour, tokens.code)
        for kind, colour in tokens.syntax.items()
        if contrast(colour, tokens.code) < 4.5
    } == {}


def test_contrast_knows_the_extremes() -> None:
    assert contrast("#000000", "#FFFFFF") == pytest.approx(21)
    assert contrast("#777777", "#777777") == pytest.approx(1)


@pytest.mark.parametrize("name", THEMES)
def test_the_style_sheet_has_no_colour_of_its_own(name: str) -> None:
    tokens = THEMES[name]
    known = {value.upper() for value in vars_of(tokens)}
    used = {colour.upper() for colour in re.findall(r"#[0-9A-Fa-f]{6}", style_sheet(tokens))}
    mixed = used - known
    assert len(mixed) <= 2  # the focus line and the selected text's ground, mixed from tokens
    assert "$" not in style_sheet(tokens)


def vars_of(tokens: Tokens) -> list[str]:
    return [value for name in Tokens.__slots__ if isinstance(value := getattr(tokens, name), str)]


def ground_of(desk: Desk) -> str:
    image = desk.window.page.grab().toImage()
    return image.pixelColor(4, image.height() // 2).name().upper()


def test_the_theme_changes_at_once_with_what_is_already_drawn(open_desk: OpenDesk) -> None:
    desk = open_desk()
    request = desk.send("hello")
    desk.engine.finish(request, "text\n\n```python\nx = 1\n```")
    desk.engine.report(None, {request.conversation_id: (CacheState.WARM, "bf16")})
    desk.settle()
    assert ground_of(desk) == THEMES["light"].window
    desk.window.preferences.choose_theme("dark")
    desk.settle()
    assert ground_of(desk) == THEMES["dark"].window
    assert QApplication.palette().text().color() == QColor(THEMES["dark"].text)
    prose = desk.window.page.transcript.built()[-1].body.parts[0]
    cursor = prose.textCursor()
    cursor.movePosition(cursor.MoveOperation.Right)
    assert cursor.charFormat().foreground().color() == QColor(THEMES["dark"].text)
    assert desk.saved[-1].theme == "dark"


def test_the_theme_follows_the_system(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def system_turns(is_dark: bool) -> None:
        """As the platform tells it; the offscreen one never does."""
        monkeypatch.setattr("ui.theme.is_system_dark", lambda: is_dark)
        scheme = Qt.ColorScheme.Dark if is_dark else Qt.ColorScheme.Light
        QGuiApplication.styleHints().colorSchemeChanged.emit(scheme)

    desk.window.preferences.choose_theme("system")
    system_turns(True)
    assert desk.window.theme.tokens.is_dark
    system_turns(False)
    assert not desk.window.theme.tokens.is_dark
    desk.window.preferences.choose_theme("light")
    system_turns(True)
    assert not desk.window.theme.tokens.is_dark
