"""Asks how much of a chat's memory to keep: the sizes that come of it, what it costs, and that it can be undone."""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import QEvent, Qt, Signal, Slot
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import (
    QButtonGroup,
    QCheckBox,
    QDialog,
    QFrame,
    QGridLayout,
    QHBoxLayout,
    QLabel,
    QPushButton,
    QRadioButton,
    QScrollArea,
    QVBoxLayout,
    QWidget,
)

from engine.protocol.commands import CompressMethod
from ui import numbers
from ui.fit_screen import FRAME_PX
from ui.tokens import SPACE_L, SPACE_S, SPACE_XL, SPACE_XS

PERCENTS = (70, 50, 30)
_WIDTH = 500
_INT8_SHARE = 0.53  # 8 bits and their scales, of 16
_INDENT = 24  # of what stands under a check box's words


@dataclass(frozen=True, slots=True)
class CacheSizes:
    """Bytes of a chat's cache: in full precision, the part of it that is always kept whole, and what it takes now."""

    full: int
    always_kept: int
    now: int


@dataclass(frozen=True, slots=True)
class CompressChoice:
    keep: float
    method: CompressMethod
    is_int8: bool


class CompressDialog(QDialog):
    """`sizes` is None where they are not known."""

    chosen = Signal(object)  # CompressChoice

    def __init__(self, title: str, sizes: CacheSizes | None, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._title = title
        self._sizes = sizes
        self._heading = _label("title")
        self._price = _label()
        self._how_much = _label("strong")
        self.shares = QButtonGroup(self)
        self._share_words = {percent: _label("muted", wraps=False) for percent in PERCENTS}
        self._size_words = {percent: _label("value", wraps=False) for percent in PERCENTS}
        self.int8 = QCheckBox()
        self._int8_help = _label("muted")
        self.forget_middle = QCheckBox()
        self._forget_help = _label("muted")
        self.compress_button = QPushButton()
        self.compress_button.setProperty("kind", "accent")
        self.compress_button.setDefault(True)
        self.cancel_button = QPushButton()
        self.cancel_button.setAutoDefault(False)
        self._lay_out()
        self.int8.toggled.connect(self._retranslate)
        self.forget_middle.toggled.connect(self._retranslate)
        self.compress_button.clicked.connect(self._on_compress_clicked)
        self.cancel_button.clicked.connect(self.reject)
        self._retranslate()

    @property
    def choice(self) -> CompressChoice:
        return CompressChoice(
            keep=self.shares.checkedId() / 100,
            method=CompressMethod.STREAMING if self.forget_middle.isChecked() else CompressMethod.KVZIP,
            is_int8=self.int8.isChecked(),
        )

    def size_words(self, percent: int) -> str:
        """What keeping this share comes to, as the row says it."""
        return self._size_words[percent].text()

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.LanguageChange:
            self._retranslate()
        super().changeEvent(event)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._fit()
        self.shares.button(self.shares.checkedId()).setFocus()

    @Slot()
    def _on_compress_clicked(self) -> None:
        self.chosen.emit(self.choice)
        self.accept()

    def _size_after(self, percent: int) -> str:
        if self._sizes is None:
            return ""
        share = percent / 100 * (_INT8_SHARE if self.choice.is_int8 else 1.0)
        always = self._sizes.always_kept
        after = round(always + (self._sizes.full - always) * share)
        return self.tr("about {after} of {before}").format(
            after=numbers.size(after), before=numbers.size(self._sizes.now)
        )

    @Slot()
    def _retranslate(self) -> None:
        forgets = self.forget_middle.isChecked()
        self.setWindowTitle(self.tr("Compress this chat's memory"))
        self._heading.setText(self.tr("Compress “{title}”").format(title=self._title or self.tr("New chat")))
        self._price.setText(
            self.tr(
                "The model then works with a part of what it has read. That frees memory and makes long chats faster, "
                "but details may be missing from its replies. The text of the chat stays whole, and you can undo this "
                "at any time."
            )
        )
        self._how_much.setText(self.tr("How much to keep"))
        prices = {
            70: self.tr("replies hardly change"),
            50: self.tr("small details may be lost"),
            30: self.tr("more details may be lost"),
        }
        for percent in PERCENTS:
            button = self.shares.button(percent)
            button.setText(numbers.percent(percent / 100))
            self._size_words[percent].setText(self._size_after(percent))
            self._share_words[percent].setText("" if forgets else prices[percent])
            button.setAccessibleName(
                " ".join((button.text(), self._size_words[percent].text(), self._share_words[percent].text())).strip()
            )
        self.int8.setText(self.tr("Store what is kept in 8 bits as well"))
        self._int8_help.setText(self.tr("Halves it once more; replies hardly change because of it."))
        self.forget_middle.setText(self.tr("Forget the middle instead"))
        self._forget_help.setText(
            self.tr(
                "Keeps only the beginning and the latest part (StreamingLLM). Quicker, but the model no longer knows "
                "anything that was said in between."
            )
        )
        self.compress_button.setText(self.tr("Forget the middle") if forgets else self.tr("Compress"))
        self.cancel_button.setText(self.tr("Cancel"))
        self._fit()

    def _fit(self) -> None:
        """As high as these words need at this width, or as the screen is: the rest is scrolled then."""
        wanted = self._column.totalHeightForWidth(_WIDTH)
        room = self.screen().availableSize().height() - FRAME_PX - self._buttons_height()
        self._scroll.setFixedHeight(min(wanted, room))
        self.setFixedHeight(self._scroll.height() + self._buttons_height())

    def _buttons_height(self) -> int:
        return self._buttons.sizeHint().height()

    def _lay_out(self) -> None:
        rows = QGridLayout()
        rows.setHorizontalSpacing(SPACE_L)
        rows.setVerticalSpacing(SPACE_S)
        rows.setColumnStretch(2, 1)
        for row, percent in enumerate(PERCENTS):
            button = QRadioButton()
            self.shares.addButton(button, percent)
            rows.addWidget(button, row, 0)
            rows.addWidget(self._size_words[percent], row, 1)
            rows.addWidget(self._share_words[percent], row, 2)
        self.shares.button(PERCENTS[-1]).setChecked(True)
        line = QFrame()
        line.setProperty("kind", "rule")
        buttons = QHBoxLayout()
        buttons.setSpacing(SPACE_S)
        buttons.addStretch(1)
        buttons.addWidget(self.cancel_button)
        buttons.addWidget(self.compress_button)
        content = QWidget()
        self._column = column = QVBoxLayout(content)
        column.setContentsMargins(SPACE_XL, SPACE_XL, SPACE_XL, SPACE_S)
        column.setSpacing(SPACE_S)
        column.addWidget(self._heading)
        column.addWidget(self._price)
        column.addSpacing(SPACE_S)
        column.addWidget(self._how_much)
        column.addLayout(rows)
        column.addSpacing(SPACE_XS)
        column.addLayout(_with_help(self.int8, self._int8_help))
        column.addSpacing(SPACE_XS)
        column.addWidget(line)
        column.addSpacing(SPACE_XS)
        column.addLayout(_with_help(self.forget_middle, self._forget_help))
        self._scroll = QScrollArea()
        self._scroll.setWidget(content)
        self._scroll.setWidgetResizable(True)
        self._scroll.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self._scroll.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        content.setAutoFillBackground(False)
        buttons.setContentsMargins(SPACE_XL, SPACE_S, SPACE_XL, SPACE_XL)
        self._buttons = buttons
        whole = QVBoxLayout(self)
        whole.setContentsMargins(0, 0, 0, 0)
        whole.setSpacing(0)
        whole.addWidget(self._scroll)
        whole.addLayout(buttons)
        self.setFixedWidth(_WIDTH)


def _label(kind: str = "", *, wraps: bool = True) -> QLabel:
    label = QLabel()
    label.setProperty("kind", kind)
    label.setWordWrap(wraps)
    return label


def _with_help(box: QCheckBox, words: QLabel) -> QVBoxLayout:
    below = QHBoxLayout()
    below.setContentsMargins(_INDENT, 0, 0, 0)
    below.addWidget(words)
    column = QVBoxLayout()
    column.setSpacing(2)
    column.addWidget(box)
    column.addLayout(below)
    return column
