"""Logits -> next token id: greedy, or temperature with top-k, top-p, min-p and a repetition penalty."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import torch

from engine.one_thread import one_thread
from engine.protocol.config import Sampling
from engine.protocol.errors import GenerationError

_NUCLEUS_DEPTHS = (6.0, 12.0, math.inf)  # below the largest logit: a 400th, a 160,000th of its probability


class Sampler:
    """Draws tokens for one reply. The same seed, logits and history give the same tokens on the same device."""

    def __init__(self, sampling: Sampling, history: Iterable[int], device: torch.device) -> None:
        self._sampling = sampling
        self._seen = set(history) if sampling.repetition_penalty != 1.0 else set()
        self._seen_ids = torch.tensor(list(self._seen), dtype=torch.long, device=device)
        self._generator: torch.Generator | None = None
        if not sampling.is_greedy:
            self._generator = torch.Generator(device=device)
            if sampling.seed is None:
                self._generator.seed()
            else:
                self._generator.manual_seed(sampling.seed)

    @torch.inference_mode()
    def sample(self, logits: torch.Tensor) -> int:
        """The next token id for `logits`, `[vocab]` in float32 (changed in place).

        Raises GenerationError when the logits are not numbers.
        """
        with one_thread():
            return self._sample(logits)

    def _sample(self, logits: torch.Tensor) -> int:
        if self._seen:
            self._penalize(logits)
        best_id = _best_id(logits)
        if not math.isfinite(logits[best_id].item()):
            raise GenerationError(
                "The model produced no valid numbers; load it again, or with other weights.", reason="nan"
            )
        token_id = best_id if self._generator is None else self._draw(logits)
        if self._sampling.repetition_penalty != 1.0 and token_id not in self._seen:
            self._seen.add(token_id)
            self._seen_ids = torch.cat([self._seen_ids, self._seen_ids.new_tensor([token_id])])
        return token_id

    def _penalize(self, logits: torch.Tensor) -> None:
        """Divide positive, multiply negative logits of seen tokens by the penalty (CTRL, arXiv 1909.05858, 4.1)."""
        chosen = logits[self._seen_ids]
        penalty = self._sampling.repetition_penalty
        logits[self._seen_ids] = torch.where(chosen > 0, chosen / penalty, chosen * penalty)

    def _draw(self, logits: torch.Tensor) -> int:
        """Filter in the order temperature, top-k, top-p, min-p (nucleus: arXiv 1904.09751; min-p: arXiv 2407.01082)."""
        sampling = self._sampling
        ids: torch.Tensor | None = None
        logits = logits / sampling.temperature
        if 0 < sampling.top_k < logits.shape[-1]:
            logits, ids = torch.topk(logits, sampling.top_k)
        if sampling.top_p < 1.0:
            logits, nucleus = _nucleus(logits, sampling.top_p)
            ids = nucleus if ids is None else ids[nucleus]
        if sampling.min_p > 0.0:
            probabilities = torch.softmax(logits, dim=-1)
            logits = logits.masked_fill(probabilities < sampling.min_p * probabilities.max(), -math.inf)
        index = int(torch.multinomial(torch.softmax(logits, dim=-1), 1, generator=self._generator))
        return index if ids is None else int(ids[index])


def _best_id(logits: torch.Tensor) -> int:
    """Where the largest logit is, or one that is no number. NumPy finds it in a tenth of torch's time on the CPU."""
    return int(logits.numpy().argmax()) if logits.device.type == "cpu" else int(logits.argmax())


def _nucleus(logits: torch.Tensor, top_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The most likely entries whose probability reaches `top_p`, best first: their logits and positions.

    A nucleus is small: only entries near the best one are sorted, and more of them only where these do not reach it
    (sorting a whole vocabulary costs milliseconds).
    """
    total = torch.logsumexp(logits, dim=-1)
    largest = float(logits[_best_id(logits)])
    depths = iter(_NUCLEUS_DEPTHS)
    while True:
        depth = next(depths)
        positions = _at_least(logits, largest - depth)
        best, order = torch.sort(logits[positions], descending=True, stable=True)
        reached = torch.exp(best - total).cumsum(dim=-1)
        if reached[-1] >= top_p or depth == math.inf:
            count = int((reached < top_p).sum()) + 1
            return best[:count], positions[order[:count]]


def _at_least(logits: torch.Tensor, least: float) -> torch.Tensor:
    """Positions of the entries from `least` up. NumPy finds them in a tenth of torch's time on the CPU."""
    if logits.device.type == "cpu":
        return torch.from_numpy(np.flatnonzero(logits.numpy() >= least))
    return (logits >= least).nonzero()[:, 0]
