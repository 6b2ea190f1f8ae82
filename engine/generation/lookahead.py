"""Feeds guessed tokens along with the sampled one, and hands out their logits while the guesses come true.

A guess is accepted if and only if the token sampled from the model's own logits equals it. For guesses that are certain
this is the rule of speculative sampling (arXiv 2211.17192, section 2.3); here the same tokens come out, draw for draw.
Invariant: between calls the cache counts exactly the tokens handed in. Guesses stand behind its end until they come
true, so a reply may end anywhere. Inference thread.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from engine.generation.prompt_lookup import PromptLookup
from engine.generation.speculation import MOST_FED, Speculation
from engine.kv.working_cache import WorkingCache
from engine.model.forward import ForwardPass


class Lookahead:
    """Takes the place of the forward pass for one reply. `drafted_tokens` were fed as guesses, `accepted_tokens` true.

    For caches that can be cropped and forward passes with `multi_token_is_exact`.
    """

    def __init__(
        self, forward: ForwardPass, cache: WorkingCache, stop_ids: frozenset[int], clock: Callable[[], float]
    ) -> None:
        self.drafted_tokens = 0
        self.accepted_tokens = 0
        self._forward = forward
        self._cache = cache
        self._stop_ids = stop_ids
        self._clock = clock
        self._policy = Speculation()
        self._lookup: PromptLookup | None = None
        self._guesses: list[int] = []  # those that were fed, and one more
        self._match_length = 0  # of the first of them
        self._num_right = 0
        self._rows: list[torch.Tensor] = []  # the logits after the guesses that were fed, each `[vocab]`

    def feed(self, token_id: int, num_more: int) -> torch.Tensor:
        """The logits after `token_id`, `[vocab]` in float32, as `forward([token_id], cache)` gives them.

        `num_more`: how many tokens the reply can still get, so that nothing is guessed beyond. Raises what a pass does.
        """
        if self._lookup is None:
            self._lookup = PromptLookup(self._cache.token_ids)
        is_right = self._has_guessed(token_id)
        self._lookup.append(token_id)
        if is_right and self._rows:
            self.accepted_tokens += 1
            self._cache.readmit([token_id])
            return self._rows.pop(0)
        return self._pass(self._lookup, token_id, num_more - 1)

    def _has_guessed(self, token_id: int) -> bool:
        """Compare the token with the guess in its place, if there is one, and tell the policy."""
        if self._num_right >= len(self._guesses):
            return False
        is_right = self._guesses[self._num_right] == token_id
        self._policy.guess_was(self._match_length + self._num_right, is_right)
        self._num_right += 1
        return is_right

    def _pass(self, lookup: PromptLookup, token_id: int, most: int) -> torch.Tensor:
        self._match_length, self._num_right = lookup.match_length, 0
        count = self._policy.num_guesses(self._match_length, min(most, MOST_FED - 1))
        self._guesses = lookup.draft(count + 1)
        draft = self._before_stop(self._guesses[:count])
        self._rows = []
        started = self._clock()
        if draft:
            before = self._cache.length
            logits, *self._rows = self._forward.all_logits([token_id, *draft], self._cache).unbind()
            self._cache.rollback(before + 1, may_return=True)
            self.drafted_tokens += len(draft)
        else:
            logits = self._forward([token_id], self._cache)
        self._policy.pass_took(1 + len(draft), self._clock() - started)
        return logits

    def _before_stop(self, draft: list[int]) -> list[int]:
        """Nothing is fed after the end of a turn."""
        end = next((index for index, token_id in enumerate(draft) if token_id in self._stop_ids), len(draft))
        return draft[:end]
