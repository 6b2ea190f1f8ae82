"""Saving off the critical path: whole or not at all, never in the way, never of a state that is gone."""

from __future__ import annotations

import errno
import os
import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.kv import saver as saver_module
from engine.kv.arena import KVGeometry, LayerShape
from engine.kv.restorer import SnapshotRejectedError, SnapshotRestorer
from engine.kv.saver import SaveResult, SnapshotSaver
from engine.kv.snapshot_tensors import cache_bytes
from engine.kv.working_cache import WorkingCache

GEOMETRY = KVGeometry((LayerShape(2, 16, 16), LayerShape(1, 32, 16)), torch.bfloat16)
CPU = torch.device("cpu")
WAIT_S = 20


def filled(num_tokens: int, seed: int = 0) -> WorkingCache:
    torch.manual_seed(seed)
    cache = WorkingCache(GEOMETRY, 4096, CPU, num_tokens)
    for tensor in cache.arena.keys + cache.arena.values:
        tensor[:, :num_tokens].normal_()
    cache.publish(list(range(num_tokens)))
    return cache


@pytest.fixture
def results() -> queue.Queue[SaveResult]:
    return queue.Queue()


@pytest.fixture
def saver(results: queue.Queue[SaveResult]) -> Iterator[SnapshotSaver]:
    saver = SnapshotSaver(results.put)
    yield saver
    assert saver.close(WAIT_S)


@pytest.mark.parametrize("num_tokens", [1, 31, 32, 33, 1000])
def test_what_was_saved_comes_back_bit_for_bit(
    saver: SnapshotSaver, results: queue.Queue[SaveResult], tmp_path: Path, num_tokens: int
) -> None:
    cache, path = filled(num_tokens), tmp_path / "c.safetensors"
    saver.save("c", "r", path, "print", cache_bytes(cache))
    result = results.get(timeout=WAIT_S)
    assert (result.error, result.tokens, result.bytes_written) == (None, num_tokens, path.stat().st_size)
    restorer = SnapshotRestorer("print", GEOMETRY)
    fresh = WorkingCache(GEOMETRY, 4096, CPU)
    restorer.restore(path, fresh, restorer.token_ids(path))
    restorer.close()
    assert fresh.token_ids == cache.token_ids
    pairs = zip(fresh.arena.keys + fresh.arena.values, cache.arena.keys + cache.arena.values, strict=True)
    for mine, theirs in pairs:
        assert torch.equal(mine[:, :num_tokens].view(torch.uint8), theirs[:, :num_tokens].view(torch.uint8))


def test_the_file_is_plain_safetensors_and_private(
    saver: SnapshotSaver, results: queue.Queue[SaveResult], tmp_path: Path
) -> None:
    from safetensors import safe_open

    cache, path = filled(40), tmp_path / "c.safetensors"
    saver.save("c", "r", path, "print", cache_bytes(cache))
    results.get(timeout=WAIT_S)
    with safe_open(path, "pt") as file:
        assert torch.equal(file.get_tensor("layers.1.key"), cache.arena.keys[1][:, :40])
        assert file.get_tensor("token_ids").tolist() == cache.token_ids
    assert path.stat().st_mode & 0o777 == 0o600


def test_nothing_is_written_while_the_engine_works(
    saver: SnapshotSaver, results: queue.Queue[SaveResult], tmp_path: Path
) -> None:
    saver.pause()
    saver.save("c", "r", tmp_path / "c.safetensors", "print", cache_bytes(filled(100)))
    with pytest.raises(queue.Empty):
        results.get(timeout=0.2)
    assert list(tmp_path.iterdir()) == []
    saver.resume()
    assert results.get(timeout=WAIT_S).error is None


def test_release_ends_a_paused_save_at_once_and_leaves_no_file(
    saver: SnapshotSaver, results: queue.Queue[SaveResult], tmp_path: Path
) -> None:
    saver.pause()
    saver.save("a", "r", tmp_path / "a.safetensors", "print", cache_bytes(filled(100)))
    saver.save("b", "r", tmp_path / "b.safetensors", "print", cache_bytes(filled(100)))
    saver.release("b")
    saver.release("a")
    assert [results.get(timeout=WAIT_S).is_cancelled for _ in range(2)] == [True, True]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("failing", ["open", "write", "fsync", "replace"])
def test_a_failing_disk_leaves_the_old_snapshot_and_no_litter(
    saver: SnapshotSaver,
    results: queue.Queue[SaveResult],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    failing: str,
) -> None:
    path = tmp_path / "c.safetensors"
    saver.save("c", "r1", path, "print", cache_bytes(filled(50)))
    assert results.get(timeout=WAIT_S).error is None
    old = path.read_bytes()

    def fail(*args: object, **kwargs: object) -> int:
        raise OSError(code, os.strerror(code))

    if failing == "replace":
        monkeypatch.setattr(saver_module.Path, "replace", fail)
    else:
        monkeypatch.setattr(saver_module.os, failing, fail)
    saver.save("c", "r2", path, "print", cache_bytes(filled(60, seed=1)))
    result = results.get(timeout=WAIT_S)
    monkeypatch.undo()
    assert result.error is not None
    assert result.error.errno == code
    assert path.read_bytes() == old
    assert [entry.name for entry in tmp_path.iterdir()] == ["c.safetensors"]


def test_another_fingerprint_or_geometry_is_rejected(
    saver: SnapshotSaver, results: queue.Queue[SaveResult], tmp_path: Path
) -> None:
    path = tmp_path / "c.safetensors"
    saver.save("c", "r", path, "print", cache_bytes(filled(50)))
    results.get(timeout=WAIT_S)
    other = KVGeometry((LayerShape(2, 16, 16), LayerShape(1, 16, 32)), torch.bfloat16)
    for restorer in (SnapshotRestorer("other", GEOMETRY), SnapshotRestorer("print", other)):
        with pytest.raises(SnapshotRejectedError):
            restorer.token_ids(path)
        restorer.close()


def test_a_context_larger_than_this_machine_can_promise_still_chats() -> None:
    """131 kB a token over a million tokens: far more than any memory, and only the first few are used."""
    large = KVGeometry((LayerShape(8, 128, 128),) * 32, torch.bfloat16)
    cache = WorkingCache(large, 1_048_576, CPU, 100)
    assert 100 <= cache.arena.capacity < 1_048_576
    assert WorkingCache(GEOMETRY, 4096, CPU, 100).arena.capacity == 4096


def test_a_system_that_promises_only_what_it_has_gets_a_small_arena(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = torch.empty

    def stingy(size: int, **kwargs: Any) -> torch.Tensor:
        if size > 200_000:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return empty(size, **kwargs)

    monkeypatch.setattr("engine.kv.arena.torch.empty", stingy)
    assert 10 <= WorkingCache(GEOMETRY, 4096, CPU, 10).arena.capacity < 4096


def test_a_cache_that_outgrows_its_memory_is_copied_without_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.kv.arena._LAZY_MEMORY", False)
    cache = filled(700)
    before = cache.arena.keys[0][:, :700].clone()
    capacity = cache.arena.capacity
    cache.reserve(capacity + 1)
    assert cache.arena.capacity > capacity
    assert torch.equal(cache.arena.keys[0][:, :700], before)
