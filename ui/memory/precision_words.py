"""How precisely a chat's cache is kept, in words people understand: in full, in short, and with what it costs."""

from __future__ import annotations

from collections.abc import Iterable

from PySide6.QtCore import QCoreApplication

from engine.protocol.events import BlockPlace, BlockRun
from ui import numbers

_SIXTEEN_BIT = {"bf16", "bfloat16", "fp16", "float16"}
_THIRTY_TWO_BIT = {"fp32", "float32"}
_KINDS = {  # of precision, by which the theme's colours are named
    "int8": "int8",
    "bnb-8bit": "int8",
    "mixed": "int8",
    "balanced": "balanced",
    "compact": "compact",
    "bnb-nf4": "compact",
    "kvzip": "kvzip",
    "kvzip-int8": "kvzip",
    "streaming": "kvzip",
    "streaming-int8": "kvzip",
}
FULL = "16bit"
KINDS = (FULL, "int8", "balanced", "compact", "kvzip")


def _tr(source: str) -> str:
    return QCoreApplication.translate("Precision", source)


def kind_of(precision: str) -> str:
    """A key of the theme's `precision` colours; `FULL` where nothing has been taken away, and for an unknown one."""
    return _KINDS.get(precision, FULL)


def bytes_of_kinds(runs: Iterable[BlockRun]) -> dict[str, int]:
    """What those of the blocks that are in memory take, by kind of precision."""
    found = dict.fromkeys(KINDS, 0)
    for run in runs:
        if run.place is not BlockPlace.DISK:
            found[kind_of(run.precision)] += run.bytes
    return found


def is_full(precision: str) -> bool:
    return kind_of(precision) == FULL


def precision_words(precision: str, kept: float = 1.0) -> str:
    """As "8 bit (int8)" or "30 % kept (KVzip)". An unknown one keeps its name."""
    if precision in _SIXTEEN_BIT:
        return _tr("16 bit")
    if precision in _THIRTY_TWO_BIT:
        return _tr("32 bit")
    match precision:
        case "int8":
            return _tr("8 bit (int8)")
        case "balanced":
            return _tr("K 8 bit, V 4 bit (balanced)")
        case "compact":
            return _tr("4 bit (compact)")
        case "bnb-8bit":
            return _tr("8 bit (bitsandbytes)")
        case "bnb-nf4":
            return _tr("4 bit (NF4)")
        case "mixed":
            return _tr("several precisions")
    share = numbers.share(kept)
    match precision, kept < 1.0:
        case "kvzip", True:
            return _tr("{share} kept (KVzip)").format(share=share)
        case "kvzip", False:
            return _tr("compressed (KVzip)")
        case "kvzip-int8", True:
            return _tr("{share} kept (KVzip), 8 bit").format(share=share)
        case "kvzip-int8", False:
            return _tr("compressed (KVzip), 8 bit")
        case "streaming", True:
            return _tr("{share} kept, middle forgotten").format(share=share)
        case "streaming", False:
            return _tr("middle forgotten")
        case "streaming-int8", True:
            return _tr("{share} kept, middle forgotten, 8 bit").format(share=share)
        case "streaming-int8", False:
            return _tr("middle forgotten, 8 bit")
    return precision


def precision_mark(precision: str, kept: float = 1.0) -> str:
    """The same where there is little room: "8 bit", "8/4 bit", "30 %"."""
    if precision in _SIXTEEN_BIT or precision in _THIRTY_TWO_BIT:
        return precision_words(precision)
    match precision:
        case "int8" | "bnb-8bit":
            return _tr("8 bit")
        case "balanced":
            return _tr("8/4 bit")
        case "compact" | "bnb-nf4":
            return _tr("4 bit")
        case "mixed":
            return _tr("mixed")
        case "kvzip" | "kvzip-int8" | "streaming" | "streaming-int8":
            return numbers.share(kept) if kept < 1.0 else _tr("compressed")
    return precision


def precision_help(precision: str) -> str:
    """One sentence that says what it means and what it costs; "" where there is nothing to say."""
    if precision in _SIXTEEN_BIT or precision in _THIRTY_TWO_BIT:
        return _tr("Just as the model computed it: nothing is lost.")
    match precision:
        case "int8" | "bnb-8bit":
            return _tr("All but the beginning and the latest part take half the memory; replies hardly change.")
        case "balanced":
            return _tr(
                "Keys in 8 bits and values in 4 take about two fifths of the memory; wording may change a little."
            )
        case "compact" | "bnb-nf4":
            return _tr("4 bits take about a third of the memory; replies may differ from those in full precision.")
        case "mixed":
            return _tr("Some parts of this chat are kept in fewer bits than others; wording may change a little.")
        case "kvzip" | "kvzip-int8":
            return _tr("Only what matters most is kept: details may be missing from replies, until you undo it.")
        case "streaming" | "streaming-int8":
            return _tr("The middle of this chat is forgotten: the model does not know it, until you undo it.")
    return ""
