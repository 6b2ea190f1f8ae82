"""What is typed into a search field: words, and "phrases in quotation marks", which all have to be there."""

from __future__ import annotations

import re

from app.folding import fold

_PART = re.compile(r'["“”]([^"“”]*)["“”]?|([^\s"“”]+)')


def words_of(query: str) -> tuple[str, ...]:
    """The folded words, none twice; a quotation mark that is not closed yet reaches to the end. None for no words.

    Of a query that is nothing but quotation marks, these are looked for.
    """
    parts = (fold(phrase or word) for phrase, word in _PART.findall(query))
    words = dict.fromkeys(part for part in parts if part)
    return tuple(words) or tuple(filter(None, (fold(query),)))
