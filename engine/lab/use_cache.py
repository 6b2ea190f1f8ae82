"""`ember bench use-cache`: the same model with its cache and without, token for token.

Like for like: the model's own pass both times, in its own precision; of several times the shortest, as other programs
can only add to it. How fast replies really are, with the compiled step, stands beside it. That both ways say the same
is proved in float32, where rounding decides no token.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from engine.fidelity.divergence import is_read_by_step, without_step
from engine.fidelity.exact import exact_forward
from engine.kv.working_cache import WorkingCache
from engine.lab.fit import fit_line
from engine.lab.lab import CannotMeasureError, Lab, Row, per_second
from engine.lab.without_cache import WithoutCache
from engine.model.forward import ForwardPass
from engine.model.loader import stock_layers

USUAL = 1024
_LEAST = 16
_PARTS = (1 / 8, 1 / 4, 1 / 2, 3 / 4, 1)  # of the context, where it is measured
_CACHED_TOKENS = 12  # timed at each length, for each way of decoding, after one that is not counted
_BARE_TOKENS, _BARE_S = 3, 3.0  # without a cache as many, but no further one after so many seconds
_ROOM = 2 * (_CACHED_TOKENS + 1) * len(_PARTS) + 1
_COMPARED_PROMPT, _COMPARED_TOKENS = 96, 16


@dataclass(frozen=True, slots=True)
class _Same:
    """Whether both ways chose the same tokens; `max_logit_error` over those before the first difference."""

    equal: bool
    tokens_compared: int
    first_difference: int | None
    max_logit_error: float
    arithmetic: str


def use_cache(lab: Lab, context: int | None) -> dict[str, object]:
    """Raises ContextOverflowError, CannotMeasureError, StoppedError."""
    if not lab.model.can_persist:
        raise CannotMeasureError(
            f"{lab.model.info.name} keeps no cache that Ember knows; choose another model.",
            lab.model.info.name,
            "no_cache",
        )
    context = lab.length(context, USUAL, least=_LEAST, room=_ROOM)
    lengths = sorted({max(1, round(part * context)) for part in _PARTS})
    model = lab.model
    lab.plan(len(lengths) + 3)
    bare = WithoutCache(model.forward.model, model.device)
    bare(lab.ids(lengths[0]))  # whatever is made at the first pass
    lab.step()
    cache = model.new_cache(context + _ROOM)
    rows: list[Row] = []
    for length in lengths:
        if cache.length >= length:  # lengths closer together than what is decoded at each
            cache = model.new_cache(context + _ROOM)
        rows.append(_measure(lab, bare, cache, length))
        lab.step(rows[-1])
    first = _first_token_s(lab, bare, context)
    lab.step()
    same = _compare(lab, min(_COMPARED_PROMPT, context))
    lab.step()
    return {
        "context": context,
        "rows": rows,
        "table": _differences(rows[-1], first),
        "fits": _fits(rows),
        "factor": rows[-1]["factor"],
        "factor_as_replies_run": rows[-1]["factor_as_replies_run"],
        "same_tokens": dataclasses.asdict(same),
        **lab.facts(),
    }


def _measure(lab: Lab, bare: WithoutCache, cache: WorkingCache, length: int) -> Row:
    """One length. The cache goes on from where the last one ended: all kinds of layers can do that."""
    model = lab.model
    lab.read(lab.ids(length - cache.length, cache.length), cache)
    kv_bytes = cache.nbytes
    fed = lab.ids(2 * (_CACHED_TOKENS + 1), length)
    with without_step(model.forward):
        own = min(lab.decode_s(cache, fed[: _CACHED_TOKENS + 1])[1:])
    step = None
    if is_read_by_step(model.forward, cache):
        step = min(lab.decode_s(cache, fed[_CACHED_TOKENS + 1 :])[1:])
    times: list[float] = []
    while len(times) < _BARE_TOKENS and sum(times) < _BARE_S:
        ids = lab.ids(length + 1 + len(times))
        times.append(lab.timed(partial(bare, ids)))
    without = min(times)
    return {
        "length": length,
        "without_ms": without * 1e3,
        "with_ms": own * 1e3,
        "as_replies_run_ms": None if step is None else step * 1e3,
        "factor": without / own,
        "factor_as_replies_run": None if step is None else without / step,
        "without_tps": per_second(1, without),
        "with_tps": per_second(1, own),
        "without_fed": length + 1,
        "with_fed": 1,
        "kv_bytes": kv_bytes,
    }


def _first_token_s(lab: Lab, bare: WithoutCache, context: int) -> tuple[float, float]:
    """Seconds until the first token of a reply to so many: without a cache, and with one."""
    ids = lab.ids(context)
    without = lab.timed(lambda: bare(ids))
    return without, lab.timed(lambda: lab.read(ids, lab.model.new_cache(context)))


def _differences(row: Row, first_token_s: tuple[float, float]) -> list[Row]:
    """What the articles compare, with numbers measured here, at the longest length."""
    length = row["length"]
    assert isinstance(length, int)

    def entry(what: str, unit: str, without: object, with_: object) -> Row:
        return {"what": what, "unit": unit, "without": without, "with": with_}

    return [
        entry("work_per_token", "tokens fed", row["without_fed"], row["with_fed"]),
        entry(
            "scores_per_token", "products of a query and a key, a head", (length + 1) * (length + 2) // 2, length + 1
        ),
        entry("first_token", "s", *first_token_s),
        entry("time_per_token", "ms", row["without_ms"], row["with_ms"]),
        entry("throughput", "tokens/s", row["without_tps"], row["with_tps"]),
        entry("memory_kept", "bytes", 0, row["kv_bytes"]),
    ]


def _fits(rows: list[Row]) -> dict[str, object]:
    """Straight lines, ms over tokens, of each way."""

    def line(name: str) -> object:
        points = [(float(str(row["length"])), row[name]) for row in rows]
        known = [(x, y) for x, y in points if isinstance(y, float)]
        found = fit_line([x for x, _ in known], [y for _, y in known])
        return None if found is None else found.figures()

    return {"without": line("without_ms"), "with": line("with_ms"), "as_replies_run": line("as_replies_run_ms")}


def _compare(lab: Lab, prompt_tokens: int) -> _Same:
    """The next greedy tokens both ways: in float32 where the model can be had so, else in its own precision."""
    model = lab.model
    exact = exact_forward(model)
    forward = exact or model.forward
    ids = lab.ids(prompt_tokens)
    geometry = dataclasses.replace(model.geometry, dtype=torch.float32) if exact is not None else model.geometry
    stock = stock_layers(model.config, model.num_layers)
    cache = WorkingCache(geometry, stock, model.info.context_length, model.device, prompt_tokens + _COMPARED_TOKENS)
    with without_step(forward):
        kept = _greedy(lab, _Cached(forward, cache), ids)
        bare = _greedy(lab, WithoutCache(forward.model, model.device), ids)
    pairs = zip(kept[0], bare[0], strict=True)
    first = next((index for index, (mine, theirs) in enumerate(pairs) if mine != theirs), None)
    comparable = len(ids) if first is None else first + 1
    error = max(
        float((mine - theirs).abs().max()) for mine, theirs in list(zip(kept[1], bare[1], strict=True))[:comparable]
    )
    arithmetic = "float32" if exact is not None else model.info.dtype
    return _Same(first is None, len(kept[0]), first, error, arithmetic)


class _Cached:
    """Feeds only what a cache does not hold."""

    def __init__(self, forward: ForwardPass, cache: WorkingCache) -> None:
        self._forward = forward
        self._cache = cache

    def __call__(self, token_ids: list[int]) -> torch.Tensor:
        return self._forward(token_ids[self._cache.length :], self._cache)


def _greedy(
    lab: Lab, forward: Callable[[list[int]], torch.Tensor], ids: list[int]
) -> tuple[list[int], list[torch.Tensor]]:
    """The next ids, and the logits each was chosen from."""
    sequence, chosen, rows = list(ids), [], []
    for _ in range(_COMPARED_TOKENS):
        lab.check()
        rows.append(forward(sequence))
        chosen.append(int(rows[-1].argmax()))
        sequence.append(chosen[-1])
    return chosen, rows
