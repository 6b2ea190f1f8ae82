"""Files that go with a message: chosen, dropped, pasted; read away from the GUI thread; kept with the draft."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QElapsedTimer, QEvent, QMimeData, QPoint, QPointF, Qt, QTimer, QUrl
from PySide6.QtGui import QDragEnterEvent, QDropEvent, QImage, QInputMethodEvent, QPainter, QPdfWriter
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QFileDialog
from pytestqt.qtbot import QtBot

from app.attachments import ReadingEndedError, read_attachment
from app.conversation import Attachment, Draft
from app.errors import AttachmentError
from tests.ui.conftest import Desk, OpenDesk
from ui.composer.attach_button import ATTACH_KEY
from ui.composer.attachment_bar import MOST_FILES
from ui.composer.composer import Composer
from ui.composer.composer_edit import LONG_TEXT
from ui.composer.file_reader import FileReader
from ui.error_words import error_words

NOTES = Attachment("notes.txt", "some notes", 10)
CODE = Attachment("main.py", "print()", 7)


@pytest.fixture
def composer(qtbot: QtBot) -> Composer:
    result = Composer()
    qtbot.addWidget(result)
    result.resize(740, 300)
    result.show()
    return result


@pytest.fixture
def sent(composer: Composer) -> list[Draft]:
    drafts: list[Draft] = []
    composer.send_requested.connect(drafts.append)
    return drafts


@pytest.fixture
def file(tmp_path: Path) -> Callable[..., Path]:
    def written(name: str, text: str = "text") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return written


class Gate:
    """Stands in for `read_attachment`: reading lasts until `opened`, or until it is called off."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.begun = threading.Event()
        self.num_begun = 0

    def __call__(self, path: Path, *, is_cancelled: Callable[[], bool]) -> Attachment:
        self.num_begun += 1
        self.begun.set()
        while not self.opened.wait(0.005):
            if is_cancelled():
                raise ReadingEndedError
        return read_attachment(path, is_cancelled=is_cancelled)


@pytest.fixture
def gate(composer: Composer) -> Iterator[Gate]:
    result = Gate()
    composer.files.reader._read = result
    yield result
    composer.files.reader.cancel_all()


def names(composer: Composer) -> list[str]:
    return [attachment.name for attachment in composer.draft.attachments]


def wait_until_read(qtbot: QtBot, composer: Composer) -> None:
    qtbot.waitUntil(lambda: composer.files.name_being_read is None, timeout=20_000)


def mime(*paths: Path) -> QMimeData:
    data = QMimeData()
    data.setUrls([QUrl.fromLocalFile(str(path)) for path in paths])
    return data


def drop(target: Composer, data: QMimeData) -> bool:
    """On the text field, as most people do. Whether it was taken."""
    viewport = target.edit.viewport()
    at, buttons, keys = QPoint(5, 5), Qt.MouseButton.LeftButton, Qt.KeyboardModifier.NoModifier
    enter = QDragEnterEvent(at, Qt.DropAction.CopyAction, data, buttons, keys)
    QApplication.sendEvent(viewport, enter)
    if not enter.isAccepted():
        return False
    event = QDropEvent(QPointF(at), Qt.DropAction.CopyAction, data, buttons, keys)
    QApplication.sendEvent(viewport, event)
    return event.isAccepted()


def test_chosen_files_become_chips_in_their_order(
    qtbot: QtBot, composer: Composer, file: Callable[..., Path], sent: list[Draft]
) -> None:
    assert not composer.button.isEnabled()
    composer.attach_button.click()
    dialog = composer.findChild(QFileDialog)
    assert dialog is not None
    dialog.filesSelected.emit([str(file("a.md", "# 제목")), str(file("b.py", "x = 1"))])
    dialog.close()
    wait_until_read(qtbot, composer)
    assert names(composer) == ["a.md", "b.py"]
    assert [chip.details.text() for chip in composer.files.chips] == ["8 B", "5 B"]
    assert composer.button.isEnabled()
    composer.button.click()  # files and no text
    assert [(draft.text, [one.text for one in draft.attachments]) for draft in sent] == [("", ["# 제목", "x = 1"])]


def test_the_key_opens_the_dialog(qtbot: QtBot, composer: Composer) -> None:
    composer.activateWindow()
    composer.edit.setFocus()
    modifiers = Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.ShiftModifier
    QTest.keyClick(composer.edit, Qt.Key.Key_A, modifiers)
    dialog = composer.findChild(QFileDialog)
    assert dialog is not None
    dialog.close()
    assert ATTACH_KEY == "Ctrl+Shift+A"
    assert ATTACH_KEY in composer.attach_button.toolTip()


def test_files_may_be_dropped_on_the_field_and_text_still_goes_into_it(
    qtbot: QtBot, composer: Composer, file: Callable[..., Path]
) -> None:
    assert drop(composer, mime(file("a.txt"), file("b.txt", "b")))
    wait_until_read(qtbot, composer)
    assert names(composer) == ["a.txt", "b.txt"]
    words = QMimeData()
    words.setText("dropped words")
    assert drop(composer, words)
    assert composer.edit.toPlainText() == "dropped words"
    assert names(composer) == ["a.txt", "b.txt"]


def test_files_text_and_pictures_may_be_pasted(qtbot: QtBot, composer: Composer, file: Callable[..., Path]) -> None:
    composer.edit.insertFromMimeData(mime(file("a.txt")))
    wait_until_read(qtbot, composer)
    assert names(composer) == ["a.txt"]
    link = QMimeData()
    link.setUrls([QUrl("https://example.org/a.txt")])
    link.setText("https://example.org/a.txt")
    composer.edit.insertFromMimeData(link)
    assert composer.edit.toPlainText() == "https://example.org/a.txt"
    picture = QMimeData()
    picture.setImageData(QImage(4, 4, QImage.Format.Format_RGB32))
    composer.edit.insertFromMimeData(picture)
    assert composer.hint.text().startswith("Pictures cannot be read here")
    assert names(composer) == ["a.txt"]


def test_markup_alone_is_pasted_as_its_words(composer: Composer) -> None:
    data = QMimeData()
    data.setHtml("<p>one <b>two</b></p>")
    composer.edit.insertFromMimeData(data)
    assert composer.edit.toPlainText() == "one two"


def test_a_very_long_text_becomes_a_file_and_the_window_does_not_stop(
    composer: Composer, qtbot: QtBot, sent: list[Draft]
) -> None:
    data = QMimeData()
    data.setText("x" * LONG_TEXT)
    composer.edit.insertFromMimeData(data)
    assert len(composer.edit.toPlainText()) == LONG_TEXT
    composer.edit.clear()
    text = "한 줄의 글 and some more words\r\n" * 35_000
    data.setText(text)
    clock = QElapsedTimer()
    clock.start()
    composer.edit.insertFromMimeData(data)
    QApplication.processEvents()
    assert clock.elapsed() < 200
    assert composer.edit.toPlainText() == ""
    assert [(one.name, one.text) for one in composer.draft.attachments] == [("Pasted text", text.replace("\r", ""))]
    composer.files.chips[0].remove_button.click()
    assert composer.draft.is_blank


def test_what_cannot_be_read_says_why_and_can_be_dismissed(
    qtbot: QtBot, composer: Composer, tmp_path: Path, sent: list[Draft]
) -> None:
    (tmp_path / "photo.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    composer.accept_files([tmp_path / "photo.png", tmp_path, tmp_path / "gone.txt"])
    wait_until_read(qtbot, composer)
    said = [chip.accessibleName() for chip in composer.files.chips]
    assert said[0] == "photo.png is no text; choose a text, code or a PDF."
    assert said[1].endswith("is a folder; choose the files in it.")
    assert said[2] == "gone.txt is no longer there; choose it again."
    composer.button.click()
    assert sent == []  # nothing to send
    while composer.files.chips:
        composer.files.chips[0].remove_button.click()
    assert not composer.files.isVisible()
    assert not composer.button.isEnabled()


def test_every_reason_why_a_file_cannot_go_along_has_a_sentence_of_the_windows() -> None:
    kinds = AttachmentError.__subclasses__()
    assert len(kinds) > 10
    params = {"name": "a.txt", "most": "20 MB", "seconds": "120", "reason": "broken"}
    sentences = [error_words(kind("the library's own words", **params)) for kind in kinds]
    assert "the library's own words" not in sentences
    assert len(set(sentences)) == len(kinds)


def test_no_more_files_than_go_with_a_message(qtbot: QtBot, composer: Composer, file: Callable[..., Path]) -> None:
    composer.accept_files([file(f"{number}.txt", str(number)) for number in range(MOST_FILES + 5)])
    wait_until_read(qtbot, composer)
    assert len(composer.draft.attachments) == MOST_FILES
    assert composer.files.chips[-1].accessibleName() == "At most 20 files go with one message; remove one first."
    assert len(composer.files.chips) == MOST_FILES + 1
    assert composer.height() < 360  # further rows scroll


def test_the_same_file_goes_along_once(qtbot: QtBot, composer: Composer, file: Callable[..., Path]) -> None:
    composer.accept_files([file("a.txt"), file("a.txt")])
    wait_until_read(qtbot, composer)
    assert names(composer) == ["a.txt"]
    assert len(composer.files.chips) == 1


def test_chips_wrap_and_long_names_are_shortened_in_the_middle(composer: Composer) -> None:
    name = "the_quarterly_report_of_the_northern_branch_final_version_12.pdf"
    composer.show_draft(Draft("", tuple(Attachment(name, str(n), 1000) for n in range(3))))
    QApplication.processEvents()
    chip = composer.files.chips[0]
    assert "…" in chip.label.text()
    assert chip.label.text().endswith(".pdf")
    assert chip.toolTip() == name
    assert chip.accessibleName().startswith(name)
    assert len({chip.y() for chip in composer.files.chips}) == 2
    assert all(chip.geometry().right() < composer.files.viewport().width() for chip in composer.files.chips)


def test_a_chip_is_taken_away_with_the_keyboard_and_the_focus_goes_on(composer: Composer) -> None:
    composer.activateWindow()
    composer.show_draft(Draft("", (NOTES, CODE)))
    first = composer.files.chips[0].remove_button
    assert first.accessibleName() == "Remove notes.txt"
    assert first.accessibleDescription() == "notes.txt, 10 B"
    first.setFocus()
    QTest.keyClick(first, Qt.Key.Key_Delete)
    assert names(composer) == ["main.py"]
    last = composer.files.chips[0].remove_button
    assert last.hasFocus()
    QTest.keyClick(last, Qt.Key.Key_Space)
    assert names(composer) == []
    assert composer.edit.hasFocus()


def test_nothing_is_sent_while_a_file_is_being_read(
    qtbot: QtBot, composer: Composer, file: Callable[..., Path], sent: list[Draft], gate: Gate
) -> None:
    composer.edit.insertPlainText("read it")
    composer.accept_files([file("slow.txt")])
    assert composer.files.chips[0].details.text() == "Reading…"
    composer.button.click()
    assert sent == []
    assert composer.hint.text() == "slow.txt is still being read; send in a moment"
    gate.opened.set()
    wait_until_read(qtbot, composer)
    composer.button.click()
    assert [(draft.text, len(draft.attachments)) for draft in sent] == [("read it", 1)]


def test_a_file_being_read_goes_to_the_draft_it_was_added_to(
    qtbot: QtBot, composer: Composer, file: Callable[..., Path], gate: Gate
) -> None:
    composer.show_draft(Draft("first"), owner="one")
    composer.accept_files([file("slow.txt")])
    composer.show_draft(Draft("second"), owner="two")
    assert composer.files.chips == []
    gate.opened.set()
    qtbot.waitUntil(lambda: not composer.files.reader._awaited)
    assert names(composer) == []
    with qtbot.waitSignal(composer.draft_changed) as told:
        composer.show_draft(Draft("first"), owner="one")
    assert names(composer) == ["slow.txt"]
    assert told.args == [Draft("first", composer.draft.attachments)]


def test_a_draft_shown_again_for_the_same_chat_keeps_what_is_being_read(
    qtbot: QtBot, composer: Composer, file: Callable[..., Path], gate: Gate
) -> None:
    composer.show_draft(Draft("text"), owner="one")
    composer.accept_files([file("slow.txt")])
    composer.show_draft(Draft("text again", (NOTES,)), owner="one")
    assert [chip.name for chip in composer.files.chips] == ["notes.txt", "slow.txt"]
    gate.opened.set()
    wait_until_read(qtbot, composer)
    assert names(composer) == ["notes.txt", "slow.txt"]


def test_a_file_taken_away_while_it_is_read_never_comes(
    qtbot: QtBot, composer: Composer, file: Callable[..., Path], gate: Gate
) -> None:
    composer.accept_files([file("slow.txt"), file("next.txt", "next")])
    qtbot.waitUntil(gate.begun.is_set)
    composer.files.chips[0].remove_button.click()
    qtbot.waitUntil(lambda: gate.num_begun == 2)  # the first one is given up at once
    gate.opened.set()
    wait_until_read(qtbot, composer)
    assert names(composer) == ["next.txt"]


def test_reading_ends_when_the_window_goes(qtbot: QtBot, file: Callable[..., Path]) -> None:
    gate = Gate()
    reader = FileReader(read=gate)
    reader.read(file("slow.txt"))
    reader.read(file("next.txt"))
    qtbot.waitUntil(gate.begun.is_set)
    reader.deleteLater()
    QApplication.sendPostedEvents(reader, QEvent.Type.DeferredDelete)
    deadline = time.monotonic() + 5
    for thread in [thread for thread in threading.enumerate() if thread.name == "ember-file"]:
        thread.join(deadline - time.monotonic())
        assert not thread.is_alive()


def a_korean_pdf(path: Path, num_pages: int) -> None:
    writer = QPdfWriter(str(path))
    painter = QPainter(writer)
    for number in range(num_pages):
        if number:
            writer.newPage()
        for line in range(30):
            painter.drawText(200, 300 + 250 * line, f"제주의 비 오는 날 {number}-{line}")
    painter.end()


def test_the_window_goes_on_while_a_pdf_is_read(qtbot: QtBot, composer: Composer, tmp_path: Path) -> None:
    a_korean_pdf(tmp_path / "제주.pdf", 8)
    gaps: list[int] = []
    clock, beat = QElapsedTimer(), QTimer(interval=5)
    beat.timeout.connect(lambda: gaps.append(clock.restart()))
    clock.start()
    beat.start()
    composer.accept_files([tmp_path / "제주.pdf"])
    wait_until_read(qtbot, composer)
    beat.stop()
    (attachment,) = composer.draft.attachments
    assert attachment.text.count("[Page ") == 8
    assert "제주의비오는날7-29" in "".join(attachment.text.split())  # what Qt calls a space depends on the font
    assert max(gaps) < sum(gaps) / 2, gaps  # on a busy machine, too


def test_the_draft_tells_whether_the_files_are_other_ones(qtbot: QtBot, composer: Composer) -> None:
    kept = (NOTES, CODE)
    composer.show_draft(Draft("", kept))
    with qtbot.waitSignal(composer.draft_changed) as told:
        composer.edit.insertPlainText("typed")
    assert told.args[0].text == "typed"
    assert told.args[0].attachments is kept
    with qtbot.waitSignal(composer.draft_changed) as told:
        composer.files.chips[0].remove_button.click()
    assert told.args[0].attachments == (CODE,)
    assert composer.take_draft().attachments is told.args[0].attachments


def test_token_counts_stand_on_the_chips(composer: Composer) -> None:
    composer.show_draft(Draft("", (NOTES, CODE)))
    composer.files.show_tokens({}, is_counting=True)
    assert [chip.details.text() for chip in composer.files.chips] == ["10 B · …", "7 B · …"]
    composer.files.show_tokens({NOTES.text: 1204, CODE.text: 1}, is_counting=True)
    assert [chip.details.text() for chip in composer.files.chips] == ["10 B · 1,204 tokens", "7 B · 1 token"]
    assert composer.files.chips[0].accessibleName() == "notes.txt, 10 B, 1,204 tokens"


def test_attaching_takes_the_syllable_being_composed(composer: Composer) -> None:
    QApplication.sendEvent(composer.edit, QInputMethodEvent("한", []))
    composer.attach_button.click()
    dialog = composer.findChild(QFileDialog)
    assert dialog is not None
    dialog.close()
    assert composer.edit.toPlainText() == "한"
    assert not composer.edit.is_composing


def test_files_are_kept_with_the_draft_of_each_chat_and_through_a_restart(
    open_desk: OpenDesk, file: Callable[..., Path]
) -> None:
    ids: list[str] = []
    desk = open_desk(fill=lambda desk: ids.extend(desk.add_conversation(title) for title in ("one", "two")))
    composer = desk.window.page.composer
    desk.window.controller.open(ids[0])
    composer.edit.insertPlainText("compare")
    composer.accept_files([file("a.txt", "안녕"), file("b.txt", "b")])
    wait_until_read(desk.qtbot, composer)
    desk.window.controller.open(ids[1])
    assert composer.files.chips == []
    assert [one.text for one in desk.store.conversation(ids[0]).draft.attachments] == ["안녕", "b"]
    desk.window.controller.open(ids[0])
    assert (composer.draft.text, names(composer)) == ("compare", ["a.txt", "b.txt"])


def test_files_go_to_the_model_with_the_message(desk: Desk, file: Callable[..., Path]) -> None:
    composer = desk.window.page.composer
    composer.edit.insertPlainText("what is this?")
    composer.accept_files([file("a.txt", "the text of the file")])
    wait_until_read(desk.qtbot, composer)
    composer.button.click()
    desk.settle()
    asked = desk.engine.generates[-1].messages[-1].text
    assert "the text of the file" in asked
    assert "what is this?" in asked
    assert composer.draft.is_blank
    stored = desk.store.messages(desk.engine.generates[-1].conversation_id)[0]
    assert [one.name for one in stored.attachments] == ["a.txt"]
