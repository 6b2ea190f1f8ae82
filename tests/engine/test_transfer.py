"""The way between host memory and a device, without a device: the arena is told to be elsewhere, and copies come late.

The fake stream does its copies only when somebody waits for them, as late as a real one could: a buffer that is filled
again too early, or memory used before it has arrived, shows as wrong bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from engine import memory
from engine.kv import transfer
from engine.kv.arena import KVArena
from engine.kv.block_keys import BLOCK_TOKENS, CHUNK_TOKENS, root_key
from engine.kv.blocks import BlockPool
from engine.kv.codecs.registry import INT8
from engine.kv.resident import Resident
from engine.kv.state_layers import LayerState, StateSnapshot
from engine.kv.store.files import FileName
from engine.kv.store.records import Manifest
from engine.model.forward import is_out_of_memory
from engine.protocol.commands import ChatMessage
from engine.protocol.events import PressureActed
from engine.protocol.misses import MissCode
from tests.engine.conftest import ColdReply, Engine, user
from tests.engine.random_caches import (
    CHAT,
    FINGERPRINT,
    GEOMETRY,
    SavedCaches,
    bits,
    filled_resident,
    new_cache,
    random_arena,
)


class LateStream:
    """Stands in for the side stream; all share one queue of copies, done in order when waited for."""

    pending: list[Callable[[], None]] = []  # noqa: RUF012 - emptied by the fixture
    joins = 0
    is_working = False

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @contextmanager
    def work(self) -> Iterator[None]:
        LateStream.is_working = True
        yield
        LateStream.is_working = False

    def mark(self) -> Callable[[], None]:
        upto = len(LateStream.pending)
        return lambda: LateStream.run(upto)

    def join(self) -> None:
        LateStream.joins += 1
        LateStream.run(len(LateStream.pending))

    @classmethod
    def run(cls, upto: int) -> None:
        for index in range(upto):
            cls.pending[index]()
            cls.pending[index] = lambda: None


@pytest.fixture
def far_arena(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every arena is on a device from here on, and two chunks fill a staging buffer."""
    copy_now = transfer._copy_regions

    def copy(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
        if LateStream.is_working:
            LateStream.pending.append(lambda: copy_now(targets, sources))
        else:
            copy_now(targets, sources)

    LateStream.pending, LateStream.joins = [], 0
    monkeypatch.setattr(transfer, "is_host_memory", lambda arena: False)
    monkeypatch.setattr(transfer, "SideStream", LateStream)
    monkeypatch.setattr(transfer, "_copy_regions", copy)
    monkeypatch.setattr(transfer, "STAGING_BYTES", 1)


@pytest.mark.usefixtures("far_arena")
@pytest.mark.parametrize(
    ("start", "stop"), [(0, 1), (0, 256), (0, 257), (0, 2000), (255, 2000), (256, 1300), (700, 701), (31, 1536), (5, 5)]
)
def test_an_upload_in_batches_fills_exactly_its_part_of_the_arena(start: int, stop: int) -> None:
    source, target, before = random_arena(2048), random_arena(2048, 1), random_arena(2048, 1)
    upload = transfer.ArenaUpload(target, start, stop)
    at = start
    while at < stop:
        end = min((at // CHUNK_TOKENS + upload.batch_chunks) * CHUNK_TOKENS, stop)
        upload.begin(at)
        for part, data in zip(upload.regions(at, end), transfer.host_regions(source, at, end), strict=True):
            part[:] = data
        upload.upload(at, end)
        at = end
    upload.finish()
    assert bits(target.read(start, stop)) == bits(source.read(start, stop))
    assert bits(target.read(0, start)) == bits(before.read(0, start))
    assert bits(target.read(stop, 2048)) == bits(before.read(stop, 2048))


@pytest.mark.usefixtures("far_arena")
def test_what_is_to_be_written_to_a_file_is_a_copy_of_a_distant_arena() -> None:
    arena = random_arena(300)
    kept = [[bytes(transfer.bytes_of(side[layer][7:290])) for side in (arena.keys, arena.values)] for layer in range(3)]
    views = transfer.host_regions(arena, 7, 290)
    for tensor in arena.groups:
        tensor.zero_()
    assert [bytes(view) for view in views] == [data for layer in kept for data in layer]


@pytest.fixture
def saved(tmp_path: Path) -> Iterator[SavedCaches]:
    caches = SavedCaches(tmp_path / "kv")
    yield caches
    caches.close()


def save_chat(saved: SavedCaches, source: KVArena, *, is_parked: bool = False) -> Manifest:
    resident, _ = filled_resident(source, source.capacity)
    if is_parked:
        resident.park(is_to_host=True)
    return saved.save(resident)


@pytest.mark.usefixtures("far_arena")
@pytest.mark.parametrize("is_parked", [False, True])
@pytest.mark.parametrize(("length", "start", "stop"), [(1, 0, 1), (600, 0, 600), (1537, 0, 1500), (1537, 300, 1537)])
def test_a_saved_chat_comes_back_bit_for_bit_through_staging(
    saved: SavedCaches, length: int, start: int, stop: int, is_parked: bool
) -> None:
    source = random_arena(length)
    manifest = save_chat(saved, source, is_parked=is_parked)
    cache = new_cache(stop)
    cache.arena.write(0, source.read(0, start))
    cache.publish(list(range(start)))
    restored = saved.persistence.restore(manifest, stop, cache)
    assert (restored.length, restored.miss, LateStream.joins) == (stop, None, 1)
    assert bits(cache.arena.read(0, stop)) == bits(source.read(0, stop))


@pytest.mark.usefixtures("far_arena")
def test_a_damaged_chunk_in_a_later_batch_ends_the_restore_before_it(saved: SavedCaches) -> None:
    source = random_arena(1537)
    manifest = save_chat(saved, source)
    path = saved.persistence._files.path(FINGERPRINT.digest, FileName(manifest.chunks[3].key, False))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    cache = new_cache(1537)
    restored = saved.persistence.restore(manifest, 1537, cache)
    assert restored.length == 3 * CHUNK_TOKENS
    assert restored.miss is not None
    assert restored.miss.code is MissCode.FILE_DAMAGED
    assert bits(cache.arena.read(0, restored.length)) == bits(source.read(0, restored.length))


@pytest.mark.usefixtures("far_arena")
def test_a_cancelled_restore_keeps_the_batches_that_came_and_waits_for_their_copies(saved: SavedCaches) -> None:
    source = random_arena(1537)
    manifest = save_chat(saved, source)
    cache = new_cache(1537)
    restored = saved.persistence.restore(manifest, 1537, cache, lambda: bool(LateStream.pending))
    assert (restored.length, LateStream.joins) == (2 * CHUNK_TOKENS, 1)
    assert bits(cache.arena.read(0, restored.length)) == bits(source.read(0, restored.length))


def test_on_the_cpu_a_restore_is_one_batch_into_the_arena_itself() -> None:
    arena = random_arena(2048)
    upload = transfer.ArenaUpload(arena, 255, 2048)
    upload.begin(255)
    assert upload.batch_chunks == 8
    upload.regions(300, 301)[0][:] = bytes(len(upload.regions(300, 301)[0]))
    assert not arena.keys[0][300].any()


def test_a_restart_through_staging_gives_the_same_reply(
    far_arena: None, start_engine: Callable[..., Engine], cold_reply: ColdReply, tiny_model: Path
) -> None:
    messages = [user("the quick brown fox " * 12)]
    start_engine(tiny_model).reply("a", messages)
    messages.append(user("and then?"))
    resumed = start_engine(tiny_model).reply("a", list(messages))
    assert resumed.statistics.restore_s > 0
    assert LateStream.joins > 0
    assert resumed.token_ids == cold_reply(tiny_model, messages).token_ids


class FakeStream:
    """Writes down who waits for whom."""

    def __init__(self, name: object, log: list[str]) -> None:
        self.name = name
        self._log = log

    def wait_stream(self, other: FakeStream) -> None:
        self._log.append(f"{self.name} waits for {other.name}")


def test_the_side_stream_starts_after_the_work_before_it_and_ends_before_the_work_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[str] = []
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: FakeStream("side", log))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: FakeStream("compute", log))
    transfer.SideStream(torch.device("cuda")).join()
    assert log == ["side waits for compute", "compute waits for side"]


def test_where_no_memory_can_be_pinned_ordinary_memory_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def refuse(*args: object, pin_memory: bool = False, **kwargs: object) -> torch.Tensor:
        asked.append(pin_memory)
        if pin_memory:
            raise RuntimeError("cannot pin")
        return make(*args, **kwargs)  # type: ignore[call-overload,no-any-return]

    make = torch.empty
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "empty", refuse)
    assert transfer.pinned_arena(GEOMETRY, 40).capacity == 40
    assert True in asked


@pytest.mark.parametrize("num_tokens", [1, BLOCK_TOKENS - 1, BLOCK_TOKENS])
def test_a_quantized_block_gives_the_same_numbers_wherever_it_is_decoded_to(num_tokens: int) -> None:
    pool = BlockPool(root_key("f"), GEOMETRY)
    block = pool.add_encoded(range(BLOCK_TOKENS), INT8.encode(random_arena(BLOCK_TOKENS).groups, GEOMETRY))
    whole, part, moved = (random_arena(64, 1) for _ in range(3))
    block.copy_to(whole, 0, BLOCK_TOKENS)
    block.copy_to(part, 9, num_tokens)
    block.to("cpu")
    block.copy_to(moved, 9, num_tokens)
    assert bits(part.read(9, 9 + num_tokens)) == bits(whole.read(0, num_tokens)) == bits(moved.read(9, 9 + num_tokens))


def test_a_block_made_on_the_host_is_a_copy_of_its_own() -> None:
    pool = BlockPool(root_key("f"), GEOMETRY)
    arena = random_arena(64)
    kept = bits(arena.read(32, 64))
    block = pool.obtain(None, range(BLOCK_TOKENS), arena.read(32, 64), is_on_host=True)
    for tensor in arena.groups:
        tensor.zero_()
    assert bits(block.tensors) == kept
    assert all(tensor.is_contiguous() for tensor in block.tensors)
    assert (pool.nbytes, pool.device_bytes) == (block.nbytes, 0)


def test_checkpoints_on_a_device_are_counted_there() -> None:
    tensors = {"keys": torch.empty(4, 8, device="meta"), "values": torch.empty(4, 8)}
    state = StateSnapshot(4, {0: LayerState("DynamicLayer", tensors, {})})
    assert (state.nbytes, state.device_bytes) == (256, 128)
    assert (here := StateSnapshot(4, {})).on_host() is here
    resident = Resident(CHAT, BlockPool(root_key("f"), GEOMETRY))
    resident._states = {4: state}
    assert (resident.place, resident.device_state_bytes) == ("cuda", 128)


def test_device_memory_that_torch_keeps_for_its_next_use_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (100, 1000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 500)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 350)
    reading = memory.read_memory("cuda")
    assert (reading.device_free_bytes, reading.device_total_bytes) == (250, 1000)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be ..."), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate"), True),
        (MemoryError(), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (ValueError("not enough memory"), False),
    ],
)
def test_every_way_that_memory_can_run_out_is_known(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


def test_a_chat_that_cannot_be_parked_for_lack_of_memory_stays_until_there_is_room(
    start_engine: Callable[..., Engine], tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start_engine(tiny_model)
    chats: dict[str, list[ChatMessage]] = {"a": [user("tell a story " * 8)], "b": [user("the fox " * 8)]}
    engine.reply("a", chats["a"])

    def no_memory(self: Resident, *, is_to_host: bool = False) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(Resident, "park", no_memory)
        engine.reply("b", chats["b"])
        assert engine.report().memory_bytes > 0
    chats["a"].append(user("go on"))
    assert engine.reply("a", chats["a"]).statistics.reused_tokens > 0
    assert not [event for event in engine.events if isinstance(event, PressureActed)]
