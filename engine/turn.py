"""One reply from the prompt to the last token: activate, prefill, decode, and the events that tell about it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from engine import compaction, context_view
from engine.generation.decode import Decode
from engine.generation.detokenizer import Detokenizer
from engine.generation.prefill import prefill
from engine.generation.sampler import Sampler
from engine.generation.stop_strings import StopStrings
from engine.kv.chat_key import chat_key
from engine.kv.manager import Activation, CacheManager
from engine.kv.resident import common_prefix
from engine.memory import read_memory
from engine.model.loader import LoadedModel
from engine.prompt import Prompt, check_room, make_prompt
from engine.protocol.commands import Generate
from engine.protocol.config import ContextPolicy
from engine.protocol.events import (
    Event,
    Finished,
    FinishReason,
    Phase,
    PhaseChanged,
    StatisticsChanged,
    TextArrived,
    TurnStatistics,
    ViewMoved,
)

_TEXT_INTERVAL_S = 1 / 30
_STATISTICS_INTERVAL_S = 1 / 10
_NOT_COMPRESSED = (
    "This chat's cache cannot be compressed and moved together, so its oldest messages left the model's view instead."
)
_COMPRESSED = (
    "This chat had filled the context of its model, so its memory was thinned out: what matters least was left out."
)

Emit = Callable[[Event], None]
IsCancelled = Callable[[], bool]


@dataclass(slots=True)
class _Reply:
    """The reply so far, and how much of it has been sent."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    sent_text: int = 0
    sent_ids: int = 0


class Turn:
    """Runs one `Generate` command on the inference thread. Raises EngineError; the cache stays consistent."""

    def __init__(
        self,
        command: Generate,
        model: LoadedModel,
        caches: CacheManager,
        prefill_chunk: int,
        load_s: float,
        emit: Emit,
        is_cancelled: IsCancelled,
    ) -> None:
        self._command = command
        self._key = chat_key(command.conversation_id, command.branch)
        self._model = model
        self._caches = caches
        self._prefill_chunk = prefill_chunk
        self._load_s = load_s
        self._emit = emit
        self._is_cancelled = is_cancelled
        self._started = time.perf_counter()
        self._first_token_at: float | None = None
        self._last_token_at = self._started
        self._statistics_at = 0.0
        self._text_at = 0.0
        self._reply = _Reply()
        self._is_compressed = False
        self.prompt: Prompt | None = None

    def run(self) -> Finished:
        """Produce the reply and return its last event (the caller emits it)."""
        command, model = self._command, self._model
        prompt, active = self._begin()
        token_ids = prompt.token_ids
        room = model.info.context_length - (len(token_ids) - active.cache.shift)
        active.cache.checkpoint()
        fed_before = model.forward.tokens_fed
        is_exact = active.cache.is_exact
        prefill_started = time.perf_counter()
        logits = prefill(
            model.forward,
            active.cache,
            token_ids[active.reused :],
            self._prefill_chunk,
            self._is_cancelled,
            lambda done, total: self._prefill_progress(active, prefill_started, done, total),
            checkpoint_at=self._reply_start(prompt) if not active.cache.can_crop else None,
        )
        prefilled = model.forward.tokens_fed - fed_before
        prefill_s = time.perf_counter() - prefill_started
        self._caches.rates.prefilled(prefilled, prefill_s, active.reused, is_exact=is_exact)
        decode = Decode(
            model.forward,
            active.cache,
            Sampler(command.sampling, token_ids, model.device),
            model.stop_ids,
            min(command.max_new_tokens, room),
            self._is_cancelled,
        )
        ids_match_text = True
        if logits is not None:
            ids_match_text = self._decode(decode, active, logits, prompt.open_ids or ())
        self._flush_text()
        self._send_statistics(active, time.perf_counter())
        if self._ttft_s is not None and not self._is_compressed:
            self._caches.rates.begun(self._ttft_s - active.restore_s - prefill_s)
        self._caches.rates.decoded(self._decode_tps)
        return Finished(
            conversation_id=command.conversation_id,
            request_id=command.request_id,
            text=self._reply.text,
            token_ids=tuple(self._reply.token_ids),
            ids_match_text=ids_match_text,
            finish_reason=decode.finish_reason,
            statistics=TurnStatistics(
                prompt_tokens=len(token_ids),
                reused_tokens=active.reused,
                prefilled_tokens=prefilled,
                new_tokens=len(self._reply.token_ids),
                miss_reason=str(active.miss) if active.miss else None,
                load_s=self._load_s,
                restore_s=active.restore_s,
                ttft_s=self._ttft_s,
                prefill_tps=prefilled / prefill_s if prefilled else None,
                decode_tps=self._decode_tps,
                cache=self._caches.reading(active.cache),
                miss_code=active.miss.code.value if active.miss else None,
                miss_params=active.miss.params if active.miss else {},
                drafted_tokens=decode.drafted_tokens,
                accepted_tokens=decode.accepted_tokens,
            ),
            notes=self._notes(prompt),
        )

    def _begin(self) -> tuple[Prompt, Activation]:
        """What is read, and the cache that it fits."""
        command, model = self._command, self._model
        prompt = self.prompt = make_prompt(model, command, self._caches)
        if prompt.outlook is not None:
            active = self._activate(prompt)
            if self._is_made_to_fit(prompt, active):
                return prompt, active
            prompt = self.prompt = make_prompt(model, command)
        check_room(model, prompt)
        if prompt.num_dropped:
            conversation_id, request_id = command.conversation_id, command.request_id
            self._emit(ViewMoved(conversation_id, request_id, prompt.num_dropped, len(prompt.token_ids)))
        return prompt, self._activate(prompt)

    def _activate(self, prompt: Prompt) -> Activation:
        self._caches.check_growth(self._key, len(prompt.token_ids))
        self._phase(Phase.RESTORING)
        return self._caches.activate(
            self._key,
            prompt.token_ids,
            history_tokens=prompt.history_tokens,
            is_incognito=self._command.is_incognito,
            is_cancelled=self._is_cancelled,
        )

    def _is_made_to_fit(self, prompt: Prompt, active: Activation) -> bool:
        """Whether the prompt and a reply fit the context, or nobody waits for them any more; the cache is compressed
        for it where it has to be. Not where a snapshot turned out to be damaged."""
        context_length, num_tokens = self._model.info.context_length, len(prompt.token_ids)
        reserve = context_view.reserve(self._command.max_new_tokens, context_length)
        if context_length - (num_tokens - active.cache.shift) >= reserve:
            return True
        resident = self._caches.resident(self._key)
        if resident is not None and resident.working is active.cache:
            started = time.perf_counter()

            def tell(done: int, total: int) -> None:
                elapsed = time.perf_counter() - started
                self._phase(Phase.COMPRESSING, done, total, elapsed / done * (total - done) if done else None)

            self._is_compressed = compaction.move_together(
                self._model,
                self._caches,
                resident,
                prompt.messages,
                prompt.token_ids,
                reserve,
                self._is_cancelled,
                tell,
            )
        return self._is_compressed or self._is_cancelled()

    def _notes(self, prompt: Prompt) -> tuple[str, ...]:
        if self._is_compressed:
            return (_COMPRESSED,)
        is_instead = prompt.num_dropped > 0 and self._command.on_overflow is ContextPolicy.COMPRESS
        return (_NOT_COMPRESSED,) if is_instead else ()

    def _reply_start(self, prompt: Prompt) -> int:
        """Where the prompt begins to ask for a reply: a regenerated reply starts from there."""
        ids, day = prompt.token_ids, self._command.started_on
        asked = prompt.messages[:-1] if prompt.open_ids is not None else prompt.messages
        shown = self._model.history.ids(asked, add_generation_prompt=False, started_on=day)
        return min(common_prefix(shown, ids), len(ids) - 1)

    def _decode(self, decode: Decode, active: Activation, logits: torch.Tensor, open_ids: Sequence[int]) -> bool:
        """Run the loop; returns whether the reply's ids are exactly its text. `open_ids`: what it continues."""
        detokenizer = Detokenizer(self._model.tokenizer)
        detokenizer.resume(open_ids)
        stops = StopStrings((*self._command.stop, *self._model.history.template.stop_strings))
        reply = self._reply
        for token_id in decode.run(logits):
            now = time.perf_counter()
            if self._first_token_at is None:
                self._first_token_at = now
                self._phase(Phase.ANSWERING)
            self._last_token_at = now
            reply.token_ids.append(token_id)
            shown, is_stopped = stops.add(detokenizer.add(token_id))
            reply.text += shown
            if is_stopped:
                decode.finish_reason = FinishReason.STOP
                return False
            if now - self._text_at >= _TEXT_INTERVAL_S:
                self._flush_text()
                self._text_at = now
            if now - self._statistics_at >= _STATISTICS_INTERVAL_S:
                self._caches.keep_within_budget(self._key)
                self._send_statistics(active, now)
        shown, is_stopped = stops.add(detokenizer.flush())
        reply.text += shown + stops.flush()
        return not is_stopped

    def _prefill_progress(self, active: Activation, started: float, done: int, total: int) -> None:
        self._caches.keep_within_budget(self._key)
        elapsed = time.perf_counter() - started
        remaining_s = elapsed / done * (total - done) if done else None
        self._phase(Phase.PREFILL, done, total, remaining_s)
        self._send_statistics(active, time.perf_counter())

    def _phase(
        self, phase: Phase, done: int | None = None, total: int | None = None, remaining_s: float | None = None
    ) -> None:
        command = self._command
        self._emit(PhaseChanged(command.conversation_id, command.request_id, phase, done, total, remaining_s))

    def _flush_text(self) -> None:
        reply = self._reply
        if reply.sent_text == len(reply.text) and reply.sent_ids == len(reply.token_ids):
            return
        self._emit(
            TextArrived(
                self._command.conversation_id,
                self._command.request_id,
                reply.text[reply.sent_text :],
                tuple(reply.token_ids[reply.sent_ids :]),
            )
        )
        reply.sent_text, reply.sent_ids = len(reply.text), len(reply.token_ids)

    def _send_statistics(self, active: Activation, now: float) -> None:
        self._statistics_at = now
        self._emit(
            StatisticsChanged(
                conversation_id=self._command.conversation_id,
                request_id=self._command.request_id,
                context_tokens=active.cache.length - active.cache.shift,
                context_length=self._model.info.context_length,
                cache=self._caches.reading(active.cache),
                all_caches_bytes=self._caches.memory_bytes,
                memory=read_memory(self._model.device.type),
                ttft_s=self._ttft_s,
                decode_tps=self._decode_tps,
            )
        )

    @property
    def _ttft_s(self) -> float | None:
        return None if self._first_token_at is None else self._first_token_at - self._started

    @property
    def _decode_tps(self) -> float | None:
        count = len(self._reply.token_ids)
        if self._first_token_at is None or count < 2:
            return None
        return (count - 1) / (self._last_token_at - self._first_token_at)
