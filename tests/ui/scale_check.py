"""Run by test_scale.py in a process of its own, since Qt reads its scale once: opens the window and the dialogs in both
languages on a small screen and prints what does not fit, as JSON. argv: a folder for data and, where pictures are
wanted, one for them.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from PySide6.QtCore import QCoreApplication, QPoint, QRect, Qt
from PySide6.QtWidgets import QAbstractButton, QAbstractScrollArea, QApplication, QLabel, QSizePolicy, QWidget

from app.chat_session import ChatSession
from app.conversation import ChatOptions, Conversation, Draft
from app.conversation_store import ConversationStore
from app.engine_bridge import EngineBridge
from app.model_library import ModelLibrary
from app.paths import resources_dir
from app.presets import Presets
from app.settings import LoadedSettings, SettingProblem, Settings
from engine.protocol.commands import ReportBlocks
from engine.protocol.events import PressureActed
from tests.ui.blocks import chat, report, run, three_precisions
from tests.ui.fakes import FakeEngine
from ui.main_window import MainWindow
from ui.memory.chat_list import FIRST_ROWS
from ui.memory.compress_dialog import CacheSizes, CompressDialog
from ui.memory.memory_page import MemoryPage
from ui.memory.technique_words import Topic
from ui.settings.chat_settings_dialog import ChatSettingsDialog
from ui.settings.settings_dialog import SettingsDialog
from ui.settings.shortcuts_dialog import ShortcutsDialog

REPLY = "A line.\n\n```python\nprint('x')\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
FRAME = 30  # height of a window's title


def settle() -> None:
    for _ in range(4):
        QCoreApplication.sendPostedEvents()
        QCoreApplication.processEvents()


def clipped(window: QWidget) -> Iterator[str]:
    """Labels and buttons whose words have less room than they need, or that stick out of what they stand in."""
    for widget in window.findChildren(QWidget):
        if not widget.isVisible() or not isinstance(widget, QLabel | QAbstractButton) or not widget.text():
            continue
        if isinstance(widget, QLabel) and widget.sizePolicy().horizontalPolicy() == QSizePolicy.Policy.Ignored:
            continue  # ends in "…" where there is no room
        width, height = needed(widget)
        if widget.width() < width or widget.height() < height:
            yield f"{name(widget)} has {widget.width()}x{widget.height()} and needs {width}x{height}"
        elif sticks_out(widget, window):
            yield f"{name(widget)} sticks out"


def needed(widget: QLabel | QAbstractButton) -> tuple[int, int]:
    """Logical pixels, at the width it has got where the words may wrap."""
    metrics = widget.fontMetrics()
    if isinstance(widget, QLabel) and (widget.wordWrap() or widget.textFormat() == Qt.TextFormat.RichText):
        longest = max(metrics.horizontalAdvance(word) for word in re.split("[ \\n\u2003]", plain(widget.text())))
        height = widget.heightForWidth(widget.width()) if widget.hasHeightForWidth() else widget.sizeHint().height()
        return longest, height
    text = widget.text().replace("&&", "&")
    return metrics.horizontalAdvance(text), metrics.tightBoundingRect(text).height()


def plain(text: str) -> str:
    """Rich text without its tags."""
    return re.sub("<[^>]*>", " ", text) if "</" in text else text


def sticks_out(widget: QWidget, window: QWidget) -> bool:
    """What is scrolled may be higher, but not wider, than what is seen of it."""
    parent = widget.parentWidget()
    while parent is not None:
        place = QRect(widget.mapTo(parent, QPoint()), widget.size())
        if isinstance(parent.parentWidget(), QAbstractScrollArea):
            return place.left() < 0 or place.right() > parent.rect().right()
        if not parent.rect().contains(place):
            return True
        if parent is window:
            return False
        parent = parent.parentWidget()
    return False


def name(widget: QLabel | QAbstractButton) -> str:
    return f"{type(widget).__name__} {widget.text()[:40]!r}"


def too_large(window: QWidget) -> Iterator[str]:
    room = window.screen().availableSize()
    least = window.minimumSizeHint().expandedTo(window.minimumSize())
    if least.width() > room.width() or least.height() + FRAME > room.height():
        yield f"needs at least {least.width()}x{least.height()} of {room.width()}x{room.height()}"


def memory_page(window: MainWindow, engine: FakeEngine) -> MemoryPage:
    """The memory panel with chats in three precisions, on disk, and one of every step in its diary."""
    ids = [one.id for one in window.sidebar.model.conversations]
    rows = three_precisions([ids[0], "b", "c", "d"])
    stored = [chat(f"stored {number}", run(320, place="disk"), back_s=75.0) for number in range(FIRST_ROWS)]
    for action in ("save", "quantize", "compress", "to_host", "drop", "evict_disk"):
        engine.tell(PressureActed(ids[0], action, 118_000_000, 0.1, 130_000_000, 320_000_000, "balanced"))
    window.memory.open()
    assert window.memory.page is not None
    while len(window.memory.page.rows) < FIRST_ROWS:
        settle()
        asked = [command for command in engine.commands if isinstance(command, ReportBlocks)]
        if asked:
            engine.tell(report(asked[-1].request_id, [*rows, *stored]))
    return window.memory.page


def main() -> None:
    application = QApplication([])
    data, pictures = Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None
    found: dict[str, list[str]] = {}
    store = ConversationStore(data / "ember.db")
    bridge = EngineBridge()
    engine = FakeEngine(bridge)
    settings = Settings(language="en", theme="light", temperature=0.9)
    session = ChatSession(store, engine, settings)
    bridge.event_arrived.connect(session.handle)
    library, presets = ModelLibrary(resources_dir(), data), Presets(data / "presets.json")
    window = MainWindow(session, store, bridge, engine, library, settings, lambda changed: None, presets)
    window.show()
    engine.load()
    settle()
    now = datetime.now(UTC)
    conversation = Conversation("a", "Rain", now, now, num_messages=2, options=ChatOptions(temperature=1.0))
    problems = LoadedSettings(settings, (SettingProblem("theme", "pink", ""),))

    def check(part: str, shown: QWidget) -> None:
        settle()
        key = f"{part} {window.language.current}"
        found[key] = [*too_large(shown), *clipped(shown)]
        if pictures is not None:
            shown.grab().save(str(pictures / f"{key.replace(' ', '_')}.png"))

    for language in ("en", "ko"):
        window.preferences.choose_language(language)
        window.controller.open(None)
        room = window.screen().availableSize()
        window.resize(room.width(), room.height() - FRAME)
        check("new chat", window)
        window.page.composer.show_draft(Draft("hello"))
        window.page.composer.button.click()
        settle()
        engine.finish(engine.generates[-1], REPLY)
        check("chat", window)
        window.resize(window.minimumSize())
        check("chat at its least size", window)
        for part, dialog in (
            ("settings", SettingsDialog(window.preferences, library, presets, problems, window)),
            ("chat settings", ChatSettingsDialog(conversation, presets, library, settings, window)),
            ("shortcuts", ShortcutsDialog(window)),
            ("compress", CompressDialog("Rain", CacheSizes(148_000_000, 5_000_000, 148_000_000), window)),
        ):
            dialog.show()
            if isinstance(dialog, SettingsDialog):
                for row in range(dialog.groups.count()):
                    dialog.groups.setCurrentRow(row)
                    check(f"{part} {row}", dialog)
            check(part, dialog)
            dialog.resize(dialog.minimumSize())
            check(f"{part} at its least size", dialog)
            dialog.close()
        page = memory_page(window, engine)
        page.resize(1100, room.height() - FRAME)
        for topic in Topic:
            page.help.toggle(topic)
            check(f"memory with help on {topic.value}", page)
        page.help.dismiss()
        page.chats.more.click()
        for width in (720, page.minimumWidth()):
            page.resize(width, room.height() - FRAME)
            check(f"memory {width} wide", page)
        page.close()
    window.close()
    settle()
    session.close()
    store.close()
    sys.stdout.write(json.dumps({"scale": application.devicePixelRatio(), "found": found}, ensure_ascii=False))


if __name__ == "__main__":
    main()
