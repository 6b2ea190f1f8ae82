"""What every experiment works with: the loaded model, texts, progress, and the wish to stop.

Inference thread. An experiment makes caches of its own and leaves everything else as it was.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import PreTrainedTokenizerBase

from engine.fidelity.divergence import StoppedError
from engine.fidelity.texts import ENGLISH, read_text
from engine.generation.prefill import prefill
from engine.kv.transfer import synchronize
from engine.kv.working_cache import WorkingCache
from engine.model.forward import ForwardPass
from engine.model.loader import LoadedModel
from engine.protocol.config import EngineConfig
from engine.protocol.errors import ContextOverflowError, EngineError

_LEAST_STEPS, _MOST_S = 3, 2.5  # of decoding for one number
SCRATCH = "bench-"  # begins the names of the folders that experiments write to, within that of the caches
Row = dict[str, object]
Tell = Callable[[int, int, Row | None], None]
Why = Literal["no_cache", "no_keys", "not_copied", "windowed", "uneven_heads", "short_context", "scoring_room"]


class CannotMeasureError(EngineError):
    """The loaded model has not what this experiment is about. params: model, why (a `Why`), context_length, tokens."""

    code = "cannot_measure"

    def __init__(self, message: str, model: str, why: Why, **params: str) -> None:
        super().__init__(message, model=model, why=why, **params)


class NoScratchError(EngineError):
    """The folder in which an experiment keeps files for a moment cannot be written. params: path, reason."""

    code = "no_scratch"


class Lab:
    """One experiment's surroundings. `tell(done, total, row)` is called after every step."""

    def __init__(self, model: LoadedModel, config: EngineConfig, is_cancelled: Callable[[], bool], tell: Tell) -> None:
        self.model = model
        self.config = config
        self.is_cancelled = is_cancelled
        self._tell = tell
        self._done = self._total = 0
        self._text: list[int] = []

    def plan(self, num_steps: int) -> None:
        """So many calls of `step` will come."""
        self._done, self._total = 0, num_steps
        self._tell(0, num_steps, None)

    def step(self, row: Row | None = None) -> None:
        self._done = min(self._done + 1, self._total)
        self._tell(self._done, self._total, None if row is None else finite(row))

    def progress(self, done: int, total: int) -> None:
        """For what counts its steps by itself."""
        self._tell(done, total, None)

    def check(self) -> None:
        """Raises StoppedError when the user has cancelled."""
        if self.is_cancelled():
            raise StoppedError

    def length(self, context: int | None, usual: int, *, least: int, room: int) -> int:
        """How many tokens to measure at: `usual` where none are asked for, as far as the model reads so many and `room`
        more. Raises ContextOverflowError, CannotMeasureError.
        """
        info = self.model.info
        most = info.context_length - room
        if most < least:
            raise CannotMeasureError(
                f"{info.name} reads {info.context_length:,} tokens, too few for this experiment; choose another model.",
                info.name,
                "short_context",
                context_length=str(info.context_length),
            )
        if context is None:
            return min(usual, most)
        if not least <= context <= most:
            raise ContextOverflowError(
                f"--context must be between {least:,} and {most:,} for {info.name}.",
                prompt_tokens=str(context),
                context_length=str(info.context_length),
                least=str(least),
                most=str(most),
            )
        return context

    def facts(self) -> dict[str, object]:
        """What every number of an experiment depends on."""
        info = self.model.info
        return {"dtype": info.dtype, "device": info.device, "threads": torch.get_num_threads()}

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A folder beside the chats' own, gone afterwards. Raises NoScratchError."""
        parent = self.config.kv_dir
        try:
            parent.mkdir(parents=True, exist_ok=True)
            folder = tempfile.TemporaryDirectory(prefix=SCRATCH, dir=parent, ignore_cleanup_errors=True)
        except OSError as error:
            reason = error.strerror or str(error)
            raise NoScratchError(
                f"Ember cannot write to {parent} ({reason}), which this measurement needs; free some space, or make the"
                " folder writable.",
                path=str(parent),
                reason=reason,
            ) from error
        with folder as name:
            yield Path(name)

    def ids(self, count: int, skip: int = 0) -> list[int]:
        """`count` tokens of shipped texts, again from the beginning where they end, after the first `skip` ones."""
        if not self._text:
            self._text = english_ids(self.model.tokenizer)
        text = self._text
        whole = text * ((skip + count) // len(text) + 1)
        return whole[skip : skip + count]

    def read(self, ids: list[int], cache: WorkingCache, checkpoint_at: int | None = None) -> torch.Tensor:
        """Feed `ids` (at least one) as a chat would be; the logits after the last one. Raises StoppedError."""
        return self.read_with(self.model.forward, ids, cache, checkpoint_at)

    def read_with(
        self, forward: ForwardPass, ids: list[int], cache: WorkingCache, checkpoint_at: int | None = None
    ) -> torch.Tensor:
        """The same with another model's forward pass."""
        chunk = self.config.prefill_chunk
        logits = prefill(forward, cache, ids, chunk, self.is_cancelled, lambda done, total: None, checkpoint_at)
        if logits is None:
            raise StoppedError
        return logits

    def timed(self, action: Callable[[], object]) -> float:
        """Seconds of one call, the device's work included. Raises StoppedError before it."""
        self.check()
        synchronize(self.model.device)
        started = time.perf_counter()
        action()
        synchronize(self.model.device)
        return time.perf_counter() - started

    def decode_s(self, cache: WorkingCache, ids: Sequence[int]) -> list[float]:
        """Seconds a token, feeding `ids` one by one; fewer of them where they take long. Raises StoppedError."""
        return self.decode_with(self.model.forward, cache, ids)

    def decode_with(self, forward: ForwardPass, cache: WorkingCache, ids: Sequence[int]) -> list[float]:
        """The same with another model's forward pass."""
        times: list[float] = []
        for token_id in ids:
            times.append(self.timed(partial(forward, [token_id], cache)))
            if len(times) >= _LEAST_STEPS and sum(times) > _MOST_S:
                break
        return times

    def need_keys(self) -> None:
        """Raises CannotMeasureError for a model that keeps no keys and values of all tokens."""
        if not self.model.geometry.layers:
            raise CannotMeasureError(
                f"No layer of {self.model.info.name} keeps keys and values of all tokens; choose another model.",
                self.model.info.name,
                "no_keys",
            )

    def need_crop(self) -> None:
        """Raises CannotMeasureError for a model whose cache cannot be copied and cut."""
        self.need_keys()
        if not self.model.can_persist:
            raise CannotMeasureError(
                f"{self.model.info.name}'s cache cannot be copied; choose another model.",
                self.model.info.name,
                "not_copied",
            )


def english_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The shipped English texts in a row, with the token that a tokenizer puts before a text, if it does."""
    first: list[int] = [one for one in tokenizer.encode("")[:1] if one == tokenizer.bos_token_id]
    text: list[int] = tokenizer.encode("\n".join(map(read_text, ENGLISH)), add_special_tokens=False)
    return first + text


def finite(value: Any) -> Any:
    """The same with None for every number that is none: a value that is not there is never shown as NaN or infinity."""
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def per_second(count: float, seconds: float) -> float | None:
    return count / seconds if seconds > 0 else None
