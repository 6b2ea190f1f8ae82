"""Words for a tooltip, which would take what looks like HTML for that."""

from __future__ import annotations

import html


def plain(words: str) -> str:
    return f'<p style="white-space: pre-wrap">{html.escape(words)}</p>' if "<" in words else words
