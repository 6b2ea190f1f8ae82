"""Web addresses that stand in text as they are. A particle that follows one without a break is not part of it."""

from __future__ import annotations

import re
from collections.abc import Iterator

# An ASCII host, then a path; other letters only where a path goes on with them ("/wiki/제주", not "/wiki에서").
_ADDRESS = re.compile(
    r"(?<![\w/@.])(?:https?://|www\.)[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::\d{1,5})?"
    r"(?:[/?#](?:[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]|(?<=[/=_\-])[^\W\x00-\x7f]+)*)?"
)
_TRAILING = ".,:;!?'*_~"


def split_links(text: str) -> Iterator[tuple[str, str | None]]:
    """`text` in pieces, each with its address or None."""
    place = 0
    for match in _ADDRESS.finditer(text):
        shown = _trimmed(match[0])
        if "." not in shown.removeprefix("www.") and "://localhost" not in shown:
            continue
        if match.start() > place:
            yield text[place : match.start()], None
        yield shown, shown if "://" in shown else f"https://{shown}"
        place = match.start() + len(shown)
    if place < len(text):
        yield text[place:], None


def _trimmed(address: str) -> str:
    while address:
        last = address[-1]
        opening = {")": "(", "]": "["}.get(last)
        if last in _TRAILING or (opening and address.count(last) > address.count(opening)):
            address = address[:-1]
        else:
            break
    return address
