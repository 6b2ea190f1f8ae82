"""One Ember for one data folder: a lock on a file, which ends with the process, however it ends. No Qt."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from filelock import FileLock, Timeout

from app.errors import AlreadyRunningError, from_os_error
from app.paths import DataPaths


class InstanceLock:
    """Holds the data folder from entering to leaving. Raises AlreadyRunningError after `wait_s`, or StorageError."""

    def __init__(self, paths: DataPaths, wait_s: float = 0.0) -> None:
        self._paths = paths
        self._wait_s = wait_s
        self._lock = FileLock(paths.lock)

    def __enter__(self) -> Self:
        self._paths.create()
        try:
            self._lock.acquire(timeout=self._wait_s, poll_interval=0.05)
        except Timeout:
            raise AlreadyRunningError(
                f"Another Ember is using {self._paths.data_dir}; close it, or choose another folder with --data-dir.",
                path=str(self._paths.data_dir),
            ) from None
        except OSError as error:
            raise from_os_error(error, self._paths.data_dir) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()
