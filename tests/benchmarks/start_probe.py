"""The real program, started as a double click does, that sends a message by itself and tells when what happened.

python -m tests.benchmarks.start_probe DATA_DIR [MESSAGE]

Without a message it closes once the model is loaded. With one, it is written and sent as soon as the window is painted
and has asked for its model, and the program closes when the first words of the reply are on the screen. The last line
on standard output is a JSON object: seconds since the process began, by what was reached then, in that order.
"""

from __future__ import annotations

import json
import sys
import time

import psutil
from PySide6.QtCore import QCoreApplication, QEvent, QObject, QTimer
from PySide6.QtWidgets import QApplication, QWidget

from app.__main__ import main
from app.engine_bridge import EngineBridge
from engine.protocol.events import Event, ModelLoaded, ModelLoading, PhaseChanged, TextArrived

_LOOK_MS = 10
_marks: dict[str, float] = {}  # written by the GUI thread and the inference thread, each mark once


def mark(name: str) -> None:
    """Remember when that was first reached."""
    _marks.setdefault(name, time.time() - psutil.Process().create_time())


class Watch(QObject):
    """Sees the program's events on the GUI thread until there is nothing more to wait for."""

    def __init__(self, application: QCoreApplication, message: str) -> None:
        super().__init__()
        self._message = message
        self._timer = QTimer(self, interval=_LOOK_MS)
        self._timer.timeout.connect(self._on_look_due)
        application.installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:  # noqa: N802 (Qt)
        if event.type() == QEvent.Type.Paint and isinstance(watched, QWidget) and not watched.isWindow():
            if "window painted" not in _marks:
                mark("window painted")
                self._timer.start()
            elif "first text told" in _marks and "first text visible" not in _marks and _shows_reply(watched):
                mark("first text visible")
                QTimer.singleShot(0, QCoreApplication.quit)
        return False

    def _on_look_due(self) -> None:
        if not self._message:
            if "model loaded" in _marks:
                QCoreApplication.quit()
        elif "load: importing" in _marks and "message sent" not in _marks:
            from ui.main_window import MainWindow  # loaded by now; not before the window needs it

            window = next(one for one in QApplication.topLevelWidgets() if isinstance(one, MainWindow))
            window.page.composer.edit.setPlainText(self._message)
            window.page.composer.button.click()
            mark("message sent")
            self._timer.stop()


def _shows_reply(widget: QWidget) -> bool:
    """Whether the widget that is being painted belongs to a reply that has words, all of them drawn."""
    from ui.transcript.messages import AssistantMessage

    parent: QWidget | None = widget
    while parent is not None and not isinstance(parent, AssistantMessage):
        parent = parent.parentWidget()
    return parent is not None and bool(parent.text.strip()) and parent.is_drawn


def _mark_event(event: Event) -> None:
    match event:
        case ModelLoading():
            mark(f"load: {event.stage}")
        case ModelLoaded():
            mark("model loaded")
        case PhaseChanged():
            mark(f"turn: {event.phase}")
        case TextArrived():
            mark("first text told")


def run(data_dir: str, message: str) -> int:
    """The program's exit code. Wraps what the program calls: nothing in it is replaced."""
    mark("Qt imported")
    deliver, execute = EngineBridge.deliver, QApplication.exec

    def noted_deliver(self: EngineBridge, event: Event) -> None:
        _mark_event(event)
        deliver(self, event)

    def watched_exec(*_: object) -> int:
        mark("window made")
        application = QCoreApplication.instance()
        assert application is not None
        watch = Watch(application, message)
        code = execute()
        application.removeEventFilter(watch)
        print(json.dumps(_marks), flush=True)
        return code

    EngineBridge.deliver = noted_deliver  # type: ignore[method-assign]
    QApplication.exec = watched_exec  # type: ignore[method-assign]
    return main(["--data-dir", data_dir])


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], " ".join(sys.argv[2:])))
