"""Who refers to which file, and who shares the longest beginning with a prompt. Memory only; the catalog locks it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from engine.kv.block_keys import BLOCK_TOKENS, CHUNK_TOKENS, child_key
from engine.kv.store.files import FileName
from engine.kv.store.manifest import bytes_to_ids, ids_to_bytes
from engine.kv.store.records import Manifest
from engine.kv.store.scan import names_of

_ID_BYTES = 4


@dataclass(slots=True)
class Entry:
    """A manifest, its ids packed: thousands of chats of thousands of ids would be large as Python integers.

    `nbytes` is the size of the manifest's own file, `names` are the files it refers to.
    """

    bare: Manifest  # without token ids
    ids: bytes
    names: frozenset[FileName]
    nbytes: int
    used_ns: int

    @property
    def num_tokens(self) -> int:
        return len(self.ids) // _ID_BYTES

    def manifest(self) -> Manifest:
        return replace(self.bare, token_ids=bytes_to_ids(self.ids))


class ManifestIndex:
    """Entries by conversation id, and the users of every file. A chunk's key stands for all ids up to its end."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.users: dict[FileName, set[str]] = {}
        self.version = 0  # changes with every manifest

    def add(self, manifest: Manifest, nbytes: int, used_ns: int) -> None:
        """Put a manifest in place of the conversation's present one."""
        self.remove(manifest.conversation_id)
        names = frozenset(names_of(manifest))
        ids = ids_to_bytes(manifest.token_ids)
        self.version += 1
        self.entries[manifest.conversation_id] = Entry(replace(manifest, token_ids=()), ids, names, nbytes, used_ns)
        for name in names:
            self.users.setdefault(name, set()).add(manifest.conversation_id)

    def remove(self, conversation_id: str) -> Entry | None:
        entry = self.entries.pop(conversation_id, None)
        self.version += entry is not None
        for name in entry.names if entry else ():
            users = self.users[name]
            users.discard(conversation_id)
            if not users:
                del self.users[name]
        return entry

    def longest_prefix(self, root: bytes, token_ids: Sequence[int], prefer: str | None) -> tuple[Entry, int] | None:
        """Of the exact entries, keyed from `root`, the one sharing most ids; of equals `prefer`, then the newest."""
        wanted = ids_to_bytes(token_ids)
        matched, candidates = self._sharing_chunks(root, token_ids)
        start = matched * _ID_BYTES
        window = slice(start, start + CHUNK_TOKENS * _ID_BYTES)  # nobody shares another whole chunk
        best: tuple[int, bool, int, str] | None = None
        for key in candidates:
            entry = self.entries[key]
            if entry.bare.is_exact and entry.ids.startswith(wanted[:start]):
                shared = matched + _common_ids(entry.ids[window], wanted[window])
                rank = (shared, key == prefer, entry.used_ns, key)
                if shared and (best is None or rank > best):
                    best = rank
        return (self.entries[best[3]], best[0]) if best else None

    def _sharing_chunks(self, root: bytes, token_ids: Sequence[int]) -> tuple[int, Iterable[str]]:
        """How many ids the longest chain of whole chunks covers that somebody has, and who; all if nobody has one."""
        candidates: Iterable[str] = self.entries
        parent = root
        matched = 0
        for end in range(CHUNK_TOKENS, len(token_ids) + 1, CHUNK_TOKENS):
            for start in range(matched, end, BLOCK_TOKENS):
                parent = child_key(parent, token_ids[start : start + BLOCK_TOKENS])
            users = self.users.get(FileName(parent.hex(), False))
            if not users:
                break
            matched, candidates = end, users
        return matched, candidates


def _common_ids(first: bytes, second: bytes) -> int:
    """How many leading ids two byte strings share."""
    length = min(len(first), len(second))
    difference = int.from_bytes(first[:length], "little") ^ int.from_bytes(second[:length], "little")
    if not difference:
        return length // _ID_BYTES
    return ((difference & -difference).bit_length() - 1) // (8 * _ID_BYTES)
