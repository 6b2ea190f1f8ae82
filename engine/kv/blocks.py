"""Immutable blocks of 32 tokens over all full-attention layers: counted references, found by content.

A block's key names its tokens and all before them (see `engine.kv.block_keys`), so equal keys mean equal contents; the
ids are compared on every hit all the same. Inference thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from engine.kv.arena import KVArena
from engine.kv.block_keys import child_key
from engine.kv.codecs.encoded import EncodedBlock, decode
from engine.kv.codecs.registry import codec_named
from engine.kv.geometry import KVGeometry
from engine.kv.pruned import PrunedBlock


class Block:
    """Up to `BLOCK_TOKENS` tokens in full precision: a tensor per region group, `[regions, tokens, heads, dim]`.

    Or, encoded once and for all, a few times as many: see `engine.kv.codecs` and `engine.kv.pruned`. `key` is None for
    a block that must not be found by content: encoded, incognito, or computed after such a one. `checksums`: of an
    encoded block's tensors, once the store has read them.
    """

    __slots__ = ("checksums", "encoded", "key", "refs", "tensors", "token_ids")

    def __init__(
        self,
        key: bytes | None,
        token_ids: tuple[int, ...],
        tensors: list[torch.Tensor],
        encoded: EncodedBlock | PrunedBlock | None = None,
    ) -> None:
        self.key = key
        self.token_ids = token_ids
        self.tensors = tensors
        self.encoded = encoded
        self.checksums: tuple[str, ...] = ()
        self.refs = 1

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def is_full_precision(self) -> bool:
        return self.encoded is None

    @property
    def is_pruned(self) -> bool:
        """Whether some of its pairs are gone, so that it cannot be cut or turned into anything else."""
        return isinstance(self.encoded, PrunedBlock)

    @property
    def is_read_in_place(self) -> bool:
        """Whether attention can read it as it is."""
        if not isinstance(self.encoded, EncodedBlock):
            return True
        return codec_named(self.encoded.codec).is_read_in_place

    @property
    def nbytes(self) -> int:
        return self.encoded.nbytes if self.encoded else sum(tensor.nbytes for tensor in self.tensors)

    @property
    def place(self) -> str:
        """Where the data lies: "cpu" or "cuda"."""
        if self.encoded is not None:
            return self.encoded.place
        return self.tensors[0].device.type if self.tensors else "cpu"

    @property
    def pairs_gone(self) -> int:
        """How many key-value pairs of all lanes were pruned away."""
        if not isinstance(self.encoded, PrunedBlock):
            return 0
        return self.num_tokens * len(self.encoded.counts) - int(self.encoded.counts.sum())

    def copy_to(self, arena: KVArena, start: int, num_tokens: int) -> None:
        """Write the first `num_tokens` to the positions from `start` on; an encoded block is decoded on the way.

        Raises ValueError for a pruned block.
        """
        if self.encoded is None:
            arena.write(start, [tensor[:, :num_tokens] for tensor in self.tensors])
        elif num_tokens == self.num_tokens:
            self.decode(arena.read(start, start + num_tokens), arena.geometry)
        else:
            whole = [
                torch.empty(group.shape(self.num_tokens), dtype=arena.geometry.dtype, device=arena.device)
                for group in arena.geometry.groups
            ]
            self.decode(whole, arena.geometry)
            arena.write(start, [tensor[:, :num_tokens] for tensor in whole])

    def decode(self, out: Sequence[torch.Tensor], geometry: KVGeometry) -> None:
        """Write all of it in full precision, a tensor per region group. Raises ValueError for a pruned block."""
        if isinstance(self.encoded, PrunedBlock):
            raise ValueError("a pruned block cannot be decoded")
        if self.encoded is not None:
            decode(codec_named(self.encoded.codec), self.encoded, out, geometry)
            return
        for tensor, target in zip(self.tensors, out, strict=True):
            target.copy_(tensor)

    def to(self, device: torch.device | str) -> None:
        """Move the data; it is there on return."""
        if self.encoded is not None:
            self.encoded = self.encoded.to(device)
        self.tensors = [tensor.to(device) for tensor in self.tensors]


def share_kept(blocks: Iterable[Block], length: int, geometry: KVGeometry) -> float:
    """Of all key-value pairs of `length` tokens that begin with these blocks."""
    return 1.0 - sum(block.pairs_gone for block in blocks) / (length * geometry.num_lanes or 1)


class BlockPool:
    """All blocks in memory. `nbytes` counts each once, however many conversations hold it."""

    def __init__(self, root: bytes, geometry: KVGeometry) -> None:
        self.root = root
        self.geometry = geometry
        self.nbytes = 0
        self.device_bytes = 0
        self._by_key: dict[bytes, Block] = {}

    def obtain(
        self,
        parent: bytes | None,
        token_ids: Sequence[int],
        tensors: Sequence[torch.Tensor],
        *,
        is_on_host: bool = False,
    ) -> Block:
        """The block with this content, with one more reference: the one that exists, else a copy of `tensors`.

        Without `parent` it is private: neither shared nor found. `is_on_host`: a copy is made in host memory.
        """
        key = child_key(parent, token_ids) if parent is not None else None
        known = self.find(key, token_ids) if key is not None else None
        if known is not None:
            known.refs += 1
            return known
        copies = [
            tensor.to("cpu" if is_on_host else tensor.device, copy=True, memory_format=torch.contiguous_format)
            for tensor in tensors
        ]
        block = Block(key, tuple(token_ids), copies)
        self._count(block, 1)
        if key is not None:
            self._by_key.setdefault(key, block)
        return block

    def retain(self, block: Block) -> Block:
        block.refs += 1
        return block

    def release(self, block: Block) -> None:
        """One reference less; the last one frees the memory."""
        block.refs -= 1
        if block.refs == 0:
            self._count(block, -1)
            self._unlist(block)
            block.tensors, block.encoded = [], None

    def find(self, key: bytes, token_ids: Sequence[int]) -> Block | None:
        block = self._by_key.get(key)
        return block if block is not None and block.token_ids == tuple(token_ids) else None

    def add_encoded(self, token_ids: Sequence[int], encoded: EncodedBlock | PrunedBlock) -> Block:
        """A new block in encoded form, with one reference, never to be found by content."""
        block = Block(None, tuple(token_ids), [], encoded.in_own_memory())
        self._count(block, 1)
        return block

    def move_to_host(self, block: Block) -> int:
        """Returns the bytes freed on the device."""
        freed = block.nbytes if block.place != "cpu" else 0
        block.to("cpu")
        self.device_bytes -= freed
        return freed

    def _count(self, block: Block, sign: int) -> None:
        self.nbytes += sign * block.nbytes
        if block.place != "cpu":
            self.device_bytes += sign * block.nbytes

    def _unlist(self, block: Block) -> None:
        if block.key is not None and self._by_key.get(block.key) is block:
            del self._by_key[block.key]
