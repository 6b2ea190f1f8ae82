"""How far a cache's predictions are from those of the full one, teacher-forced.

In float32 where the model can be had so (`engine.fidelity.exact`), in one pass. Else a token at a time, as replies are:
in one pass over many tokens the sums are taken in another order, which in 16 bits is a divergence of its own. Then the
reference is computed step by step as well, and by the same code, compiled or not, that reads the other cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from engine.kv.working_cache import WorkingCache
from engine.model.forward import ForwardPass
from engine.protocol.errors import EngineError


class StoppedError(EngineError):
    """The user does not want the measurement any more."""

    code = "bench"

    def __init__(self) -> None:
        super().__init__("The measurement was stopped.")


@dataclass(slots=True)
class Divergence:
    """Of a cache from the full one, token by token: nats, whether the likeliest token agrees, log-likelihoods."""

    kl: list[float] = field(default_factory=list)
    agrees: list[bool] = field(default_factory=list)
    nll: list[float] = field(default_factory=list)
    full_nll: list[float] = field(default_factory=list)

    def add(self, full: torch.Tensor, other: torch.Tensor, target: int) -> None:
        """Logits `[vocab]` in float32, and the id that really follows."""
        expected, got = (x.double().log_softmax(-1) for x in (full, other))
        terms = expected.exp() * (expected - got)
        self.kl.append(float(torch.where(expected == got, 0.0, terms).sum()))  # of two that are -inf, too
        self.agrees.append(int(full.argmax()) == int(other.argmax()))
        self.nll.append(-float(got[target]))
        self.full_nll.append(-float(expected[target]))

    def extend(self, other: Divergence) -> None:
        self.kl += other.kl
        self.agrees += other.agrees
        self.nll += other.nll
        self.full_nll += other.full_nll

    def figures(self) -> dict[str, float]:
        """`ppl_delta`: the perplexity less that of the full cache."""
        ppl, full_ppl = _perplexity(self.nll), _perplexity(self.full_nll)
        return {
            "kl": _mean(self.kl),
            "top1": _mean(self.agrees),
            "ppl": ppl,
            "ppl_delta": ppl - full_ppl,
        }


class Reference:
    """The full cache's logits after each scored token, made once for each way in which tokens are fed.

    `new_full_cache` makes a full cache of the text before them. `scored` has one id more than is fed: the last target.
    `exact` is the model in float32, if it can be had.
    """

    def __init__(
        self,
        forward: ForwardPass,
        new_full_cache: Callable[[], WorkingCache],
        scored: Sequence[int],
        is_cancelled: Callable[[], bool],
        exact: ForwardPass | None = None,
    ) -> None:
        self._forward = forward
        self._exact = exact
        self._in_float32: torch.Tensor | None = None
        self._new_full_cache = new_full_cache
        self._fed, self._targets = list(scored[:-1]), list(scored[1:])
        self._is_cancelled = is_cancelled
        self._logits: dict[bool, torch.Tensor] = {}

    def divergence(self, cache: WorkingCache) -> Divergence:
        """Feed the scored tokens to a cache. Raises StoppedError."""
        if self._exact is not None:
            return self._difference(self._full_in_float32(), self._pass(cache))
        is_compiled = is_read_by_step(self._forward, cache)
        full = self._full(is_compiled=is_compiled)
        found = Divergence()
        for index, logits in enumerate(self._steps(cache)):
            found.add(full[index], logits, self._targets[index])
        return found

    def noise(self) -> float | None:
        """What arithmetic in 16 bits costs by itself: how far the full cache, as replies read it, is from float32.

        Without float32, its divergence when it is fed in one pass instead; None for models that take no such pass.
        """
        cache = self._new_full_cache()
        if self._exact is not None:
            as_run = torch.stack(list(self._steps(cache)))
            return _mean(self._difference(self._full_in_float32(), as_run).kl)
        if not self._forward.takes_chunks:
            return None
        full = self._full(is_compiled=is_read_by_step(self._forward, cache))
        found = Divergence()
        with without_step(self._forward):
            chunk = self._forward.all_logits(self._fed, cache)
        for index, target in enumerate(self._targets):
            found.add(full[index], chunk[index], target)
        return _mean(found.kl)

    def _difference(self, full: torch.Tensor, other: torch.Tensor) -> Divergence:
        found = Divergence()
        for index, target in enumerate(self._targets):
            found.add(full[index], other[index], target)
        return found

    def _full_in_float32(self) -> torch.Tensor:
        if self._in_float32 is None:
            self._in_float32 = self._pass(self._new_full_cache())
        return self._in_float32

    def _pass(self, cache: WorkingCache) -> torch.Tensor:
        if self._is_cancelled():
            raise StoppedError
        assert self._exact is not None
        return self._exact.all_logits(self._fed, cache)

    def _full(self, *, is_compiled: bool) -> torch.Tensor:
        """`[scored, vocab]` in float32."""
        if is_compiled not in self._logits:
            cache = self._new_full_cache()
            if is_compiled:
                rows = list(self._steps(cache))
            else:
                with without_step(self._forward):
                    rows = list(self._steps(cache))
            self._logits[is_compiled] = torch.stack(rows)
        return self._logits[is_compiled]

    def _steps(self, cache: WorkingCache) -> Iterator[torch.Tensor]:
        for token_id in self._fed:
            if self._is_cancelled():
                raise StoppedError
            yield self._forward([token_id], cache)


def is_read_by_step(forward: ForwardPass, cache: WorkingCache) -> bool:
    """Whether the compiled step feeds it."""
    return forward.step is not None and forward.step.takes(cache)


@contextmanager
def without_step(forward: ForwardPass) -> Iterator[None]:
    """Feed every token to the model itself."""
    step, forward.step = forward.step, None
    try:
        yield
    finally:
        forward.step = step


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)


def _perplexity(nll: Sequence[float]) -> float:
    return float(torch.tensor(_mean(nll), dtype=torch.float64).exp())
