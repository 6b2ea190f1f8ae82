"""The calculator's answer: a sentence, tables and a plot."""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import QCoreApplication

from app.cache_fit import Fits
from app.cache_shape import CacheShape, HeadKind, LayerKind
from app.cache_size import CacheBytes, HeadsChoice, LayerBytes, Precision, cache_bytes
from ui.lab.calculator_form import precision_name
from ui.lab.figures import binary_size, bytes_exact, percent, times, tokens
from ui.lab.plot_data import Plot, PlotKind, Series
from ui.lab.view import Table, count
from ui.memory.precision_words import kind_of
from ui.numbers import DASH

_GIB = 2**30


def _tr(source: str) -> str:
    return QCoreApplication.translate("Calculator", source)


@dataclass(frozen=True, slots=True)
class Answer:
    """All that was computed of one question."""

    shape: CacheShape
    asked: CacheBytes
    fits: Fits
    heads: tuple[HeadsChoice, ...]

    def every_precision(self) -> list[CacheBytes]:
        return [cache_bytes(self.shape, self.asked.tokens, one, self.asked.batch) for one in Precision]


def total_words(answer: Answer) -> str:
    asked = answer.asked
    words = _tr("{total} for {chats} chats of {tokens}") if asked.batch > 1 else _tr("{total} for {tokens}")
    return words.format(total=binary_size(asked.total_bytes), tokens=tokens(asked.tokens), chats=count(asked.batch))


def detail_words(answer: Answer) -> str:
    asked, shape = answer.asked, answer.shape
    words = _tr("{bytes} a token on average") if asked.is_average else _tr("{bytes} a token")
    parts = [
        words.format(bytes=bytes_exact(asked.bytes_per_token)),
        _tr("{bytes} in all").format(bytes=bytes_exact(asked.total_bytes)),
    ]
    if asked.further_bytes_per_token != asked.bytes_per_token:
        words = _tr("{bytes} for a further token once the windows are full")
        parts.append(words.format(bytes=bytes_exact(asked.further_bytes_per_token)))
    text = " · ".join(parts)
    if kind := heads_words(shape):
        text += "\n" + kind
    if asked.has_untold_state:
        text += "\n" + _tr("The state of the recurrent layers is not counted: the model does not tell its size.")
    return text


def heads_words(shape: CacheShape) -> str:
    """How the heads share, in a sentence; "" where it cannot be told."""
    if shape.kind is None or shape.first is None:
        return ""
    heads, kv_heads = shape.heads, shape.first.kv_heads
    match shape.kind:
        case HeadKind.MHA:
            return _tr("MHA: each of the {heads} query heads keeps keys and values of its own.").format(
                heads=count(kv_heads)
            )
        case HeadKind.GQA:
            words = _tr("GQA: {heads} query heads share {kv_heads} KV heads, {group} to one.")
            group = heads // kv_heads if heads else None
            return words.format(heads=count(heads), kv_heads=count(kv_heads), group=count(group))
        case HeadKind.MQA:
            return _tr("MQA: all query heads share one KV head.")
        case HeadKind.MLA:
            return _tr("MLA: all heads read one compressed vector a token.")


def fits_words(fits: Fits) -> str:
    words = _tr("{free} of {total} are free on this machine.")
    text = words.format(free=binary_size(fits.memory.free_bytes), total=binary_size(fits.memory.total_bytes))
    taken = fits.memory.free_bytes - fits.room_bytes
    if taken and fits.weights_bytes:
        words = _tr("{weights} of that are for the weights in 16 bit.")
        return f"{text} {words.format(weights=binary_size(fits.weights_bytes))}"
    if fits.weights_bytes is None:
        return f"{text} {_tr('The weights are not taken off.')}"
    return text


def tables(answer: Answer) -> tuple[Table, ...]:
    found = [_precisions(answer)]
    if len(answer.asked.layers) > 1 or answer.asked.layers[0].group.kind is not LayerKind.FULL:
        found.append(_layers(answer.asked))
    if answer.heads:
        found.append(_heads(answer))
    return tuple(found)


def plot(answer: Answer) -> Plot:
    every = answer.every_precision()
    largest = max(one.total_bytes for one in every)
    unit, scale = ("GiB", _GIB) if largest >= _GIB else ("MiB", 2**20)
    title = _tr("Size by precision")
    values = tuple(one.total_bytes / scale for one in every)
    colours = tuple("on_disk" if one is Precision.FLOAT32 else kind_of(str(one)) for one in Precision)
    places = tuple(precision_name(one) for one in Precision)
    return Plot(title, unit, PlotKind.BARS, places, (Series(title, colours, values),))


def _precisions(answer: Answer) -> Table:
    heads = (_tr("Precision"), _tr("A token"), _tr("In all"), _tr("Of 16 bit"), _tr("Fits here, tokens a chat"))
    every = answer.every_precision()
    whole = next(one.total_bytes for one in every if one.precision is Precision.BITS_16)
    rows = tuple(
        (
            precision_name(one.precision),
            ("≈ " if one.is_average else "") + bytes_exact(one.bytes_per_token),
            binary_size(one.total_bytes),
            percent(one.total_bytes / whole) if whole else DASH,
            _fit_words(fit.tokens, fit.is_whole_context),
        )
        for one, fit in zip(every, answer.fits.rows, strict=True)
    )
    return Table("", heads, rows, frozenset({2}))


def _fit_words(most: int | None, is_whole_context: bool | None) -> str:
    if most is None:
        return _tr("any length")
    return f"{count(most)} {_tr('(more than the model reads)')}" if is_whole_context else count(most)


def _layers(asked: CacheBytes) -> Table:
    heads = (_tr("Kind of layer"), _tr("Layers"), _tr("KV heads"), _tr("Tokens kept"), _tr("In all"))
    return Table(_tr("By kind of layer"), heads, tuple(_layer(row) for row in asked.layers), frozenset({4}))


def _layer(row: LayerBytes) -> tuple[str, ...]:
    group = row.group
    keeps = bool(group.numbers_per_token)
    return (
        _layer_kind(group.kind, group.window),
        count(group.num_layers),
        count(group.kv_heads) if keeps else DASH,
        count(row.tokens_kept) if keeps else DASH,
        DASH if row.nbytes is None else binary_size(row.nbytes),
    )


def _layer_kind(kind: LayerKind, window: int | None) -> str:
    match kind:
        case LayerKind.FULL:
            return _tr("full")
        case LayerKind.SLIDING:
            return _tr("sliding, {window} tokens").format(window=count(window))
        case LayerKind.CHUNKED:
            return _tr("chunked, {window} tokens").format(window=count(window))
        case LayerKind.SHARED:
            return _tr("reads another layer's")
        case LayerKind.RECURRENT:
            return _tr("keeps a state that does not grow")


def _heads(answer: Answer) -> Table:
    heads = (_tr("Kind"), _tr("KV heads"), _tr("A token"), _tr("Times MQA"))
    rows = tuple(
        (str(one.kind), count(one.kv_heads), bytes_exact(one.bytes_per_token), times(_plain(one.multiple)))
        for one in answer.heads
    )
    return Table(_tr("At this width"), heads, rows)


def _plain(value: float) -> float | int:
    return int(value) if value == int(value) else value
