"""Saving off the critical path: never in the way, given up within one slice, never of a state that is gone."""

from __future__ import annotations

import errno
import os
import queue
import random
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.kv.store import writer as writer_module
from engine.kv.store.catalog import Catalog
from engine.kv.store.chunk_format import chunk_file
from engine.kv.store.collector import Limits
from engine.kv.store.problems import ManifestRejectedError
from engine.kv.store.records import Manifest, NewFile, TensorBytes, TensorSpec
from engine.kv.store.scratch_file import ScratchFile
from tests.engine.store.conftest import WAIT_S, Store, ids


class Gate:
    """Stops the writer before the n-th piece of data it writes, until opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
        self.reached = threading.Event()
        self._go_on = threading.Event()
        self._left = at
        real = ScratchFile.write

        def write(scratch: ScratchFile, data: memoryview | bytes) -> None:
            self._left -= 1
            if self._left == 0:
                self.reached.set()
                assert self._go_on.wait(WAIT_S)
            real(scratch, data)

        monkeypatch.setattr(ScratchFile, "write", write)

    def open(self) -> None:
        self._go_on.set()


def in_thread(action: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=action)
    thread.start()
    return thread


def test_nothing_is_written_while_the_engine_works(store: Store) -> None:
    store.writer.pause()
    store.start_save("c", ids(600))
    assert store.writer.is_pending("c")
    with pytest.raises(queue.Empty):
        store.results.get(timeout=0.2)
    assert store.data_files() == []
    store.writer.resume()
    assert store.results.get(timeout=WAIT_S).error is None
    assert not store.writer.is_pending("c")
    assert store.check_whole("c") == tuple(ids(600))


def test_a_pause_stops_within_a_slice(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch, 6)
    store.start_save("c", ids(600))
    assert gate.reached.wait(WAIT_S)
    store.writer.pause()
    gate.open()
    time.sleep(0.05)  # what would be written by now if it did not stop
    assert not list(store.folder.glob("conversations/*.json"))
    assert store.results.empty()
    store.writer.resume()
    assert store.results.get(timeout=WAIT_S).error is None


def test_release_gives_up_all_saves_of_a_conversation_at_once(store: Store) -> None:
    store.writer.pause()
    store.start_save("a", ids(300))
    store.start_save("b", ids(300, seed=1))
    store.start_save("a", ids(600))
    store.writer.release("a")
    assert not store.writer.is_pending("a")
    assert store.writer.is_pending("b")
    store.writer.release("b")
    assert [store.results.get(timeout=WAIT_S).is_cancelled for _ in range(3)] == [True] * 3
    store.writer.discard("a")
    store.writer.discard("b")
    assert store.data_files() == []
    store.writer.release("nobody")


def test_after_release_the_memory_is_no_longer_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch, 8)
    store.start_save("c", ids(600), [600])
    assert gate.reached.wait(WAIT_S)
    is_released = threading.Event()
    thread = in_thread(lambda: (store.writer.release("c"), is_released.set())[0])
    assert not is_released.wait(0.1)  # a slice is being read
    gate.open()
    assert is_released.wait(WAIT_S)
    thread.join()
    assert store.results.get(timeout=WAIT_S).is_cancelled
    store.writer.discard("c")
    assert store.data_files() == []


def test_a_newer_save_replaces_an_unfinished_one_and_keeps_its_files(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, 8)  # in the second file
    store.start_save("c", ids(600))
    assert gate.reached.wait(WAIT_S)
    store.start_save("c", ids(700))
    gate.open()
    first, second = (store.results.get(timeout=WAIT_S) for _ in range(2))
    assert (first.is_cancelled, second.error, second.is_cancelled) == (True, None, False)
    assert second.bytes_written < second.bytes_total  # the first file was not written twice
    assert store.check_whole("c") == tuple(ids(700))
    assert store.disk_bytes() == second.bytes_total


def test_deleting_while_saving_leaves_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.must_save("c", ids(300))
    for at in (1, 5, 9, 14):
        with monkeypatch.context() as patched:
            gate = Gate(patched, at)
            store.start_save("c", ids(600, seed=at))
            assert gate.reached.wait(WAIT_S)
            thread = in_thread(lambda: store.writer.delete_conversation("c"))
            gate.open()
            thread.join(WAIT_S)
        assert store.results.get(timeout=WAIT_S).error is None
        assert store.data_files() == []
        assert store.catalog.manifest("c") is None


def test_saves_and_deletions_in_any_order_end_whole(store: Store) -> None:
    """Chats that share beginnings, saved, released, deleted and damaged at random while the writer is at it."""
    dice = random.Random(0)
    base = ids(700)
    asked: dict[str, set[tuple[int, ...] | None]] = {key: {None} for key in "abc"}
    num_saves = 0
    for turn in range(150):
        key = dice.choice("abc")
        match dice.choice(["save", "save", "release", "delete", "pause", "wait", "drop"]):
            case "save":
                token_ids = base[: dice.randrange(700)] + ids(dice.randint(1, 300), seed=turn)
                store.start_save(key, token_ids, [dice.randint(1, len(token_ids))])
                asked[key].add(tuple(token_ids))
                num_saves += 1
            case "release":
                store.writer.release(key)
            case "delete":
                store.writer.delete_conversation(key)
                assert not store.files.manifest_path(store.fingerprint, key).exists()
                asked[key] = {None}
            case "pause":
                store.writer.pause()
                store.writer.resume()
            case "wait":
                time.sleep(dice.random() * 0.005)
            case "drop":
                manifest = store.catalog.manifest(key)
                if manifest:
                    chunk = dice.choice(manifest.chunks).key
                    store.catalog.drop_from(chunk)
                    cut = {each[: 256 * at] for saved in asked.values() for each in saved if each for at in range(5)}
                    for saved in asked.values():
                        saved |= cut | {None}
    results = [store.results.get(timeout=WAIT_S) for _ in range(num_saves)]
    assert all(result.error is None or isinstance(result.error, FileNotFoundError) for result in results)
    for key in "abc":
        store.writer.discard(key)
        assert store.check_whole(key) in asked[key]
        saved = Catalog(store.files, store.fingerprint).manifest(key)
        assert (saved.token_ids if saved else None) in asked[key]
    store.catalog.purge_orphans()
    assert store.disk_bytes() == store.catalog.total_bytes
    for key in "abc":
        store.writer.delete_conversation(key)
    assert store.data_files() == []


def test_files_another_save_counts_on_are_not_deleted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    common = ids(512)
    store.must_save("a", common)
    gate = Gate(monkeypatch, 3)  # the common chunks are found to be there, the tail is being written
    store.start_save("b", common + ids(50, seed=1))
    assert gate.reached.wait(WAIT_S)
    store.writer.delete_conversation("a")
    gate.open()
    assert store.results.get(timeout=WAIT_S).error is None
    assert store.check_whole("b") == tuple(common + ids(50, seed=1))
    assert store.disk_bytes() == store.catalog.disk_bytes("b")


def test_a_chunk_found_damaged_while_saving_is_written_after_all(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    first = store.start_save("a", ids(512))
    assert store.results.get(timeout=WAIT_S).error is None
    gate = Gate(monkeypatch, 3)
    store.start_save("b", ids(512) + ids(50, seed=1))
    assert gate.reached.wait(WAIT_S)
    store.catalog.drop_from(first.chunks[0].key)
    gate.open()
    assert store.results.get(timeout=WAIT_S).error is None
    assert store.check_whole("b") == tuple(ids(512) + ids(50, seed=1))


def test_a_manifest_never_refers_to_a_file_that_is_not_there(store: Store) -> None:
    manifest = store.manifest("c", ids(600))
    store.writer.save(manifest, store.new_files(manifest)[1:], "r")
    result = store.results.get(timeout=WAIT_S)
    assert isinstance(result.error, FileNotFoundError)
    assert result.bytes_total == 0
    assert store.data_files() == []


def test_mistakes_of_the_caller_are_told_at_once(store: Store) -> None:
    manifest = store.manifest("c", ids(600))
    files = store.new_files(manifest)
    with pytest.raises(ValueError, match="refer"):
        store.writer.save(manifest, [*files, NewFile("0" * 64, False, files[0].tensors)], "r")
    with pytest.raises(ManifestRejectedError):
        store.writer.save(Manifest("c", manifest.token_ids, manifest.chunks[:1]), files[:1], "r")


def test_memory_is_read_in_slices_without_copies(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    real = os.write
    monkeypatch.setattr(writer_module, "SLICE_BYTES", 100)
    monkeypatch.setattr(os, "write", lambda fd, data: (sizes.append(len(data)), real(fd, data[:61]))[1])
    store.must_save("c", ids(256))
    monkeypatch.undo()
    assert sorted(sizes)[len(sizes) // 2] <= 100
    assert store.check_whole("c") == tuple(ids(256))


@pytest.mark.parametrize("ending", ["saved", "failed", "cancelled before", "cancelled in the middle"])
def test_a_save_that_ended_keeps_no_memory(store: Store, monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    """An idle writer would otherwise hold the whole cache of the chat it saved last."""

    class Memory(bytearray):
        pass

    manifest = store.manifest("c", ids(40))
    memory = Memory(b"k" * 40)
    spec = TensorSpec("layers.0.key", "U8", (40,), 1)
    file = chunk_file(manifest.chunks[0].key, ids(40), [TensorBytes(spec, (memoryview(memory),))])
    is_alive = weakref.ref(memory)
    gate = None
    if ending == "failed":
        monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(5, "Input/output error")))
    elif ending == "cancelled before":
        store.writer.pause()
    elif ending == "cancelled in the middle":
        gate = Gate(monkeypatch, 2)
    store.writer.save(manifest, [file], "r")
    del memory, file
    if gate:
        assert gate.reached.wait(WAIT_S)
        thread = in_thread(lambda: store.writer.discard("c"))
        gate.open()
        thread.join()
    elif ending == "cancelled before":
        store.writer.discard("c")
    result = store.results.get(timeout=WAIT_S)
    assert (result.error is not None) == (ending == "failed")
    assert is_alive() is None


def test_closing_finishes_what_is_queued(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.writer.pause()
    for key in "abc":
        store.start_save(key, ids(300, seed=ord(key)))
    store.close()
    assert [store.results.get_nowait().error for _ in range(3)] == [None] * 3


def test_a_full_disk_makes_room_only_beyond_the_limits(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full until the other chat goes; that is allowed only where it violates a limit."""
    store.must_save("old", ids(300, seed=1))
    old = store.files.manifest_path(store.fingerprint, "old")
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if old.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    result = store.save("new", ids(300, seed=2))
    assert result.error is not None
    assert result.evicted == ()
    assert store.check_whole("old") == tuple(ids(300, seed=1))
    assert store.disk_bytes() == store.catalog.disk_bytes("old")
    store.collector.limits = Limits(cap_bytes=store.catalog.total_bytes - 1, min_free_bytes=0)
    result = store.save("new", ids(300, seed=2))
    assert result.error is None
    assert [each.conversation_id for each in result.evicted] == ["old"]
    assert store.check_whole("new") == tuple(ids(300, seed=2))
    assert store.disk_bytes() == result.bytes_total
