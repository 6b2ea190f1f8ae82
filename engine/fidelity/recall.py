"""Facts planted in a long text, asked for afterwards: what a chat of one document, one acknowledgement and one question
would be, with the cache of the first two put through a scheme.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.fidelity.divergence import StoppedError
from engine.fidelity.texts import ENGLISH, read_text
from engine.kv.working_cache import WorkingCache
from engine.model.loader import LoadedModel
from engine.protocol.commands import ChatMessage, Role

DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)
MOST_ANSWER_TOKENS = 16
_TEMPLATE_TOKENS = 96  # at most around a question, or around the text
_DAY = dt.date(2024, 6, 3)  # for templates that print one
_INTRODUCTION = "Read the following text carefully. I will ask you about it.\n\n"
_ENDS = re.compile(r"\n\n|(?<=[a-z]\.) (?=[A-Z])")
_BRIEFLY = " Answer briefly."
_ACKNOWLEDGEMENT = "I have read the text. What would you like to know?"


@dataclass(frozen=True, slots=True)
class Fact:
    """The answer begins with the `opening` words of the sentence: asked is whether the cache knows how they go on."""

    sentence: str
    question: str
    value: str

    @property
    def opening(self) -> str:
        return self.sentence.partition(self.value)[0].rstrip()


FACTS = (
    Fact("The code of the red door is 4712.", "What is the code of the red door?", "4712"),
    Fact("The ship to Odense is called Meridian.", "What is the ship to Odense called?", "Meridian"),
    Fact("The price of the silver lamp is 865 crowns.", "What is the price of the silver lamp?", "865"),
    Fact("The dog of the watchmaker is named Biscotti.", "What is the dog of the watchmaker named?", "Biscotti"),
    Fact("The train to Kalmar leaves from platform 19.", "From which platform does the train to Kalmar leave?", "19"),
)


@dataclass(frozen=True, slots=True)
class Questions:
    """`prefix`: ids of the text with the facts; `asked`: for each fact the ids that follow when it is asked for."""

    prefix: list[int]
    asked: list[list[int]]


def most_asked_tokens(model: LoadedModel) -> int:
    """That a question and its answer take."""
    questions = [len(model.tokenizer.encode(fact.question + _BRIEFLY)) for fact in FACTS]
    return max(questions) + _TEMPLATE_TOKENS + MOST_ANSWER_TOKENS


def plant(model: LoadedModel, num_tokens: int) -> Questions:
    """A text of about `num_tokens` tokens, shipped paragraphs in order, the facts between sentences of theirs."""
    paragraphs = [part for name in ENGLISH for part in read_text(name).strip().split("\n\n")]
    sizes = [len(model.tokenizer.encode(part + "\n\n", add_special_tokens=False)) for part in paragraphs]
    others = [_INTRODUCTION, _ACKNOWLEDGEMENT, *(f"{fact.sentence}\n\n" for fact in FACTS)]
    room = num_tokens - sum(len(model.tokenizer.encode(part)) for part in others) - _TEMPLATE_TOKENS
    count = total = 0
    while count < len(paragraphs) and total + sizes[count] <= room:
        total += sizes[count]
        count += 1
    text = with_facts("\n\n".join(paragraphs[:count]))
    messages = [
        ChatMessage(Role.USER, _INTRODUCTION + text),
        ChatMessage(Role.ASSISTANT, _ACKNOWLEDGEMENT),
    ]
    prefix = model.history.next_prompt_prefix(messages, started_on=_DAY)
    asked = []
    for fact in FACTS:
        question = ChatMessage(Role.USER, f"{fact.question}{_BRIEFLY}")
        ids = model.history.ids([*messages, question], started_on=_DAY)
        if ids[: len(prefix)] != prefix:
            raise ValueError("the chat template does not show a question after what came before")
        asked.append([*ids[len(prefix) :], *model.tokenizer.encode(fact.opening, add_special_tokens=False)])
    return Questions(prefix, asked)


def with_facts(text: str) -> str:
    """Each fact where a sentence or a paragraph ends, as near to its depth as can be."""
    ends = [(0, ""), *((found.end(), found.group()) for found in _ENDS.finditer(text)), (len(text), "")]
    parts = []
    start = 0
    for depth, fact in zip(DEPTHS, FACTS, strict=True):
        stop, gap = min(ends, key=lambda end: abs(end[0] - depth * len(text)))
        parts += [text[start:stop], fact.sentence, gap or " "]
        start = stop
    return "".join(parts) + text[start:]


def ask(model: LoadedModel, cache: WorkingCache, questions: Questions, is_cancelled: Callable[[], bool]) -> list[bool]:
    """Which facts a greedy reply names at once, one question after the other on the same cache. Raises StoppedError."""
    found = []
    length = cache.length
    cache.checkpoint()
    for fact, ids in zip(FACTS, questions.asked, strict=True):
        answer = _answer(model, cache, ids, is_cancelled)
        found.append(re.match(rf"\W*{fact.value}\b", answer, re.IGNORECASE) is not None)
        if cache.rollback(length) != length:
            raise ValueError("the cache cannot go back to where it was asked")
    return found


def _answer(model: LoadedModel, cache: WorkingCache, ids: Sequence[int], is_cancelled: Callable[[], bool]) -> str:
    reply: list[int] = []
    fed = list(ids)
    while len(reply) < MOST_ANSWER_TOKENS:
        if is_cancelled():
            raise StoppedError
        token_id = int(model.forward(fed, cache).argmax())
        if token_id in model.stop_ids:
            break
        reply.append(token_id)
        fed = [token_id]
    return str(model.tokenizer.decode(reply))
