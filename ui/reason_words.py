"""Why a chat was read again, or its cache not saved, in the window's language. Unknown codes keep their sentence."""

from __future__ import annotations

from collections.abc import Mapping

from PySide6.QtCore import QCoreApplication

from engine.protocol.events import Estimated, SnapshotNotSaved, TurnStatistics
from engine.protocol.misses import MissCode, SaveProblem


def _tr(source: str) -> str:
    return QCoreApplication.translate("Reasons", source)


def miss_words(told: TurnStatistics | Estimated) -> str:
    """A clause; "" where nothing is read twice. Replies of an earlier version have an English sentence only."""
    params = dict(told.miss_params)
    if told.miss_code == MissCode.SETTINGS_CHANGED and "field" in params:
        params["field"] = _field_words(params["field"])
    sentence = told.miss_reason if isinstance(told, TurnStatistics) else None
    return _filled(_miss_template(told.miss_code), params, sentence or "")


def not_saved_words(event: SnapshotNotSaved) -> str:
    return _filled(_problem_template(event.code), event.params, event.reason)


def _filled(template: str | None, params: Mapping[str, str], fallback: str) -> str:
    """`fallback` where the code is unknown, or a parameter is missing."""
    if template is None:
        return fallback
    try:
        return template.format_map(dict(params))
    except KeyError:
        return fallback


def _miss_template(code: str | None) -> str | None:
    match code:
        case MissCode.MODEL_CHANGED:
            return _tr("the model changed")
        case MissCode.SETTINGS_CHANGED:
            return _tr("a setting changed: {field} (saved with {saved}, now {now})")
        case MissCode.TEMPLATE_CHANGED:
            return _tr("the model's chat template changed")
        case MissCode.HISTORY_CHANGED:
            return _tr("the chat changed after token {token}")
        case MissCode.NOT_SAVED:
            return _tr("nothing had been saved")
        case MissCode.EVICTED:
            return _tr("its saved cache was removed to keep within the disk limit")
        case MissCode.FILE_MISSING:
            return _tr("a file of the saved cache is missing")
        case MissCode.FILE_DAMAGED:
            return _tr("the saved cache is damaged ({detail})")
        case MissCode.FILE_UNREADABLE:
            return _tr("the saved cache could not be read ({detail})")
        case MissCode.CANNOT_RESUME:
            return _tr("the cache of this model cannot be kept ({detail})")
        case MissCode.NO_CHECKPOINT:
            return _tr("the cache of this model could only go back to token {token}")
        case MissCode.MEMORY_RAN_OUT:
            return _tr("memory ran out and the cache was given up")
        case MissCode.READING_IS_FASTER:
            return _tr("reading it again was faster than loading it")
    return None


def _problem_template(code: str) -> str | None:
    match code:
        case SaveProblem.DISK_FULL:
            return _tr("the disk is full; free some space.")
        case SaveProblem.DISK_ERROR:
            return _tr("the disk reported an error ({detail}).")
        case SaveProblem.CANNOT_RESUME:
            return _tr("the cache of this model cannot be kept ({detail}).")
        case SaveProblem.NOTHING_CACHED:
            return _tr("there is nothing to save yet.")
        case SaveProblem.INCOGNITO:
            return _tr("nothing is kept of an incognito chat.")
    return None


def _field_words(field: str) -> str:
    """Fields of the fingerprint that people know; the others stay as the engine names them."""
    match field:
        case "weights" | "numbers":
            return _tr("precision of the weights")
        case "dtype":
            return _tr("number format")
        case "codec":
            return _tr("precision of the cache")
        case "format":
            return _tr("file format")
    return field
