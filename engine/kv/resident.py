"""One conversation's cache in memory: contiguous while it is active, parked as blocks when another one is.

While active, `blocks` holds only what must outlive it: leading blocks that others share, and quantized ones, which are
never encoded twice. Parked, `blocks` holds everything, the last one possibly short. Inference thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.kv.block_keys import BLOCK_TOKENS
from engine.kv.blocks import Block, BlockPool
from engine.kv.state_layers import StateSnapshot
from engine.kv.working_cache import WorkingCache


class Resident:
    """Owned by the cache manager; `last_used` counts activations, larger is later."""

    def __init__(self, conversation_id: str, pool: BlockPool) -> None:
        self.conversation_id = conversation_id
        self.working: WorkingCache | None = None
        self.blocks: list[Block] = []
        self.is_incognito = False
        self.last_used = 0
        self._pool = pool
        self._parked_ids: list[int] = []
        self._states: dict[int, StateSnapshot] = {}
        self._is_exact = True

    @property
    def token_ids(self) -> list[int]:
        return self.working.token_ids if self.working is not None else self._parked_ids

    @property
    def length(self) -> int:
        return len(self.token_ids)

    @property
    def is_exact(self) -> bool:
        """Whether nothing of it ever went through a lossy codec."""
        return self.working.is_exact if self.working is not None else self._is_exact

    @property
    def states(self) -> dict[int, StateSnapshot]:
        """Checkpoints of the layers that cannot be cropped, by position."""
        return self.working.checkpoints if self.working is not None else self._states

    @property
    def has_states(self) -> bool:
        """Whether it cannot be cut anywhere but at a checkpoint."""
        return not self.working.can_crop if self.working is not None else bool(self._states)

    @property
    def own_bytes(self) -> int:
        """Bytes that are freed when this conversation is dropped."""
        blocks = sum(block.nbytes for block in self.blocks if block.refs == 1)
        if self.working is not None:
            return blocks + self.working.held_bytes
        return blocks + sum(state.nbytes for state in self._states.values())

    @property
    def shared_bytes(self) -> int:
        """Bytes of blocks that other conversations hold as well."""
        return sum(block.nbytes for block in self.blocks if block.refs > 1)

    @property
    def slack_bytes(self) -> int:
        """Bytes of its buffers that hold no cached token."""
        return self.working.held_bytes - self.working.nbytes if self.working is not None else 0

    @property
    def quantizable_bytes(self) -> int:
        return sum(block.nbytes for block in self.blocks if block.refs == 1 and block.is_full_precision)

    @property
    def place(self) -> str:
        if self.working is not None:
            return self.working.arena.device.type
        is_on_device = self.device_state_bytes or any(block.place == "cuda" for block in self.blocks)
        return "cuda" if is_on_device else "cpu"

    @property
    def device_state_bytes(self) -> int:
        """Bytes of a parked cache's checkpoints that are on the GPU."""
        return sum(state.device_bytes for state in self._states.values())

    def precision(self, full: str) -> str:
        """Of what is cached; `full` is the name of the unquantized one."""
        kinds = {full if block.encoded is None else block.encoded.codec for block in self.blocks}
        if self.working is not None or not kinds:
            return full if self.is_exact else "int8"
        return kinds.pop() if len(kinds) == 1 else "mixed"

    def usable(self, token_ids: Sequence[int]) -> int:
        """How many leading ids of `token_ids` a copy of this cache could serve."""
        shared = common_prefix(self.token_ids, token_ids)
        if not self.has_states:
            return shared
        return max((position for position in self.states if position <= shared), default=0)

    def copy_to(self, cache: WorkingCache, start: int, stop: int) -> None:
        """Write positions `start` to `stop` into another cache, and publish them with the state at `stop`."""
        cache.reserve(stop)
        if self.working is not None:
            cache.arena.write(start, self.working.arena.read(start, stop))
        position = 0
        for block in self.blocks if self.working is None else ():
            count = min(block.num_tokens, stop - position)
            if count > 0 and position + count > start:
                block.copy_to(cache.arena, position, count)
            position += block.num_tokens
        cache.is_exact = self.is_exact
        cache.publish(self.token_ids[:stop], self.states.get(stop))
        cache.checkpoints |= {at: state for at, state in self.states.items() if at <= stop}

    def activate(self, cache: WorkingCache, donor: Resident | None) -> None:
        """`cache` takes over. Of the blocks it was filled from, its own or a donor's, those worth keeping are held."""
        old, self.blocks = self.blocks, []
        length = 0
        for block in donor.blocks if donor is not None else old:
            is_kept = donor is not None or block.refs > 1 or (block.encoded is not None and not cache.is_exact)
            ids = tuple(cache.token_ids[length : length + BLOCK_TOKENS])
            if not is_kept or block.num_tokens < BLOCK_TOKENS or block.token_ids != ids:
                break
            self.blocks.append(self._pool.retain(block))
            length += BLOCK_TOKENS
        for block in old:
            self._pool.release(block)
        self.working = cache
        self._parked_ids, self._states = [], {}

    def park(self, *, is_to_host: bool = False) -> None:
        """Turn the contiguous cache into blocks, sharing those that exist already, and free it.

        `is_to_host`: new blocks go there at once, as the device may have no room for both.
        """
        cache = self.working
        if cache is None:
            return
        ids = cache.token_ids
        self._trim_blocks(ids)
        parent = None if self.is_incognito or not cache.is_exact else self._pool.root
        if self.blocks and parent is not None:
            parent = self.blocks[-1].key
        for start in range(len(self.blocks) * BLOCK_TOKENS, len(ids), BLOCK_TOKENS):
            stop = min(start + BLOCK_TOKENS, len(ids))
            data = cache.arena.read(start, stop)
            block = self._pool.obtain(parent, ids[start:stop], data, is_on_host=is_to_host)
            self.blocks.append(block)
            parent = block.key
        cache.checkpoint()
        self._parked_ids, self._states, self._is_exact = list(ids), dict(cache.checkpoints), cache.is_exact
        self.working = None

    def release_doubled(self) -> None:
        """While active: let go of held blocks that nobody else shares any more; the contiguous cache has them."""
        if self.working is not None:
            while self.blocks and self.blocks[-1].refs == 1 and self.blocks[-1].is_full_precision:
                self._pool.release(self.blocks.pop())

    def quantize(self) -> int:
        """Encode the unshared blocks of a parked cache. Returns the bytes freed."""
        freed = sum(self._pool.quantize(block) for block in self.blocks) if self.working is None else 0
        if freed:
            self._is_exact = False
        return freed

    def move_to_host(self) -> int:
        """Of a parked cache. Returns the bytes freed on the device."""
        if self.working is not None:
            return 0
        freed = self.device_state_bytes
        self._states = {position: state.on_host() for position, state in self._states.items()}
        return freed + sum(self._pool.move_to_host(block) for block in self.blocks)

    def give_up(self) -> None:
        """Free everything."""
        for block in self.blocks:
            self._pool.release(block)
        self.working, self.blocks, self._parked_ids, self._states = None, [], [], {}

    def _trim_blocks(self, ids: Sequence[int]) -> None:
        """Let go of held blocks that the cache no longer agrees with: it was cut and went on differently."""
        keep = 0
        for index, block in enumerate(self.blocks):
            if block.token_ids != tuple(ids[index * BLOCK_TOKENS : (index + 1) * BLOCK_TOKENS]):
                break
            keep += 1
        for block in self.blocks[keep:]:
            self._pool.release(block)
        del self.blocks[keep:]


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the longest common beginning of two id sequences."""
    limit = min(len(first), len(second))
    if list(first[:limit]) == list(second[:limit]):
        return limit
    return next(index for index in range(limit) if first[index] != second[index])
