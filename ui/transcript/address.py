"""Where a link really goes, with nothing in it that could be taken for something else."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote

from PySide6.QtCore import QUrl

SAFE_SCHEMES = frozenset({"http", "https", "mailto"})
_LOOKS_LIKE_AN_ADDRESS = re.compile(
    r"(?:https?://)?(?:[^\s/@]+@)?((?:[^\s/@:.]+\.)+[^\W\d_]{2,})(?=[/:?#]|$)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Address:
    """The whole address is `before + host + after`. `host` is in ASCII; `host_reads` is what it would look like, where
    that is something else. `claimed`: the hosts that the link's own text names, and that it does not go to."""

    url: QUrl
    before: str
    host: str
    after: str
    host_reads: str = ""
    has_user: bool = False
    claimed: tuple[str, ...] = ()

    @property
    def can_open(self) -> bool:
        return self.url.scheme().lower() in SAFE_SCHEMES and bool(self.host)

    @property
    def text(self) -> str:
        return f"{self.before}{self.host}{self.after}"


def read_address(url: QUrl, texts: Iterable[str] = ()) -> Address:
    """The address of a link that is shown as `texts`."""
    if url.scheme().lower() == "mailto":
        after = f"?{_plain(url.query())}" if url.hasQuery() else ""
        return Address(url, "mailto:", _plain(url.path()), after)
    host = url.host(QUrl.ComponentFormattingOption.EncodeUnicode).lower()
    ascii_host = bytes(QUrl.toAce(host).data()).decode("ascii") or quote(host)
    reads = QUrl.fromAce(ascii_host.encode()) if "xn--" in ascii_host else ""
    user = f"{_plain(url.userInfo())}@" if url.userInfo() else ""
    slashes = "//" if ascii_host else ""
    before = f"{url.scheme()}:{slashes}{user}" if url.scheme() else ""
    port = f":{url.port()}" if url.port() >= 0 else ""
    query = f"?{_plain(url.query())}" if url.hasQuery() else ""
    fragment = f"#{_plain(url.fragment())}" if url.hasFragment() else ""
    claimed = tuple(dict.fromkeys(named for text in texts for named in _named_hosts(text, ascii_host)))
    return Address(
        url, before, ascii_host, f"{port}{_plain(url.path())}{query}{fragment}", _plain(reads), bool(user), claimed
    )


def _named_hosts(text: str, host: str) -> list[str]:
    """The host that a link's text names, if it is another one than `host`."""
    match = _LOOKS_LIKE_AN_ADDRESS.match(text.strip())
    if match is None:
        return []
    named = bytes(QUrl.toAce(match[1].lower()).data()).decode("ascii") or match[1].lower()
    return [] if named.removeprefix("www.") == host.removeprefix("www.") else [_plain(match[1])]


def _plain(text: str) -> str:
    """Letters, digits and visible ASCII as they are; all else, such as what turns the direction of writing, encoded."""
    return "".join(character if _is_visible(character) else quote(character, errors="replace") for character in text)


def _is_visible(character: str) -> bool:
    if character.isascii():
        return character.isprintable() and character != " "
    return unicodedata.category(character)[0] in "LN"
