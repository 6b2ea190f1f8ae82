"""Inline tokens of markdown-it-py -> spans."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from markdown_it.token import Token

from ui.markdown.bare_links import split_links
from ui.markdown.blocks import LINE_BREAK, Span

_TASK = re.compile(r"\[([ xX])\]\s+")


@dataclass(slots=True)
class _Style:
    bold: int = 0
    italic: int = 0
    strike: int = 0
    hrefs: list[str] = field(default_factory=list)


def read_spans(tokens: list[Token]) -> tuple[Span, ...]:
    spans: list[Span] = []
    style = _Style()
    for token in tokens:
        match token.type:
            case "strong_open" | "strong_close":
                style.bold += token.nesting
            case "em_open" | "em_close":
                style.italic += token.nesting
            case "s_open" | "s_close":
                style.strike += token.nesting
            case "link_open":
                style.hrefs.append(str(token.attrs.get("href", "")))
            case "link_close":
                style.hrefs.pop()
            case "softbreak" | "hardbreak":
                spans.append(_span(LINE_BREAK, style))
            case "code_inline":
                spans.append(replace(_span(token.content, style), code=True))
            case "maths_inline" | "maths_display":
                spans.append(replace(_span(token.content, style), maths=token.type.removeprefix("maths_")))
            case "footnote_ref":
                spans.append(replace(_span(token.content, style), note=token.info))
            case "plain":
                spans.append(_span(token.content, style))
            case "image":
                spans.append(_image(token, style))
            case _:
                spans.extend(_text(token.content, style))
    return tuple(spans)


def read_task(spans: tuple[Span, ...]) -> tuple[bool | None, tuple[Span, ...]]:
    """Whether an item is done, if it is a task, and what it says."""
    match = _TASK.match(spans[0].text) if spans and spans[0] == Span(spans[0].text) else None
    if match is None:
        return None, spans
    rest = spans[0].text[match.end() :]
    return match[1] != " ", (*((Span(rest),) if rest else ()), *spans[1:])


def _text(text: str, style: _Style) -> list[Span]:
    if style.hrefs:
        return [_span(text, style)] if text else []
    return [replace(_span(piece, style), href=href) for piece, href in split_links(text)]


def _image(token: Token, style: _Style) -> Span:
    """An image is never loaded: its description is shown, and its address is a link like any other."""
    source = str(token.attrs.get("src", ""))
    shown = _span(token.content or source, style)
    return shown if shown.href else replace(shown, href=source)


def _span(text: str, style: _Style) -> Span:
    href = style.hrefs[-1] if style.hrefs else None
    return Span(text, style.bold > 0, style.italic > 0, style.strike > 0, False, href)
