"""Clears away what a crash, another version or a stranger left. Runs once at start, before anything is saved."""

from __future__ import annotations

import contextlib
import shutil

from engine.kv.store.files import DATA_SUFFIX, FINGERPRINT_NAME, MANIFEST_SUFFIX, StoreFiles
from engine.kv.store.scan import scan_folder
from engine.kv.store.scratch_file import TEMPORARY_SUFFIX


def remove_leftovers(files: StoreFiles) -> None:
    """Delete temporary files, files no manifest refers to, and whole folders of a stale format.

    A folder is stale if its fingerprint.json cannot be understood or names another format. Where the system reports an
    error instead of an answer, everything stays. Never raises.
    """
    with contextlib.suppress(OSError):
        for folder in files.folders():
            with contextlib.suppress(OSError):
                fingerprint = files.fingerprint_of(folder)
                if fingerprint is None:
                    shutil.rmtree(folder, ignore_errors=True)
                else:
                    _clear_folder(files, fingerprint)


def _clear_folder(files: StoreFiles, fingerprint: str) -> None:
    scan = scan_folder(files, fingerprint)
    doomed = scan.strangers + list(files.folder(fingerprint).glob(f".{FINGERPRINT_NAME[:4]}*{TEMPORARY_SUFFIX}"))
    if scan.is_complete:
        doomed += [files.path(fingerprint, name) for name in scan.sizes.keys() - scan.referenced()]
    for path in doomed:
        with contextlib.suppress(OSError):
            if path.suffix in (DATA_SUFFIX, MANIFEST_SUFFIX) and path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)  # it has the name of a file and would keep it from being written
            else:
                path.unlink(missing_ok=True)
