"""Search in the sidebar: when it is done, and whether the list or what was found is shown."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QObject, Qt, QTimer, Signal, Slot

from app.conversation import SearchHit
from app.errors import AppError
from ui.error_words import error_words
from ui.sidebar.conversation_model import ConversationModel
from ui.sidebar.search_field import SearchField
from ui.sidebar.search_results import SearchResults
from ui.sidebar.search_rows import found_rows

REFRESH_MS = 500
Search = Callable[[str], list[SearchHit]]


class SearchRoom(QObject):
    """A change of the chats is looked at again at most once in `REFRESH_MS`, however many events come."""

    started = Signal()
    ended = Signal()
    hit_chosen = Signal(str, object, str)  # a conversation, the id of a message in it or None, the words

    def __init__(
        self,
        field: SearchField,
        results: SearchResults,
        model: ConversationModel,
        search: Search,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._field = field
        self._results = results
        self._model = model
        self._search = search
        self.timer = QTimer(self, singleShot=True, interval=REFRESH_MS)
        self.timer.timeout.connect(self._refresh)
        field.query_changed.connect(self._on_query_changed)
        field.down_pressed.connect(results.enter)
        field.enter_pressed.connect(results.choose)
        field.escape_pressed.connect(self.end)
        results.left_at_top.connect(self._on_left_at_top)
        results.escape_pressed.connect(self.end)
        results.chosen.connect(self._on_chosen)

    @property
    def is_active(self) -> bool:
        return bool(self._field.query)

    def chats_changed(self) -> None:
        if self.is_active and not self.timer.isActive():
            self.timer.start()

    def set_shown(self, is_shown: bool) -> None:
        """While the window is closed nothing is looked for: the store may be closed too."""
        self._field.timer.stop()
        self.timer.stop()
        if is_shown and self.is_active:
            self.timer.start()

    def retranslate(self) -> None:
        self._results.retranslate()
        if self.is_active:
            self._refresh()

    @Slot()
    def end(self) -> None:
        self._field.clear()
        self._field.tell()

    @Slot(str)
    def _on_query_changed(self, query: str) -> None:
        self.timer.stop()
        if query:
            self._refresh()
            self.started.emit()
        else:
            self.ended.emit()

    @Slot()
    def _refresh(self) -> None:
        if not self.is_active:
            return
        try:
            hits = self._search(self._field.query)
        except AppError as error:
            self._results.show_failure(error_words(error))
            return
        self._results.show_rows(found_rows(hits, {one.id: one for one in self._model.conversations}))

    @Slot()
    def _on_left_at_top(self) -> None:
        self._field.setFocus(Qt.FocusReason.BacktabFocusReason)

    @Slot(str, object)
    def _on_chosen(self, conversation_id: str, message_id: int | None) -> None:
        self.hit_chosen.emit(conversation_id, message_id, self._field.query)


def search_titles(model: ConversationModel, query: str) -> list[SearchHit]:
    """Where there is no store to ask: the chats whose titles hold the words, whatever the case."""
    words = query.casefold()
    hits = []
    for one in model.conversations:
        at = one.title.casefold().find(words)
        if at >= 0:
            hits.append(SearchHit(one.id, None, one.title, ((at, len(words)),)))
    return hits
