"""What the chat of a row would take to go on: asked once the pointer or the cursor rests on it, and told in the row."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QModelIndex, QObject, Qt, QTimer, Slot
from PySide6.QtGui import QCursor
from PySide6.QtWidgets import QToolTip

from engine.protocol.events import CacheState, EngineStopped, Estimated, Failed, ModelLoaded
from ui.sidebar.conversation_model import ConversationModel, ListRole
from ui.sidebar.conversation_view import ConversationView

_REST_MS = 200  # less than Qt's tooltips wait


class RowCosts(QObject):
    """`ask` returns the id of a request for what an empty message to this chat would cost, or None."""

    def __init__(
        self, view: ConversationView, model: ConversationModel, ask: Callable[[str], str | None], parent: QObject
    ) -> None:
        super().__init__(parent)
        self._view = view
        self._model = model
        self._ask = ask
        self._wanted = ""
        self._asked: dict[str, str] = {}  # request id: conversation
        self._timer = QTimer(self, interval=_REST_MS, singleShot=True)
        self._timer.timeout.connect(self._on_rest)
        view.entered.connect(self._on_entered)
        view.selectionModel().currentChanged.connect(self._on_entered)

    def take(self, event: object) -> bool:
        """Whether it is the answer to one of these questions."""
        match event:
            case Estimated():
                is_mine = event.request_id in self._asked
                # A newer question about the chat has taken the place of any other.
                self._asked = {key: chat for key, chat in self._asked.items() if chat != event.conversation_id}
                if is_mine:
                    self._model.set_cost(event.conversation_id, event.new_tokens, event.seconds)
                    self._refresh_tooltip(event.conversation_id)
                return is_mine
            case Failed():
                return self._asked.pop(event.request_id, None) is not None
            case EngineStopped() | ModelLoaded():
                self._asked.clear()
        return False

    @Slot(QModelIndex)
    def _on_entered(self, index: QModelIndex) -> None:
        self._wanted = index.data(ListRole.CONVERSATION_ID) or ""
        if self._wanted:
            self._timer.start()
        else:
            self._timer.stop()

    @Slot()
    def _on_rest(self) -> None:
        """A chat in memory goes on at once, and the one that is open is asked about by the composer."""
        warmth, index = self._model.warmth.get(self._wanted), self._model.index_of(self._wanted)
        is_asked = self._wanted in self._asked.values()
        if is_asked or warmth is None or warmth.state is CacheState.WARM or not index.isValid():
            return
        if index.data(ListRole.COST) is None and not index.data(ListRole.IS_OPEN):
            request_id = self._ask(self._wanted)
            if request_id is not None:
                self._asked[request_id] = self._wanted

    def _refresh_tooltip(self, conversation_id: str) -> None:
        index = self._view.indexAt(self._view.viewport().mapFromGlobal(QCursor.pos()))
        if QToolTip.isVisible() and index.data(ListRole.CONVERSATION_ID) == conversation_id:
            QToolTip.showText(QCursor.pos(), index.data(Qt.ItemDataRole.ToolTipRole), self._view)
