"""`ember bench fidelity`: what every cache scheme costs, in bytes, in predictions, in facts recalled, in speed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from engine.compression import can_compress, repeat_prompts
from engine.fidelity.divergence import Divergence, Reference, StoppedError
from engine.fidelity.exact import exact_forward
from engine.fidelity.recall import FACTS, Questions, ask, most_asked_tokens, plant
from engine.fidelity.schemes import FULL, SCHEMES, Kept, Scheme, SchemeError, extent_of, put_through
from engine.fidelity.speed import MOST_STEPS, compare_speed
from engine.fidelity.texts import NAMES, Texts
from engine.generation.prefill import prefill
from engine.kv.blocks import BlockPool
from engine.kv.kvzip import CHUNK_TOKENS, LEAST_CHUNK, score
from engine.kv.resident import Resident
from engine.model.forward import ForwardPass, is_out_of_memory
from engine.model.loader import LoadedModel
from engine.protocol.errors import ContextOverflowError, EngineError

_log = logging.getLogger(__name__)
SCORED_TOKENS = 250
_LEAST_CONTEXT = 64
_SHORT_RECALL, _LONG_CONTEXT = 1100, 4000
_LEAST_RECALL = 600  # below it there is hardly a text around the facts
_NOT_PRUNED = "not all layers of this model attend to the whole chat"
_KEYS: tuple[str, ...] = (
    "ratio",
    "ratio_whole",
    "kl",
    "top1",
    "ppl",
    "ppl_delta",
    "recall",
    "recalled",
    "asked",
    "decode_tps",
)
_KEYS += ("decode_ratio", "steady_bytes", "active_bytes", "peak_bytes")


class CannotCompareError(EngineError):
    """Nothing of this can be measured with the loaded model."""

    code = "bench"


def run(
    model: LoadedModel,
    context: int,
    prefill_chunk: int,
    is_cancelled: Callable[[], bool],
    *,
    scored: int = SCORED_TOKENS,
    schemes: tuple[Scheme, ...] = SCHEMES,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, object]:
    """The JSON object of the public contract. What is being done is logged as it goes on (level INFO), and how much.

    Raises ContextOverflowError, CannotCompareError, or StoppedError when cancelled.
    """
    if not model.can_persist:
        raise CannotCompareError(f"{model.info.name}'s cache cannot be copied, so there is nothing to compare.")
    texts = Texts(model.tokenizer)
    most = min(model.info.context_length, texts.num_tokens) - scored - 1
    if not _LEAST_CONTEXT <= context <= most:
        raise ContextOverflowError(
            f"--context must be between {_LEAST_CONTEXT} and {most:,} to measure fidelity with {model.info.name}.",
            prompt_tokens=str(context),
            context_length=str(model.info.context_length),
        )
    return _Fidelity(model, texts, prefill_chunk, is_cancelled, schemes, on_progress).run(context, scored)


@dataclass(slots=True)
class _Findings:
    """About one scheme. `error` tells why it was given up."""

    scheme: Scheme
    error: str = ""
    texts: dict[str, dict[str, float]] = field(default_factory=dict)
    ratios: list[tuple[float, float]] = field(default_factory=list)
    divergence: Divergence = field(default_factory=Divergence)
    recalled: dict[int, list[bool]] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)


class _Fidelity:
    def __init__(
        self,
        model: LoadedModel,
        texts: Texts,
        prefill_chunk: int,
        is_cancelled: Callable[[], bool],
        schemes: tuple[Scheme, ...],
        on_progress: Callable[[int, int], None],
    ) -> None:
        self._on_progress = on_progress
        self._done = self._total = 0
        self._model = model
        self._texts = texts
        self._chunk = prefill_chunk
        self._is_cancelled = is_cancelled
        self._found = [_Findings(scheme) for scheme in schemes]
        self._noise: list[float] = []
        self._exact: ForwardPass | None = None
        for one in self._found:
            if one.scheme.method and not can_compress(model):
                one.error = _NOT_PRUNED

    @torch.inference_mode()
    def run(self, context: int, scored: int) -> dict[str, object]:
        self._exact = exact_forward(self._model)
        lengths = self._recall_lengths()
        self._total = len(self._found) * (len(NAMES) + max(1, len(lengths)))
        self._on_progress(0, self._total)
        for number, name in enumerate(NAMES, start=1):
            self._measure_text(name, context, scored, f"text {number} of {len(NAMES)}, {name}")
        arithmetic = "float32" if self._exact is not None else self._model.info.dtype
        self._exact = None
        long = min(_LONG_CONTEXT, self._model.info.context_length - MOST_STEPS)
        contexts = {length: plant(self._model, length) for length in lengths}
        for length, questions in contexts.items():
            is_last = length == lengths[-1]
            self._measure_recall(length, questions, is_speed_measured=is_last)
        decode_context = len(contexts[lengths[-1]].prefix) if lengths else self._measure_speed(min(long, context))
        return {
            "rows": self._rows(lengths),
            "model": self._model.info.name,
            "context": context,
            "threads": torch.get_num_threads(),
            "scored_tokens": scored,
            "decode_context": decode_context,
            "recall_contexts": [len(one.prefix) for one in contexts.values()],
            "texts": list(NAMES),
            "arithmetic": arithmetic,
            "noise_floor_kl": sum(self._noise) / len(self._noise) if self._noise else None,
        }

    def _recall_lengths(self) -> list[int]:
        """Of the texts in which facts are planted: as long as the model reads."""
        room = self._model.info.context_length - most_asked_tokens(self._model)
        wanted = (min(length, room) for length in (_SHORT_RECALL, _LONG_CONTEXT))
        return sorted({length for length in wanted if length >= _LEAST_RECALL})

    def _measure_text(self, name: str, context: int, scored: int, words: str) -> None:
        ids = self._texts.window(name, context + scored + 1)
        source = self._read(ids[:context], words)
        scores = self._scores(source, words)
        reference = Reference(
            self._model.forward,
            lambda: put_through(FULL, source, None, self._model).cache,
            ids[context:],
            self._is_cancelled,
            self._exact,
        )
        noise = reference.noise()
        if noise is not None:
            self._noise.append(noise)

        def measure(one: _Findings, kept: Kept) -> None:
            found = reference.divergence(kept.cache)
            one.divergence.extend(found)
            one.ratios.append((kept.ratio, kept.ratio_whole))
            one.texts[name] = {"ratio": kept.ratio, "ratio_whole": kept.ratio_whole, **found.figures()}

        self._each(source, scores, words, measure)
        source.give_up()

    def _measure_recall(self, length: int, questions: Questions, *, is_speed_measured: bool) -> None:
        words = f"facts in {len(questions.prefix):,} tokens"
        source = self._read(questions.prefix, words)
        scores = self._scores(source, words)

        def measure(one: _Findings, kept: Kept) -> None:
            one.recalled[length] = ask(self._model, kept.cache, questions, self._is_cancelled)
            if is_speed_measured:
                self._compare_speed(one, kept, source)

        self._each(source, scores, words, measure)
        source.give_up()

    def _measure_speed(self, context: int) -> int:
        """Where a model takes no context that is long enough for facts. Returns how many tokens were cached."""
        source = self._read(self._texts.window(NAMES[0], context), "speed")

        def measure(one: _Findings, kept: Kept) -> None:
            self._compare_speed(one, kept, source)

        self._each(source, self._scores(source, "speed"), "speed", measure)
        source.give_up()
        return context

    def _compare_speed(self, one: _Findings, kept: Kept, source: Resident) -> None:
        full = put_through(FULL, source, None, self._model)
        ids = self._texts.window(NAMES[0], MOST_STEPS)
        speed = compare_speed(self._model.forward, kept.cache, full.cache, ids, self._is_cancelled)
        one.figures |= speed.figures()
        one.figures |= {
            "steady_bytes": kept.steady_bytes,
            "active_bytes": kept.active_bytes,
            "peak_bytes": kept.peak_bytes,
        }

    def _each(
        self,
        source: Resident,
        scores: torch.Tensor | None,
        words: str,
        measure: Callable[[_Findings, Kept], None],
    ) -> None:
        """Put the chat through every scheme that works, and measure it; one that fails is given up."""
        for one in self._found:
            self._done += 1
            if one.error:
                self._on_progress(self._done, self._total)
                continue
            self._check()
            _log.info("%s: %s", words, one.scheme.name)
            try:
                kept = put_through(one.scheme, source, scores, self._model)
                measure(one, kept)
                kept.resident.give_up()
            except (SchemeError, RuntimeError, ValueError) as error:
                if is_out_of_memory(error):
                    raise
                _log.warning("%s does not work with this model: %s", one.scheme.name, error)
                one.error = str(error)
            self._on_progress(self._done, self._total)

    def _read(self, ids: list[int], words: str) -> Resident:
        self._check()
        _log.info("%s: reading %s tokens", words, f"{len(ids):,}")
        source = Resident("fidelity", BlockPool(b"fidelity", self._model.geometry))
        source.is_incognito = True
        source.working = self._model.new_cache(len(ids) + MOST_STEPS)
        fed = prefill(
            self._model.forward, source.working, ids, self._chunk, self._is_cancelled, lambda done, total: None
        )
        if fed is None:
            raise StoppedError
        source.working.checkpoint()
        return source

    def _scores(self, source: Resident, words: str) -> torch.Tensor | None:
        stop = extent_of(source.length).stop
        is_needed = any(one.scheme.needs_scores and not one.error for one in self._found)
        if source.working is None or not stop or not is_needed:
            return None
        prompts = repeat_prompts(self._model)
        room = self._model.info.context_length - source.length - prompts.most_tokens
        if room < LEAST_CHUNK:
            return None
        _log.info("%s: scoring for KVzip", words)
        scores = score(
            self._model.forward,
            source.working,
            prompts,
            stop,
            self._is_cancelled,
            lambda done, total: None,
            min(CHUNK_TOKENS, room),
        )
        if scores is None:
            raise StoppedError
        return scores

    def _check(self) -> None:
        if self._is_cancelled():
            raise StoppedError

    def _rows(self, lengths: list[int]) -> list[dict[str, object]]:
        full = next((one.recalled for one in self._found if one.scheme is FULL), {})
        return [self._row(one, full, lengths) for one in self._found]

    def _row(self, one: _Findings, full: dict[int, list[bool]], lengths: list[int]) -> dict[str, object]:
        row: dict[str, object] = {"scheme": one.scheme.name, **dict.fromkeys(_KEYS)}
        if one.error:
            return row | {"error": one.error}
        row["ratio"], row["ratio_whole"] = (sum(side) / len(side) for side in zip(*one.ratios, strict=True))
        row |= one.divergence.figures() | one.figures
        by_context = []
        for length in lengths:
            known = [is_named for is_named, in_full in zip(one.recalled[length], full[length], strict=True) if in_full]
            by_context.append({"recalled": sum(known), "asked": len(known), "left_out": len(FACTS) - len(known)})
        recalled, asked = (sum(entry[key] for entry in by_context) for key in ("recalled", "asked"))
        row |= {"recalled": recalled, "asked": asked, "recall": recalled / asked if asked else None}
        return row | {"recall_by_context": by_context, "texts": one.texts}
