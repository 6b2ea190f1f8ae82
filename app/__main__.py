"""The start of Ember, and the composition root: every object is made and connected here. The only file that may import
`ui`. With a verb, the command line runs; without one, the window opens.

Imports stand in functions where they keep what is not needed out of a start: Qt out of the command line, torch out of
both until the window is visible.
"""

from __future__ import annotations

import io
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

from app import cli
from app.engine_port import EngineService, engine_config
from app.errors import AlreadyRunningError, AppError
from app.log_setup import logging_to
from app.paths import DataPaths, resources_dir
from engine.protocol.config import EngineConfig
from engine.protocol.errors import EngineError
from engine.protocol.events import Event, Failed

if TYPE_CHECKING:
    from PySide6.QtWidgets import QApplication

    from app.conversation_store import ConversationStore

_log = logging.getLogger(__name__)
_SWITCH_INTERVAL_S = 0.0005  # how soon the window gets its turn while the engine computes; measured
_FIRST_PAINT_MS = 50
_WAIT_FOR_OTHERS_S = 20.0  # a closing Ember may save for 15


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code of the public contract."""
    _speak_utf8()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    parsed = cli.parse(sys.argv[1:] if arguments is None else arguments)
    if parsed.verb is None:
        code = _open_window(DataPaths(parsed.data_dir))
    else:
        code = cli.run(parsed, make_engine=_make_engine, resources_dir=resources_dir())
    _leave_stuck_threads(code)
    return code


def _make_engine(config: EngineConfig, on_event: Callable[[Event], None]) -> EngineService:
    from engine.worker import EngineWorker

    return EngineWorker(config, on_event)


def _open_window(paths: DataPaths) -> int:
    from PySide6.QtWidgets import QApplication

    from app.scale import scale_window

    scale_window(paths.settings, os.environ)
    application = QApplication(sys.argv[:1])
    application.setApplicationName("Ember")
    application.setDesktopFileName("ember")
    with logging_to(paths.log), _quitting_on_signals(application):
        sys.excepthook = _log_exception
        try:
            return _as_only_instance(application, paths)
        except AppError as error:
            _log.error("Ember cannot start: %s", error)
            _tell(application, str(error))
            return error.exit_code


def _as_only_instance(application: QApplication, paths: DataPaths) -> int:
    """Open the window, or bring forward that of the Ember that has the data folder. Raises AppError."""
    from app.conversation_store import ConversationStore
    from app.instance_lock import InstanceLock
    from app.single_instance import raise_first_instance

    lock = InstanceLock(paths)
    try:
        lock.__enter__()
    except AlreadyRunningError:
        if raise_first_instance(paths):
            return 0
        lock = InstanceLock(paths, _WAIT_FOR_OTHERS_S)  # no window there: one that is closing, or a call that soon ends
        lock.__enter__()
    try:
        store = ConversationStore(paths.database)
        try:
            store.close_interrupted_replies()
            return _run_window(application, paths, store)
        finally:
            store.close()
    finally:
        lock.__exit__(None, None, None)


def _run_window(application: QApplication, paths: DataPaths, store: ConversationStore) -> int:
    """Everything the window needs, until it is closed. The engine starts once the window is visible."""
    from PySide6.QtCore import Qt, QTimer

    from app.chat_session import ChatSession
    from app.engine_bridge import EngineBridge
    from app.live_settings import LiveSettings
    from app.model_library import ModelLibrary
    from app.presets import Presets
    from app.settings import read_settings
    from app.single_instance import InstanceServer
    from ui.main_window import MainWindow
    from ui.warm_up import warm_up

    loaded = read_settings(paths.settings)
    settings = loaded.settings
    bridge = EngineBridge()
    engine = _make_engine(engine_config(paths, settings), bridge.deliver)
    library = ModelLibrary(resources_dir(), paths.data_dir)
    session = ChatSession(store, engine, settings, find_model=library.resolve)
    bridge.event_arrived.connect(session.handle)
    bridge.event_arrived.connect(library.handle)

    live_settings = LiveSettings(paths, settings, session, engine)
    window = MainWindow(
        session, store, bridge, engine, library, settings, live_settings.change, Presets(paths.presets), loaded
    )
    server = InstanceServer(paths)

    def on_raise_asked() -> None:
        window.showNormal() if window.isMinimized() else window.show()
        window.raise_()
        window.activateWindow()

    def ask_for_model() -> None:
        try:
            session.load_model(library.resolve(settings.model), settings.weights)
        except EngineError as error:
            _log.warning("%s", error)
            bridge.deliver(Failed("", None, error.code, str(error), error.params))

    server.raise_asked.connect(on_raise_asked)
    bridge.model_loaded.connect(warm_up, Qt.ConnectionType.SingleShotConnection)
    window.show()
    ask_for_model()  # before any message can be sent, which would find no model
    QTimer.singleShot(_FIRST_PAINT_MS, engine.start)
    try:
        return application.exec()
    finally:
        server.close()
        engine.shutdown()
        application.processEvents()  # what the engine told last
        session.close()


@contextmanager
def _quitting_on_signals(application: QApplication) -> Iterator[None]:
    """Ctrl+C in the terminal and a polite end by the system close the window as a click would.

    Qt's loop runs no Python while nothing happens, so the signal is handed to it through a socket.
    """
    from PySide6.QtCore import QSocketNotifier

    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)
    notifier = QSocketNotifier(reader.fileno(), QSocketNotifier.Type.Read)
    notifier.activated.connect(lambda *_: (reader.recv(64), application.quit()))
    handlers = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        notifier.setEnabled(False)
        reader.close()
        writer.close()


def _tell(application: QApplication, sentence: str) -> None:
    """Say why there is no window: on standard error, and in a box for those who clicked an icon."""
    from PySide6.QtWidgets import QMessageBox

    if sys.stderr is not None:
        sys.stderr.write(f"ember: {sentence}\n")
    if application.platformName() not in ("offscreen", "minimal"):
        QMessageBox.critical(None, "Ember", sentence)


def _log_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """For what escapes from a slot: the window lives on."""
    _log.error("An unexpected error", exc_info=(kind, error, trace))
    sys.__excepthook__(kind, error, trace)


def _speak_utf8() -> None:
    """Hangul is written whatever the locale says. A program without a console has no streams."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="replace")


def _leave_stuck_threads(code: int) -> None:
    """A model being loaded cannot be interrupted: what was to be kept is kept, so the process ends under it.

    Python would otherwise run its clean-up while the engine is still inside native code, and may crash.
    """
    if any(thread.name.startswith("ember-") for thread in threading.enumerate()):
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
