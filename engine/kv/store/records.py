"""What the store keeps, as plain data. Standard library only: listing the disk needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

FORMAT_VERSION = 2  # of everything below `kv/`; folders of another one are cleared away

PRUNED_CODECS = frozenset({"kvzip", "kvzip-int8", "streaming", "streaming-int8"})


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of a file: safetensors dtype name, shape, and the bytes of one item."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    itemsize: int

    @property
    def nbytes(self) -> int:
        size = self.itemsize
        for length in self.shape:
            size *= length
        return size


@dataclass(frozen=True, slots=True)
class TensorBytes:
    """A tensor's data, zero-copy: the pieces follow one another in the file."""

    spec: TensorSpec
    pieces: tuple[memoryview, ...]


@dataclass(frozen=True, slots=True)
class ChunkRef:
    """A chunk of a conversation: its content key (hex) and how many tokens it holds; only the last may be short.

    `tag` (hex): what a lossy chunk holds, as its tokens do not say it; "" for an exact one.
    """

    key: str
    tokens: int
    tag: str = ""


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """A chunk's file as it is on disk; `users`: the branches that refer to it."""

    key: str
    tokens: int
    nbytes: int
    users: frozenset[str]


@dataclass(frozen=True, slots=True)
class StateRef:
    """The state of layers that cannot be cropped, after `position` tokens; `key` (hex) names its file."""

    key: str
    position: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """All that is kept of one conversation under one fingerprint. `is_exact`: never went through a lossy codec.

    `template` identifies the chat template that rendered it: not part of the key, but a reason when nothing matches.
    `codecs`: those a lossy one went through, the last one last; `kept`: the share of its pairs that pruning has left.
    `moved_tokens`: how many of its first tokens were moved together, and are of no use apart; `shift`: by how many
    positions less they take.
    """

    conversation_id: str
    token_ids: tuple[int, ...]
    chunks: tuple[ChunkRef, ...]
    states: tuple[StateRef, ...] = ()
    is_exact: bool = True
    precision: str = ""
    template: str = ""
    codecs: tuple[str, ...] = ()
    kept: float = 1.0
    moved_tokens: int = 0
    shift: int = 0


def is_pruned(manifest: Manifest) -> bool:
    """Whether some of its pairs are gone: what only the user does."""
    return any(name in PRUNED_CODECS for name in manifest.codecs)


@dataclass(frozen=True, slots=True)
class NewFile:
    """A chunk or state to be written: `tensors` in file order."""

    key: str
    is_state: bool
    tensors: tuple[TensorBytes, ...]
