"""One forward pass of the model over a cache: the only place where tokens are fed, so where they are counted."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from transformers import PreTrainedModel

from engine.kv import attention
from engine.kv.transfer import synchronize
from engine.kv.working_cache import WorkingCache

# torch's for the host on Linux, macOS and Windows; the driver's; and those of the libraries that allocate by themselves
_OUT_OF_MEMORY_WORDS = (
    "can't allocate memory",
    "not enough memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


class Step(Protocol):
    """Feeds a few tokens in place of the model (`engine.model.lean`, `engine.model.torch_step`)."""

    def max_fed(self, length: int) -> int:
        """How many tokens may be fed at once after `length` cached ones."""

    def takes(self, cache: WorkingCache) -> bool:
        """Whether it can read this cache."""

    def feed(self, token_ids: Sequence[int], cache: WorkingCache, num_logits: int = 1) -> torch.Tensor:
        """Logits after the last `num_logits` ids, `[num_logits, vocab]` float32: valid until the next call.

        The keys and values are in the cache then; the caller records the ids.
        """

    def close(self) -> None:
        """End its threads, free its memory."""


class ForwardPass:
    """Feeds token ids to the model on top of a cache. `tokens_fed` counts them since the program started.

    `takes_chunks`: False for models that forget their recurrent state when several tokens follow earlier ones; they get
    such tokens one at a time. `on_out_of_memory` frees memory and says whether the pass is worth another try.
    `multi_token_is_exact`: feeding a few tokens at once (up to `engine.generation.speculation.MOST_FED`) gives the very
    logits, bit for bit, of feeding them one by one. `step` takes the place of the model for a few tokens: up to
    `step_tokens`, where several steps are still quicker than one pass.
    """

    def __init__(self, model: PreTrainedModel, device: torch.device) -> None:
        self.tokens_fed = 0
        self.takes_chunks = True
        self.step: Step | None = None
        self.step_tokens = 32
        self.multi_token_is_exact = False
        self.on_out_of_memory: Callable[[], bool] = lambda: False
        self._model = model
        self._device = device
        parameters = inspect.signature(model.forward).parameters
        self._keeps_logits = "logits_to_keep" in parameters
        self._takes_positions = "position_ids" in parameters

    @property
    def model(self) -> PreTrainedModel:
        """What runs where the step does not."""
        return self._model

    @torch.inference_mode()
    def __call__(self, token_ids: Sequence[int], cache: WorkingCache) -> torch.Tensor:
        """Feed `token_ids` (at least one) and return the logits after the last of them, `[vocab]` in float32.

        The cache is extended by the ids; on any exception it is back to where it was, or at its last checkpoint if it
        cannot be cropped. A pass that ran out of memory is tried once more.
        """
        ids = list(token_ids)
        if not self.takes_chunks and cache.length:
            for token_id in ids[:-1]:
                self._run_twice(self._feed, [token_id], cache)
            ids = ids[-1:]
        return self._run_twice(self._feed, ids, cache)

    @torch.inference_mode()
    def all_logits(self, token_ids: Sequence[int], cache: WorkingCache) -> torch.Tensor:
        """Feed `token_ids` (at least one) and return the logits after each of them, `[tokens, vocab]` in float32.

        Otherwise like a call; only for models that take chunks.
        """
        return self._run_twice(self._feed_all, list(token_ids), cache)

    def _run_twice(
        self, feed: Callable[[list[int], WorkingCache], torch.Tensor], ids: list[int], cache: WorkingCache
    ) -> torch.Tensor:
        before = cache.length
        try:
            return feed(ids, cache)
        except (torch.OutOfMemoryError, RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error) or cache.length != before or not self.on_out_of_memory():
                raise
        return feed(ids, cache)

    def _feed(self, ids: list[int], cache: WorkingCache) -> torch.Tensor:
        return self._run(ids, cache, 1)[0]

    def _feed_all(self, ids: list[int], cache: WorkingCache) -> torch.Tensor:
        return self._run(ids, cache, len(ids))

    def _run(self, ids: list[int], cache: WorkingCache, num_logits: int) -> torch.Tensor:
        """Returns the logits after the last `num_logits` ids, `[num_logits, vocab]`."""
        before = cache.length
        try:
            if self.step is not None and len(ids) <= self.step_tokens and self.step.takes(cache):
                return self._step_by_step(self.step, ids, cache, num_logits)
            input_ids = torch.tensor([ids], dtype=torch.long, device=self._device)
            extra: dict[str, object] = {"logits_to_keep": num_logits} if self._keeps_logits else {}
            if self._takes_positions:
                first = before - cache.shift
                extra["position_ids"] = torch.arange(first, first + len(ids), device=self._device)[None]
            output = self._model(input_ids=input_ids, cache=cache, use_cache=True, **extra)
            logits: torch.Tensor = output.logits[0, -num_logits:].float()
            synchronize(self._device)  # errors show here, cancelling acts at once, and times are true
        except BaseException:
            cache.rollback(before, is_torn=True)
            raise
        finally:
            attention.announce(0, None)  # nothing else is to read this cache's cold part, nor to keep it in memory
        self.tokens_fed += len(ids)
        cache.append_ids(ids)
        return logits

    def _step_by_step(self, step: Step, ids: list[int], cache: WorkingCache, num_logits: int) -> torch.Tensor:
        rows = []
        first_row = len(ids) - num_logits
        for start in range(0, len(ids), most := step.max_fed(cache.length + len(ids))):
            piece = ids[start : start + most]
            wanted = min(len(piece), max(0, start + len(piece) - first_row))
            logits = step.feed(piece, cache, wanted)
            rows.append(_copied(logits))  # the next pass writes there
            cache.append_ids(piece)
        self.tokens_fed += len(ids)
        return rows[0] if len(rows) == 1 else torch.cat(rows)


def _copied(logits: torch.Tensor) -> torch.Tensor:
    """On the CPU by NumPy: torch's clone is threaded."""
    return torch.from_numpy(logits.numpy().copy()) if logits.device.type == "cpu" else logits.clone()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether torch could not get memory, on a device or on the host."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in _OUT_OF_MEMORY_WORDS)
    )
