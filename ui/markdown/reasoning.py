"""What a model thought before it answered, told apart from the answer by known marks; a mark may arrive in pieces."""

from __future__ import annotations

import re
from dataclasses import dataclass

# (what opens, what closes) at the very start of a reply.
_MARKS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
    ("<|channel|>analysis<|message|>", "<|end|>"),
)
# Where the answer goes on behind the closing mark of the last kind.
_ANSWER_CHANNEL = "<|start|>assistant<|channel|>final<|message|>"
# A template may put the opening mark into the prompt; then only the closing one comes, on a line of its own.
_LONE_CLOSING = re.compile(r"^[ \t]*</think(?:ing)?>[ \t]*$", re.MULTILINE)
_FENCE = re.compile(r"^ {0,3}(?:```|~~~)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Split:
    """A piece of a reply told apart. `restarts`: what was given out as answer before was thought, too, and is part of
    `thought` again; the answer begins anew."""

    thought: str = ""
    answer: str = ""
    restarts: bool = False


class ReasoningSplitter:
    """Takes a reply as it comes. `is_thinking` is None until it is known whether the reply begins with a thought."""

    def __init__(self) -> None:
        self.is_thinking: bool | None = None
        self.has_thought = False
        self._held = ""  # may be part of a mark
        self._closing = ""
        self._given: list[str] = []  # the answer, while it may yet turn out to be a thought
        self._line = ""  # its last line, not yet whole
        self._at_start = True  # of the thought or of the answer: white space is dropped

    def feed(self, text: str) -> Split:
        self._held += text
        if self.is_thinking is None:
            self._look_for_opening()
        if self.is_thinking is None:
            return Split()
        if self.is_thinking:
            return self._take_thought()
        return self._take_answer()

    def finish(self) -> Split:
        """Nothing follows: what was held back is what it looks like."""
        held, self._held = self._held, ""
        if self.is_thinking:
            return Split(thought=held)
        self.is_thinking = False
        return Split(answer=held) if self.has_thought else self._look_for_closing(held, is_end=True)

    def _look_for_opening(self) -> None:
        start = self._held.lstrip()
        for opening, closing in _MARKS:
            if start.startswith(opening):
                self._held, self._closing = start[len(opening) :], closing
                self.is_thinking = self.has_thought = True
                return
        if not any(opening.startswith(start) for opening, _ in _MARKS):
            self.is_thinking, self._at_start = False, False

    def _take_thought(self) -> Split:
        text = self._held.lstrip() if self._at_start else self._held
        end = text.find(self._closing)
        if end < 0:
            kept = _overlap(text, self._closing)
            thought, self._held = text[: len(text) - kept], text[len(text) - kept :]
            self._at_start = self._at_start and not thought
            return Split(thought=thought)
        thought, self._held = text[:end].rstrip(), text[end + len(self._closing) :]
        self.is_thinking, self._at_start = False, True
        return Split(thought=thought, answer=self._take_answer().answer)

    def _take_answer(self) -> Split:
        if self._at_start:
            self._held = self._held.lstrip()
            if self._held.startswith(_ANSWER_CHANNEL):
                self._held = self._held[len(_ANSWER_CHANNEL) :].lstrip()
            elif not self._held or _ANSWER_CHANNEL.startswith(self._held):
                return Split()
            self._at_start = False
        text, self._held = self._held, ""
        if self.has_thought:
            return Split(answer=text)
        return self._look_for_closing(text)

    def _look_for_closing(self, text: str, *, is_end: bool = False) -> Split:
        """A closing mark alone on its line, outside of code, makes a thought of all before it."""
        tail, self._line = self._line + text, ""
        above, num_fences, counted = "", -1, 0
        for match in _LONE_CLOSING.finditer(tail):
            if num_fences < 0:
                above = "".join(self._given)[: -len(tail) + len(text) or None]
                num_fences = len(_FENCE.findall(above))
            num_fences += len(_FENCE.findall(tail[counted : match.start()]))
            counted = match.start()
            is_line_whole = is_end or match.end() < len(tail)
            if is_line_whole and num_fences % 2 == 0:
                before = above + tail[: match.start()]
                self._given, self.has_thought, self._at_start, self._held = [], True, True, tail[match.end() :]
                self.is_thinking = False
                return Split(before.strip(), self._take_answer().answer, restarts=True)
        self._given.append(text)
        self._line = tail[tail.rfind("\n") + 1 :]
        return Split(answer=text)


def split_reasoning(text: str) -> tuple[str, str]:
    """(thought, answer) of a whole reply."""
    splitter = ReasoningSplitter()
    first, last = splitter.feed(text), splitter.finish()
    if last.restarts:
        return last.thought, last.answer
    return (first.thought + last.thought).rstrip(), first.answer + last.answer


def _overlap(text: str, mark: str) -> int:
    """How many characters at the end of `text` begin `mark`."""
    return next((n for n in range(min(len(text), len(mark) - 1), 0, -1) if text.endswith(mark[:n])), 0)
