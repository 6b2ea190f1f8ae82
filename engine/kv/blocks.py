"""Immutable blocks of 32 tokens over all full-attention layers: counted references, found by content.

A block's key names its tokens and all before them (see `engine.kv.block_keys`), so equal keys mean equal contents; the
ids are compared on every hit all the same. Inference thread.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.kv.arena import KVArena
from engine.kv.block_keys import child_key
from engine.kv.geometry import KVGeometry
from engine.kv.precision import EncodedBlock, EncodedGroup, Int8Codec

_CODEC = Int8Codec()


class Block:
    """Keys and values of up to `BLOCK_TOKENS` tokens: one tensor per region group, `[regions, tokens, heads, dim]`.

    `key` is None for a block that must not be found by content: quantized, incognito, or computed after such a one.
    """

    __slots__ = ("encoded", "key", "refs", "tensors", "token_ids")

    def __init__(self, key: bytes | None, token_ids: tuple[int, ...], tensors: list[torch.Tensor]) -> None:
        self.key = key
        self.token_ids = token_ids
        self.tensors = tensors
        self.encoded: EncodedBlock | None = None
        self.refs = 1

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def is_full_precision(self) -> bool:
        return self.encoded is None

    @property
    def nbytes(self) -> int:
        return self.encoded.nbytes if self.encoded else sum(tensor.nbytes for tensor in self.tensors)

    @property
    def place(self) -> str:
        """Where the data lies: "cpu" or "cuda"."""
        first = self.encoded.groups[0].codes if self.encoded else self.tensors[0] if self.tensors else None
        return first.device.type if first is not None else "cpu"

    def copy_to(self, arena: KVArena, start: int, num_tokens: int) -> None:
        """Write the first `num_tokens` to the positions from `start` on; a quantized block is decoded on the way."""
        if self.encoded is None:
            arena.write(start, [tensor[:, :num_tokens] for tensor in self.tensors])
        elif num_tokens == self.num_tokens:
            _CODEC.decode(self.encoded, arena.read(start, start + num_tokens))
        else:
            whole = [
                torch.empty(group.shape(self.num_tokens), dtype=arena.geometry.dtype, device=arena.device)
                for group in arena.geometry.groups
            ]
            _CODEC.decode(self.encoded, whole)
            arena.write(start, [tensor[:, :num_tokens] for tensor in whole])

    def to_host(self) -> None:
        """Move the data to host memory; it is there on return."""
        if self.encoded is not None:
            groups = (EncodedGroup(*(tensor.to("cpu") for tensor in group)) for group in self.encoded.groups)
            self.encoded = EncodedBlock(self.encoded.codec, tuple(groups))
        self.tensors = [tensor.to("cpu") for tensor in self.tensors]


class BlockPool:
    """All blocks in memory. `nbytes` counts each once, however many conversations hold it."""

    def __init__(self, root: bytes, geometry: KVGeometry) -> None:
        self.root = root
        self._geometry = geometry
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

    def quantize(self, block: Block) -> int:
        """Replace an unshared block by its int8 form, never to be found again. Returns the bytes freed.

        A block of few tokens stays as it is: its scales would outweigh what the codes save.
        """
        before = block.nbytes
        if block.refs > 1 or block.encoded is not None or _CODEC.nbytes(self._geometry, block.num_tokens) >= before:
            return 0
        encoded = _CODEC.encode(block.tensors, self._geometry)
        self._count(block, -1)
        self._unlist(block)
        block.key = None
        block.encoded, block.tensors = encoded, []
        self._count(block, 1)
        return before - block.nbytes

    def move_to_host(self, block: Block) -> int:
        """Returns the bytes freed on the device."""
        freed = block.nbytes if block.place != "cpu" else 0
        block.to_host()
        self.device_bytes -= freed
        return freed

    def _count(self, block: Block, sign: int) -> None:
        self.nbytes += sign * block.nbytes
        if block.place != "cpu":
            self.device_bytes += sign * block.nbytes

    def _unlist(self, block: Block) -> None:
        if block.key is not None and self._by_key.get(block.key) is block:
            del self._by_key[block.key]
