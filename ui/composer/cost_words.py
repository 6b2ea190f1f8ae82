"""What sending costs, in words, from the engine's estimate. What is not known is left out, never 0, inf or nan."""

from __future__ import annotations

import math
from dataclasses import dataclass

from PySide6.QtCore import QCoreApplication

from engine.protocol.events import Estimated
from ui import numbers
from ui.estimate_words import about
from ui.reason_words import miss_words

_WORTH_TELLING = 200  # tokens that the next message reads: below, an empty field speaks of keys only


def _tr(source: str) -> str:
    return QCoreApplication.translate("Cost", source)


@dataclass(frozen=True, slots=True)
class Cost:
    """`strong` is the part of the words that is set off. `is_refused`: it does not fit, and is not sent."""

    words: str
    strong: str = ""
    is_refused: bool = False


def cost_of(event: Estimated, model_name: str, *, is_blank: bool, has_files: bool) -> Cost | None:
    """None: nothing worth a word. `is_blank`: nothing is written yet, so it is the next message's cost."""
    if not event.fits and not is_blank:
        return _too_long(event, model_name, has_files)
    if is_blank:
        if event.new_tokens < _WORTH_TELLING:
            return None
        strong = tokens(event.new_tokens)
        words = _tr("The next message will read {tokens}").format(tokens=strong)
    elif event.from_disk_tokens > 0:
        strong = new_tokens(event.new_tokens)
        from_disk = tokens(event.from_disk_tokens)
        words = _tr("Sending restores {from_disk} from disk and reads {tokens}").format(
            from_disk=from_disk, tokens=strong
        )
    elif event.miss_code is not None:
        strong = tokens(event.new_tokens)
        words = _tr("Sending reads {tokens}").format(tokens=strong)
    else:
        strong = new_tokens(event.new_tokens)
        words = _tr("Sending reads {tokens}").format(tokens=strong)
    return Cost(words + _time(event.seconds) + _reason(event) + _dropped(event.num_dropped), strong)


def files_too_long(num_tokens: int, is_more: bool, context_length: int, model_name: str) -> Cost:
    """The files alone fill the context. `is_more`: not all of their tokens are counted."""
    strong = tokens(num_tokens, is_more)
    words = _tr("The files have {tokens}, but {model} reads at most {most} in all; remove or shorten them")
    most = numbers.count(context_length)
    return Cost(words.format(tokens=strong, model=model_name, most=most), strong, is_refused=True)


def tokens(number: int, is_more: bool = False) -> str:
    if is_more:
        return _tr("over {count} tokens").format(count=numbers.count(number))
    return _tr("1 token") if number == 1 else _tr("{count} tokens").format(count=numbers.count(number))


def new_tokens(number: int) -> str:
    return _tr("1 new token") if number == 1 else _tr("{count} new tokens").format(count=numbers.count(number))


def _too_long(event: Estimated, model_name: str, has_files: bool) -> Cost:
    strong = tokens(event.prompt_tokens)
    if event.conversation_id and not event.num_dropped:
        words = _tr(
            "With this message the chat has {tokens}, but {model} reads at most {most}; shorten it or start anew"
        )
    elif has_files:
        words = _tr("This message has {tokens} with its files, but {model} reads at most {most} in all; shorten it")
    else:
        words = _tr("This message has {tokens}, but {model} reads at most {most} in all; shorten it")
    most = numbers.count(event.context_length)
    return Cost(words.format(tokens=strong, model=model_name, most=most), strong, is_refused=True)


def _time(duration_s: float | None) -> str:
    """ ", about 0.1 s"."""
    if duration_s is None or not math.isfinite(duration_s) or duration_s <= 0:
        return ""
    return _tr(", about {time}").format(time=about(duration_s))


def _reason(event: Estimated) -> str:
    reason = miss_words(event)
    return _tr(": {reason}").format(reason=reason) if reason else ""


def _dropped(number: int) -> str:
    if number <= 0:
        return ""
    if number == 1:
        return _tr("; the oldest message will leave the model's view")
    return _tr("; the oldest {count} messages will leave the model's view").format(count=numbers.count(number))
