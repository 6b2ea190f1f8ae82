"""What of a chat's cache decides how much of a prompt it can serve: the same for one in memory and one on disk.

The manager's choices are made on outlines, and a forecast follows them without touching a cache. Plain data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from engine.kv.block_keys import CHUNK_TOKENS
from engine.kv.codecs.registry import codec_named
from engine.kv.compressed_chunks import FULL
from engine.kv.resident import Resident, common_prefix
from engine.kv.store.records import PRUNED_CODECS, ChunkRef, Manifest, is_pruned


@dataclass(frozen=True, slots=True)
class Part:
    """Some tokens that lie in one block; `has_key`: it is exact, and found by its content."""

    num_tokens: int
    codec: str = ""
    has_key: bool = False

    @property
    def is_pruned(self) -> bool:
        return self.codec in PRUNED_CODECS

    @property
    def is_read_in_place(self) -> bool:
        return not self.codec or self.is_pruned or codec_named(self.codec).is_read_in_place


@dataclass(frozen=True, slots=True)
class Outline:
    """`parts`: of a parked cache all of it, of an active one what is not in its own memory. `checkpoints`: where a
    cache that cannot be cropped may be cut; None for one that can be cut anywhere. `moved_tokens` and `shift`: of what
    was moved together, as in `Manifest`.
    """

    key: str
    token_ids: Sequence[int] = ()
    is_exact: bool = True
    is_active: bool = False
    parts: tuple[Part, ...] = ()
    checkpoints: frozenset[int] | None = None
    moved_tokens: int = 0
    shift: int = 0

    @classmethod
    def of(cls, resident: Resident) -> Outline:
        cache = resident.working
        blocks = resident.blocks if cache is None else cache.cold.blocks if cache.cold is not None else ()
        parts = tuple(
            Part(block.num_tokens, block.encoded.codec if block.encoded is not None else "", block.key is not None)
            for block in blocks
        )
        checkpoints = frozenset(resident.states) if resident.has_states else None
        return cls(
            resident.conversation_id,
            resident.token_ids,
            resident.is_exact,
            cache is not None,
            parts,
            checkpoints,
            *resident.moved_together,
        )

    @classmethod
    def of_manifest(
        cls, manifest: Manifest, shared: int, layout: Callable[[ChunkRef], Sequence[tuple[str, int]]]
    ) -> Outline:
        """What a lossy manifest gives, parked, where the first `shared` tokens are wanted: whole chunks.

        `layout` tells codecs and sizes of a chunk's pieces; it is asked only where a chunk would have to be cut.
        """
        refs = manifest.chunks[: -(-shared // CHUNK_TOKENS)]
        stop = sum(ref.tokens for ref in refs)
        first = next((name for name in manifest.codecs if name in PRUNED_CODECS), manifest.codecs[-1])
        parts = [Part(ref.tokens, first) for ref in refs]
        if shared < stop and is_pruned(manifest):
            parts[-1:] = [Part(tokens, "" if codec == FULL else codec) for codec, tokens in layout(refs[-1])]
        return cls(
            manifest.conversation_id,
            manifest.token_ids[:stop],
            is_exact=False,
            parts=tuple(parts),
            moved_tokens=manifest.moved_tokens,
            shift=manifest.shift,
        )

    @property
    def length(self) -> int:
        return len(self.token_ids)

    @property
    def is_pruned(self) -> bool:
        return any(part.is_pruned for part in self.parts)

    @property
    def is_encoded(self) -> bool:
        """Whether any of its blocks is."""
        return any(part.codec for part in self.parts)

    @property
    def num_cold(self) -> int:
        """How many parts stay where they are when a parked cache becomes active."""
        return max((index + 1 for index, part in enumerate(self.parts) if part.codec), default=0)

    @property
    def cold_tokens(self) -> int:
        return sum(part.num_tokens for part in self.parts[: self.num_cold])

    def usable(self, token_ids: Sequence[int]) -> int:
        """How many leading ids of `token_ids` a copy of a parked cache could serve."""
        shared = common_prefix(self.token_ids, token_ids)
        if self.checkpoints is None:
            return shared if not self.is_pruned else 0
        return max((position for position in self.checkpoints if position <= shared), default=0)

    def begun(self, key: str, length: int) -> Outline:
        """Of another branch that begins with so many of its tokens."""
        return replace(self, key=key, token_ids=self.token_ids[:length], is_active=False)

    def resumed(self) -> Outline:
        """Active, with its encoded beginning left in its blocks."""
        return replace(self, is_active=True, parts=self.parts[: self.num_cold])

    def cut(self, length: int) -> tuple[int, bool]:
        """How much is left of an active cache that is cut back to `length`, and whether that is exact."""
        if length >= self.length:
            return self.length, self.is_exact
        if length < self.moved_tokens:
            return 0, True
        start = 0
        for index, part in enumerate(self.parts):
            if length < start + part.num_tokens:
                length = start if part.is_pruned else length
                whole = self.parts[: index + (length > start)]
                return length, self.is_exact or all(one.has_key for one in whole)
            start += part.num_tokens
        if self.checkpoints is not None:
            length = max((position for position in self.checkpoints if position <= length), default=0)
        return length, self.is_exact
