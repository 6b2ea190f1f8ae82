"""What the model sees while it runs: one contiguous cache per conversation on transformers' Cache interface.

Invariant: `token_ids` are exactly the ids whose keys and values are in every layer, in order. Owned by the inference
thread; the saver may read positions below `length` while they are not overwritten (see `engine.kv.saver`).
"""

from __future__ import annotations

import torch
from transformers import PreTrainedConfig
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache

from engine.kv.arena import KVArena, KVGeometry, grown_capacity, reserve_arena


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
        self._cache = cache
        self._index = index

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: the arena exists before the first token."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        end = self.length + key_states.shape[-2]
        self._cache.reserve(end)
        keys = self._cache.arena.keys[self._index]
        values = self._cache.arena.values[self._index]
        keys[:, self.length : end] = key_states[0]
        values[:, self.length : end] = value_states[0]
        self.length = end
        return keys[None, :, :end], values[None, :, :end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1

    def reset(self) -> None:
        self.length = 0

    def crop(self, tokens_to_remove: int) -> None:
        self.length -= abs(tokens_to_remove)


class WorkingCache(Cache):
    """The contiguous, growing cache of one conversation for models whose layers are all full attention."""

    can_crop = True

    def __init__(self, geometry: KVGeometry, context_length: int, device: torch.device, num_tokens: int = 0) -> None:
        self.arena = reserve_arena(geometry, num_tokens, context_length, device)
        self.token_ids: list[int] = []
        self._device = device
        self._layers = [ContiguousLayer(self, index) for index in range(len(geometry.layers))]
        super().__init__(layers=[*self._layers])

    @property
    def length(self) -> int:
        """Number of cached tokens."""
        return len(self.token_ids)

    @property
    def geometry(self) -> KVGeometry:
        return self.arena.geometry

    @property
    def nbytes(self) -> int:
        """Bytes of the cached keys and values."""
        return self.length * self.geometry.bytes_per_token

    @property
    def touched_bytes(self) -> int:
        """Bytes of memory behind them, rounding to pages included."""
        return self.arena.touched_bytes(self.length)

    def reserve(self, num_tokens: int) -> None:
        """Make room for `num_tokens`; copies the cache only where memory cannot be reserved ahead."""
        if num_tokens <= self.arena.capacity:
            return
        old = self.arena
        self.arena = KVArena(old.geometry, grown_capacity(num_tokens, old.capacity), self._device)
        for layer, (ours, theirs) in enumerate(zip(self.arena.keys, old.keys, strict=True)):
            length = self._layers[layer].length
            ours[:, :length] = theirs[:, :length]
            self.arena.values[layer][:, :length] = old.values[layer][:, :length]

    def append_ids(self, token_ids: list[int]) -> None:
        """Record ids that a finished forward pass has written to every layer."""
        self.token_ids.extend(token_ids)

    def truncate(self, length: int) -> None:
        """Keep the first `length` tokens; also mends layers left uneven by an interrupted forward pass."""
        del self.token_ids[length:]
        for layer in self._layers:
            layer.length = self.length

    def publish(self, token_ids: list[int]) -> None:
        """Declare that the arena holds `token_ids`, written there by a restore."""
        self.token_ids = list(token_ids)
        for layer in self._layers:
            layer.length = len(token_ids)


class UncroppableCache(DynamicCache):
    """The stock cache, for models with sliding or recurrent layers: kept in memory, reused whole or not at all."""

    can_crop = False

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config=config)
        self.token_ids: list[int] = []

    @property
    def length(self) -> int:
        return len(self.token_ids)

    @property
    def nbytes(self) -> int:
        """Bytes of every tensor the layers hold."""
        return sum(tensor.nbytes for layer in self.layers for tensor in _tensors_of(layer))

    @property
    def touched_bytes(self) -> int:
        return self.nbytes

    def append_ids(self, token_ids: list[int]) -> None:
        self.token_ids.extend(token_ids)

    def truncate(self, length: int) -> None:
        """Empty the cache; it cannot be cut to any other length."""
        if length:
            raise ValueError("this cache cannot be cropped")
        self.reset()  # type: ignore[no-untyped-call]  # transformers
        self.token_ids = []


KVCache = WorkingCache | UncroppableCache


def _tensors_of(layer: object) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for value in vars(layer).values():
        items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
        found.extend(item for item in items if isinstance(item, torch.Tensor) and item.ndim > 1)
    return found
