"""Why something on disk was not used. Nothing here is fatal: the text of a conversation is prefilled again."""

from __future__ import annotations

from enum import StrEnum


class StoreProblem(StrEnum):
    """What is wrong with a file of the store."""

    MISSING = "missing"
    UNREADABLE = "unreadable"  # the system reports an error
    CUT_SHORT = "cut_short"
    CHECKSUM = "checksum"
    FOREIGN = "foreign"  # header, fingerprint or token ids are not the expected ones


class ChunkRejectedError(Exception):
    """A chunk or state that must not be used; `key` names its file."""

    def __init__(self, code: StoreProblem, key: str, detail: str = "") -> None:
        super().__init__(f"{key[:12]}: {code.value}{f' ({detail})' if detail else ''}")
        self.code = code
        self.key = key


class ManifestRejectedError(Exception):
    """A manifest that is not exactly what was saved; the message is the reason."""
