"""What a file is, its bytes decide; what cannot be read is told in a sentence, and never waited for."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from io import BytesIO
from pathlib import Path

import pytest
from pypdf import PdfWriter

from app.attachment_pdf import MOST_S, pdf_text
from app.attachments import (
    MOST_BYTES,
    MOST_CHARACTERS,
    ReadingEndedError,
    pasted_attachment,
    read_attachment,
    shown_name,
)
from app.errors import (
    FileDeniedError,
    FileEmptyError,
    FileIsFolderError,
    FileIsSpecialError,
    FileMissingError,
    FileTooLargeError,
    FileTooSlowError,
    FileUnreadableError,
    NotTextError,
    PdfDamagedError,
    PdfLockedError,
    PdfWithoutTextError,
    TextTooLongError,
)
from app.paths import resources_dir

ENCODED = [
    ("cp949", "안녕하세요"),
    ("cp949", "네"),
    ("cp949", "ㅋㅋㅋ 응"),
    ("cp949", "쭉 가세요. 똠방각하"),
    ("cp949", "이름,나이\n홍길동,31\n"),
    ("cp949", "■ 제1장 총칙\n① 목적 “정의”"),
    ("cp949", "def 합계(값들):\n    return sum(값들)  # 단위: ㎡\n"),
    ("utf-8", "plain ASCII"),
    ("utf-8", "안녕 👩‍👩‍👧 – “quoted”"),
    ("utf-8-sig", "안녕"),
    ("utf-16", "안녕하세요"),
    ("utf-16-le", "hello 안녕"),
    ("utf-16-be", "plain"),
    ("utf-32", "x안"),
    ("utf-32-le", "hello"),
    ("shift_jis", "今日は良い天気ですね。"),
    ("shift_jis", "カタカナ"),
    ("euc_jp", "日本語のテキスト"),
    ("latin-1", "café élan naïve"),
    ("cp1252", "The café’s “menu” – déjà vu"),
    ("cp1250", "Zażółć gęślą jaźń"),
    ("cp1251", "Привет, как дела?"),
    ("gb18030", "中文文本测试，今天天气很好。"),
]


def a_pdf(*pages: str, password: str | None = None) -> bytes:
    """Each page says one thing in Helvetica; "" draws a line only."""
    contents = [f"BT /F1 12 Tf 72 700 Td ({page}) Tj ET" if page else "0 0 m 9 9 l S" for page in pages]
    numbers = range(4, 4 + 2 * len(contents), 2)
    objects = {
        1: "<< /Type /Catalog /Pages 2 0 R >>",
        2: f"<< /Type /Pages /Count {len(pages)} /Kids [{' '.join(f'{number} 0 R' for number in numbers)}] >>",
        3: "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    }
    for number, content in zip(numbers, contents, strict=True):
        fonts = "/Resources << /Font << /F1 3 0 R >> >> /MediaBox [0 0 612 792]"
        objects[number] = f"<< /Type /Page /Parent 2 0 R {fonts} /Contents {number + 1} 0 R >>"
        objects[number + 1] = f"<< /Length {len(content)} >>\nstream\n{content}\nendstream"
    body, places = "%PDF-1.4\n", []
    for number, value in sorted(objects.items()):
        places.append(len(body))
        body += f"{number} 0 obj\n{value}\nendobj\n"
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    size = len(places) + 1
    end = f"trailer << /Size {size} /Root 1 0 R >>\nstartxref\n{len(body)}\n%%EOF\n"
    data = f"{body}xref\n0 {size}\n0000000000 65535 f \n{table}{end}".encode("latin-1")
    if password is None:
        return data
    writer, locked = PdfWriter(clone_from=BytesIO(data)), BytesIO()
    writer.encrypt(user_password=password, owner_password="owner", algorithm="RC4-128")
    writer.write(locked)
    return locked.getvalue()


@pytest.fixture
def write(tmp_path):
    def written(data: bytes, name: str = "file") -> Path:
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return written


@pytest.mark.parametrize(("encoding", "text"), ENCODED)
def test_the_encoding_is_found_by_what_the_file_holds(write, encoding, text):
    data = text.encode(encoding)
    attachment = read_attachment(write(data, "노트.dat"))
    assert (attachment.name, attachment.text, attachment.num_bytes) == ("노트.dat", text, len(data))


def test_a_file_is_text_whatever_its_name_says(write):
    assert read_attachment(write(b"#!/bin/sh\necho \x1b[1mbold\x1b[0m\n", "picture.png")).text.startswith("#!/bin/sh")
    assert read_attachment(write(b"MZ is how this text begins", "Makefile")).text.startswith("MZ")


def test_line_ends_are_made_equal(write):
    assert read_attachment(write(b"one\r\ntwo\rthree\n")).text == "one\ntwo\nthree\n"


def test_a_few_stray_bytes_do_not_spoil_a_text(write):
    korean = "한국어 로그 " * 20
    assert read_attachment(write(korean.encode() + b"\xff\xfe" + korean.encode())).text.count("한국어") == 40
    assert read_attachment(write("안녕하세요".encode()[:-1])).text == "안녕하세\ufffd"


def test_half_characters_are_mended(write):
    text = read_attachment(write(b"\xff\xfe" + "가나다".encode("utf-16-le") + b"\x00\xd8")).text
    assert text == "가나다\ufffd"
    text.encode()


def pictures_and_programs() -> list[tuple[str, bytes]]:
    icon = (resources_dir() / "icons" / "ember_32.png").read_bytes()
    return [
        ("png", icon),
        ("zip", b"PK\x03\x04" + b"plain looking text" * 9),
        ("program", Path(sys.executable).resolve().read_bytes()[:300_000]),
        ("noise", os.urandom(5000)),
        ("zeros", bytes(4096)),
        ("one zero", b"a line of text\0and another one"),
        ("jpeg", b"\xff\xd8\xff\xe0\x10JFIF" + os.urandom(500)),
    ]


@pytest.mark.parametrize(
    ("kind", "data"), pictures_and_programs(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_what_is_no_text_is_refused(write, kind, data):
    with pytest.raises(NotTextError, match=r"^file\.txt is no text; choose"):
        read_attachment(write(data, "file.txt"))


@pytest.mark.parametrize("data", [b"", b" \n\t \n", b"\xef\xbb\xbf", b"\xff\xfe"])
def test_an_empty_file_is_refused(write, data):
    with pytest.raises(FileEmptyError):
        read_attachment(write(data))


def test_folders_and_files_that_are_not_there(tmp_path):
    with pytest.raises(FileIsFolderError):
        read_attachment(tmp_path)
    with pytest.raises(FileMissingError):
        read_attachment(tmp_path / "gone")
    with pytest.raises(FileUnreadableError):
        read_attachment(tmp_path / "a\0b")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(FileUnreadableError):
        read_attachment(tmp_path / "loop")


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX kinds of file")
def test_pipes_devices_and_sockets_are_never_waited_for(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as unix:
        monkeypatch.chdir(tmp_path)  # the address of a socket may be some 100 bytes long only
        unix.bind("socket")
        for path in (tmp_path / "pipe", tmp_path / "socket", Path("/dev/zero")):
            with pytest.raises(FileIsSpecialError):
                read_attachment(path)


def test_a_file_that_may_not_be_read(write, monkeypatch):
    """Root may read everything, so the system's answer is put on."""

    def refused(*_arguments: object) -> int:
        raise PermissionError(13, "Permission denied")

    path = write(b"text")
    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(FileDeniedError):
        read_attachment(path)


def test_too_many_bytes_and_too_much_text(write):
    with pytest.raises(FileTooLargeError, match="20 MB"):
        read_attachment(write(b"a" * (MOST_BYTES + 1)))
    with pytest.raises(TextTooLongError, match="4,000,000"):
        read_attachment(write(b"a" * (MOST_CHARACTERS + 1)))
    with pytest.raises(TextTooLongError):
        pasted_attachment("a" * (MOST_CHARACTERS + 1), "Pasted text")


def test_a_pasted_text_is_mended_too():
    pasted = pasted_attachment("one\r\n\ud800 two\0", "Pasted text")
    assert (pasted.text, pasted.num_bytes) == ("one\n\ufffd two", 11)


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="names are text there")
def test_a_name_that_is_no_text_can_be_shown(tmp_path):
    path = tmp_path / os.fsdecode(b"\xff\n.txt")
    path.write_bytes(b"hello")
    assert read_attachment(path).name == shown_name(path) == "\ufffd .txt"


def test_the_text_of_a_pdf_has_its_pages_marked(write):
    assert read_attachment(write(a_pdf("first", "", "third"), "paper.pdf")).text == (
        "[Page 1]\nfirst\n\n[Page 2]\n\n\n[Page 3]\nthird"
    )


def test_a_pdf_is_known_without_its_ending(write):
    assert "hello" in read_attachment(write(b"\n" + a_pdf("hello"), "download")).text


def test_a_pdf_without_text_is_told_from_an_empty_one(write):
    with pytest.raises(PdfWithoutTextError, match="OCR"):
        read_attachment(write(a_pdf("", "")))


def test_a_locked_pdf_is_refused_and_one_locked_for_editing_only_is_read(write):
    with pytest.raises(PdfLockedError, match="password"):
        read_attachment(write(a_pdf("secret", password="secret")))
    assert "open" in read_attachment(write(a_pdf("open", password=""))).text


def test_a_damaged_pdf_never_raises_anything_else(write):
    whole = a_pdf("one", "two", "three")
    with pytest.raises(PdfDamagedError):
        read_attachment(write(whole[:20]))
    for place in range(10, len(whole), 7):
        damaged = bytearray(whole)
        damaged[place : place + 3] = b"<<(" if place % 2 else b"\xff\xff\xff"
        try:
            read_attachment(write(bytes(damaged)))
        except (PdfDamagedError, PdfWithoutTextError, PdfLockedError):
            continue


def test_a_pdf_that_takes_too_long_is_given_up_in_the_middle_of_a_page():
    page = ") Tj ET BT (".join("x" * 150)
    times = iter(range(10_000))
    with pytest.raises(FileTooSlowError, match="120 s"):
        pdf_text(a_pdf(page), "slow.pdf", most=1000, go_on=lambda: None, clock=lambda: float(next(times)))
    assert MOST_S <= next(times) < MOST_S + 10


def test_no_more_of_a_pdf_is_read_than_goes_with_a_message():
    text = pdf_text(a_pdf("aaaaa", "bbbbb", "ccccc"), "a.pdf", most=8, go_on=lambda: None, clock=lambda: 0.0)
    assert ("bbbbb" in text, "ccccc" in text) == (True, False)


def test_reading_can_be_ended_at_any_time(write):
    for data in (b"text", a_pdf("one")):
        with pytest.raises(ReadingEndedError):
            read_attachment(write(data), is_cancelled=lambda: True)
    asked = iter([False, False, True])
    with pytest.raises(ReadingEndedError):
        read_attachment(write(a_pdf("one", "two")), is_cancelled=lambda: next(asked))


def test_the_libraries_are_imported_when_they_are_needed_only():
    script = "import sys, app.attachments; print([n for n in ('pypdf', 'charset_normalizer') if n in sys.modules])"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
