"""Guesses what a chat says next from what it has said before: an index of the short runs of tokens in it.

Prompt lookup (LLMA, arXiv 2304.04487, section 3; "prompt lookup decoding"): where the last tokens occurred before, what
followed them then may follow again. A guess costs no model and need not be right: whoever uses it checks it.
Invariant: `_latest` knows every run of 2 to 4 tokens that has a token after it, the newest place of each.
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST_RUN = 4
SHORTEST_RUN = 2
_SIZES = range(LONGEST_RUN, SHORTEST_RUN - 1, -1)
_MOST_INDEXED = 32_768  # tokens from the end: bounds the time to build (milliseconds) and the memory of long chats


class PromptLookup:
    """The token ids of one chat, growing, and the earlier place that agrees best with their end.

    A place that was right is kept while it stays right and agrees on `LONGEST_RUN` tokens; else it is the most recent
    one of the longest run. All but the constructor takes constant time.
    """

    def __init__(self, token_ids: Sequence[int]) -> None:
        self.match_length = 0
        self._ids = list(token_ids[-_MOST_INDEXED:])
        self._source = 0
        self._latest: dict[int, dict[tuple[int, ...], int]] = {
            size: dict(
                zip(
                    zip(*(self._ids[start:-1] for start in range(size)), strict=False),
                    range(size, len(self._ids)),
                    strict=False,
                )
            )
            for size in _SIZES
        }
        self._find()

    def append(self, token_id: int) -> None:
        """The chat goes on with `token_id`."""
        end = len(self._ids)
        for size in _SIZES:
            if size <= end:
                self._latest[size][tuple(self._ids[-size:])] = end
        is_right = self.match_length > 0 and self._ids[self._source] == token_id
        self._ids.append(token_id)
        if is_right and self.match_length + 1 >= LONGEST_RUN:
            self.match_length += 1
            self._source += 1
        else:
            self._find()

    def draft(self, max_tokens: int) -> list[int]:
        """Up to `max_tokens` ids that followed the last `match_length` ones before; [] where they are new.

        A place so near the end that it runs into it goes on with what is drafted, as a loop does.
        """
        if not self.match_length:
            return []
        drafted = self._ids[self._source : self._source + max_tokens]
        period = len(self._ids) - self._source
        for index in range(len(drafted), max_tokens):
            drafted.append(drafted[index - period])
        return drafted

    def _find(self) -> None:
        """Look the end up, longest run first."""
        for size in _SIZES:
            source = self._latest[size].get(tuple(self._ids[-size:]))
            if source is not None:
                self.match_length, self._source = size, source
                return
        self.match_length = 0
