"""What `Compress` and `Undo` do: make a chat's whole cache, see it saved, and keep only the pairs that matter most.

Inference thread. The cache is brought to be complete and exact first; whatever ends a compression early leaves the
chat with what it had.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from engine.generation.prefill import prefill
from engine.kv.chat_key import chat_key
from engine.kv.kvzip import CHUNK_TOKENS, LEAST_CHUNK, SINK_TOKENS, RepeatPrompts, score, select, streaming_kept
from engine.kv.manager import CacheManager
from engine.kv.resident import Resident, common_prefix
from engine.kv.working_cache import WorkingCache
from engine.model.loader import LoadedModel
from engine.protocol.commands import ChatMessage, Compress, CompressMethod, Role, Undo
from engine.protocol.errors import ContextOverflowError, EngineError
from engine.protocol.events import Compressed, Event, Phase, PhaseChanged

LEAST_TOKENS = 512  # of a chat that is worth it
_RELIEF_SHARES = 0.7, 0.5, 0.3, 0.2  # what memory pressure may leave of a chat
_INT8_PART = 0.6  # of 16 bit, with what is kept whole
LEAST_SHARE, MOST_SHARE = 0.1, 0.9
LEAST_RECENT, MOST_RECENT = 128, 512  # tokens at the end that are kept whole
_RECENT_PART = 16  # they are at most one part of so many, that what is asked for is about what is got
_UNIT_TOKENS = 32  # only whole such pieces are compressed
_FIRST_WORDS = "Repeat the previous context exactly."
_LATER_WORDS = "Repeat the part of the previous context exactly, starting with"
_MARKER = "\ue000"

Emit = Callable[[Event], None]
IsCancelled = Callable[[], bool]
OnProgress = Callable[[int, int], None]


class CannotCompressError(EngineError):
    """This model's caches cannot be pruned."""

    code = "cannot_compress"


class TooShortToCompressError(EngineError):
    """Compressing would free next to nothing. params: tokens, least."""

    code = "too_short_to_compress"


class ShareError(EngineError):
    """The share asked for is out of bounds. params: least, most."""

    code = "compression_share"


class NothingToUndoError(EngineError):
    """The chat is empty."""

    code = "nothing_to_undo"


class InterruptedCompressionError(EngineError):
    """The user cancelled; nothing has changed."""

    code = "cancelled"


@dataclass(frozen=True, slots=True)
class Extent:
    """What of a cache is compressed: the tokens from `head` to `stop`; those before and after are kept whole."""

    head: int
    stop: int

    @classmethod
    def of(cls, num_tokens: int, head: int, last_turn: int) -> Extent:
        """`head` tokens are the system prompt's; the last `last_turn` had better stay, as far as they are few."""
        most = max(LEAST_RECENT, min(MOST_RECENT, num_tokens // _RECENT_PART))
        recent = min(max(LEAST_RECENT, last_turn), most)
        stop = max(0, num_tokens - recent) // _UNIT_TOKENS * _UNIT_TOKENS
        return cls(min(max(head, SINK_TOKENS), stop), stop)


def compress(
    command: Compress,
    model: LoadedModel,
    caches: CacheManager,
    prefill_chunk: int,
    emit: Emit,
    is_cancelled: IsCancelled,
) -> Compressed:
    """Keep the share `command.keep` of the conversation's pairs. Raises EngineError; nothing has changed then."""
    if not LEAST_SHARE <= command.keep <= MOST_SHARE:
        raise ShareError(
            f"A share of {command.keep:.0%} cannot be kept; choose one from {LEAST_SHARE:.0%} to {MOST_SHARE:.0%}.",
            least=f"{LEAST_SHARE:.0%}",
            most=f"{MOST_SHARE:.0%}",
        )
    if not can_compress(model):
        raise CannotCompressError(
            f"The cache of {model.info.name} cannot be compressed, as not all of its layers attend to the whole chat."
        )
    return _Change(command, model, caches, prefill_chunk, emit, is_cancelled).compress(command)


def undo(
    command: Undo, model: LoadedModel, caches: CacheManager, prefill_chunk: int, emit: Emit, is_cancelled: IsCancelled
) -> Compressed:
    """Bring the whole cache back in full precision. Raises EngineError; nothing has changed then."""
    return _Change(command, model, caches, prefill_chunk, emit, is_cancelled).undo()


def can_compress(model: LoadedModel) -> bool:
    """Whether pairs of this model's caches can be left out."""
    return model.can_persist and model.reads_encoded and len(model.geometry.layers) == model.num_layers


def compress_active(
    model: LoadedModel,
    resident: Resident,
    extent: Extent,
    keep: float,
    method: CompressMethod = CompressMethod.KVZIP,
    *,
    is_int8: bool = False,
    is_cancelled: IsCancelled = lambda: False,
    on_progress: OnProgress = lambda done, total: None,
) -> bool:
    """Prune an active cache between two turns; returns False when cancelled, and nothing has changed then.

    It may be encoded up to `extent.stop`, and no save may be reading it. Raises CannotCompressError where the context
    has no room left, ValueError where the cache cannot be pruned, and for numbers that 8 bits do not hold: then, it is
    gone.
    """
    cache = resident.working
    is_whole = cache is not None and not resident.is_pruned and cache.can_crop
    if cache is None or not is_whole or not max(1, cache.hot_start) <= extent.stop <= cache.length:
        raise ValueError("only an active cache that is whole can be pruned")
    protected = torch.arange(extent.stop) < extent.head
    if method is CompressMethod.STREAMING:
        kept = streaming_kept(model.geometry, keep, protected)
    else:
        prompts = repeat_prompts(model)
        room = model.info.context_length - cache.length - prompts.most_tokens
        if room < LEAST_CHUNK:
            raise CannotCompressError(
                f"The chat fills the context of {model.info.name}, which leaves no room to find out what matters in it."
            )
        chunk = min(CHUNK_TOKENS, room)
        scores = score(model.forward, cache, prompts, extent.stop, is_cancelled, on_progress, chunk)
        if scores is None:
            return False
        kept = select(scores, keep, protected)
    if is_cancelled():
        return False
    try:
        resident.prune(str(method), kept, is_int8=is_int8)
    except ValueError:
        resident.give_up()
        raise
    return True


def relieve(
    model: LoadedModel,
    caches: CacheManager,
    resident: Resident,
    messages: Sequence[ChatMessage],
    most_bytes: int,
    is_wanted: IsCancelled,
) -> bool:
    """The ladder's last rung, between two turns: compress the active chat as far as it takes to fit into `most_bytes`.

    Whatever is exact is saved first. Given up when somebody waits; returns whether it was done.
    """
    if not can_compress(model) or resident.is_pruned or resident.length < LEAST_TOKENS or resident.working is None:
        return False
    system = messages[: _num_system(messages)]
    head = 0
    if system:
        with contextlib.suppress(EngineError):
            ids = model.history.ids(system, add_generation_prompt=False)
            head = common_prefix(ids, resident.token_ids)
    extent = Extent.of(resident.length, head, 0)
    full = resident.length * model.geometry.bytes_per_token
    keep = next((share for share in _RELIEF_SHARES if full * share * _INT8_PART <= most_bytes), _RELIEF_SHARES[-1])
    caches.save_now(resident.conversation_id)
    try:
        return compress_active(model, resident, extent, keep, is_int8=True, is_cancelled=is_wanted)
    except (CannotCompressError, ValueError):
        return False


def repeat_prompts(model: LoadedModel) -> RepeatPrompts:
    """The words that have a chat repeated, as a message of the user's, in the model's own tokens."""

    def ids(text: str) -> tuple[int, ...]:
        return tuple(model.tokenizer.encode(text, add_special_tokens=False))

    answer = ""
    with contextlib.suppress(EngineError):
        shown = model.history.template.render(
            [ChatMessage(Role.USER, _MARKER)], add_generation_prompt=True, started_on=None
        )
        answer = shown.partition(_MARKER)[2]
    return RepeatPrompts(ids(_FIRST_WORDS), ids(_LATER_WORDS), ids(answer))


class _Change:
    """One `Compress` or `Undo` on its way."""

    def __init__(
        self,
        command: Compress | Undo,
        model: LoadedModel,
        caches: CacheManager,
        prefill_chunk: int,
        emit: Emit,
        is_cancelled: IsCancelled,
    ) -> None:
        self._command = command
        self._key = chat_key(command.conversation_id, command.branch)
        self._model = model
        self._caches = caches
        self._prefill_chunk = prefill_chunk
        self._emit = emit
        self._is_cancelled = is_cancelled
        self._started = time.perf_counter()
        self._read_tokens = 0

    def compress(self, command: Compress) -> Compressed:
        ids = self._history()
        if len(ids) < LEAST_TOKENS:
            raise TooShortToCompressError(
                f"The chat has {len(ids):,} tokens, too few to compress; it is worth it from {LEAST_TOKENS:,} on.",
                tokens=str(len(ids)),
                least=str(LEAST_TOKENS),
            )
        messages, last = command.messages, _last_question(command.messages)
        head = common_prefix(self._beginning(messages[: _num_system(messages)]), ids)
        last_turn = len(ids) - common_prefix(self._beginning(messages[:last]), ids)
        extent = Extent.of(len(ids), head, last_turn)

        def work() -> None:
            self._caches.save_now(self._key)
            is_done = compress_active(
                self._model,
                self._resident(),
                extent,
                command.keep,
                command.method,
                is_int8=command.is_int8,
                is_cancelled=self._is_cancelled,
                on_progress=self._progress(Phase.COMPRESSING),
            )
            if not is_done:
                raise self._interrupted()

        try:
            return self._over_whole_cache(ids, work)
        except ValueError as error:
            if not command.is_int8:
                raise
            raise CannotCompressError(
                f"The cache holds numbers that cannot be kept in 8 bits ({error}); compress it without that."
            ) from error

    def undo(self) -> Compressed:
        ids = self._history()
        if not self._caches.is_lossy(self._key):
            raise NothingToUndoError("The chat is kept whole, in full precision; there is nothing to undo.")
        self._caches.check_whole(len(ids))
        return self._over_whole_cache(ids, lambda: None)

    def _over_whole_cache(self, ids: list[int], work: Callable[[], None]) -> Compressed:
        """Do `work` on the exact cache of `ids`; if it fails all is as it was."""
        command, caches = self._command, self._caches
        aside = caches.set_aside(self._key)
        bytes_before = aside.own_bytes + aside.shared_bytes if aside is not None else 0
        try:
            cache = self._whole_cache(ids, is_incognito=aside is not None and aside.is_incognito)
            bytes_before = bytes_before or cache.nbytes
            work()
        except BaseException:
            if aside is not None:
                caches.bring_back(aside)
            raise
        if aside is not None:
            aside.give_up()
        caches.settle(self._key)
        return Compressed(
            conversation_id=command.conversation_id,
            request_id=command.request_id,
            tokens=cache.length,
            kept=cache.kept,
            precision=caches.reading(cache).precision,
            bytes_before=bytes_before,
            bytes_after=cache.nbytes,
            seconds=time.perf_counter() - self._started,
            read_tokens=self._read_tokens,
        )

    def _whole_cache(self, ids: list[int], *, is_incognito: bool) -> WorkingCache:
        command, model = self._command, self._model
        if len(ids) >= model.info.context_length:
            raise ContextOverflowError(
                f"The conversation has {len(ids):,} tokens, but {model.info.name} reads at most"
                f" {model.info.context_length:,}; choose a model with a longer context.",
                prompt_tokens=str(len(ids)),
                context_length=str(model.info.context_length),
            )
        self._phase(Phase.RESTORING)
        active = self._caches.activate(
            self._key,
            [*ids, ids[-1]],  # of a prompt the last token is always read, of the chat none has to be
            history_tokens=len(ids),
            is_incognito=is_incognito or command.is_incognito,
            is_exact=True,
            is_cancelled=self._is_cancelled,
        )
        rest = ids[active.reused :]
        if rest:
            before, started = model.forward.tokens_fed, time.perf_counter()
            on_progress = self._progress(Phase.PREFILL)
            prefill(model.forward, active.cache, rest, self._prefill_chunk, self._is_cancelled, on_progress)
            self._read_tokens = model.forward.tokens_fed - before
            self._caches.rates.prefilled(self._read_tokens, time.perf_counter() - started, active.reused)
        if self._is_cancelled():
            raise self._interrupted()
        return active.cache

    def _resident(self) -> Resident:
        """What the activation has left in the manager."""
        return next(one for one in self._caches.residents if one.conversation_id == self._key)

    def _history(self) -> list[int]:
        """What the next prompt will begin with, or, where a reply is still to come, what is there to be answered."""
        command = self._command
        messages, day = command.messages, command.started_on
        if messages and messages[-1].role is Role.ASSISTANT:
            with contextlib.suppress(EngineError):  # a template that takes no further question
                return self._model.history.next_prompt_prefix(messages, started_on=day)
        return self._model.history.ids(messages, add_generation_prompt=False, started_on=day) if messages else []

    def _beginning(self, messages: Sequence[ChatMessage]) -> list[int]:
        with contextlib.suppress(EngineError):
            return self._model.history.next_prompt_prefix(messages, started_on=self._command.started_on)
        return []

    def _progress(self, phase: Phase) -> OnProgress:
        started = time.perf_counter()

        def tell(done: int, total: int) -> None:
            elapsed = time.perf_counter() - started
            self._phase(phase, done, total, elapsed / done * (total - done) if done else None)

        return tell

    def _phase(
        self, phase: Phase, done: int | None = None, total: int | None = None, remaining_s: float | None = None
    ) -> None:
        command = self._command
        self._emit(PhaseChanged(command.conversation_id, command.request_id, phase, done, total, remaining_s))

    def _interrupted(self) -> InterruptedCompressionError:
        return InterruptedCompressionError("Stopped; the chat's cache is as it was.")


def _num_system(messages: Sequence[ChatMessage]) -> int:
    return next((index for index, one in enumerate(messages) if one.role is not Role.SYSTEM), len(messages))


def _last_question(messages: Sequence[ChatMessage]) -> int:
    """The index of the user's last message."""
    return max((index for index, one in enumerate(messages) if one.role is Role.USER), default=0)
