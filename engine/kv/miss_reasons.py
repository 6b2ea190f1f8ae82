"""Why a turn reuses less than the conversation had read before: what memory, disk and the last saves say about it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from engine.kv.chat_key import conversation_of
from engine.kv.fingerprint import difference
from engine.kv.persistence import Persistence, miss_of
from engine.kv.resident import common_prefix
from engine.kv.store.collector import Eviction
from engine.kv.store.files import StoreFiles, file_stem
from engine.kv.store.writer import SaveResult
from engine.model.loader import LoadedModel
from engine.protocol.misses import Miss, MissCode

_SETTLED_TOKENS = 16  # what may follow the history in a prompt without being part of it: end of turn, line ends


class MissReasons:
    """`saved` may be called on the saver's thread."""

    def __init__(self, model: LoadedModel, persistence: Persistence, files: StoreFiles) -> None:
        self._model = model
        self._persistence = persistence
        self._files = files
        self._evicted: set[str] = set()

    def saved(self, result: SaveResult) -> None:
        """A save ended: remember whom the disk limit cost its files."""
        self.evicted(result.evicted)
        if result.error is None and not result.is_cancelled:
            self._files.lost.pop(file_stem(result.conversation_id), None)
            self._evicted.discard(result.conversation_id)

    def evicted(self, evictions: Sequence[Eviction]) -> None:
        """The disk limit cost them their files."""
        self._evicted.update(one.conversation_id for one in evictions)

    def is_lost(self, conversation_id: str) -> bool:
        """Whether files of the conversation were missing or damaged when the folder was read, and none since."""
        return file_stem(conversation_id) in self._files.lost

    def miss(
        self,
        key: str,
        token_ids: Sequence[int],
        history_tokens: int,
        found: Sequence[Miss],
        known_length: int,
        common: int,
        reused: int,
        can_crop: bool,
    ) -> Miss | None:
        """Why fewer than `history_tokens` of a prompt are reused; None where it is as many as could be.

        `found` are reasons that came up on the way. `known_length` tokens were in memory, the first `common` the same.
        """
        limit = len(token_ids) - 1
        if found and reused < min(limit, history_tokens):
            return found[0]
        settled = 0 if not known_length and self.is_lost(key) else _SETTLED_TOKENS
        if reused < min(limit, history_tokens - settled):
            return self._why(key, token_ids, known_length, common, reused, can_crop)
        return None

    def _why(
        self,
        conversation_id: str,
        token_ids: Sequence[int],
        known_length: int,
        common: int,
        reused: int,
        can_crop: bool,
    ) -> Miss:
        if not self._model.can_persist:
            return Miss(MissCode.CANNOT_RESUME, {"detail": self._model.info.cannot_resume_reason or ""})
        if known_length > reused:
            if common > reused:
                if not can_crop:
                    return Miss(MissCode.NO_CHECKPOINT, {"token": str(reused)})
                return Miss(MissCode.READING_IS_FASTER)  # of a quantized chat, in full precision
            return Miss(MissCode.HISTORY_CHANGED, {"token": str(common)})
        manifest = self._persistence.exact_manifest(conversation_id)
        if manifest is not None and manifest.template != self._persistence.template:
            return Miss(MissCode.TEMPLATE_CHANGED)
        lost = self._files.lost.get(file_stem(conversation_id))
        if manifest is not None and len(manifest.token_ids) > reused:
            if common_prefix(manifest.token_ids, token_ids) <= reused:
                return Miss(MissCode.HISTORY_CHANGED, {"token": str(reused)})
            return miss_of(lost) if lost is not None else Miss(MissCode.NO_CHECKPOINT, {"token": str(reused)})
        if conversation_id in self._evicted:
            return Miss(MissCode.EVICTED)
        if lost is not None:
            return miss_of(lost)
        lossy = self._persistence.compressed.catalog.manifest(conversation_id)
        if lossy is not None and common_prefix(lossy.token_ids, token_ids) > reused:
            return Miss(MissCode.READING_IS_FASTER)
        return self._other_fingerprint(conversation_id) or Miss(MissCode.NOT_SAVED)

    def _other_fingerprint(self, key: str) -> Miss | None:
        """The reason when the conversation is kept under another model or other settings."""
        own = (self._model.fingerprint.folder, self._model.fingerprint.compressed.folder)
        try:
            fingerprints = self._files.fingerprints()
        except OSError:  # the reason is not worth the reply
            return None
        paths = [path for one in fingerprints for path in self._files.manifest_paths(one, conversation_of(key))]
        for path in sorted(paths, key=_modified_ns, reverse=True):
            folder = path.parent.parent.name
            fields = self._files.fingerprint_fields(folder)
            if fields is not None and folder not in own:
                return difference(self._model.fingerprint.fields, fields)
        return None


def _modified_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
