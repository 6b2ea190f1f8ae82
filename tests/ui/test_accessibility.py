"""What a screen reader is told, where the Tab key goes, and that one sees where the focus is.

The walks go over whatever the windows hold, so that a part added later is held to the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import pytest
from PySide6.QtCore import QCoreApplication, QEvent, QPoint, QRect, Qt
from PySide6.QtGui import QAccessible, QAccessibleInterface, QAction, QImage, QKeySequence, QShortcut
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QAbstractScrollArea, QApplication, QTextBrowser, QWidget

from app.conversation import ChatOptions, Conversation
from app.settings import LoadedSettings, SettingProblem, Settings
from engine.protocol.commands import ReportBlocks
from engine.protocol.events import CacheState, PressureActed
from tests.ui.blocks import chat, report, run, three_precisions
from tests.ui.conftest import Desk, OpenDesk
from ui.memory.chat_list import FIRST_ROWS
from ui.memory.compress_dialog import CacheSizes, CompressDialog
from ui.settings.chat_settings_dialog import ChatSettingsDialog
from ui.settings.settings_dialog import SettingsDialog
from ui.settings.shortcuts_dialog import ShortcutsDialog
from ui.shortcuts import SHORTCUTS, Place

REPLY = "text\n\n```python\nx = 1\n```\n\nmore [link](https://example.org)\n\n| a | b |\n|---|---|\n| 1 | 2 |"
NOW = datetime(2026, 11, 30, tzinfo=UTC)
NAMELESS_ROLES = {  # that need no words of their own: what is in them is read
    "Client",
    "Pane",
    "Splitter",
    "ScrollBar",
    "Border",
    "Separator",
    "LayeredPane",
    "Grouping",
    "NoRole",
    "Whitespace",
    "Graphic",
    "StaticText",
    "ListItem",
}
Part = Callable[[Desk], QWidget]


@dataclass(frozen=True)
class Said:
    depth: int
    role: str
    name: str
    is_focusable: bool


def window_of(desk: Desk) -> QWidget:
    """The window with a chat of two turns."""
    desk.engine.finish(desk.send("hello"), REPLY)
    desk.settle()
    desk.engine.finish(desk.send("and then?"), "hi")
    desk.window.page.composer.edit.insertPlainText("next")  # so that Send can be reached
    desk.settle()
    return desk.window


def settings_of(desk: Desk) -> QWidget:
    loaded = LoadedSettings(Settings(), (SettingProblem("theme", "pink", ""),))
    dialog = SettingsDialog(desk.window.preferences, desk.library, desk.presets, loaded, desk.window)
    dialog.groups.setCurrentRow(1)
    return dialog


def chat_settings_of(desk: Desk) -> QWidget:
    chat = Conversation("a", "Rain", NOW, NOW, options=ChatOptions(temperature=1.0, top_k=1))
    dialog = ChatSettingsDialog(chat, desk.presets, desk.library, Settings(), desk.window)
    dialog.preset_bar.save_button.click()
    return dialog


def shortcuts_of(desk: Desk) -> QWidget:
    return ShortcutsDialog(desk.window)


def compress_of(desk: Desk) -> QWidget:
    return CompressDialog("Rain", CacheSizes(148_000_000, 5_000_000, 148_000_000), desk.window)


def lab_of(desk: Desk) -> QWidget:
    desk.window.lab.open()
    assert desk.window.lab.window is not None
    return desk.window.lab.window


def memory_of(desk: Desk) -> QWidget:
    """The memory panel with four chats, more on disk than are shown, something in the diary, and help that is open."""
    titles = ["Jeju", "Tax letter", "Attention", "Rust", *(f"chat {number}" for number in range(FIRST_ROWS))]
    ids = [desk.add_conversation(title) for title in titles]
    desk.window.changes.changed.emit()
    desk.engine.report(None, {ids[0]: (CacheState.WARM, "bf16"), ids[1]: (CacheState.WARM, "int8")})
    desk.engine.tell(PressureActed(ids[3], "drop", 118_000_000, 0.1, 130_000_000, 320_000_000))
    memory = desk.window.memory
    memory.open()
    desk.qtbot.waitUntil(lambda: isinstance(desk.engine.commands[-1], ReportBlocks))
    stored = [chat(one, run(320, place="disk")) for one in ids[4:]]
    desk.engine.tell(report(desk.engine.commands[-1].request_id, [*three_precisions(ids), *stored]))
    assert memory.page is not None
    desk.qtbot.waitUntil(memory.page.chats.more.isVisible)
    memory.page.what_button.click()
    memory.page.resize(1000, 1200)
    memory.page.budget.setFocus()  # of the pane one sees it once the keyboard has brought it there
    return memory.page


PARTS = [window_of, settings_of, chat_settings_of, shortcuts_of, compress_of, lab_of, memory_of]


@pytest.fixture(params=PARTS, ids=[part.__name__.removesuffix("_of") for part in PARTS])
def part(request: pytest.FixtureRequest, desk: Desk) -> Iterator[QWidget]:
    widget = request.param(desk)
    widget.show()
    widget.activateWindow()
    desk.settle()
    desk.qtbot.waitActive(widget)
    yield widget
    if widget is desk.window.lab.window:
        desk.window.lab.close()
    elif widget is desk.window.memory.page:
        desk.window.memory.close()
    elif widget is not desk.window:
        widget.close()
        widget.deleteLater()
        QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)


def walk(interface: QAccessibleInterface, depth: int = 0) -> Iterator[Said]:
    state = interface.state()
    if state.invisible:
        return
    name = interface.text(QAccessible.Text.Name)
    yield Said(depth, interface.role().name, name, bool(state.focusable))
    for number in range(interface.childCount()):
        child = interface.child(number)
        if child is not None and child.isValid():
            yield from walk(child, depth + 1)


def said_by(widget: QWidget) -> list[Said]:
    return list(walk(QAccessible.queryAccessibleInterface(widget)))


def tab_stops(window: QWidget) -> list[QWidget]:
    """Every control that the Tab key must reach."""
    return [
        widget
        for widget in window.findChildren(QWidget)
        if widget.window() is window
        and widget.isVisible()
        and widget.isEnabled()
        and widget.focusProxy() is None
        and (widget.focusPolicy() & Qt.FocusPolicy.TabFocus) == Qt.FocusPolicy.TabFocus
    ]


def words(widget: QWidget) -> str:
    interface = QAccessible.queryAccessibleInterface(widget)
    return f"{interface.role().name} {interface.text(QAccessible.Text.Name)!r} ({type(widget).__name__})"


def test_every_control_says_what_it_is(part: QWidget) -> None:
    said = said_by(part)
    print("\n".join(f"{'  ' * one.depth}{one.role}: {one.name}" for one in said if one.name or one.is_focusable))
    assert len(said) > 10
    nameless = [one for one in said if one.is_focusable and not one.name and one.role not in NAMELESS_ROLES]
    assert nameless == []
    for widget in tab_stops(part):
        assert QAccessible.queryAccessibleInterface(widget).text(QAccessible.Text.Name).strip(), words(widget)


def test_no_two_controls_say_the_same(part: QWidget) -> None:
    """But for those of messages, which are told apart by the message they stand in."""

    def place(widget: QWidget) -> tuple[str, ...]:
        names = []
        above = widget.parentWidget()
        while above is not None and above is not part:
            names.append(above.accessibleName())
            above = above.parentWidget()
        return tuple(name for name in names if name)

    said = Counter((words(widget), place(widget)) for widget in tab_stops(part))
    assert [what for what, count in said.items() if count > 1] == []


def test_tab_reaches_every_control_and_comes_round_and_back(part: QWidget) -> None:
    stops = tab_stops(part)
    first = QApplication.focusWidget()
    assert first is not None
    for key in (Qt.Key.Key_Tab, Qt.Key.Key_Backtab):
        seen: list[QWidget] = []
        widget: QWidget | None = first
        presses = 0
        while widget is not None and (widget not in seen[:-1]) and presses < 400:
            if widget not in seen:  # a text steps through its links first
                seen.append(widget)
            QTest.keyClick(widget, key)
            widget = QApplication.focusWidget()
            presses += 1
        assert widget is first, "it does not come round"
        assert [words(one) for one in stops if one not in seen] == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_one_sees_where_the_focus_is(part: QWidget, desk: Desk, theme: str) -> None:
    desk.window.preferences.choose_theme(theme)
    QApplication.setCursorFlashTime(0)
    desk.settle()
    unseen = []
    for widget in tab_stops(part):
        widget.setFocus(Qt.FocusReason.TabFocusReason)
        desk.settle()
        if not widget.hasFocus():
            continue
        if isinstance(widget, QTextBrowser):
            QTest.keyClick(widget, Qt.Key.Key_Tab)  # to its first link
        place = around(widget, part)
        if place.isEmpty():
            continue  # scrolled out of sight, which QScrollArea mends for what the Tab key reaches
        focused = luminances(part.grab(place).toImage())
        widget.clearFocus()
        desk.settle()
        before = luminances(part.grab(place).toImage())
        ratio = (np.maximum(focused, before) + 0.05) / (np.minimum(focused, before) + 0.05)
        if np.count_nonzero(ratio >= 2.9) < 16:
            unseen.append(words(widget))
    assert unseen == []


def around(widget: QWidget, window: QWidget) -> QRect:
    """The widget in the window, as far as it is seen, and what may be drawn around it."""
    place = QRect(widget.mapTo(window, QPoint()), widget.size()).adjusted(-4, -4, 4, 4)
    above = widget.parentWidget()
    while above is not None and above is not window:
        if isinstance(above.parentWidget(), QAbstractScrollArea):
            place &= QRect(above.mapTo(window, QPoint()), above.size())
        above = above.parentWidget()
    return place & window.rect()


def luminances(image: QImage) -> np.ndarray:
    """WCAG's relative luminance of each pixel, [height, width]."""
    rgb = image.convertToFormat(QImage.Format.Format_RGB888)
    rows = np.frombuffer(rgb.constBits(), np.uint8).reshape(rgb.height(), rgb.bytesPerLine())[:, : rgb.width() * 3]
    channels = rows.reshape(rgb.height(), rgb.width(), 3) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return linear @ np.array([0.2126, 0.7152, 0.0722])


def test_the_gauges_have_text(desk: Desk) -> None:
    meter = desk.window.meter
    desk.qtbot.waitUntil(lambda: meter.context.accessibleName().startswith("Context 0 / 8,192"))
    assert meter.state.accessibleName().startswith("State: ")
    said = [one for one in said_by(meter) if one.name]
    assert len(said) >= 5


def test_the_main_parts_come_in_the_order_they_are_read(desk: Desk) -> None:
    window = window_of(desk)
    window.activateWindow()
    sidebar, header, composer = desk.window.sidebar, desk.window.header, desk.window.page.composer
    wanted = [sidebar.filter, sidebar.view, header.model_button, header.more_button, composer.edit, composer.button]
    sidebar.filter.setFocus()
    seen: list[QWidget] = []
    while (widget := QApplication.focusWidget()) not in seen and len(seen) < 300:
        assert widget is not None
        seen.append(widget)
        QTest.keyClick(widget, Qt.Key.Key_Tab)
    assert [widget for widget in seen if widget in wanted] == wanted


def test_no_key_of_the_window_is_bound_twice_and_all_are_in_the_table(desk: Desk) -> None:
    """Two that listen to one key block each other."""
    wide = (Qt.ShortcutContext.WindowShortcut, Qt.ShortcutContext.ApplicationShortcut)
    keys = [one.key().toString() for one in desk.window.findChildren(QShortcut) if one.context() in wide]
    for action in desk.window.findChildren(QAction):
        if action.shortcutContext() in wide:
            keys.extend(key.toString() for key in action.shortcuts())
    assert len(keys) > 10
    assert [key for key, count in Counter(keys).items() if count > 1] == []
    known = {QKeySequence(key).toString() for one in SHORTCUTS if one.place is Place.WINDOW for key in one.keys}
    assert set(keys) - known == set()


def test_every_window_wide_key_of_the_table_is_bound(desk: Desk) -> None:
    bound = {one.key().toString() for one in desk.window.findChildren(QShortcut)}
    wanted = {QKeySequence(key).toString() for one in SHORTCUTS if one.place is Place.WINDOW for key in one.keys}
    assert wanted - bound == set()


def test_the_shortcuts(open_desk: OpenDesk) -> None:
    ids: list[str] = []
    desk = open_desk(fill=lambda desk: ids.append(desk.add_conversation("chat")))
    desk.window.controller.open(ids[0])
    QTest.keyClick(desk.window, Qt.Key.Key_K, Qt.KeyboardModifier.ControlModifier)
    assert desk.window.sidebar.filter.hasFocus()
    QTest.keyClick(desk.window.sidebar.filter, Qt.Key.Key_N, Qt.KeyboardModifier.ControlModifier)
    assert desk.window.controller.current is None
    assert desk.window.page.composer.edit.hasFocus()
