from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QAbstractButton, QApplication, QLineEdit, QListView, QPlainTextEdit, QTextEdit, QWidget

from tests.ui.conftest import Desk, OpenDesk

CONTROLS = (QAbstractButton, QLineEdit, QListView, QTextEdit, QPlainTextEdit)


def test_every_control_has_a_name(desk: Desk) -> None:
    desk.engine.finish(desk.send("hello"), "text\n\n```python\nx = 1\n```\n\nmore [link](https://example.org)")
    desk.settle()
    controls = [widget for widget in desk.window.findChildren(QWidget) if isinstance(widget, CONTROLS)]
    assert len(controls) > 15
    nameless = [widget for widget in controls if not widget.accessibleName() and widget.isVisible()]
    assert nameless == [], [(type(widget).__name__, widget.objectName()) for widget in nameless]


def test_the_gauges_have_text(desk: Desk) -> None:
    meter = desk.window.meter
    desk.qtbot.waitUntil(lambda: meter.context.accessibleName().startswith("Context 0 / 8,192"))
    assert meter.state.accessibleName().startswith("State: ")


def test_tab_reaches_every_part_and_comes_round(desk: Desk) -> None:
    desk.engine.finish(desk.send("hello"), "hi")
    desk.settle()
    desk.window.activateWindow()
    desk.window.page.composer.edit.insertPlainText("next")  # so that Send can be reached
    desk.window.sidebar.filter.setFocus()
    seen: list[QWidget] = []
    while len(seen) < 40:
        widget = QApplication.focusWidget()
        assert widget is not None
        if widget in seen:
            break
        seen.append(widget)
        QTest.keyClick(widget, Qt.Key.Key_Tab)
    window = desk.window
    wanted = [
        window.sidebar.filter,
        window.sidebar.new_button,
        window.sidebar.view,
        window.header.model_button,
        window.header.more_button,
        window.page.composer.edit,
        window.page.composer.button,
    ]
    assert [widget for widget in seen if widget in wanted] == wanted


def test_the_shortcuts(open_desk: OpenDesk) -> None:
    ids: list[str] = []
    desk = open_desk(fill=lambda desk: ids.append(desk.add_conversation("chat")))
    desk.window.controller.open(ids[0])
    QTest.keyClick(desk.window, Qt.Key.Key_K, Qt.KeyboardModifier.ControlModifier)
    assert desk.window.sidebar.filter.hasFocus()
    QTest.keyClick(desk.window.sidebar.filter, Qt.Key.Key_N, Qt.KeyboardModifier.ControlModifier)
    assert desk.window.controller.current is None
    assert desk.window.page.composer.edit.hasFocus()
