"""The cap and the free-space floor hold, by deleting whole chats, least recently used first; a deletion is complete."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from engine.kv.store.collector import Limits
from engine.kv.store.deletion import delete_conversation, delete_unknown
from tests.engine.store.conftest import Store, ids


def aged(store: Store, *conversation_ids: str) -> None:
    """Saved in this order, long ago, and as large as one another."""
    for age, key in enumerate(conversation_ids):
        store.must_save(key, ids(300, seed=ord(key)))
        os.utime(store.files.manifest_path(store.fingerprint, key), ns=(age * 10**9, age * 10**9))


def reopened(store: Store, limits: Limits) -> Store:
    store.close()
    return Store(store.kv_dir, store.model, limits)


def test_the_cap_evicts_the_least_recently_used(tmp_path: Path) -> None:
    store = Store(tmp_path)
    aged(store, *"abcd")
    one = store.catalog.disk_bytes("a")
    store = reopened(store, Limits(cap_bytes=3 * one, min_free_bytes=0))
    store.catalog.touch("a")
    result = store.must_save("e", ids(300, seed=ord("e")))
    assert [(each.conversation_id, each.nbytes) for each in result.evicted] == [("b", one), ("c", one)]
    assert set(store.catalog.conversation_ids()) == {"a", "d", "e"}
    assert store.disk_bytes() == store.collector.total_bytes <= 3 * one
    store.close()


def test_pinned_chats_go_last_and_the_one_just_saved_never(tmp_path: Path) -> None:
    store = Store(tmp_path)
    aged(store, *"abc")
    one = store.catalog.disk_bytes("a")
    store = reopened(store, Limits(cap_bytes=2 * one, min_free_bytes=0))
    store.collector.pinned = frozenset("ab")
    result = store.must_save("d", ids(300, seed=ord("d")))
    assert [each.conversation_id for each in result.evicted] == ["c", "a"]
    store.collector.limits = Limits(cap_bytes=0, min_free_bytes=0)
    result = store.must_save("d", ids(301, seed=ord("d")))
    assert [each.conversation_id for each in result.evicted] == ["b"]
    assert store.check_whole("d") == tuple(ids(301, seed=ord("d")))
    store.close()


def test_chats_of_another_model_compete_too(tmp_path: Path) -> None:
    other = Store(tmp_path, "another model")
    aged(other, "x", "y")
    one = other.catalog.disk_bytes("x")
    other.close()
    store = Store(tmp_path, limits=Limits(cap_bytes=2 * one + one // 2, min_free_bytes=0))
    store.must_save("x", ids(300, seed=1))
    assert store.collector.total_bytes == store.disk_bytes()
    result = store.must_save("z", ids(300, seed=2))
    assert [(each.conversation_id, each.fingerprint) for each in result.evicted] == [
        ("x", other.fingerprint),
        ("y", other.fingerprint),
    ] or [(each.conversation_id, each.fingerprint) for each in result.evicted] == [("y", other.fingerprint)]
    assert store.check_whole("x") == tuple(ids(300, seed=1))
    assert store.collector.total_bytes == store.disk_bytes() <= 2 * one + one // 2
    store.close()


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_the_free_space_floor_evicts_until_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    aged(store, *"abc")
    one = store.catalog.disk_bytes("a")
    store = reopened(store, Limits(cap_bytes=2**60, min_free_bytes=10 * one))
    size = 12 * one + one // 2
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(size, 0, size - store.disk_bytes()))
    result = store.must_save("d", ids(300, seed=ord("d")))
    assert [each.conversation_id for each in result.evicted] == ["a", "b"]
    assert not store.collector.is_over()
    store.close()


def test_a_floor_out_of_reach_evicts_nobody_and_saves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other programs filled the disk: no eviction helps, so the chats keep what they have."""
    store = Store(tmp_path)
    aged(store, *"abc")
    before = store.disk_bytes()
    store = reopened(store, Limits(cap_bytes=2**60, min_free_bytes=1000 * before))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, 10 * before))
    result = store.save("d", ids(300, seed=ord("d")))
    assert result.error is not None
    assert result.error.errno == errno.ENOSPC
    assert result.evicted == ()
    assert store.disk_bytes() == before
    store.close()


def test_what_is_stored_of_unknown_conversations_is_deleted_and_nothing_else(tmp_path: Path) -> None:
    store = Store(tmp_path)
    aged(store, *"abc")
    store.close()
    assert delete_unknown(tmp_path, {"a", "c"}) == ["b"]
    store = Store(tmp_path)
    assert sorted(store.catalog.conversation_ids()) == ["a", "c"]
    assert store.catalog.total_bytes == store.disk_bytes()
    store.close()


def test_a_chat_whose_files_are_all_shared_gives_little_and_the_next_follows(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.must_save("a", ids(512))
    store.must_save("b", ids(512))
    store.must_save("c", ids(512, seed=1))
    for age, key in enumerate("abc"):
        os.utime(store.files.manifest_path(store.fingerprint, key), ns=(age, age))
    kept = store.catalog.disk_bytes("c")
    store = reopened(store, Limits(cap_bytes=kept, min_free_bytes=0))
    evicted = store.collector.collect({"c"})
    assert [each.conversation_id for each in evicted] == ["a", "b"]
    assert evicted[0].nbytes < evicted[1].nbytes
    assert store.disk_bytes() == kept
    store.close()


def test_what_cannot_be_deleted_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    aged(store, *"abc")
    one = store.catalog.disk_bytes("a")
    store = reopened(store, Limits(cap_bytes=one, min_free_bytes=0))
    real = os.unlink

    def unlink(path: Path, **other: object) -> None:
        if Path(path).name == "a.json":
            raise PermissionError(13, "in use")
        real(path)

    monkeypatch.setattr(os, "unlink", unlink)
    assert [each.conversation_id for each in store.collector.collect(set())] == ["b", "c"]
    assert store.check_whole("a") is not None
    store.close()


@pytest.mark.parametrize("has_engine", [True, False])
def test_a_deletion_is_complete_under_every_model(tmp_path: Path, *, has_engine: bool) -> None:
    other, store = Store(tmp_path, "another model"), Store(tmp_path)
    for each in (other, store):
        each.must_save("stays", ids(300))
    before = store.data_files()
    for each in (other, store):
        each.must_save("goes", ids(300) + ids(400, seed=1), [300])
    other.close()
    (store.folder / "conversations" / "goes.safetensors").write_bytes(b"format 1")
    if has_engine:
        store.writer.delete_conversation("goes")
    else:
        delete_conversation(store.files, "goes")
    left = [(store.kv_dir / path, path.read_bytes()) for path in store.data_files()]
    assert [path for path, _ in left] == before
    store.writer.delete_conversation("never there")
    assert store.data_files() == before
    store.close()


def test_a_damaged_manifest_does_not_save_a_chat_from_deletion(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.must_save("c", ids(600))
    store.files.manifest_path(store.fingerprint, "c").write_bytes(b"damaged")
    delete_conversation(store.files, "c")
    assert store.data_files() == []
    store.close()


@pytest.mark.parametrize("has_engine", [True, False])
@pytest.mark.parametrize(
    "is_kept", [lambda name: name == "c.json", lambda name: name.endswith(".safetensors")], ids=["manifest", "files"]
)
def test_a_deletion_that_fails_says_so_and_can_be_repeated(
    store: Store, monkeypatch: pytest.MonkeyPatch, is_kept: Callable[[str], bool], *, has_engine: bool
) -> None:
    store.must_save("c", ids(600), [600])
    real = os.unlink

    def unlink(path: Path, **other: object) -> None:
        if is_kept(Path(path).name):
            raise PermissionError(13, "in use")
        real(path)

    def delete() -> None:
        if has_engine:
            store.writer.delete_conversation("c")
        else:
            delete_conversation(store.files, "c")

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", unlink)
        for _ in range(3):
            with pytest.raises(PermissionError):
                delete()
    assert store.disk_bytes() > 0
    if has_engine:
        assert store.disk_bytes() == store.catalog.total_bytes
    delete()
    assert store.data_files() == []


def test_a_temporary_file_that_could_not_be_removed_goes_with_the_chat(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, **_: object) -> None:
        raise OSError(5, "Input/output error")

    def fail_on_files(descriptor: int) -> None:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail_on_files)
        patched.setattr(os, "unlink", fail)
        assert store.save("c", ids(300)).error is not None
    assert len(store.data_files()) == 1
    store.writer.delete_conversation("c")
    assert store.data_files() == []
