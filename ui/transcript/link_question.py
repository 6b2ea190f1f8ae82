"""A look at a link before it is opened: the address it really has. Nothing a reply says opens by itself."""

from __future__ import annotations

from collections.abc import Iterable

from PySide6.QtCore import Qt, QUrl, Slot
from PySide6.QtGui import QColor, QDesktopServices, QFont, QGuiApplication, QTextCharFormat, QTextCursor, QTextOption
from PySide6.QtWidgets import QDialog, QHBoxLayout, QLabel, QPushButton, QTextEdit, QVBoxLayout, QWidget

from ui.theme import Theme, ui_font
from ui.tokens import SPACE_L, SPACE_M, SPACE_S
from ui.transcript.address import Address, read_address

_WIDTH = 460
_TALLEST_PX = 132


class LinkQuestion(QDialog):
    """Cancel has the focus and answers Enter: a key pressed too often opens nothing."""

    def __init__(self, theme: Theme, url: QUrl, texts: Iterable[str] = (), parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self._theme = theme
        self.address = read_address(url, texts)
        self.setWindowTitle(self.tr("Open this link?"))
        self.address_view = _AddressView(theme, self.address)
        self.address_view.setAccessibleName(self.tr("Address of the link"))
        self.open_button = QPushButton(self.tr("Open in the browser"))
        self.copy_button = QPushButton(self.tr("Copy address"))
        self.cancel_button = QPushButton(self.tr("Cancel"))
        self.warnings = [_sentence(text) for text in self._warnings()]
        column = QVBoxLayout(self)
        column.setContentsMargins(SPACE_L, SPACE_L, SPACE_L, SPACE_L)
        column.setSpacing(SPACE_M)
        title = QLabel(self.tr("This link goes to {host}").format(host=self.address.host or self.address.text))
        title.setProperty("kind", "strong")
        title.setTextFormat(Qt.TextFormat.PlainText)
        title.setWordWrap(True)
        column.addWidget(title)
        column.addWidget(self.address_view)
        for label in self.warnings:
            column.addWidget(label)
        column.addLayout(self._buttons())
        self.setFixedWidth(_WIDTH)
        self.cancel_button.setFocus()

    def _buttons(self) -> QHBoxLayout:
        row = QHBoxLayout()
        row.setSpacing(SPACE_S)
        self.open_button.setAutoDefault(False)
        self.open_button.setVisible(self.address.can_open)
        self.copy_button.setAutoDefault(False)
        self.cancel_button.setDefault(True)
        self.open_button.clicked.connect(self._on_open_clicked)
        self.copy_button.clicked.connect(self._on_copy_clicked)
        self.cancel_button.clicked.connect(self.reject)
        row.addWidget(self.copy_button)
        row.addStretch(1)
        row.addWidget(self.open_button)
        row.addWidget(self.cancel_button)
        return row

    def _warnings(self) -> list[str]:
        address = self.address
        result = []
        if address.claimed:
            said = self.tr("Its text says {claimed}, but that is not where it goes.")
            result.append(said.format(claimed=", ".join(address.claimed)))
        if address.has_user:
            result.append(
                self.tr("What stands before “@” is not the site; the site is {host}.").format(host=address.host)
            )
        if address.host_reads:
            said = self.tr("The site's name has letters that may look like others: it reads {name}.")
            result.append(said.format(name=address.host_reads))
        if not address.can_open:
            result.append(self.tr("Ember opens only web and mail addresses; you can copy this one."))
        return result

    @Slot()
    def _on_open_clicked(self) -> None:
        QDesktopServices.openUrl(self.address.url)
        self.accept()

    @Slot()
    def _on_copy_clicked(self) -> None:
        QGuiApplication.clipboard().setText(self.address.url.toString(QUrl.ComponentFormattingOption.FullyEncoded))
        self.accept()


class _AddressView(QTextEdit):
    """The whole address, the site in it in bold, broken anywhere."""

    def __init__(self, theme: Theme, address: Address) -> None:
        super().__init__()
        self.setReadOnly(True)
        self.setWordWrapMode(QTextOption.WrapMode.WrapAnywhere)
        self.setTabChangesFocus(True)
        self.setTextInteractionFlags(
            Qt.TextInteractionFlag.TextSelectableByMouse | Qt.TextInteractionFlag.TextSelectableByKeyboard
        )
        self.setFocusPolicy(Qt.FocusPolicy.ClickFocus)
        self.document().setDocumentMargin(0)
        cursor = QTextCursor(self.document())
        for text, is_site in ((address.before, False), (address.host, True), (address.after, False)):
            characters = QTextCharFormat()
            characters.setFont(ui_font(weight=QFont.Weight.Bold if is_site else QFont.Weight.Normal))
            characters.setForeground(QColor(theme.tokens.text if is_site else theme.tokens.muted))
            cursor.insertText(text, characters)
        self.document().setTextWidth(_WIDTH - 2 * SPACE_L - 2)
        self.setFixedHeight(min(_TALLEST_PX, int(self.document().size().height()) + 2))


def _sentence(text: str) -> QLabel:
    label = QLabel(text)
    label.setTextFormat(Qt.TextFormat.PlainText)
    label.setWordWrap(True)
    return label
