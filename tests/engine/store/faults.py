"""A disk that fails at a chosen step, or loses power there and with it whatever was not brought to the disk."""

from __future__ import annotations

import errno
import os
import random
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

OPERATIONS = ("open", "write", "fsync", "replace", "unlink", "mkdir", "rmdir", "utime")


class Disk:
    """Counts the steps of everything below `root`; `fail_at` None only counts.

    Without `is_power_cut` that one step fails with `code` (a write after half its bytes). With it, this step and all
    later ones fail, and `lose_power` takes back names that were not synced, in each folder from some point on, and
    cuts contents that were not.
    """

    def __init__(
        self, root: Path, grave: Path, fail_at: int | None = None, code: int = errno.EIO, *, is_power_cut: bool = False
    ) -> None:
        self.steps = 0
        self.failed: str | None = None
        self._root = str(root)
        self._grave = grave
        self._fail_at = fail_at
        self._code = code
        self._is_power_cut = is_power_cut
        self._lock = threading.RLock()
        self._real: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in OPERATIONS}
        self._paths: dict[int, str] = {}  # of open descriptors
        self._unsynced: set[int] = set()  # inodes
        self._undo: dict[str, list[Callable[[], None]]] = {}  # by folder, oldest first

    @contextmanager
    def installed(self) -> Iterator[Disk]:
        for name in OPERATIONS:
            setattr(os, name, getattr(self, f"_{name}"))
        try:
            yield self
        finally:
            for name in OPERATIONS:
                setattr(os, name, self._real[name])

    def lose_power(self, dice: random.Random) -> None:
        for folder in sorted(self._undo, key=len, reverse=True):
            steps = self._undo[folder]
            for undo in reversed(steps[dice.randint(0, len(steps)) :]):
                undo()
        for path in Path(self._root).rglob("*"):
            info = path.lstat()
            if stat.S_ISREG(info.st_mode) and info.st_ino in self._unsynced:
                os.truncate(path, dice.randint(0, info.st_size))

    def _step(self, name: str) -> bool:
        """Whether this step is to fail."""
        self.steps += 1
        is_hit = self.steps == self._fail_at
        if is_hit:
            self.failed = name
        return is_hit or (self._is_power_cut and self.failed is not None)

    def _error(self) -> OSError:
        return OSError(self._code, os.strerror(self._code))

    def _is_ours(self, path: object) -> bool:
        return str(path).startswith(self._root)

    def _remember(self, folder: str, undo: Callable[[], None]) -> None:
        self._undo.setdefault(folder, []).append(undo)

    def _open(self, path: Any, flags: int, mode: int = 0o777, **other: Any) -> int:
        with self._lock:
            if self._is_ours(path) and self._step("open"):
                raise self._error()
            descriptor = self._real["open"](path, flags, mode, **other)
            self._paths[descriptor] = str(path)
            if self._is_ours(path) and flags & os.O_CREAT:
                self._unsynced.add(os.fstat(descriptor).st_ino)
                self._remember(_folder(path), lambda: self._real["unlink"](path))
            return int(descriptor)

    def _write(self, descriptor: int, data: Any) -> int:
        with self._lock:
            if self._is_ours(self._paths.get(descriptor)):
                self._unsynced.add(os.fstat(descriptor).st_ino)
                if self._step("write"):
                    self._real["write"](descriptor, memoryview(data)[: len(data) // 2])
                    raise self._error()
            return int(self._real["write"](descriptor, data))

    def _fsync(self, descriptor: int) -> None:
        with self._lock:
            path = self._paths.get(descriptor)
            if self._is_ours(path):
                if self._step("fsync"):
                    raise self._error()
                self._unsynced.discard(os.fstat(descriptor).st_ino)
                self._undo.pop(str(path), None)

    def _replace(self, source: Any, target: Any) -> None:
        with self._lock:
            if not self._is_ours(target):
                return self._real["replace"](source, target)
            if self._step("replace"):
                raise self._error()
            old = self._bury(target) if Path(target).exists() else None
            self._real["replace"](source, target)

            def undo() -> None:
                self._real["replace"](target, source)
                if old is not None:
                    os.link(old, target)

            return self._remember(_folder(target), undo)

    def _unlink(self, path: Any, **other: Any) -> None:
        with self._lock:
            if not self._is_ours(path):
                return self._real["unlink"](path, **other)
            if self._step("unlink"):
                raise self._error()
            old = self._bury(path) if Path(path).exists() else None
            self._real["unlink"](path, **other)
            return self._remember(_folder(path), lambda: os.link(old, path) if old else None)

    def _mkdir(self, path: Any, *rest: Any, **other: Any) -> None:
        with self._lock:
            if self._is_ours(path) and self._step("mkdir"):
                raise self._error()
            self._real["mkdir"](path, *rest, **other)
            if self._is_ours(path):
                self._remember(_folder(path), lambda: shutil.rmtree(path, ignore_errors=True))

    def _rmdir(self, path: Any, **other: Any) -> None:
        with self._lock:
            if self._is_ours(path) and self._step("rmdir"):
                raise self._error()
            self._real["rmdir"](path, **other)

    def _utime(self, path: Any, *rest: Any, **other: Any) -> None:
        with self._lock:
            if self._is_ours(path) and self._step("utime"):
                raise self._error()
            self._real["utime"](path, *rest, **other)

    def _bury(self, path: Any) -> str:
        """Keep a file that loses its name, contents and inode included."""
        self._grave.mkdir(exist_ok=True)
        kept = str(self._grave / str(self.steps))
        os.link(path, kept)
        return kept


def _folder(path: Any) -> str:
    return str(Path(path).parent)
