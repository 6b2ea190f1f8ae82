"""What every message of the transcript has: actions, a toolbar, keys, a menu, and an editor in its place.

A message is as tall as `heightForWidth` says; the transcript places it. The room of the toolbar is part of it always.
"""

from __future__ import annotations

from PySide6.QtCore import QEvent, QPoint, QSize, Qt, Signal, Slot
from PySide6.QtGui import (
    QContextMenuEvent,
    QEnterEvent,
    QGuiApplication,
    QKeyEvent,
    QResizeEvent,
)
from PySide6.QtWidgets import QApplication, QTextBrowser, QTextEdit, QWidget

from app.conversation import Message
from engine.protocol.commands import Role
from ui.theme import Theme
from ui.transcript.message_actions import Action, MessageActions, possible
from ui.transcript.message_editor import MessageEditor
from ui.transcript.message_menu import message_menu
from ui.transcript.message_toolbar import TOOLBAR_PX, MessageToolbar

_KEYS = {
    (Qt.Key.Key_C, Qt.KeyboardModifier.ControlModifier): Action.COPY,
    (Qt.Key.Key_R, Qt.KeyboardModifier.ControlModifier): Action.REGENERATE,
    (Qt.Key.Key_F2, Qt.KeyboardModifier.NoModifier): Action.EDIT,
    (Qt.Key.Key_Return, Qt.KeyboardModifier.NoModifier): Action.EDIT,
    (Qt.Key.Key_Enter, Qt.KeyboardModifier.KeypadModifier): Action.EDIT,
    (Qt.Key.Key_Delete, Qt.KeyboardModifier.NoModifier): Action.DELETE,
    (Qt.Key.Key_Left, Qt.KeyboardModifier.AltModifier): Action.EARLIER,
    (Qt.Key.Key_Right, Qt.KeyboardModifier.AltModifier): Action.LATER,
}


class MessageWidget(QWidget):
    height_changed = Signal()

    def __init__(self, theme: Theme, message: Message, actions: MessageActions, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._message = message
        self._actions = actions
        self._is_last = False
        self._is_hovered = self._has_menu = False
        self._toolbar: MessageToolbar | None = None
        self._editor: MessageEditor | None = None

    # what kinds of messages say otherwise

    @property
    def text(self) -> str:
        return self._message.text

    @property
    def is_live(self) -> bool:
        return False

    def markdown(self) -> str:
        """What is copied."""
        return self.text

    def plain_text(self) -> str:
        """The words without marks."""
        return self.text

    def recolour(self) -> None:
        if self._toolbar is not None:
            self._toolbar.recolour()
        self.update()

    def _content_height(self, width: int) -> int:
        """The height above the toolbar's room."""
        raise NotImplementedError

    def _lower_height(self, width: int) -> int:
        """The height of the toolbar's row, with the space above it."""
        raise NotImplementedError

    def _toolbar_rise(self, width: int) -> int:
        """How far above the lower edge the toolbar begins."""
        return TOOLBAR_PX

    def _place_content(self, width: int, height: int) -> None:
        raise NotImplementedError

    def _show_content(self, is_shown: bool) -> None:
        raise NotImplementedError

    # for the transcript

    @property
    def message(self) -> Message:
        return self._message

    @property
    def toolbar(self) -> MessageToolbar:
        """Built when first needed: most messages are only read."""
        if self._toolbar is None:
            self._toolbar = MessageToolbar(self._theme, self._message, self)
            self._toolbar.triggered.connect(self.perform)
            self._toolbar.menu_requested.connect(self._on_menu_requested)
            self.refresh_actions()
        return self._toolbar

    @property
    def editor(self) -> MessageEditor | None:
        return self._editor

    def possible(self) -> set[Action]:
        quiet = self._actions.is_quiet
        return possible(self._message, is_live=self.is_live, is_last=self._is_last, is_quiet=quiet)

    def set_message(self, message: Message, *, is_last: bool) -> None:
        """The same message, perhaps with other versions beside it or another end."""
        self._message = message
        self._is_last = is_last
        if message.num_versions > 1:
            _ = self.toolbar
        self.refresh_actions()

    def refresh_actions(self) -> None:
        """After anything that changes what is possible."""
        if self._editor is not None:
            self._editor.set_can_save(self._actions.is_quiet)
        if self._toolbar is not None:
            self._toolbar.show_message(self._message, self.possible())
            self.update_toolbar()

    @Slot(object)
    def perform(self, action: Action) -> None:
        if action not in self.possible():
            return
        match action:
            case Action.COPY | Action.COPY_MARKDOWN:
                QGuiApplication.clipboard().setText(self.markdown())
                self.toolbar.show_copied()
            case Action.COPY_TEXT:
                QGuiApplication.clipboard().setText(self.plain_text())
                self.toolbar.show_copied()
            case Action.EDIT:
                self.begin_edit()
            case _:
                self._actions.request(action, self._message.id)

    def begin_edit(self, text: str | None = None) -> None:
        """Show the editor, with what was being written before, if anything was (then it does not take the focus)."""
        if self._editor is not None:
            return
        self._editor = MessageEditor(self._message.role, self._message.text, self._actions.sends_with, self)
        self._editor.saved.connect(self._on_edit_saved)
        self._editor.cancelled.connect(self._on_edit_cancelled)
        if text is not None:
            self._editor.set_text(text)
        self._show_content(False)
        self._editor.show()
        self.refresh_actions()
        self._lay_out()
        self.height_changed.emit()
        if text is None:
            self._editor.edit.setFocus()

    def end_edit(self) -> None:
        if self._editor is None:
            return
        had_focus = self._editor.isAncestorOf(QApplication.focusWidget() or self)
        editor, self._editor = self._editor, None
        self._show_content(True)
        if had_focus:
            self.take_focus()
        editor.hide()
        editor.deleteLater()
        self.refresh_actions()
        self._lay_out()
        self.height_changed.emit()

    def unsaved_edit(self) -> str | None:
        """What was written and is not saved yet."""
        if self._editor is None or self._editor.is_saved:
            return None
        return self._editor.text

    def close_saved_edit(self) -> None:
        """The message has come to what was saved in its editor."""
        if self._editor is not None and self._editor.is_saved and self._editor.text == self.text:
            self.end_edit()

    @property
    def is_needed(self) -> bool:
        """Whether it must stay even when it is far from what is seen."""
        return self.is_live or self._editor is not None or self.has_key_focus()

    def has_key_focus(self) -> bool:
        """Whether the focus is on the message itself, and not on its text."""
        focused = QApplication.focusWidget()
        return focused is self or (
            self._toolbar is not None and focused is not None and self._toolbar.isAncestorOf(focused)
        )

    def take_focus(self) -> None:
        """As one goes through the messages by keys; a screen reader says whose it is, and reads it."""
        self.setAccessibleName(self.tr("Your message") if self._message.role is Role.USER else self.tr("Reply"))
        self.setAccessibleDescription(self.plain_text())
        self.setFocus(Qt.FocusReason.ShortcutFocusReason)

    def update_toolbar(self) -> None:
        """It is there while the message is pointed at or has the focus."""
        is_expanded = (self._is_hovered or self._has_menu or self.has_key_focus()) and self._editor is None
        if self._toolbar is None and not is_expanded:
            return
        self.toolbar.show_actions(is_expanded)
        self._place_toolbar()

    def show_menu(self, at: QPoint, inside: QTextEdit | None = None) -> None:
        selected = link = ""
        if inside is not None:
            selected = inside.textCursor().selectedText().replace("\u2029", "\n").replace("\u2028", "\n")
            link = inside.anchorAt(inside.viewport().mapFromGlobal(at)) if isinstance(inside, QTextBrowser) else ""
        menu = message_menu(self._message, self.possible(), self.perform, self, selected_text=selected, link=link)
        menu.aboutToHide.connect(self._on_menu_hidden)
        self._has_menu = True
        menu.popup(at)

    # Qt overrides

    def hasHeightForWidth(self) -> bool:
        return True

    def heightForWidth(self, width: int) -> int:
        if self._editor is not None:
            return self._editor.sizeHint().height() + self._lower_height(width)
        return self._content_height(width) + self._lower_height(width)

    def sizeHint(self) -> QSize:
        return QSize(max(1, self.width()), self.heightForWidth(max(1, self.width())))

    def resizeEvent(self, event: QResizeEvent) -> None:
        self._lay_out()

    def event(self, event: QEvent) -> bool:
        match event.type():
            case QEvent.Type.LayoutRequest:
                self.height_changed.emit()
            case QEvent.Type.ShortcutOverride if isinstance(event, QKeyEvent) and self._takes(event):
                event.accept()
                return True
        return super().event(event)

    def enterEvent(self, event: QEnterEvent) -> None:
        self._is_hovered = True
        for edit in self.findChildren(QTextEdit):
            if self._editor is None or not self._editor.isAncestorOf(edit):
                edit.setContextMenuPolicy(Qt.ContextMenuPolicy.NoContextMenu)  # ours comes up instead
        self.update_toolbar()
        super().enterEvent(event)

    def leaveEvent(self, event: QEvent) -> None:
        self._is_hovered = False
        self.update_toolbar()
        super().leaveEvent(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if not self.has_key_focus() or not self._takes(event):
            super().keyPressEvent(event)
            return
        event.accept()
        if event.key() == Qt.Key.Key_Escape:
            self._actions.focus_left.emit()
        elif _is_menu_key(event):
            self.show_menu(self.mapToGlobal(QPoint(0, self.height() - TOOLBAR_PX)))
        else:
            self.perform(_KEYS[Qt.Key(event.key()), event.modifiers()])

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        child: QWidget | None = self.childAt(event.pos())
        while child is not None and child is not self and not isinstance(child, QTextEdit):
            child = child.parentWidget()
        self.show_menu(event.globalPos(), child if isinstance(child, QTextEdit) else None)

    def focusNextPrevChild(self, next: bool) -> bool:  # noqa: A002  # Qt's name
        """Tab goes from the message through its buttons."""
        focused = QApplication.focusWidget()
        if self.has_key_focus():
            stops: list[QWidget] = [self, *(self._toolbar.stops() if self._toolbar else ())]
            place = stops.index(focused) if focused in stops else 0
            wanted = place + (1 if next else -1)
            if 0 <= wanted < len(stops):
                stops[wanted].setFocus(Qt.FocusReason.TabFocusReason)
                return True
            self._actions.focus_left.emit()
            return True
        return super().focusNextPrevChild(next)

    @Slot(QPoint)
    def _on_menu_requested(self, at: QPoint) -> None:
        self.show_menu(at)

    @Slot()
    def _on_menu_hidden(self) -> None:
        self._has_menu = False
        self.update_toolbar()

    @Slot(str)
    def _on_edit_saved(self, text: str) -> None:
        """The editor stays until the transcript shows what became of it: were it not stored, it would be lost."""
        self._actions.edit_requested.emit(self._message.id, text)

    @Slot()
    def _on_edit_cancelled(self) -> None:
        self.end_edit()

    def _takes(self, event: QKeyEvent) -> bool:
        """Whether the key means something here, so that no shortcut of the window gets it first."""
        if self._editor is not None and self._editor.isAncestorOf(QApplication.focusWidget() or self):
            return event.key() == Qt.Key.Key_Escape
        if not self.has_key_focus():
            return False
        if event.key() == Qt.Key.Key_Escape or _is_menu_key(event):
            return True
        action = _KEYS.get((Qt.Key(event.key()), event.modifiers()))
        is_on_button = not self.hasFocus() and event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter)
        return action is not None and not is_on_button

    def _lay_out(self) -> None:
        width = self.width()
        height = max(0, self.height() - self._lower_height(width))
        if self._editor is not None:
            self._editor.setGeometry(0, 0, width, height)
        else:
            self._place_content(width, height)
        self._place_toolbar()

    def _place_toolbar(self) -> None:
        if self._toolbar is not None:
            width = self._toolbar.sizeHint().width()
            top = self.height() - self._toolbar_rise(self.width())
            self._toolbar.setGeometry(self.width() - width, top, width, TOOLBAR_PX)


def _is_menu_key(event: QKeyEvent) -> bool:
    is_shift_f10 = event.key() == Qt.Key.Key_F10 and event.modifiers() == Qt.KeyboardModifier.ShiftModifier
    return event.key() == Qt.Key.Key_Menu or is_shift_f10
