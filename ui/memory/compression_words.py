"""How compressing a chat, or undoing it, went: for the notice under the chat."""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import QCoreApplication

from engine.protocol.events import Compressed, Failed
from ui import numbers
from ui.error_words import failure_words
from ui.memory.precision_words import is_full, precision_words


@dataclass(frozen=True, slots=True)
class CompressionFailed:
    """Told apart from a reply that failed: nothing was sent, so nothing is to be sent again."""

    event: Failed


def _tr(source: str) -> str:
    return QCoreApplication.translate("Compression", source)


def compressed_words(event: Compressed) -> str:
    sizes = {"before": numbers.size(event.bytes_before), "after": numbers.size(event.bytes_after)}
    if is_full(event.precision):
        words = _tr("This chat's memory is whole again, in full precision: it takes {after} now.")
        return words.format(**sizes)
    template = _tr(
        "This chat's memory took {before} and now takes {after}: {precision}. "
        "“Undo compression” in the chat's menu brings everything back."
    )
    return template.format(precision=precision_words(event.precision, event.kept), **sizes)


def compression_failure_words(failure: CompressionFailed) -> str:
    match failure.event.code:
        case "cancelled":
            return _tr("Stopped; this chat's memory is as it was.")
        case "nothing_kept" | "nothing_to_undo":
            return _tr("Nothing is kept of this chat yet; send a message first.")
        case "cannot_compress":
            return _tr(
                "This chat's memory cannot be compressed in this way; try it without 8 bits, with “Forget the middle”, "
                "or with another model."
            )
        case "too_short_to_compress":
            return _too_short_words(failure.event)
        case "no_model_loaded":
            return _tr("No model is loaded; choose one at the top, then compress again.")
        case "out_of_memory":
            return _tr("Memory ran out while compressing; this chat's memory is as it was. Close other programs first.")
        case "bug":
            return _tr(
                "Compressing went wrong in a way that should not happen; it is in the log. Your chat is as it was."
            )
    return failure_words(failure.event)


def _too_short_words(event: Failed) -> str:
    """Raised with params: tokens, least."""
    template = _tr("This chat has {tokens} tokens; compressing is worth it from {least} on.")
    try:
        return template.format_map(event.params)
    except KeyError:
        return event.message
