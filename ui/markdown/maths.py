"""Where mathematics begins and ends in Markdown: rules for markdown-it-py. What a formula means is not looked at.

Known are $...$, $$...$$, \\(...\\), \\[...\\] and \\begin{...}...\\end{...}. A dollar before an amount is no formula:
the opening one is followed, the closing one preceded, by something other than a space, and no digit follows the closing
one. No blank line is ever part of a formula.
"""

from __future__ import annotations

import re

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline

LONGEST_FORMULA = 2000  # characters; anything longer is text
IS_WHOLE = "is_whole"  # in the parser's env: nothing follows, so a formula that has not ended is text

_ENVIRONMENT = re.compile(
    r"\\begin\{((?:equation|align|aligned|alignat|gather|gathered|multline|eqnarray|split|cases|array|[pbBvV]?matrix)\*?)\}"
)
_WORDS_IN_AN_AMOUNT = re.compile(r"[0-9][^\\^_={}]*\s[^\W\d_]{2,}")


def use_maths(parser: MarkdownIt) -> None:
    parser.inline.ruler.before("escape", "maths", _inline)
    parser.block.ruler.before("fence", "maths", _block, {"alt": ["paragraph", "reference", "blockquote", "list"]})


def _inline(state: StateInline, silent: bool) -> bool:
    found = _find_inline(state.src, state.pos, state.posMax)
    if found is None:
        return False
    content, end, is_display = found
    if not silent:
        token = state.push("maths_display" if is_display else "maths_inline", "", 0)
        token.content = content
    state.pos = end
    return True


def _find_inline(source: str, start: int, most: int) -> tuple[str, int, bool] | None:
    """(LaTeX, where it ends, whether it stands alone) of the formula that starts at `start`, if there is one."""
    pair = source[start : start + 2]
    if pair in (r"\(", r"\["):
        return _between(source, start + 2, ")" if pair == r"\(" else "]", most, is_display=pair == r"\[")
    if pair == "$$":
        end = source.find("$$", start + 2, most)
        content = source[start + 2 : end]
        return (content.strip(), end + 2, True) if end > 0 and _is_formula(content) else None
    if not pair.startswith("$") or len(pair) < 2 or pair[1].isspace() or _is_word(source[start - 1 : start]):
        return None
    end = _closing_dollar(source, start + 1, most)
    content = source[start + 1 : end]
    if end < 0 or content[-1:].isspace() or source[end + 1 : end + 2].isdigit() or not _is_formula(content):
        return None
    if _WORDS_IN_AN_AMOUNT.match(content) or (content[0].isdigit() and _is_word(source[end + 1 : end + 2])):
        return None
    return content, end + 1, False


def _between(source: str, start: int, closing: str, most: int, *, is_display: bool) -> tuple[str, int, bool] | None:
    end = source.find("\\" + closing, start, most)
    while end > 0 and _is_escaped(source, end):
        end = source.find("\\" + closing, end + 1, most)
    content = source[start:end]
    return (content.strip(), end + 2, is_display) if end > 0 and _is_formula(content) else None


def _closing_dollar(source: str, start: int, most: int) -> int:
    end = source.find("$", start, most)
    while end > 0 and _is_escaped(source, end):
        end = source.find("$", end + 1, most)
    return end


def _is_escaped(source: str, place: int) -> bool:
    return (place - len(source[:place].rstrip("\\"))) % 2 == 1 if source[place - 1] == "\\" else False


def _is_formula(content: str) -> bool:
    return bool(content.strip()) and len(content) <= LONGEST_FORMULA and "`" not in content


def _is_word(character: str) -> bool:
    return character.isascii() and character.isalnum()


def _block(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:
    if state.sCount[start_line] - state.blkIndent >= 4:
        return False
    first = _line(state, start_line)
    opening, closing = _marks(first)
    if not opening:
        return False
    lines, length = [first.removeprefix(opening)], 0
    for line in range(start_line, end_line):
        if line > start_line:
            text = _line(state, line)
            if not text.strip() or state.sCount[line] < state.blkIndent:
                return False
            lines.append(text)
        length += len(lines[-1]) + 1
        if length > LONGEST_FORMULA:
            return False
        if closing in lines[-1]:
            content, _, behind = lines[-1].partition(closing)
            if behind.strip():
                return False
            lines[-1] = content
            return _push(state, "maths_block", opening, "\n".join(lines), closing, start_line, line + 1, silent)
    if state.env.get(IS_WHOLE) or state.level > 0:
        return False
    return _push(state, "maths_open", opening, "\n".join(lines), "", start_line, end_line, silent)


def _push(
    state: StateBlock, kind: str, opening: str, content: str, closing: str, start: int, end: int, silent: bool
) -> bool:
    is_environment = opening.startswith(r"\begin")
    if kind == "maths_block" and not content.strip():
        return False
    if silent:
        return True
    token = state.push(kind, "", 0)
    token.block = True
    token.content = f"{opening}{content}{closing}" if is_environment or kind == "maths_open" else content.strip()
    token.map = [start, end]
    state.line = end
    return True


def _marks(line: str) -> tuple[str, str]:
    """What opens a formula at the start of `line`, and what will close it."""
    if line.startswith("$$"):
        return "$$", "$$"
    if line.startswith(r"\["):
        return r"\[", r"\]"
    if match := _ENVIRONMENT.match(line):
        return match[0], rf"\end{{{match[1]}}}"
    return "", ""


def _line(state: StateBlock, line: int) -> str:
    return state.src[state.bMarks[line] + state.tShift[line] : state.eMarks[line]]
