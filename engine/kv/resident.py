"""One conversation's cache in memory: contiguous while it is active, parked as blocks when another one is.

While active, `blocks` holds its cold part, which attention reads where it is, and leading blocks that others share.
Parked, `blocks` holds everything, the last one possibly short. Inference thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from engine.kv.block_keys import BLOCK_TOKENS
from engine.kv.blocks import Block, BlockPool, share_kept
from engine.kv.codecs.encoded import ENCODED_TOKENS, BlockCodec
from engine.kv.codecs.registry import LADDER
from engine.kv.cold import ColdPrefix, moved_together
from engine.kv.compaction import Closing
from engine.kv.pruned import KVZIP, PRUNED_TOKENS, PrunedBlock
from engine.kv.rotation import Rotation
from engine.kv.state_layers import StateSnapshot
from engine.kv.working_cache import WorkingCache
from engine.memory import return_freed_memory

_TRIM_TOKENS = 512  # encoded before the memory of what they were goes back to the system


class Resident:
    """Owned by the cache manager; `last_used` counts activations, larger is later.

    `conversation_id` names a branch of a conversation (`engine.kv.chat_key`).
    """

    def __init__(self, conversation_id: str, pool: BlockPool) -> None:
        self.conversation_id = conversation_id
        self.working: WorkingCache | None = None
        self.blocks: list[Block] = []
        self.is_incognito = False
        self.last_used = 0
        self._pool = pool
        self._parked_ids: list[int] = []
        self._states: dict[int, StateSnapshot] = {}
        self._loss = ""

    @property
    def token_ids(self) -> list[int]:
        return self.working.token_ids if self.working is not None else self._parked_ids

    @property
    def length(self) -> int:
        return len(self.token_ids)

    @property
    def is_exact(self) -> bool:
        """Whether nothing of it ever went through a lossy codec."""
        return not self.loss

    @property
    def loss(self) -> str:
        """The lossy codec it, or what it was computed from, went through last; "" if there was none."""
        return self.working.loss if self.working is not None else self._loss

    @property
    def kept(self) -> float:
        """The share of its key-value pairs that is left after pruning."""
        return share_kept(self.blocks, self.length, self._pool.geometry)

    @property
    def is_pruned(self) -> bool:
        return any(block.is_pruned for block in self.blocks)

    @property
    def moved_together(self) -> tuple[int, int]:
        """How many of its first tokens were moved together, and by how many positions less they take."""
        return moved_together(self.blocks)

    @property
    def is_torn(self) -> bool:
        """Whether some of what was moved together is missing: the rest is worth nothing."""
        moved = self.moved_together[0]
        return bool(moved) and sum(block.num_tokens for block in self.blocks if block.is_pruned) < moved

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
        return sum(block.nbytes for block in self.blocks if block.refs == 1) + self.buffer_bytes

    @property
    def buffer_bytes(self) -> int:
        """Bytes of memory that is in no block."""
        if self.working is not None:
            return self.working.held_bytes
        return sum(state.nbytes for state in self._states.values())

    @property
    def shared_bytes(self) -> int:
        """Bytes of blocks that other conversations hold as well."""
        return sum(block.nbytes for block in self.blocks if block.refs > 1)

    @property
    def slack_bytes(self) -> int:
        """Bytes of its buffers that hold no cached token."""
        return self.working.held_bytes - self.working.hot_bytes if self.working is not None else 0

    @property
    def quantizable_bytes(self) -> int:
        """Bytes of its own in full precision that a codec could make smaller: what makes whole blocks."""
        end = self.length // ENCODED_TOKENS * ENCODED_TOKENS
        found = position = 0
        for block in self.blocks:
            position += block.num_tokens
            if block.refs == 1 and block.is_full_precision and position <= end:
                found += block.nbytes
        if self.working is not None:
            found += max(0, end - self.working.hot_start) * self.working.geometry.bytes_per_token
        return found

    @property
    def encoded_bytes(self) -> int:
        """Bytes of its own that a codec made small and a further one could make smaller."""
        return sum(block.nbytes for block in self.blocks if block.refs == 1 and 0 <= rank(block) < len(LADDER) - 1)

    @property
    def lossiest(self) -> str:
        """The finest codec of its blocks: what all of it has at least come down to. "" for none."""
        ranks = [rank(block) for block in self.blocks if block.encoded is not None]
        return LADDER[min(ranks)].name if ranks and min(ranks) < len(LADDER) else self.loss

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
        kinds = {block.encoded.codec for block in self.blocks if block.encoded is not None}
        if not kinds:
            return self.loss or full
        return kinds.pop() if len(kinds) == 1 else "mixed"

    def usable(self, token_ids: Sequence[int]) -> int:
        """How many leading ids of `token_ids` a copy of this cache could serve."""
        shared = common_prefix(self.token_ids, token_ids)
        if not self.has_states:
            return shared if not self.is_pruned else 0
        return max((position for position in self.states if position <= shared), default=0)

    def copy_to(self, cache: WorkingCache, start: int, stop: int) -> None:
        """Write positions `start` to `stop` into another cache, and publish them with the state at `stop`.

        Encoded blocks are decoded on the way. Raises ValueError for a pruned block.
        """
        cache.reserve(stop)
        position = 0
        for block in self.blocks if self.working is None or self.working.cold is not None else ():
            count = min(block.num_tokens, stop - position)
            if count > 0 and position + count > start:
                block.copy_to(cache.arena, position, count)
            position += block.num_tokens
        if self.working is not None:
            first = max(start, self.working.hot_start)
            if stop > first:
                cache.arena.write(first, self.working.arena.read(first, stop))
        cache.loss = self.loss
        cache.publish(self.token_ids[:stop], self.states.get(stop))
        cache.checkpoints |= {at: state for at, state in self.states.items() if at <= stop}

    def resume(self, cache: WorkingCache) -> None:
        """Become active in an empty cache, whose cold part are the blocks up to the last encoded one, as they are."""
        encoded = [index for index, block in enumerate(self.blocks) if block.encoded is not None]
        num_cold = encoded[-1] + 1 if encoded else 0
        cold, rest = self.blocks[:num_cold], self.blocks[num_cold:]
        ids, states = self._parked_ids, self._states
        if cold:
            cache.start_cold(cold, self._loss)
        cache.loss = self._loss
        cache.reserve(len(ids))
        position = cache.hot_start
        for block in rest:
            block.copy_to(cache.arena, position, block.num_tokens)
            position += block.num_tokens
            self._pool.release(block)
        cache.publish(ids, states.get(len(ids)))
        cache.checkpoints |= states
        self.blocks = cold
        self.working = cache
        self._parked_ids, self._states = [], {}

    def adopt(self, token_ids: Sequence[int], blocks: Sequence[Block], loss: str) -> None:
        """Hold what came back from disk, parked: blocks whose references are handed over. Only while it is empty."""
        self.blocks, self._parked_ids, self._loss = list(blocks), list(token_ids), loss

    def shareable(self, length: int) -> int:
        """How many of its first `length` tokens another branch could begin with, after a part moved together."""
        if not 0 < self.moved_together[0] <= length:
            return 0
        position = 0
        for block in self._held:
            if position + block.num_tokens > length:
                return length if block.is_full_precision else position
            position += block.num_tokens
        return length

    def begin_with(self, other: Resident, length: int) -> None:
        """Hold the first `length` tokens of another branch, `shareable`, parked. Only while it is empty."""
        ids, cache = other.token_ids[:length], other.working
        blocks: list[Block] = []
        position = 0
        for block in other._held:
            count = min(block.num_tokens, length - position)
            if count == block.num_tokens:
                blocks.append(self._pool.retain(block))
            elif count > 0:
                part = [tensor[:, :count] for tensor in block.tensors]
                blocks.append(self._pool.obtain(None, ids[position : position + count], part))
            position += block.num_tokens
        if cache is not None:
            for start in range(position, length, BLOCK_TOKENS):
                stop = min(start + BLOCK_TOKENS, length)
                blocks.append(self._pool.obtain(None, ids[start:stop], cache.arena.read(start, stop)))
        self.adopt(ids, blocks, other.loss)

    def activate(self, cache: WorkingCache, donor: Resident | None) -> None:
        """`cache` takes over. Of the blocks it was filled from, its own or a donor's, those worth keeping are held."""
        old, self.blocks = self.blocks, []
        length = 0
        for block in donor.blocks if donor is not None else old:
            # Encoded ones that were decoded into the cache stay as well, so that nothing is encoded twice.
            is_own = block.encoded is not None and donor is None and not cache.is_exact
            is_kept = is_own or (block.is_full_precision and (donor is not None or block.refs > 1))
            ids = tuple(cache.token_ids[length : length + block.num_tokens])
            if not is_kept or block.num_tokens < BLOCK_TOKENS or block.token_ids != ids:
                break
            self.blocks.append(self._pool.retain(block))
            length += block.num_tokens
        for block in old:
            self._pool.release(block)
        self.working = cache
        self._parked_ids, self._states = [], {}

    def park(self, *, is_to_host: bool = False, codec: BlockCodec | None = None) -> None:
        """Turn the contiguous cache into blocks, sharing those that exist already, and free it.

        `is_to_host`: new blocks go there at once, as the device may have no room for both. `codec`: new blocks are
        encoded on the way, and the memory behind them is given back piece by piece, so that there is never more of it
        in use than before. Raises ValueError for numbers that the codec does not take; the chat stays active then.
        """
        if codec is not None:
            self.encode_cold(codec, 0)
        cache = self.working
        if cache is None:
            return
        ids = cache.token_ids
        self._trim_blocks(ids)
        parent = None if self.is_incognito or not cache.is_exact else self._pool.root
        if self.blocks and parent is not None:
            parent = self.blocks[-1].key
        for start in range(sum(block.num_tokens for block in self.blocks), len(ids), BLOCK_TOKENS):
            stop = min(start + BLOCK_TOKENS, len(ids))
            data = cache.arena.read(start, stop)
            block = self._pool.obtain(parent, ids[start:stop], data, is_on_host=is_to_host)
            self.blocks.append(block)
            parent = block.key
        cache.checkpoint()
        self._parked_ids, self._states, self._loss = list(ids), dict(cache.checkpoints), cache.loss
        self.working = None

    def release_doubled(self) -> None:
        """While active: let go of held blocks that are not part of the cache, or that it has in its own memory and
        nobody else shares any more."""
        if self.working is None or len(self.blocks) <= self._num_cold:
            return
        self._trim_blocks(self.working.token_ids)
        while len(self.blocks) > self._num_cold:
            block = self.blocks[-1]
            if block.refs > 1 if block.is_full_precision else not self.working.is_exact:
                break
            self._pool.release(self.blocks.pop())

    def encode_cold(self, codec: BlockCodec, recent_tokens: int) -> int:
        """Encode an active cache but for its last `recent_tokens`, or as many as the codec asks for. Returns the bytes
        freed.

        What is encoded already stays as it is. Memory is given back piece by piece. Raises ValueError for numbers that
        the codec does not take: what came before them is encoded then.
        """
        cache = self.working
        if cache is None:
            return 0
        self.release_doubled()
        if any(block.encoded is not None for block in self.blocks[self._num_cold :]):
            self._drop_blocks(self._num_cold)
        before = self.own_bytes
        stop = cache.length - max(recent_tokens, codec.recent_tokens)
        blocks, is_encoded = list(self.blocks), False
        start = sum(block.num_tokens for block in blocks)
        parent = None if self.is_incognito or not cache.is_exact else self._pool.root
        if blocks and parent is not None:
            parent = blocks[-1].key
        try:
            for first, last in spans(start, stop, ENCODED_TOKENS):
                data, ids = cache.arena.read(first, last), cache.token_ids[first:last]
                if last <= codec.first_tokens:
                    for at in range(first, last, BLOCK_TOKENS):
                        part = cache.arena.read(at, min(at + BLOCK_TOKENS, last))
                        blocks.append(self._pool.obtain(parent, ids[at - first : at - first + BLOCK_TOKENS], part))
                        parent = blocks[-1].key
                else:
                    blocks.append(self._pool.add_encoded(ids, codec.encode(data, cache.geometry)))
                    is_encoded = True
                    cache.arena.discard(start, last)
                if last % _TRIM_TOKENS == 0:
                    return_freed_memory()
        finally:
            if is_encoded:
                self.blocks = blocks
                cache.set_cold(blocks, codec.name)
            else:
                for block in blocks[len(self.blocks) :]:
                    self._pool.release(block)
        return before - self.own_bytes

    def prune(self, method: str, kept: torch.Tensor, *, is_int8: bool = False) -> int:
        """Keep only some pairs of an active cache's first tokens. Returns the bytes freed.

        kept: bool `[lanes, tokens]`, what is left of as many tokens, a cold part among them; `method` names how it was
        chosen; `is_int8`: what is kept is encoded as well. The tokens after them stay as they are. Memory is given back
        piece by piece. Raises ValueError for a cache that is not active, is pruned already, reaches further in its cold
        part, or has state layers, which cannot follow.
        """
        cache, stop = self.working, kept.shape[1]
        if (
            cache is None
            or self.is_pruned
            or not cache.can_crop
            or not cache.hot_start <= stop <= cache.length
            or not stop
        ):
            raise ValueError("only an active cache that is whole can be pruned")
        before = self.own_bytes
        old, position = list(self.blocks), 0  # of those not released yet, where the first one begins
        self.blocks = []
        for start in range(0, stop, PRUNED_TOKENS):
            end = min(start + PRUNED_TOKENS, stop)
            data = _read(cache, old, position, start, end)
            pruned = PrunedBlock.of(method, data, kept[:, start:end], cache.geometry)
            if is_int8:
                pruned = pruned.quantized(cache.geometry)
            self.blocks.append(self._pool.add_encoded(cache.token_ids[start:end], pruned))
            while old and position + old[0].num_tokens <= end:
                position += old[0].num_tokens
                self._pool.release(old.pop(0))
            cache.arena.discard(0, end)
        for block in old:
            self._pool.release(block)
        cache.set_cold(self.blocks, self.blocks[0].encoded.codec)  # type: ignore[union-attr]
        return before - self.own_bytes

    def move_together(self, scores: torch.Tensor, head: int, most: int, rotation: Rotation) -> int:
        """Keep the `most` best pairs of every lane of an active cache's first tokens and move what is left together.

        Returns the bytes freed. `scores` and `head`: see `Closing`. The tokens after them stay, and move as far.
        Nothing has changed when memory runs out. Raises ValueError for a cache that is not active, has state layers, is
        pruned in another way, or reaches further in its cold part.
        """
        cache, stop = self.working, scores.shape[1]
        if (
            cache is None
            or not cache.can_crop
            or (self.is_pruned and not cache.moved_tokens)
            or not max(1, cache.hot_start) <= stop <= cache.length
        ):
            raise ValueError("only an active cache can be moved together")
        cache.rollback(cache.length)  # forgets what was cut off: it would not move
        before, geometry = self.own_bytes, cache.geometry
        cold = list(cache.cold.blocks) if cache.cold is not None else []
        closing, moved = Closing(cold, scores, head, most), cache.moved_tokens
        after = [block for block in cold if not block.is_pruned]
        blocks: list[Block] = []
        try:
            for start in range(0, stop, PRUNED_TOKENS):
                end = min(start + PRUNED_TOKENS, stop)
                whole = _read(cache, after, moved, max(start, moved), end) if moved < end else []
                pruned = closing.block(start, end, whole, rotation, geometry)
                blocks.append(self._pool.add_encoded(cache.token_ids[start:end], pruned))
            cache.set_cold(blocks, KVZIP)
        except BaseException:
            for block in blocks:
                self._pool.release(block)
            raise
        for block in self.blocks:
            self._pool.release(block)
        self.blocks = blocks
        cache.move_hot(rotation, closing.tail_distance)
        return before - self.own_bytes

    def quantize(self, codec: BlockCodec) -> int:
        """Encode the unshared blocks of a parked cache, or of an active one's cold part, those of a finer codec anew.

        Returns the bytes freed. Raises ValueError for numbers that the codec does not take; what was encoded before
        them stays so.
        """
        cache = self.working
        if cache is None:
            return self._quantize(codec)
        if cache.cold is None:
            return 0
        self._drop_blocks(self._num_cold)
        cache.cold = None  # lets its blocks go one by one
        freed = 0
        try:
            freed = self._quantize(codec)
        finally:
            cache.cold = ColdPrefix(self.blocks, cache.geometry)
            if freed:
                cache.loss = codec.name
        return freed

    def _quantize(self, codec: BlockCodec) -> int:
        before = sum(block.nbytes for block in self.blocks)
        stop = self.length - codec.recent_tokens
        done: list[Block] = []
        position, left = 0, list(self.blocks)
        while left:
            run = self._run_to_encode(left, position, stop, codec)
            if not run:
                run = left[:1]
                done += run
            else:
                done.append(self._encode_run(run, codec))
                self._loss = codec.name
            position += sum(block.num_tokens for block in run)
            if position % _TRIM_TOKENS == 0:
                return_freed_memory()
            del left[: len(run)]
            self.blocks = [*done, *left]
        return before - sum(block.nbytes for block in self.blocks)

    def _run_to_encode(self, blocks: Sequence[Block], position: int, stop: int, codec: BlockCodec) -> list[Block]:
        """The leading blocks that become one encoded block: none where they may not, or are not enough."""
        end = (position // ENCODED_TOKENS + 1) * ENCODED_TOKENS
        run: list[Block] = []
        for block in blocks:
            if position >= end:
                break
            position += block.num_tokens
            is_short = block.num_tokens % BLOCK_TOKENS != 0
            if block.refs > 1 or is_short or rank(block) >= rank_of(codec.name) or position > min(stop, end):
                return []
            run.append(block)
        return run if position == end and position > codec.first_tokens else []

    def _encode_run(self, run: Sequence[Block], codec: BlockCodec) -> Block:
        geometry = self._pool.geometry
        ids = [token_id for block in run for token_id in block.token_ids]
        data = [
            torch.empty(group.shape(len(ids)), dtype=geometry.dtype, device=run[0].place) for group in geometry.groups
        ]
        position = 0
        for block in run:
            end = position + block.num_tokens
            block.decode([tensor[:, position:end] for tensor in data], geometry)
            position = end
        encoded = self._pool.add_encoded(ids, codec.encode(data, geometry))
        for block in run:
            self._pool.release(block)
        return encoded

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
        keep = position = 0
        for block in self.blocks:
            end = position + block.num_tokens
            if block.token_ids != tuple(ids[position:end]):
                break
            position, keep = end, keep + 1
        self._drop_blocks(keep)

    def _drop_blocks(self, keep: int) -> None:
        """Let go of held blocks but for the first `keep`."""
        for block in self.blocks[keep:]:
            self._pool.release(block)
        del self.blocks[keep:]

    @property
    def _held(self) -> Sequence[Block]:
        """Where its first tokens are, or all of them while it is parked."""
        return self.blocks[: self._num_cold] if self.working is not None else self.blocks

    @property
    def _num_cold(self) -> int:
        """How many of the held blocks are an active cache's cold part."""
        return len(self.working.cold.blocks) if self.working is not None and self.working.cold is not None else 0


def _read(cache: WorkingCache, cold: Sequence[Block], position: int, start: int, stop: int) -> list[torch.Tensor]:
    """These positions of an active cache, a tensor per region group; `cold` are its blocks from `position` on."""
    if start >= cache.hot_start:
        return cache.arena.read(start, stop)
    out = [
        torch.empty(group.shape(stop - start), dtype=cache.geometry.dtype, device=cache.arena.device)
        for group in cache.geometry.groups
    ]
    hot = max(start, cache.hot_start)
    for block in cold:
        end = position + block.num_tokens
        low, high = max(start, position), min(hot, stop, end)
        if low < high:
            whole = [
                torch.empty(group.shape(block.num_tokens), dtype=one.dtype, device=one.device)
                for group, one in zip(cache.geometry.groups, out, strict=True)
            ]
            block.decode(whole, cache.geometry)
            for target, tensor in zip(out, whole, strict=True):
                target[:, low - start : high - start] = tensor[:, low - position : high - position]
        position = end
    if hot < stop:
        for target, tensor in zip(out, cache.arena.read(hot, stop), strict=True):
            target[:, hot - start :] = tensor
    return out


def spans(start: int, stop: int, size: int) -> Iterator[tuple[int, int]]:
    """The pieces of `start` to `stop` that end at multiples of `size`; what is left at the end is not part of any."""
    while (end := (start // size + 1) * size) <= stop:
        yield start, end
        start = end


def rank(block: Block) -> int:
    """How far a block has come down the ladder of codecs; pruned ones, and others, come no further."""
    return rank_of(block.encoded.codec) if block.encoded is not None else -1


def rank_of(name: str) -> int:
    return next((index for index, codec in enumerate(LADDER) if codec.name == name), len(LADDER))


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the longest common beginning of two id sequences."""
    limit = min(len(first), len(second))
    if list(first[:limit]) == list(second[:limit]):
        return limit
    return next(index for index in range(limit) if first[index] != second[index])
