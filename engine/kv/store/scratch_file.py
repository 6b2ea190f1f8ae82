"""A file under a temporary name until it is whole: write, fsync, rename; the caller syncs the folder afterwards."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from types import TracebackType
from typing import Self

TEMPORARY_SUFFIX = ".tmp"


class ScratchFile:
    """Context manager: what was not published when it ends is removed. `strays` gets what could not be removed."""

    def __init__(self, target: Path, strays: set[Path]) -> None:
        """Create the file beside `target`, private to the user. Raises OSError."""
        self._target = target
        self._strays = strays
        self._path = target.with_name(f".{target.stem}.{secrets.token_hex(4)}{TEMPORARY_SUFFIX}")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        self._descriptor: int | None = os.open(self._path, flags, 0o600)
        self._is_published = False

    def write(self, data: memoryview | bytes) -> None:
        descriptor = self._open_descriptor()
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]

    def rewrite_start(self, data: bytes) -> None:
        """Overwrite the first bytes, for a header that holds checksums of what follows."""
        os.lseek(self._open_descriptor(), 0, os.SEEK_SET)
        self.write(data)

    def finish(self) -> None:
        """Bring the content to the disk. Raises OSError."""
        os.fsync(self._open_descriptor())
        self._close()

    def publish(self) -> None:
        """Give the file its name, in place of an older one. Raises OSError."""
        self._close()
        self._path.replace(self._target)
        self._is_published = True

    def set_modified_ns(self, modified_ns: int) -> None:
        os.utime(self._path, ns=(modified_ns, modified_ns))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()
        if self._is_published:
            return
        try:
            self._path.unlink(missing_ok=True)
        except OSError:
            self._strays.add(self._path)

    def _open_descriptor(self) -> int:
        if self._descriptor is None:
            raise ValueError("the file is closed")
        return self._descriptor

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def sync_folder(folder: Path) -> None:
    """Bring a folder's names to the disk; renames are not durable before. Raises OSError."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
