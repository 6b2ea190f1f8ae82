"""Text -> token ids, piece by piece between special tokens, each piece tokenized once: a history grows at its end.

A tokenizer cuts the text at special tokens before anything else, so that the pieces' ids, one after the other, are the
whole text's. Where that does not hold for a tokenizer (it is tried), the text stays in one piece. Inference thread.
"""

from __future__ import annotations

import array
import re
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from transformers import PreTrainedTokenizerBase

_MOST_IDS = 1_000_000  # remembered over all pieces: 4 bytes each
_MOST_PIECES = 20_000
_MOST_SPECIALS = 64
_TRIALS = ("Hello there", "\n user\n x  안녕\n", "  ")


class Pieces:
    """`words`: texts in which the special tokens worth cutting at occur (the chat template, say)."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, words: Iterable[str]) -> None:
        self._tokenizer = tokenizer
        self._known: OrderedDict[str, array.array[int]] = OrderedDict()
        self._num_ids = 0
        cuts = [cut for cut in self._candidates(" ".join(words)) if self._is_cut(cut)]
        longest_first = sorted(cuts, key=len, reverse=True)
        self._cuts = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")") if cuts else None

    def ids(self, text: str) -> list[int]:
        pieces = self._cuts.split(text) if self._cuts is not None else [text]
        ids: list[int] = []
        for piece in pieces:
            if piece:
                ids.extend(self._piece(piece))
        return ids

    def _piece(self, text: str) -> Sequence[int]:
        known = self._known.get(text)
        if known is not None:
            self._known.move_to_end(text)
            return known
        ids = array.array("I", self._encode(text))
        self._known[text] = ids
        self._num_ids += len(ids)
        while len(self._known) > 1 and (self._num_ids > _MOST_IDS or len(self._known) > _MOST_PIECES):
            self._num_ids -= len(self._known.popitem(last=False)[1])
        return ids

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _candidates(self, words: str) -> list[str]:
        """Special tokens that are taken out of the raw text as they are, and that no other one overlaps."""
        added = list(getattr(self._tokenizer, "added_tokens_decoder", {}).values())
        contents = [token.content for token in added]
        plain = [
            token.content
            for token in added
            if token.content
            and token.content in words
            and not (token.lstrip or token.rstrip or token.single_word or token.normalized)
        ]
        return [cut for cut in plain[:_MOST_SPECIALS] if not any(_overlap(cut, other) for other in contents)]

    def _is_cut(self, cut: str) -> bool:
        first, second, third = _TRIALS
        parts = [first, cut, second, cut, cut, third, cut, first]
        return self._encode("".join(parts)) == [token_id for part in parts for token_id in self._encode(part)]


def _overlap(cut: str, other: str) -> bool:
    """Whether an occurrence of `other` may take part of one of `cut` away."""
    if other == cut:
        return any(cut.startswith(cut[-size:]) for size in range(1, len(cut)))
    if cut in other or other in cut:
        return True
    ends = range(1, min(len(cut), len(other)))
    return any(other.endswith(cut[:size]) or cut.endswith(other[:size]) for size in ends)
