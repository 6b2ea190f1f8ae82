"""Both languages are whole, and are spoken at once."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QCoreApplication, QEvent, QLocale
from PySide6.QtWidgets import QAbstractButton, QLabel, QWidget

from app.paths import resources_dir
from app.settings import Settings
from tests.ui.conftest import Desk, OpenDesk
from ui import numbers
from ui.sidebar.conversation_model import ListRole

UI = Path(__file__).resolve().parents[2] / "ui"
KOREAN: dict[str, str] = json.loads((resources_dir() / "translations" / "ko.json").read_text(encoding="utf-8"))
SHOWING = {"setText", "setToolTip", "setPlaceholderText", "setAccessibleName", "setWindowTitle", "addAction", "addMenu"}
NAMES = {"Ember", "Ctrl K", "Ctrl N", "%s – Ember"}  # names and keys, the same in every language


def calls() -> Iterator[tuple[str, ast.Call, str]]:
    for path in sorted(UI.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                function = node.func
                name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
                yield f"{path.name}:{node.lineno}", node, name


def sources() -> dict[str, str]:
    """Every text that is translated, and where. `_tr` passes its argument on to `QCoreApplication.translate`."""
    found = {}
    for place, call, name in calls():
        if name in ("tr", "_tr"):
            text = call.args[0]
        elif name == "translate" and len(call.args) == 2 and not isinstance(call.args[1], ast.Name):
            text = call.args[1]
        else:
            continue
        assert isinstance(text, ast.Constant), f"{place} translates something else than a literal"
        found[str(text.value)] = place
    return found


def placeholders(text: str) -> list[str]:
    return sorted(re.findall(r"{\w*}", text))


def test_every_text_has_a_korean_one_with_the_same_placeholders() -> None:
    wanted = sources()
    assert len(wanted) > 100
    assert {text: place for text, place in wanted.items() if not KOREAN.get(text)} == {}
    assert [text for text in wanted if placeholders(text) != placeholders(KOREAN[text])] == []


def test_no_translation_is_left_over() -> None:
    assert sorted(KOREAN.keys() - sources().keys()) == []


def test_no_text_is_shown_without_being_translated() -> None:
    bare = []
    for place, call, name in calls():
        if name in SHOWING and call.args and isinstance(call.args[0], ast.Constant):
            text = call.args[0].value
            if isinstance(text, str) and re.search(r"[A-Za-z]", text) and text not in NAMES:
                bare.append(f"{place} {text!r}")
    assert bare == []


def words_of(desk: Desk) -> list[str]:
    widgets = [widget for widget in desk.window.findChildren(QWidget) if widget.isVisible()]
    texts = [widget.text() for widget in widgets if isinstance(widget, QLabel | QAbstractButton)]
    return [text for text in texts if text]


def test_the_language_changes_without_a_restart_and_back(open_desk: OpenDesk) -> None:
    ids: list[str] = []
    desk = open_desk(fill=lambda desk: ids.append(desk.add_conversation("chat")))
    desk.engine.finish(desk.send("hello"), "hi")
    desk.settle()
    desk.qtbot.waitUntil(lambda: desk.window.meter.context.value.text() == "6,412 / 8,192")
    english = words_of(desk)
    desk.window.preferences.choose_language("ko")
    desk.settle()
    desk.qtbot.waitUntil(lambda: desk.window.meter.state.text() == "준비됨")
    korean = words_of(desk)
    assert desk.window.page.composer.button.text() == "보내기"
    assert desk.window.sidebar.new_button.text() == "새 대화"
    assert desk.window.sidebar.model.index(0, 0).data() == "오늘"
    assert "첫\u00a0토큰\u00a00.06초" in " ".join(korean)
    left = set(english) & set(korean) & {text for text in sources() if KOREAN.get(text) != text}
    assert left == set()
    desk.window.preferences.choose_language("en")
    desk.settle()
    desk.qtbot.waitUntil(lambda: desk.window.meter.state.text() == "Ready")
    assert words_of(desk) == english
    assert desk.saved[-1].language == "en"


def test_qt_speaks_korean_too(open_desk: OpenDesk) -> None:
    open_desk(Settings(language="ko"))
    assert QCoreApplication.translate("QWidgetTextControl", "&Copy") == "복사(&C)"


def test_a_title_in_the_list_is_never_translated(open_desk: OpenDesk) -> None:
    desk = open_desk(Settings(language="ko"), fill=lambda desk: desk.add_conversation("Today"))
    model = desk.window.sidebar.model
    rows = [model.index(row, 0) for row in range(model.rowCount())]
    assert [row.data() for row in rows if not row.data(ListRole.IS_HEADING)] == ["Today"]


@pytest.mark.parametrize(
    ("locale", "count", "speed"),
    [("en_US", "1,234,567", "9.5 tok/s"), ("ko_KR", "1,234,567", "9.5 tok/s"), ("de_DE", "1.234.567", "9,5 tok/s")],
)
def test_numbers_are_written_as_the_locale_does(locale: str, count: str, speed: str) -> None:
    QLocale.setDefault(QLocale(locale))
    assert numbers.count(1_234_567) == count
    assert numbers.speed(9.5) == speed


def test_a_language_change_reaches_a_hidden_window_too(desk: Desk) -> None:
    desk.window.hide()
    desk.window.language.set_mode("ko")
    QCoreApplication.sendPostedEvents(None, QEvent.Type.LanguageChange)
    assert desk.window.page.composer.button.text() == "보내기"
    desk.window.show()
