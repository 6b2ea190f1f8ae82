"""Proof that a kept cache says what a cold prefill says: the next greedy tokens from both, and their noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from engine.generation.prefill import prefill
from engine.kv.chat_key import chat_key
from engine.kv.manager import CacheManager
from engine.kv.working_cache import WorkingCache
from engine.model.loader import LoadedModel
from engine.protocol.commands import Verify
from engine.protocol.errors import EngineError
from engine.protocol.events import Phase, PhaseChanged, Verified

_SINGLE_TOKENS = 64


class NothingKeptError(EngineError):
    """There is no cache to verify."""

    code = "nothing_kept"


class InterruptedVerificationError(EngineError):
    """The user cancelled."""

    code = "cancelled"


@dataclass(frozen=True, slots=True)
class GreedyRun:
    """The next greedy ids and the logits each was chosen from, `[tokens, vocab]` in float32."""

    token_ids: list[int]
    logits: torch.Tensor


def verify(
    command: Verify,
    model: LoadedModel,
    caches: CacheManager,
    chunk: int,
    is_cancelled: Callable[[], bool],
    emit: Callable[[PhaseChanged], None] = lambda event: None,
) -> Verified:
    """Compare `num_tokens` greedy tokens after the history: kept cache against cold prefill of the same ids.

    The noise floor is the largest logit difference between two cold prefills with different chunk sizes, over the same
    greedy tokens; the second one feeds its last tokens one at a time, as a chat that was decoded did.
    Raises NothingKeptError when no token of the history is cached, and EngineError when cancelled.
    """
    ids = model.history.ids(command.messages, add_generation_prompt=False, started_on=command.started_on)
    active = caches.activate(chat_key(command.conversation_id, command.branch), ids, history_tokens=len(ids))
    if active.reused == 0:
        reason = active.miss or "no snapshot was kept"
        raise NothingKeptError(f"Nothing is kept of this conversation ({reason}); send a message first.")
    kept_length = active.reused
    active.cache.checkpoint()
    total = len(ids) - kept_length + 2 * len(ids) + 3 * command.num_tokens
    begun = model.forward.tokens_fed

    def check() -> bool:
        done = min(model.forward.tokens_fed - begun, total)
        emit(PhaseChanged(command.conversation_id, command.request_id, Phase.PREFILL, done, total))
        return is_cancelled()

    kept = _greedy(model, active.cache, ids[kept_length:], command.num_tokens, chunk, check)
    active.cache.rollback(kept_length)
    cold = _greedy(model, model.new_cache(len(ids)), ids, command.num_tokens, chunk, check)
    noise = _noise(model, ids, cold, max(1, min(chunk // 2, len(ids) // 3)), check)
    return compare(command, kept, cold, noise, caches.reading(active.cache).precision)


def compare(command: Verify, kept: GreedyRun, cold: GreedyRun, noise_floor: float, precision: str) -> Verified:
    """Equal: no difference, or a first one whose two best logits lie closer than the noise (a tie)."""
    pairs = zip(kept.token_ids, cold.token_ids, strict=True)
    first = next((index for index, (mine, theirs) in enumerate(pairs) if mine != theirs), None)
    comparable = len(cold.token_ids) if first is None else first + 1
    error = float((kept.logits[:comparable] - cold.logits[:comparable]).abs().max())
    is_tie = first is not None and _margin(cold.logits[first]) <= noise_floor
    return Verified(
        conversation_id=command.conversation_id,
        request_id=command.request_id,
        equal=first is None or is_tie,
        tokens_compared=len(cold.token_ids),
        first_difference=first,
        max_logit_error=error,
        noise_floor=noise_floor,
        precision=precision,
    )


def _greedy(
    model: LoadedModel,
    cache: WorkingCache,
    ids: list[int],
    num_tokens: int,
    chunk: int,
    is_cancelled: Callable[[], bool],
) -> GreedyRun:
    """Feed `ids`, then `num_tokens` greedy steps; end-of-turn ids do not end it."""
    logits = prefill(model.forward, cache, ids, chunk, is_cancelled, lambda done, total: None)
    chosen: list[int] = []
    rows: list[torch.Tensor] = []
    while logits is not None:
        rows.append(logits)
        chosen.append(int(logits.argmax()))
        if len(chosen) == num_tokens:
            return GreedyRun(chosen, torch.stack(rows))
        logits = None if is_cancelled() else model.forward([chosen[-1]], cache)
    raise InterruptedVerificationError("The verification was stopped.")


def _noise(model: LoadedModel, ids: list[int], cold: GreedyRun, chunk: int, is_cancelled: Callable[[], bool]) -> float:
    """Largest logit difference between `cold` and another cold run over the same tokens."""
    cache = model.new_cache(len(ids))
    head = ids[: max(1, len(ids) - _SINGLE_TOKENS)]
    prefill(model.forward, cache, head, chunk, is_cancelled, lambda done, total: None)
    noise = 0.0
    rest = ids[cache.length :]
    logits = prefill(model.forward, cache, rest, 1, is_cancelled, lambda done, total: None)
    for row, token_id in zip(cold.logits, cold.token_ids, strict=True):
        if logits is None or is_cancelled():
            raise InterruptedVerificationError("The verification was stopped.")
        noise = max(noise, float((logits - row).abs().max()))
        logits = model.forward([token_id], cache)
    return noise


def _margin(logits: torch.Tensor) -> float:
    best = torch.topk(logits, 2).values
    return float(best[0] - best[1])
