"""Why something that had been read before must be read again, or is not kept: codes for the window, sentences for all.

Standard library only. `words` is the English clause of the command line and the log; the window words the code itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class MissCode(StrEnum):
    """params in brackets."""

    MODEL_CHANGED = "model_changed"
    SETTINGS_CHANGED = "settings_changed"  # [field, saved, now]: weights' precision, dtype, format
    TEMPLATE_CHANGED = "template_changed"
    HISTORY_CHANGED = "history_changed"  # [token]: a message was edited, or the rendering differs from there on
    NOT_SAVED = "not_saved"  # nothing was kept
    EVICTED = "evicted"  # the disk cap took it
    FILE_MISSING = "file_missing"
    FILE_DAMAGED = "file_damaged"  # [detail]: checksum, cut short, foreign
    FILE_UNREADABLE = "file_unreadable"  # [detail]: the system's words
    CANNOT_RESUME = "cannot_resume"  # [detail]: this model's cache cannot be kept
    NO_CHECKPOINT = "no_checkpoint"  # [token]: the cache can only go back to its checkpoint at that token
    MEMORY_RAN_OUT = "memory_ran_out"
    READING_IS_FASTER = "reading_is_faster"


_WORDS = {
    MissCode.MODEL_CHANGED: "the model changed",
    MissCode.SETTINGS_CHANGED: "{field} changed: saved with {saved}, now {now}",
    MissCode.TEMPLATE_CHANGED: "the model's chat template changed",
    MissCode.HISTORY_CHANGED: "the history changed after token {token}",
    MissCode.NOT_SAVED: "no snapshot was kept",
    MissCode.EVICTED: "its snapshot was removed to keep within the disk limit",
    MissCode.FILE_MISSING: "a file of the snapshot is missing",
    MissCode.FILE_DAMAGED: "the snapshot is damaged: {detail}",
    MissCode.FILE_UNREADABLE: "the snapshot could not be read: {detail}",
    MissCode.CANNOT_RESUME: "{detail}",
    MissCode.NO_CHECKPOINT: "this model's cache could only go back to token {token}",
    MissCode.MEMORY_RAN_OUT: "memory ran out and the cache was given up",
    MissCode.READING_IS_FASTER: "reading it again was faster than loading it",
}


@dataclass(frozen=True, slots=True)
class Miss:
    """One reason. `str()` gives the English clause."""

    code: MissCode
    params: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return _WORDS[self.code].format_map(self.params)


class SaveProblem(StrEnum):
    """Why a snapshot was not saved; the chat itself goes on."""

    DISK_FULL = "disk_full"
    DISK_ERROR = "disk_error"  # [detail]: the system's words
    CANNOT_RESUME = "cannot_resume"  # [detail]
    NOTHING_CACHED = "nothing_cached"
    INCOGNITO = "incognito"
