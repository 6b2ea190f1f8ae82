"""A conversation's history -> token ids. Replies keep the ids the model generated; the text around is tokenized.

Decoding and re-encoding a reply may give other ids, and then the cache would not match from there on. The ids are a
pure function of messages, template and tokenizer, so that a restart or another process comes to the same ones.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import replace

from transformers import PreTrainedTokenizerBase

from engine.model.chat_template import ChatTemplate
from engine.model.pieces import Pieces
from engine.protocol.commands import ChatMessage, Role
from engine.protocol.errors import TemplateError


class HistoryTokens:
    """Renders and tokenizes histories for one model."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, template: ChatTemplate) -> None:
        self.template = template
        self._pieces = Pieces(tokenizer, (template.source, *map(str, tokenizer.special_tokens_map.values())))

    def ids(
        self,
        messages: Sequence[ChatMessage],
        *,
        add_generation_prompt: bool = True,
        started_on: dt.date | None = None,
    ) -> list[int]:
        """Token ids of the rendered history. Raises TemplateError."""

        def render(history: Sequence[ChatMessage]) -> str:
            return self.template.render(history, add_generation_prompt=add_generation_prompt, started_on=started_on)

        text = render(messages)
        kept = [index for index, message in enumerate(messages) if message.token_ids and message.text]
        markers = {index: f"\ue000{index}\ue001" for index in kept}
        if not kept or any(marker in text for marker in markers.values()):
            return self._pieces.ids(text)
        marked = [
            replace(message, text=markers[index]) if index in markers else message
            for index, message in enumerate(messages)
        ]
        between = _split_at_markers(render(marked), list(markers.values()))
        replies = [messages[index].text for index in kept]
        spans = _locate_replies(text, between, replies) if between is not None else None
        if spans is None:
            return self._pieces.ids(text)
        ids: list[int] = []
        cursor = 0
        for index, (start, end) in zip(kept, spans, strict=True):
            message = messages[index]
            ids += self._pieces.ids(text[cursor:start])
            is_as_generated = text[start:end].strip() == message.text.strip()
            ids += (message.token_ids or ()) if is_as_generated else self._pieces.ids(text[start:end])
            cursor = end
        return ids + self._pieces.ids(text[cursor:])

    def open_ids(self, messages: Sequence[ChatMessage], *, started_on: dt.date | None = None) -> list[int]:
        """Token ids of a history whose last message, a reply that was cut short, is left open: what the model had read
        and written when it stopped, so that its next token continues the reply. Raises TemplateError.
        """
        *earlier, reply = messages
        if reply.role is not Role.ASSISTANT:
            raise TemplateError("There is no reply to continue; send a message instead.", reason="no reply")
        return self._before_reply(earlier, reply, started_on) + self.reply_ids(reply)

    def reply_ids(self, reply: ChatMessage) -> list[int]:
        """As they were generated, else of its text by itself."""
        return list(reply.token_ids) if reply.token_ids else self._pieces.ids(reply.text)

    def _before_reply(
        self, earlier: Sequence[ChatMessage], reply: ChatMessage, started_on: dt.date | None
    ) -> list[int]:
        """What asks for a reply; where the template does not ask, and the reply was not generated after that, what the
        template puts before it.
        """
        try:
            asked = self.ids(earlier, started_on=started_on)
            if reply.token_ids or asked != self.ids(earlier, add_generation_prompt=False, started_on=started_on):
                return asked
        except TemplateError as error:
            raise _cannot_leave_open(error.params.get("reason", "")) from error
        marker = "\ue000open\ue001"
        marked = self.template.render(
            [*earlier, replace(reply, text=marker)], add_generation_prompt=False, started_on=started_on
        )
        before, found, after = marked.partition(marker)
        if not found or marker in after:
            raise _cannot_leave_open("the reply is not shown as it is")
        return self._pieces.ids(before)

    def count(self, text: str) -> int:
        """How many tokens a text by itself has."""
        return len(self._pieces.ids(text))

    def next_prompt_prefix(self, messages: Sequence[ChatMessage], *, started_on: dt.date | None = None) -> list[int]:
        """The ids that every next prompt will begin with, whatever is asked: what two different questions share.

        Templates may show an earlier reply otherwise than the last one (without its reasoning, say).
        """
        first, second = (
            self.ids([*messages, ChatMessage(Role.USER, question)], started_on=started_on) for question in ("a", "1")
        )
        shared = next((i for i, (one, other) in enumerate(zip(first, second, strict=False)) if one != other), 0)
        return first[:shared]


def _cannot_leave_open(reason: str) -> TemplateError:
    return TemplateError(
        "The model's chat template cannot leave a reply open; ask in a new message to go on instead.", reason=reason
    )


def _split_at_markers(marked: str, markers: list[str]) -> list[str] | None:
    """The template's own text between the replies, or None when it does not show each of them once and in order."""
    pieces: list[str] = []
    rest = marked
    for marker in markers:
        head, found, rest = rest.partition(marker)
        if not found:
            return None
        pieces.append(head)
    return None if any(marker in rest for marker in markers) else [*pieces, rest]


def _locate_replies(text: str, between: list[str], replies: list[str]) -> list[tuple[int, int]] | None:
    """Spans of the replies in `text`, given the texts around them; a template may have shortened a reply."""
    if not text.startswith(between[0]):
        return None
    spans: list[tuple[int, int]] = []
    start = len(between[0])
    for reply, following in zip(replies[:-1], between[1:-1], strict=True):
        is_verbatim = text.startswith(reply, start) and text.startswith(following, start + len(reply))
        end = start + len(reply) if is_verbatim else text.find(following, start)
        if end < 0 or not following:
            return None
        spans.append((start, end))
        start = end + len(following)
    end = len(text) - len(between[-1])
    if end < start or not text.endswith(between[-1]):
        return None
    return [*spans, (start, end)]
