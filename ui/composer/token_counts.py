"""How many tokens each text of the files has under the loaded model: asked once, kept until another model comes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from engine.protocol.events import Failed, ModelInfo, TokensCounted

_MOST_KEPT = 64
_CHARACTERS_A_TOKEN = 8  # more than nearly every text has


class TokenCounter(Protocol):
    """`app.costs.Costs` has this shape."""

    @property
    def model(self) -> ModelInfo | None: ...

    def count_tokens(self, texts: tuple[str, ...]) -> str: ...


class TokenCounts:
    """Of a text much longer than the model reads, only a part is counted, which says that it is too long: a whole book
    would keep the engine busy for seconds.
    """

    def __init__(self, session: TokenCounter) -> None:
        self._session = session
        self._counts: dict[str, int] = {}
        self._more: set[str] = set()  # of these only a part was counted
        self._dense: set[str] = set()  # of these a part did not say enough
        self._asked: tuple[str, tuple[str, ...]] | None = None  # request id, texts

    @property
    def by_text(self) -> Mapping[str, int]:
        return self._counts

    @property
    def more(self) -> frozenset[str]:
        """The texts that have more tokens than was counted."""
        return frozenset(self._more)

    def are_known(self, texts: Iterable[str]) -> bool:
        """False: asked now, or a moment ago."""
        unknown = tuple(dict.fromkeys(text for text in texts if text not in self._counts))
        if unknown and self._asked is None:
            self._asked = (self._session.count_tokens(tuple(self._part_of(text) for text in unknown)), unknown)
        return not unknown

    def total(self, texts: Iterable[str]) -> tuple[int, bool]:
        """Of known texts, and whether it is more than that."""
        texts = list(texts)
        return sum(self._counts[text] for text in texts), any(text in self._more for text in texts)

    def take(self, event: TokensCounted | Failed, shown: Iterable[str]) -> bool:
        """Whether it is the answer. Of texts that are not `shown` only some are kept."""
        if self._asked is None or event.request_id != self._asked[0]:
            return False
        texts, self._asked = self._asked[1], None
        if isinstance(event, TokensCounted):
            for text, number in zip(texts, event.counts, strict=False):
                self._learn(text, number, event.context_length)
            self._keep(set(shown))
        return True

    def forget(self) -> None:
        """The model has gone, and with it what it was asked."""
        self._asked = None
        self._counts.clear()
        self._more.clear()
        self._dense.clear()

    def _part_of(self, text: str) -> str:
        model = self._session.model
        if model is None or text in self._dense:
            return text
        return text[: model.context_length * _CHARACTERS_A_TOKEN]

    def _learn(self, text: str, number: int, context_length: int) -> None:
        is_part = len(self._part_of(text)) < len(text)
        if is_part and number < context_length:
            self._dense.add(text)
            return
        self._counts[text] = number
        if is_part:
            self._more.add(text)

    def _keep(self, shown: set[str]) -> None:
        num_spare = max(0, len(self._counts) - _MOST_KEPT)
        for text in [text for text in self._counts if text not in shown][:num_spare]:
            del self._counts[text]
            self._more.discard(text)
