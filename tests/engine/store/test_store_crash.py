"""A failure or a power cut at any step leaves the old state or the new one, whole, and the next save works."""

from __future__ import annotations

import errno
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from engine.kv.store.catalog import Catalog
from engine.kv.store.scan import names_of
from tests.engine.store.conftest import Store, ids
from tests.engine.store.faults import Disk

OTHER = ids(300)
OLD = ids(700)
NEW = OLD[:650] + ids(150, seed=1)  # changes the tail and adds a chunk


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two chats that share a chunk."""
    folder = tmp_path_factory.mktemp("before")
    store = Store(folder)
    store.must_save("c", OLD, [600, 700])
    store.must_save("other", OTHER)
    store.close()
    return folder


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """In memory where that is possible: hundreds of folders are made and removed."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="ember-test-", dir=memory) as folder:
        yield Path(folder)


@contextmanager
def opened(kv_dir: Path) -> Iterator[Store]:
    store = Store(kv_dir)
    try:
        yield store
    finally:
        store.close()


def save(store: Store) -> None:
    store.save("c", NEW, [600, 800])


def delete(store: Store) -> None:
    with suppress(OSError):
        store.writer.delete_conversation("c")


def drop(store: Store) -> None:
    manifest = store.catalog.manifest("c")
    assert manifest is not None
    store.catalog.drop_from(manifest.chunks[2].key)


ACTIONS: dict[str, tuple[Callable[[Store], None], set[tuple[int, ...] | None]]] = {
    "save": (save, {tuple(OLD), tuple(NEW)}),
    "delete": (delete, {tuple(OLD), None}),
    "drop": (drop, {tuple(OLD), tuple(OLD[:512]), None}),
}


def after(before: Path, kv_dir: Path, disk_of: Callable[[Path], Disk], action: Callable[[Store], None]) -> Disk:
    """Do something in a copy of `before`, on such a disk, in a process that ends right then."""
    shutil.rmtree(kv_dir, ignore_errors=True)
    shutil.copytree(before, kv_dir)
    with opened(kv_dir) as store:
        disk = disk_of(kv_dir)
        with disk.installed():
            action(store)
    return disk


def check(store: Store, allowed: set[tuple[int, ...] | None]) -> None:
    assert store.check_whole("c") in allowed
    assert store.check_whole("other") == tuple(OTHER)


def no_litter(store: Store) -> None:
    """Every byte below belongs to a manifest, and the catalog counts them all."""
    expected = {store.files.manifest_path(store.fingerprint, key) for key in store.catalog.conversation_ids()}
    for key in store.catalog.conversation_ids():
        manifest = store.catalog.manifest(key)
        assert manifest is not None
        expected |= {store.files.path(store.fingerprint, name) for name in names_of(manifest)}
    assert set(store.data_files()) == expected
    assert store.disk_bytes() == store.catalog.total_bytes


@pytest.mark.parametrize("name", ACTIONS)
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_step_that_fails(before: Path, tmp_path: Path, name: str, code: int) -> None:
    action, allowed = ACTIONS[name]
    kv_dir = tmp_path / "kv"
    steps = after(before, kv_dir, lambda root: Disk(root, tmp_path / "grave"), action).steps
    assert steps > 5
    for step in range(1, steps + 1):
        shutil.rmtree(kv_dir)
        shutil.copytree(before, kv_dir)
        with opened(kv_dir) as store:
            with Disk(kv_dir, tmp_path / "grave", step, code).installed():
                action(store)
            seen = store.check_whole("c")
            assert seen in allowed
            fresh = Catalog(store.files, store.fingerprint)
            found = fresh.manifest("c")
            assert (found.token_ids if found else None) in allowed
            store.must_save("c", NEW, [600, 800])
            check(store, {tuple(NEW)})
            if name != "save":
                store.writer.delete_conversation("c")
                check(store, {None})
            else:
                store.catalog.purge_orphans()
            for stray in store.files.strays:
                stray.unlink()
            no_litter(store)
        shutil.rmtree(tmp_path / "grave", ignore_errors=True)


@pytest.mark.parametrize("name", ACTIONS)
@pytest.mark.parametrize("seed", range(2))
def test_power_that_goes(before: Path, tmp_path: Path, name: str, seed: int) -> None:
    action, allowed = ACTIONS[name]
    kv_dir, grave = tmp_path / "kv", tmp_path / "grave"
    dice = random.Random(seed)
    steps = after(before, kv_dir, lambda root: Disk(root, grave), action).steps
    for step in range(1, steps + 2):
        shutil.rmtree(grave, ignore_errors=True)
        disk = after(before, kv_dir, lambda root, at=step: Disk(root, grave, at, is_power_cut=True), action)
        disk.lose_power(dice)
        with opened(kv_dir) as store:
            check(store, allowed if name != "delete" else {*allowed, tuple(OLD[:512]), tuple(OLD[:256])})
            no_litter(store)
            store.must_save("c", NEW, [600, 800])
            check(store, {tuple(NEW)})
            no_litter(store)


def test_a_save_that_was_reported_survives_any_power_cut(before: Path, tmp_path: Path) -> None:
    kv_dir, grave = tmp_path / "kv", tmp_path / "grave"
    for seed in range(10):
        shutil.rmtree(grave, ignore_errors=True)
        disk = after(before, kv_dir, lambda root: Disk(root, grave), save)
        disk.lose_power(random.Random(seed))
        with opened(kv_dir) as store:
            check(store, {tuple(NEW)})
            no_litter(store)


def test_a_full_disk_tells_and_keeps_the_old_state(before: Path, tmp_path: Path) -> None:
    kv_dir = tmp_path / "kv"
    shutil.copytree(before, kv_dir)
    with opened(kv_dir) as store:
        with Disk(kv_dir, tmp_path / "grave", 5, errno.ENOSPC, is_power_cut=False).installed() as disk:
            result = store.save("c", NEW)
        assert disk.failed == "write"
        assert result.error is not None
        assert result.error.errno == errno.ENOSPC
        assert result.evicted == ()
        check(store, {tuple(OLD)})
        no_litter(store)
