"""A link opens only after a look at where it goes."""

from __future__ import annotations

import pytest
from PySide6.QtCore import Qt, QUrl
from PySide6.QtGui import QDesktopServices, QGuiApplication
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from ui.theme import Theme
from ui.transcript.address import read_address
from ui.transcript.link_question import LinkQuestion
from ui.transcript.prose_part import ProsePart
from ui.transcript.reply_body import ReplyBody


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    urls: list[str] = []
    monkeypatch.setattr(QDesktopServices, "openUrl", lambda url: urls.append(url.toString()) or True)
    return urls


@pytest.fixture
def body(qtbot: QtBot, theme: Theme) -> ReplyBody:
    result = ReplyBody(theme)
    qtbot.addWidget(result)
    result.resize(600, 300)
    result.show()
    qtbot.waitExposed(result)
    return result


def question(body: ReplyBody) -> LinkQuestion:
    (result,) = body.findChildren(LinkQuestion)
    return result


def prose(body: ReplyBody) -> ProsePart:
    part = body.parts[0]
    assert isinstance(part, ProsePart)
    return part


def test_a_link_is_opened_only_by_the_button(body: ReplyBody, opened: list[str]) -> None:
    body.show_text("See [this](https://example.org/a?b=c#d).")
    prose(body).anchorClicked.emit(QUrl("https://example.org/a?b=c#d"))
    asked = question(body)
    assert asked.isVisible()
    assert opened == []
    assert asked.address_view.toPlainText() == "https://example.org/a?b=c#d"
    assert asked.warnings == []
    asked.open_button.click()
    assert opened == ["https://example.org/a?b=c#d"]


def test_the_keyboard_reaches_links_and_a_key_too_much_opens_nothing(
    body: ReplyBody, opened: list[str], qtbot: QtBot
) -> None:
    body.show_text("[one](https://one.example) and [two](https://two.example)")
    part = prose(body)
    assert part.focusPolicy() == Qt.FocusPolicy.StrongFocus
    part.setFocus(Qt.FocusReason.TabFocusReason)
    QTest.keyClick(part, Qt.Key.Key_Tab)
    QTest.keyClick(part, Qt.Key.Key_Return)
    asked = question(body)
    assert asked.address.host in ("one.example", "two.example")
    assert asked.cancel_button.isDefault()
    QTest.keyClick(asked, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: not body.findChildren(LinkQuestion))
    assert opened == []


def test_the_address_can_be_copied(body: ReplyBody, opened: list[str]) -> None:
    body.show_text("[x](https://example.org/제주)")
    prose(body).anchorClicked.emit(QUrl("https://example.org/제주"))
    assert question(body).address_view.toPlainText() == "https://example.org/제주"
    question(body).copy_button.click()
    assert QGuiApplication.clipboard().text() == "https://example.org/%EC%A0%9C%EC%A3%BC"
    assert opened == []


@pytest.mark.parametrize(
    "address", ["file:///etc/passwd", "ssh://host/x", "page.html", "data:text/html,x", "ftp://a.org"]
)
def test_other_addresses_have_no_open_button(body: ReplyBody, opened: list[str], address: str) -> None:
    prose_body = body
    prose_body.show_text("text")
    prose(body).anchorClicked.emit(QUrl(address))
    asked = question(body)
    assert not asked.open_button.isVisible()
    assert "only web and mail" in asked.warnings[0].text()
    asked.reject()
    assert opened == []


def test_a_text_that_names_another_site_is_pointed_out(body: ReplyBody) -> None:
    body.show_text("[https://bank.example/login](https://evil.example) [www.good.org](https://good.org/x)")
    prose(body).anchorClicked.emit(QUrl("https://evil.example"))
    assert "bank.example" in question(body).warnings[0].text()
    question(body).reject()
    QApplication.sendPostedEvents(None, 52)  # what closed is gone
    prose(body).anchorClicked.emit(QUrl("https://good.org/x"))
    assert [asked.warnings for asked in body.findChildren(LinkQuestion) if asked.isVisible()] == [[]]


@pytest.mark.parametrize(
    ("url", "host", "text"),
    [
        ("https://bank.example@evil.example/x", "evil.example", "https://bank.example@evil.example/x"),
        ("https://\u0430pple.com/", "xn--pple-43d.com", "https://xn--pple-43d.com/"),
        ("https://example.org/\u202etxt.exe", "example.org", "https://example.org/%E2%80%AEtxt.exe"),
        ("https://example.org/a\u200bb c", "example.org", "https://example.org/a%E2%80%8Bb%20c"),
        ("http://example.org:8080/x?q=1", "example.org", "http://example.org:8080/x?q=1"),
        ("mailto:a@example.org?subject=x", "a@example.org", "mailto:a@example.org?subject=x"),
        ("http://EXAMPLE.org", "example.org", "http://example.org"),
    ],
)
def test_the_real_address(url: str, host: str, text: str) -> None:
    address = read_address(QUrl(url))
    assert (address.host, address.text) == (host, text)
    assert address.can_open


def test_what_may_mislead_is_said(qtbot: QtBot, theme: Theme) -> None:
    for url, words in (
        ("https://bank.example@evil.example/x", "before “@” is not the site; the site is evil.example"),
        ("https://\u0430pple.com/", "it reads \u0430pple.com"),
    ):
        asked = LinkQuestion(theme, QUrl(url))
        qtbot.addWidget(asked)
        assert words in asked.warnings[0].text()
