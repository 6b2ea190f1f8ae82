"""The Markdown that is understood: CommonMark with tables, strikethrough, footnotes and mathematics. HTML is text."""

from __future__ import annotations

import re

from markdown_it import MarkdownIt
from markdown_it.rules_inline import StateInline
from mdit_py_plugins.footnote.index import footnote_def

from ui.markdown.limits import use_limits
from ui.markdown.maths import use_maths

_REFERENCE = re.compile(r"\[\^([^\s\[\]^]{1,32})\]")


def markdown_parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    use_limits(parser)
    use_maths(parser)
    # Of the footnote plugin only the rule for definitions: the rest of it gathers them at the end of each parse, and
    # knows only references to what is defined already; a reply that streams has its definitions last.
    parser.block.ruler.before("reference", "footnote_def", footnote_def, {"alt": ["paragraph", "reference"]})
    parser.inline.ruler.after("image", "footnote_ref", _footnote_reference)
    return parser


def _footnote_reference(state: StateInline, silent: bool) -> bool:
    match = _REFERENCE.match(state.src, state.pos, state.posMax)
    if match is None:
        return False
    if not silent:
        token = state.push("footnote_ref", "", 0)
        token.content, token.info = match[0], match[1]
    state.pos = match.end()
    return True
