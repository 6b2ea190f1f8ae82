"""Messages -> the text the model reads, through the model's own chat template."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Sequence

from jinja2 import TemplateError as JinjaError
from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import _compile_jinja_template

from engine.protocol.commands import ChatMessage, Role
from engine.protocol.errors import TemplateError

_PLAIN_TEMPLATE = (
    "{{ bos_token or '' }}"
    "{% for message in messages %}{{ message['role'] | capitalize }}: {{ message['content'] }}{{ '\n\n' }}{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)


class ChatTemplate:
    """Renders with the tokenizer's template; a model without one gets a plain transcript, and says so in `notes`."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._template: str | None = None if tokenizer.chat_template else _PLAIN_TEMPLATE
        self.notes: tuple[str, ...] = (
            () if tokenizer.chat_template else ("This model has no chat template; a plain transcript is used.",)
        )

    @property
    def source(self) -> str:
        """The template's own text."""
        return str(self._tokenizer.get_chat_template(self._template))

    @property
    def digest(self) -> str:
        """Identifies the template's text."""
        return hashlib.sha256(self.source.encode()).hexdigest()[:16]

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Strings that end a reply where the template has no end-of-turn token."""
        return ("\nUser:",) if self._template else ()

    def render(
        self, messages: Sequence[ChatMessage], *, add_generation_prompt: bool, started_on: dt.date | None
    ) -> str:
        """Render the history; raises TemplateError when the template accepts it in no form.

        Templates that refuse a system message or two messages of one role in a row get them merged.
        """
        turns = [{"role": str(message.role), "content": message.text} for message in messages]
        reason = ""
        for attempt in (turns, _merged(turns)):
            try:
                return self._apply(attempt, add_generation_prompt, started_on)
            except (JinjaError, TypeError, ValueError, KeyError) as error:
                reason = str(error) or type(error).__name__
        raise TemplateError(
            f"The model's chat template cannot show this conversation ({reason}); choose another model for it.",
            reason=reason,
        )

    def _apply(self, turns: list[dict[str, str]], add_generation_prompt: bool, started_on: dt.date | None) -> str:
        day = started_on or dt.datetime.now().astimezone().date()
        noon = dt.datetime.combine(day, dt.time(12))
        # Not `apply_chat_template`: it lets no function through to the template, and templates ask for the date by one.
        compiled = _compile_jinja_template(self.source)
        rendered = compiled.render(
            messages=turns,
            tools=None,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            strftime_now=noon.strftime,
            date_string=noon.strftime("%d %b %Y"),
            **self._tokenizer.special_tokens_map,
        )
        return str(rendered)


def _merged(turns: list[dict[str, str]]) -> list[dict[str, str]]:
    """The same words without a system role and with roles alternating."""
    merged: list[dict[str, str]] = []
    for turn in turns:
        role = str(Role.USER) if turn["role"] == Role.SYSTEM else turn["role"]
        if merged and merged[-1]["role"] == role:
            merged[-1] = {"role": role, "content": f"{merged[-1]['content']}\n\n{turn['content']}"}
        else:
            merged.append({"role": role, "content": turn["content"]})
    return merged
