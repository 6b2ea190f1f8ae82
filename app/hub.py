"""Fetching a model from the hub: only the files a model is loaded from, and never code."""

from __future__ import annotations

import logging
import re
import shutil
import sys
from pathlib import Path

from app.errors import from_os_error
from engine.protocol.errors import ModelError, ModelNotFoundError

_log = logging.getLogger(__name__)
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_WANTED = ["*.safetensors", "*.json", "*.jinja", "*.model", "*.txt", "*.gguf", "LICENSE*"]


def is_hub_id(text: str) -> bool:
    """Whether `text` reads like owner/name."""
    return _HUB_ID.fullmatch(text) is not None


def fetch(hub_id: str, downloads_dir: Path) -> Path:
    """Download a model; what is there already is not fetched again. Raises ModelError, StorageError."""
    # Only this verb needs them: the hub's client takes longer to import than most calls take.
    import httpx2  # noqa: PLC0415 (the hub's client is built on it, and lets its errors through)
    from huggingface_hub import snapshot_download  # noqa: PLC0415
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError  # noqa: PLC0415
    from huggingface_hub.utils.tqdm import disable_progress_bars  # noqa: PLC0415

    folder = downloads_dir / hub_id.replace("/", "--")
    if not sys.stderr.isatty():
        disable_progress_bars()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        snapshot_download(hub_id, local_dir=folder, allow_patterns=_WANTED)
    except RepositoryNotFoundError as error:
        _remove_if_empty(folder)
        raise ModelNotFoundError(
            f"The hub has no model {hub_id}, or it asks for a login; check the name on https://huggingface.co.",
            path=hub_id,
        ) from error
    except (LocalEntryNotFoundError, HfHubHTTPError, httpx2.HTTPError, ConnectionError, TimeoutError) as error:
        _log.warning("Fetching %s failed: %s", hub_id, error)
        _remove_if_empty(folder)
        raise ModelError(
            f"{hub_id} could not be fetched; check the internet connection and try again, or give the path of a model "
            "that is on this machine.",
            path=hub_id,
        ) from error
    except OSError as error:
        raise from_os_error(error, folder) from error
    return folder


def _remove_if_empty(folder: Path) -> None:
    """A failed fetch leaves no empty model behind; what was fetched in part stays, to be continued."""
    if any(file.suffix == ".safetensors" for file in folder.rglob("*")):
        return
    shutil.rmtree(folder, ignore_errors=True)
