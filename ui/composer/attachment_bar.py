"""The files that go with the message, as chips in rows; reads those that are added. Hidden while there are none.

Invariant: a file that is still being read when another draft is shown goes to the draft it was added to.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from pathlib import Path

from PySide6.QtCore import Qt, Signal, Slot
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QFrame, QScrollArea, QWidget

from app.attachments import shown_name
from app.conversation import Attachment
from app.errors import AttachmentError, TooManyFilesError
from ui.composer.chip import Chip
from ui.composer.file_reader import FileReader
from ui.composer.wrap_layout import WrapLayout
from ui.error_words import error_words
from ui.tokens import SPACE_S

MOST_FILES = 20
_ROW_PX = 36  # a chip and the space under it
MOST_ROWS = 4

_Result = Attachment | AttachmentError


class AttachmentBar(QScrollArea):
    """`changed`: other files than before, or one began or ended being read. `emptied_by_keys`: the last chip, which had
    the focus, is gone.
    """

    changed = Signal()
    emptied_by_keys = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.reader = FileReader(self)
        self.reader.done.connect(self._on_read)
        self._most_rows = MOST_ROWS
        self._owner = ""
        self._attachments: tuple[Attachment, ...] = ()
        self._chips: list[Chip] = []
        self._reading: dict[int, Chip] = {}
        self._elsewhere: dict[int, tuple[str, str]] = {}  # being read for a draft that is not shown: owner, name
        self._late: dict[str, list[tuple[str, _Result]]] = {}  # what has come of them, by owner
        self._inside = QWidget()
        self._rows = WrapLayout(self._inside, spacing=SPACE_S)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setWidgetResizable(True)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.setWidget(self._inside)
        for widget in (self._inside, self.viewport()):
            widget.setAutoFillBackground(False)  # it shows the card
        self.hide()

    @property
    def attachments(self) -> tuple[Attachment, ...]:
        """The same tuple until another file is there, or one is not."""
        return self._attachments

    @property
    def chips(self) -> Sequence[Chip]:
        return self._chips

    @property
    def name_being_read(self) -> str | None:
        return next((chip.name for chip in self._reading.values()), None)

    def show_attachments(self, attachments: tuple[Attachment, ...], owner: str) -> None:
        """Those of another draft. With an `owner`, files being read for the one before are kept for that."""
        is_same = bool(owner) and owner == self._owner
        kept = list(self._reading.values()) if is_same else []
        for chip in [chip for chip in self._chips if chip not in kept]:
            self._take_away(chip)
        if not is_same:
            self._put_off()
        self._owner = owner
        before, self._attachments = self._attachments, attachments
        for place, attachment in enumerate(attachments):
            self._add(attachment.name, place).show_attachment(attachment)
        late = self._late.pop(owner, [])
        for name, result in late:
            self._settle(self._add(name), result)
        self._fit()
        if late or before is not self._attachments:
            self.changed.emit()

    def set_most_rows(self, most: int) -> None:
        """How far it grows before it scrolls."""
        if most != self._most_rows:
            self._most_rows = most
            self._fit()

    def add_files(self, paths: Sequence[Path]) -> None:
        for path in paths:
            name = shown_name(path)
            if len(self._attachments) + len(self._reading) >= MOST_FILES:
                self._refuse(name, TooManyFilesError("", most=str(MOST_FILES)))
                break
            self._reading[self.reader.read(path)] = self._add(name)
        self._fit()
        self.changed.emit()

    def add(self, attachment: Attachment) -> None:
        self._settle(self._add(attachment.name), attachment)
        self._fit()
        self.changed.emit()

    def show_error(self, name: str, error: AttachmentError) -> None:
        self._refuse(name, error)
        self._fit()

    def show_tokens(self, counts: Mapping[str, int], is_counting: bool, more: Container[str] = ()) -> None:
        """`counts` by text, those in `more` being at least that; others are unknown, and come if `is_counting`."""
        for chip in self._chips:
            if chip.attachment is not None:
                text = chip.attachment.text
                chip.show_tokens(counts.get(text), is_counting, text in more)
        self._fit()

    # slots

    @Slot(int, object)
    def _on_read(self, job_id: int, result: _Result) -> None:
        if job_id in self._elsewhere:
            owner, name = self._elsewhere.pop(job_id)
            self._late.setdefault(owner, []).append((name, result))
        elif job_id in self._reading:
            self._settle(self._reading.pop(job_id), result)
            self._fit()
            self.changed.emit()

    @Slot()
    def _on_remove_requested(self) -> None:
        chip = self.sender()
        assert isinstance(chip, Chip)
        place, had_focus = self._chips.index(chip), chip.remove_button.hasFocus()
        for job_id in [job_id for job_id, one in self._reading.items() if one is chip]:
            del self._reading[job_id]
            self.reader.cancel(job_id)
        if chip.attachment is not None:
            self._attachments = tuple(one for one in self._attachments if one is not chip.attachment)
        self._take_away(chip)
        self._fit()
        if had_focus and self._chips:
            self._chips[min(place, len(self._chips) - 1)].remove_button.setFocus(Qt.FocusReason.TabFocusReason)
        elif had_focus:
            self.emptied_by_keys.emit()
        self.changed.emit()

    # Qt overrides

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def _add(self, name: str, place: int | None = None) -> Chip:
        chip = Chip(name)
        chip.remove_requested.connect(self._on_remove_requested)
        place = len(self._chips) if place is None else place
        self._chips.insert(place, chip)
        self._rows.addWidget(chip)
        if place < len(self._chips) - 1:
            self._rows.move_last_to(place)
        chip.show()
        return chip

    def _settle(self, chip: Chip, result: _Result) -> None:
        if isinstance(result, AttachmentError):
            chip.show_problem(error_words(result))
        elif any((one.name, one.text) == (result.name, result.text) for one in self._attachments):
            self._take_away(chip)  # the same file once more
        else:
            self._attachments = (*self._attachments, result)
            chip.show_attachment(result)

    def _refuse(self, name: str, error: AttachmentError) -> None:
        self._add(name).show_problem(error_words(error))

    def _put_off(self) -> None:
        """Another draft is shown: what is being read goes on for the one before, if that has a name."""
        for job_id, chip in self._reading.items():
            if self._owner:
                self._elsewhere[job_id] = (self._owner, chip.name)
            else:
                self.reader.cancel(job_id)
        self._reading.clear()

    def _take_away(self, chip: Chip) -> None:
        self._chips.remove(chip)
        self._rows.removeWidget(chip)
        chip.hide()
        chip.deleteLater()

    def _fit(self) -> None:
        self.setVisible(bool(self._chips))
        self._rows.invalidate()
        wanted = self._rows.heightForWidth(self.viewport().width())
        self.setFixedHeight(max(1, min(wanted, self._most_rows * _ROW_PX - SPACE_S)))
