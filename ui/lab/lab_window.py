"""The cache lab: see for yourself, on the loaded model, what a KV cache does. A window beside the chat.

`CacheLab` lives as long as the main window; its window is made when it is opened for the first time. Draws at most ten
times a second, and nothing while it is hidden.
"""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, Qt, QTimer, Slot
from PySide6.QtGui import QCloseEvent, QKeySequence, QResizeEvent, QShortcut, QShowEvent
from PySide6.QtWidgets import QHBoxLayout, QLabel, QListWidget, QSizePolicy, QStackedWidget, QVBoxLayout, QWidget

from app.chat_session import ChatSession
from app.engine_port import EnginePort
from app.model_library import ModelLibrary
from engine.protocol.commands import BenchName
from ui.fit_screen import resize_within_screen
from ui.icons import app_icon
from ui.lab.calculator_page import CalculatorPage, calculator_name
from ui.lab.experiment_page import ExperimentPage
from ui.lab.lab_runs import LabRuns
from ui.lab.lab_style import lab_style
from ui.lab.page_list import PageList
from ui.lab.result_files import ResultFiles
from ui.lab.view import View
from ui.lab.views.attention import AttentionView
from ui.lab.views.heads import HeadsView
from ui.lab.views.kvzip import KvzipView
from ui.lab.views.loop import LoopView
from ui.lab.views.memory import MemoryView
from ui.lab.views.precisions import PrecisionsView
from ui.lab.views.prefill_decode import PrefillDecodeView
from ui.lab.views.shared_prefix import SharedPrefixView
from ui.lab.views.use_cache import UseCacheView
from ui.theme import Theme
from ui.tokens import SPACE_L, SPACE_M

KEY = "Ctrl+Shift+K"
_DRAW_MS = 100
_SIZE, _LEAST_SIZE = (1280, 820), (600, 340)
_SIDE, _NARROW_SIDE, _NARROW_PX = 232, 168, 860


def all_views() -> tuple[View, ...]:
    return (
        UseCacheView(),
        LoopView(),
        PrefillDecodeView(),
        MemoryView(),
        PrecisionsView(),
        HeadsView(),
        AttentionView(),
        SharedPrefixView(),
        KvzipView(),
    )


class CacheLab(QObject):
    """`take` wants every event of the engine, before anyone else: True means that it is the lab's alone."""

    def __init__(
        self, engine: EnginePort, session: ChatSession, library: ModelLibrary, theme: Theme, parent: QWidget
    ) -> None:
        super().__init__(parent)
        self._session = session
        self._library = library
        self._theme = theme
        self._parent = parent
        self.runs = LabRuns(engine, lambda: session.model, self)
        self.window: LabWindow | None = None

    def take(self, event: object) -> bool:
        return self.runs.take(event)

    @Slot()
    def stop(self) -> None:
        """The measurement that runs; what it has found stays."""
        self.runs.stop()

    @Slot()
    def open(self) -> None:
        if self.window is None:
            self.window = LabWindow(self.runs, self._library, self._theme, self._parent)
        self.window.show()
        self.window.raise_()
        self.window.activateWindow()

    @Slot()
    def close(self) -> None:
        """With the main window: cancels what runs."""
        if self.window is not None:
            self.window.close()
        self.runs.forget()


class LabWindow(QWidget):
    def __init__(self, runs: LabRuns, library: ModelLibrary, theme: Theme, parent: QWidget) -> None:
        super().__init__(parent, Qt.WindowType.Window)
        self.setObjectName("cacheLab")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.setWindowIcon(app_icon())
        self._runs = runs
        self._theme = theme
        self._outdated: set[BenchName] = set()
        self.files = ResultFiles(theme, self)
        self.title = QLabel()
        self.title.setProperty("kind", "title")
        self.list = PageList()
        self.stack = QStackedWidget()
        self.views = {view.name: view for view in all_views()}
        self._library = library
        self._pages: list[ExperimentPage | CalculatorPage | None] = [None] * (len(self.views) + 1)
        self._draw_timer = QTimer(self, singleShot=True, interval=_DRAW_MS)
        self._draw_timer.timeout.connect(self._draw)
        self._lay_out()
        self.files.told.connect(self._on_told)
        self.list.currentRowChanged.connect(self._on_page_chosen)
        runs.changed.connect(self._on_changed)
        theme.changed.connect(self._use_theme)
        QShortcut(QKeySequence("Esc"), self).activated.connect(self._stop_or_close)
        QShortcut(QKeySequence(KEY), self).activated.connect(self.close)
        self._use_theme()
        self._retranslate()
        self.list.setCurrentRow(0)

    @property
    def page(self) -> ExperimentPage | CalculatorPage:
        """The one that is shown; each is made when it is shown for the first time."""
        row = max(0, self.list.currentRow())
        found = self._pages[row]
        if found is None:
            found = self._pages[row] = self._make_page(row)
            self.stack.addWidget(found)
        return found

    def show_page(self, name: BenchName) -> ExperimentPage:
        self.list.setCurrentRow(list(self.views).index(name))
        page = self.page
        assert isinstance(page, ExperimentPage)
        return page

    def show_calculator(self) -> CalculatorPage:
        self.list.setCurrentRow(len(self.views))
        page = self.page
        assert isinstance(page, CalculatorPage)
        return page

    # slots

    @Slot(object)
    def _on_changed(self, name: BenchName | None) -> None:
        """An experiment's step is drawn soon; what concerns all pages at once."""
        self._outdated |= set(self.views) if name is None else {name}
        if name is None:
            self._draw_timer.stop()
            self._draw()
        elif not self._draw_timer.isActive():
            self._draw_timer.start()

    @Slot()
    def _draw(self) -> None:
        page = self.page
        if self.isVisible() and isinstance(page, ExperimentPage) and page.view.name in self._outdated:
            self._outdated.discard(page.view.name)
            page.refresh()

    @Slot(int)
    def _on_page_chosen(self, _row: int) -> None:
        page = self.page
        self.stack.setCurrentWidget(page)
        if isinstance(page, ExperimentPage):
            self._outdated.discard(page.view.name)
        page.refresh()

    @Slot(str)
    def _on_told(self, words: str) -> None:
        self.page.notice.show_words(words)

    @Slot()
    def _stop_or_close(self) -> None:
        """Esc takes no result away while something runs."""
        if self._runs.running is not None:
            self._runs.stop()
        else:
            self.close()

    @Slot()
    def _use_theme(self) -> None:
        self.setStyleSheet(lab_style(self._theme.tokens))

    # Qt overrides

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.LanguageChange:
            self._retranslate()
        super().changeEvent(event)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.page.refresh()
        self.list.setFocus(Qt.FocusReason.OtherFocusReason)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._side.setFixedWidth(_NARROW_SIDE if self.width() < _NARROW_PX else _SIDE)

    def closeEvent(self, event: QCloseEvent) -> None:
        self._draw_timer.stop()
        self._runs.forget()
        super().closeEvent(event)

    # private

    def _make_page(self, row: int) -> ExperimentPage | CalculatorPage:
        if row == len(self.views):
            return CalculatorPage(self._library, self._theme, lambda: self._runs.model, self.files)
        page = ExperimentPage(list(self.views.values())[row], self._theme, self._runs, self.files)
        page.run_requested.connect(self._runs.start)
        page.stop_requested.connect(self._runs.stop)
        return page

    def _retranslate(self) -> None:
        self.setWindowTitle(self.tr("Cache lab – Ember"))
        self.title.setText(self.tr("Cache lab"))
        self.list.setAccessibleName(self.tr("Experiments"))
        names = [*(view.title() for view in self.views.values()), calculator_name()]
        for number, name in enumerate(names):
            self.list.item(number).setText(name)

    def _lay_out(self) -> None:
        for _ in self._pages:
            self.list.addItem("")
        self.list.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.list.setSizeAdjustPolicy(QListWidget.SizeAdjustPolicy.AdjustToContents)
        self.list.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Maximum)
        self.list.setMinimumHeight(0)
        self._side = QWidget()
        self._side.setObjectName("labSide")
        self._side.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        side = QVBoxLayout(self._side)
        side.setContentsMargins(SPACE_M, SPACE_L + 4, SPACE_M, SPACE_M)
        side.setSpacing(SPACE_M)
        side.addWidget(self.title)
        side.addWidget(self.list)
        side.addStretch(1)
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(0)
        row.addWidget(self._side)
        row.addWidget(self.stack, 1)
        self.setMinimumSize(*_LEAST_SIZE)
        resize_within_screen(self, *_SIZE)
