"""What the model sees while it runs: one contiguous cache per active conversation on transformers' Cache interface.

Full-attention layers live in an arena and can be cut at any token; their first tokens may be left in encoded blocks
instead (`engine.kv.cold`). All others ("state layers": sliding, recurrent) are
transformers' own and cannot: rolling such a cache back goes to the nearest checkpoint.
Invariant: `token_ids` are exactly the ids whose keys and values are in every layer, in order. Owned by the inference
thread; the saver may read positions below `length` while they are not overwritten (see `engine.kv.store.writer`).
"""

from __future__ import annotations

import bisect
import weakref
from collections.abc import Sequence

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, DummyLayer

from engine.kv import attention, layer_kinds, state_layers
from engine.kv.arena import KVArena, grown_capacity, reserve_arena
from engine.kv.blocks import Block, share_kept
from engine.kv.cold import ColdPrefix
from engine.kv.geometry import KVGeometry
from engine.kv.rotation import Rotation
from engine.kv.state_layers import StateSnapshot
from engine.one_thread import one_thread

_MAX_CHECKPOINTS = 6
_LITTLE_SLACK = 1.005


class ContiguousLayer(CacheLayerMixin):
    """Full-attention layer written in place; returns views of the filled part, `[1, kv_heads, tokens, head_dim]`."""

    is_sliding = False
    is_croppable = True
    is_compileable = False
    is_initialized = True

    def __init__(self, cache: WorkingCache, index: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # transformers
        self.is_initialized = True
        self.length = 0
        # Not a cycle: a cache given up has to free its memory at once, not at Python's next collection.
        self._cache: WorkingCache = weakref.proxy(cache)
        self._index = index

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: the arena exists before the first token."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        start, end = self.length, self.length + key_states.shape[-2]
        self._cache.reserve(end)
        self.length = end
        arena, cold = self._cache.arena, self._cache.cold
        start, end = start - arena.first, end - arena.first
        keys, values = arena.keys[self._index], arena.values[self._index]
        keys[start:end] = key_states[0].transpose(0, 1)
        values[start:end] = value_states[0].transpose(0, 1)
        attention.announce(self._index, cold)
        dtype = key_states.dtype  # float32 on processors that do not multiply bfloat16, which still is what is kept
        return keys[:end].transpose(0, 1)[None].to(dtype), values[:end].transpose(0, 1)[None].to(dtype)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        first = self._cache.arena.first
        return self.length - first + query_length, first

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1

    def reset(self) -> None:
        self.length = 0

    def crop(self, tokens_to_remove: int) -> None:
        self.length -= abs(tokens_to_remove)


class WorkingCache(Cache):
    """The contiguous, growing cache of one conversation.

    `stock_layers`: the model's own cache layers, empty; plain full-attention ones are replaced by ours, others kept.
    `cold`: the first tokens, where they are not in the arena; where what is left of them was moved together, all that
    follows stands `shift` positions before its number (`engine.kv.compaction`). `loss` names the lossy codec that the
    cache, or what it was computed from, went through; "" for an exact one.
    """

    def __init__(
        self,
        geometry: KVGeometry,
        stock_layers: Sequence[CacheLayerMixin],
        context_length: int,
        device: torch.device,
        num_tokens: int = 0,
        arena: KVArena | None = None,
    ) -> None:
        self.arena = arena or reserve_arena(geometry, num_tokens, context_length, device)
        self.cold: ColdPrefix | None = None
        self.loss = ""
        self._context_length = context_length
        self.token_ids: list[int] = []
        self.checkpoints: dict[int, StateSnapshot] = {}
        self._standing = 0  # how far what was cut off still stands behind the end, for `readmit`
        self._device = device
        self._full: list[ContiguousLayer] = []
        self._state: dict[int, CacheLayerMixin] = {}
        layers: list[CacheLayerMixin] = []
        for index, layer in enumerate(stock_layers):
            if state_layers.is_full(layer):
                layer = ContiguousLayer(self, len(self._full))
                self._full.append(layer)
            elif not isinstance(layer, DummyLayer):
                self._state[index] = layer
            layers.append(layer)
        super().__init__(layers=[*layers])

    @property
    def is_exact(self) -> bool:
        """Whether nothing of it ever went through a lossy codec."""
        return not self.loss

    @property
    def hot_start(self) -> int:
        """The position from which on it is in the arena."""
        return self.arena.first

    @property
    def moved_tokens(self) -> int:
        """How many of the first tokens were moved together: it cannot be cut among them."""
        return self.cold.moved_tokens if self.cold is not None else 0

    @property
    def shift(self) -> int:
        """The next token's position is the length less this."""
        return self.cold.shift if self.cold is not None else 0

    @property
    def kept(self) -> float:
        """The share of its key-value pairs that is left after pruning."""
        return share_kept(self.cold.blocks if self.cold is not None else (), self.length, self.geometry)

    @property
    def can_crop(self) -> bool:
        """Whether any length can be cut back to; otherwise only a checkpoint's."""
        return not self._state

    @property
    def length(self) -> int:
        """Number of cached tokens."""
        return len(self.token_ids)

    @property
    def geometry(self) -> KVGeometry:
        return self.arena.geometry

    @property
    def nbytes(self) -> int:
        """Bytes of the cached keys, values and states."""
        return self.hot_bytes + (self.cold.nbytes if self.cold is not None else 0)

    @property
    def hot_bytes(self) -> int:
        """Of them, those in memory of its own."""
        return (self.length - self.hot_start) * self.geometry.bytes_per_token + self.state_bytes

    @property
    def state_bytes(self) -> int:
        """Bytes of the live state layers and their checkpoints."""
        if not self._state:
            return 0
        return state_layers.nbytes(self._state.values()) + sum(one.nbytes for one in self.checkpoints.values())

    @property
    def held_bytes(self) -> int:
        """Bytes of memory behind them, slack included; the blocks of the cold part are not its own."""
        return self.arena.held_bytes(self.length - self.hot_start) + self.state_bytes

    def reserve(self, num_tokens: int) -> None:
        """Make room for `num_tokens`; copies the cache where memory is not reserved ahead."""
        rows = num_tokens - self.hot_start
        if rows <= self.arena.capacity:
            self.arena.touched_tokens = max(self.arena.touched_tokens, rows)
            return
        self._move(rows, self.hot_start, self._filled, self.shift)
        self.arena.touched_tokens = rows

    def compact(self) -> None:
        """Give back what a cut or a recycled arena left unused, when it is more than the slack of a growing cache."""
        rows, self._standing = self.length - self.hot_start, 0
        if self.arena.held_bytes(rows) <= grown_capacity(rows) * self.geometry.bytes_per_token * _LITTLE_SLACK:
            return
        if not self.arena.trim(rows):
            self._move(rows, self.hot_start, self.length, self.shift)

    def set_cold(self, blocks: Sequence[Block], loss: str) -> None:
        """Read the first tokens from `blocks` from now on; the arena keeps only what follows them.

        The blocks hold what the cache holds, or less of it; `loss` names how.
        """
        cold = ColdPrefix(blocks, self.geometry)
        standing = max(self.length, self._standing)
        self._move(max(standing - cold.num_tokens, 0), cold.num_tokens, standing, cold.shift)
        self.cold, self.loss = cold, loss

    def move_hot(self, rotation: Rotation, distance: int) -> None:
        """Move what is in the arena by so many positions: the cold part before it has been moved together."""
        filled = slice(0, self.length - self.hot_start)
        for layer, keys in enumerate(self.arena.keys):
            distances = torch.full((filled.stop,), distance, dtype=torch.int64)
            keys[filled] = rotation.moved(layer, keys[filled], distances)

    def start_cold(self, blocks: Sequence[Block], loss: str) -> None:
        """Begin an empty cache with `blocks`."""
        cold = ColdPrefix(blocks, self.geometry)
        self.arena.first = cold.num_tokens
        self.cold, self.loss = cold, loss
        self.publish([token_id for block in blocks for token_id in block.token_ids])

    def _move(self, rows: int, first: int, filled: int, shift: int) -> None:
        """Into another arena for `rows` tokens from `first` on, of which those before `filled` are there."""
        old = self.arena
        arena = reserve_arena(old.geometry, rows, max(rows, self._context_length + shift - first), self._device)
        arena.first = first
        with one_thread():  # a few MB, amid a reply
            if filled > first:
                arena.write(first, old.read(first, filled))
        arena.touched_tokens = max(0, filled - first)
        self.arena = arena

    def append_ids(self, token_ids: Sequence[int]) -> None:
        """Record ids whose keys and values a finished forward pass has written to every layer."""
        self._standing = 0
        self.token_ids.extend(token_ids)
        for layer in self._full:
            layer.length = len(self.token_ids)

    def checkpoint(self) -> None:
        """Remember the state layers as they are now, so that the cache can come back to this length."""
        if not self._state or not self.length or self.length in self.checkpoints:
            return
        if not all(map(layer_kinds.is_listed, self._state.values())):
            return
        self.checkpoints[self.length] = state_layers.capture(self._state, self.length)
        for position in sorted(self.checkpoints)[:-_MAX_CHECKPOINTS]:
            del self.checkpoints[position]

    def reachable(self, length: int) -> int:
        """The largest length up to `length` that the cache can be cut back to."""
        if length >= self.length:
            return self.length
        if self.can_crop:
            return self._cuttable(length)
        return max((position for position in self.checkpoints if position <= length), default=0)

    def rollback(self, length: int, *, is_torn: bool = False, may_return: bool = False) -> int:
        """Keep the first `reachable(length)` tokens and return how many.

        `is_torn`: a forward pass was interrupted, so that the state layers are only known at checkpoints. `may_return`:
        what is cut off may be admitted again (`readmit`), even when the cache has moved.
        """
        length = self._cuttable(min(length, self.length))
        self._standing = self.length if may_return and length >= self.hot_start else 0
        if self._state and (length < self.length or is_torn):
            length = max((position for position in self.checkpoints if position <= length), default=0)
            if length:
                state_layers.load(self._state, self.checkpoints[length], self._device)
            else:
                state_layers.reset(self._state.values())
        self.checkpoints = {position: state for position, state in self.checkpoints.items() if position <= length}
        if length < self.hot_start:
            self._thaw(length)
        del self.token_ids[length:]
        for layer in self._full:
            layer.length = length
        return length

    def readmit(self, token_ids: Sequence[int]) -> None:
        """Count ids again that a rollback (`may_return`) cut off right here, before others were written in their place.

        Only for caches that can be cropped.
        """
        self.token_ids.extend(token_ids)
        for layer in self._full:
            layer.length = self.length

    def publish(self, token_ids: Sequence[int], state: StateSnapshot | None = None) -> None:
        """Declare that the arena holds `token_ids`, written there from blocks or files, and take over `state`."""
        if self._state and state is not None:
            state_layers.load(self._state, state, self._device)
            self.checkpoints[state.position] = state
        self._standing = 0
        self.token_ids = list(token_ids)
        for layer in self._full:
            layer.length = len(token_ids)

    def _cuttable(self, length: int) -> int:
        """The largest length up to `length` that is not amid a pruned block, or amid what was moved together."""
        if self.cold is None or length >= self.hot_start:
            return length
        if length < self.cold.moved_tokens:
            return 0
        starts = self.cold.starts
        index = bisect.bisect_right(starts, length) - 1
        return starts[index] if self.cold.blocks[index].is_pruned else length

    def _thaw(self, length: int) -> None:
        """The cold part ends before `length`; the block that holds it is decoded into the arena."""
        assert self.cold is not None
        starts, blocks = self.cold.starts, self.cold.blocks
        index = bisect.bisect_right(starts, length) - 1
        first = starts[index]
        roomy = max(length, self._context_length + (self.shift if index else 0)) - first
        arena = reserve_arena(self.geometry, length - first, roomy, self._device)
        arena.first = first
        if length > first:
            blocks[index].copy_to(arena, first, length - first)
        arena.touched_tokens = length - first
        self.arena = arena
        self.cold = ColdPrefix(blocks[:index], self.geometry) if index else None
        if all(block.key is not None for block in blocks[: index + (length > first)]):  # only exact ones have keys
            self.loss = ""

    @property
    def _filled(self) -> int:
        """Tokens in the fullest layer: more than `length` amid a forward pass."""
        return max((layer.length for layer in self._full), default=0)
