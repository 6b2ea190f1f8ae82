"""Damaged, swapped, missing and foreign files are rejected with a code, and never cost more memory than their size."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import struct
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import xxhash

from engine.kv.block_keys import CHUNK_TOKENS
from engine.kv.store.catalog import Catalog
from engine.kv.store.chunk_format import FileLayout, token_ids_spec
from engine.kv.store.files import FileName
from engine.kv.store.problems import ChunkRejectedError, StoreProblem
from engine.kv.store.reader import ChunkJob, Pieces
from engine.kv.store.records import ChunkRef, Manifest, StateRef, TensorSpec
from tests.engine.store.conftest import Store, chunk_specs, ids

IDS = ids(600)
HUGE = (2**63, 2**64 - 1, 2**40, 2**31)


def read_one(
    store: Store, ref: ChunkRef, token_ids: Sequence[int], specs: Sequence[TensorSpec], pieces: Sequence[Pieces]
) -> None:
    """Read a chunk; raises what is wrong with it."""
    problem = store.reader.read_chunks([ChunkJob(ref, token_ids, specs, pieces)]).problem
    if problem is not None:
        raise problem


class Saved:
    """One chat of three chunks and a state, whose files are put back after each mischief."""

    def __init__(self, store: Store) -> None:
        self.store = store
        store.must_save("c", IDS, [600])
        found = store.catalog.manifest("c")
        assert found is not None
        self.manifest: Manifest = found
        self.chunks = [store.files.path(store.fingerprint, FileName(each.key, False)) for each in found.chunks]
        self.state = store.files.path(store.fingerprint, FileName(found.states[0].key, True))
        self.original = {path: path.read_bytes() for path in [*self.chunks, self.state]}

    def restore(self) -> None:
        for path, data in self.original.items():
            path.write_bytes(data)

    def boundaries(self, path: Path) -> list[int]:
        """Where the parts of a file begin and end: length field, header, every tensor."""
        if path == self.state:
            specs = [TensorSpec("conv.0", "F32", (3, 5), 4)]
        else:
            tokens = self.manifest.chunks[self.chunks.index(path)].tokens
            specs = [token_ids_spec(tokens), *chunk_specs(tokens)]
        layout = FileLayout.of(self.store.fingerprint, path.stem, specs)
        found = [0, 8, len(layout.before), layout.header_bytes - len(layout.after), layout.header_bytes]
        for spec in specs:
            found.append(found[-1] + spec.nbytes)
        assert found[-1] == len(self.original[path])
        return found

    def problem(self, path: Path) -> StoreProblem | None:
        """What the reader says of a file, and that what it read before is right."""
        if path == self.state:
            try:
                ((_, data),) = self.store.reader.read_state(self.manifest.states[0]).values()
            except ChunkRejectedError as error:
                return error.code if error.key == path.stem else None
            assert data == self.original[path][-60:]
            return None
        index = self.chunks.index(path)
        result = self.store.read(self.manifest)
        if result.problem is None:
            assert result.num_intact == len(self.chunks)
            return None
        assert result.num_intact == index
        assert result.problem.key == path.stem
        return result.problem.code


@pytest.fixture
def saved(store: Store) -> Saved:
    return Saved(store)


@pytest.fixture(autouse=True)
def memory_stays_bounded() -> Iterator[None]:
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 * 1024**2


def test_a_file_cut_anywhere_is_rejected(saved: Saved) -> None:
    for path, data in saved.original.items():
        sizes = {at + by for at in saved.boundaries(path) for by in (-1, 0, 1)}
        for size in sorted(size for size in sizes if 0 <= size < len(data)):
            path.write_bytes(data[:size])
            assert saved.problem(path) is StoreProblem.CUT_SHORT, (path, size)
        path.write_bytes(data + b"\0")
        assert saved.problem(path) is StoreProblem.FOREIGN
        saved.restore()
        assert saved.problem(path) is None


def test_a_flipped_bit_anywhere_is_rejected(saved: Saved) -> None:
    dice = random.Random(0)
    for path, data in saved.original.items():
        bounds = saved.boundaries(path)
        for start, end in itertools.pairwise(bounds):
            for at in {start, end - 1, *(dice.randrange(start, end) for _ in range(12))}:
                damaged = bytearray(data)
                damaged[at] ^= 1 << dice.randrange(8)
                path.write_bytes(damaged)
                expected = {StoreProblem.FOREIGN, StoreProblem.CHECKSUM}
                expected |= {StoreProblem.CUT_SHORT} if at < 8 else set()
                assert saved.problem(path) in expected, (path, at)
        saved.restore()


def test_bytes_that_are_not_ours_are_rejected(saved: Saved) -> None:
    dice = random.Random(1)
    for path, data in saved.original.items():
        for _ in range(40):
            noise = bytearray(data)
            for _ in range(dice.choice([1, 3, 100])):
                start = dice.randrange(len(noise))
                part = dice.randbytes(dice.choice([1, 8, 200]))[: len(noise) - start]
                noise[start : start + len(part)] = part
            path.write_bytes(noise)
            assert (saved.problem(path) is None) == (noise == data)
        for length in (0, 8, len(data)):
            path.write_bytes(bytes(length))
            assert saved.problem(path) is not None
        saved.restore()


def test_swapped_missing_and_unreadable_files_are_told_apart(saved: Saved) -> None:
    first, second, _ = saved.chunks
    first.write_bytes(saved.original[second])
    second.write_bytes(saved.original[first])
    assert saved.problem(first) is StoreProblem.FOREIGN
    saved.restore()
    second.unlink()
    assert saved.problem(second) is StoreProblem.MISSING
    second.mkdir()
    assert saved.problem(second) is StoreProblem.UNREADABLE
    second.rmdir()
    saved.state.unlink()
    assert saved.problem(saved.state) is StoreProblem.MISSING


def test_a_file_of_another_fingerprint_is_rejected(saved: Saved, tmp_path: Path) -> None:
    other = Store(tmp_path / "kv", "another model")
    other.must_save("c", IDS, [600])
    manifest = other.catalog.manifest("c")
    assert manifest is not None
    for mine, theirs in zip(saved.chunks, manifest.chunks, strict=True):
        shutil.copy(other.files.path(other.fingerprint, FileName(theirs.key, False)), mine)
        assert saved.problem(mine) is StoreProblem.FOREIGN
        saved.restore()
    shutil.copy(other.files.path(other.fingerprint, FileName(manifest.states[0].key, True)), saved.state)
    assert saved.problem(saved.state) is StoreProblem.FOREIGN
    other.close()


def test_a_chunk_of_other_ids_is_rejected(saved: Saved) -> None:
    ref = saved.manifest.chunks[0]
    specs = chunk_specs(CHUNK_TOKENS)
    pieces = [(memoryview(bytearray(spec.nbytes)),) for spec in specs]
    with pytest.raises(ChunkRejectedError) as caught:
        read_one(saved.store, ref, ids(CHUNK_TOKENS, seed=9), specs, pieces)
    assert caught.value.code is StoreProblem.FOREIGN


def test_another_geometry_is_rejected(saved: Saved) -> None:
    ref = saved.manifest.chunks[0]
    good = chunk_specs(CHUNK_TOKENS)
    same_size = [TensorSpec(spec.name, "BF16", (CHUNK_TOKENS, 2, 2), 2) for spec in good]
    renamed = [TensorSpec(spec.name + "x", "BF16", spec.shape, 2) for spec in good]
    for specs in (chunk_specs(CHUNK_TOKENS, 16), same_size, renamed, good[::-1], good[:1], []):
        pieces = [(memoryview(bytearray(spec.nbytes)),) for spec in specs]
        with pytest.raises(ChunkRejectedError):
            read_one(saved.store, ref, IDS[:CHUNK_TOKENS], specs, pieces)


def test_absurd_lengths_cost_nothing(saved: Saved) -> None:
    for path, data in saved.original.items():
        for length in (*HUGE, 0, 1, len(data), 16 * 1024**2 + 1):
            path.write_bytes(struct.pack("<Q", length) + data[8:])
            assert saved.problem(path) in (StoreProblem.CUT_SHORT, StoreProblem.FOREIGN)
        saved.restore()


@pytest.mark.parametrize(
    "entry",
    [
        *({"dtype": "F32", "shape": [length], "data_offsets": [0, 4 * length]} for length in HUGE),
        {"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 60]},
        {"dtype": "F32", "shape": [-3, -5], "data_offsets": [0, 60]},
        {"dtype": "F32", "shape": [3.0, 5], "data_offsets": [0, 60]},
        {"dtype": "F32", "shape": [True, 15], "data_offsets": [0, 60]},
        {"dtype": "F32", "shape": [3, 5], "data_offsets": [4, 64]},
        {"dtype": "F32", "shape": [3, 5], "data_offsets": [0, 2**63]},
        {"dtype": "F32", "shape": [1] * 100_000, "data_offsets": [0, 4]},
        {"dtype": "F31", "shape": [3, 5], "data_offsets": [0, 60]},
        {"dtype": ["F32"], "shape": [3, 5], "data_offsets": [0, 60]},
        {"dtype": "F32", "shape": "35", "data_offsets": [0, 60]},
        {"dtype": "F32", "shape": [3, 5]},
        [],
        None,
    ],
)
def test_a_state_with_impossible_shapes_is_rejected(saved: Saved, entry: object) -> None:
    data = saved.original[saved.state]
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    header["conv.0"] = entry
    text = json.dumps(header, separators=(",", ":")).encode()
    after = text[text.index(b'"checksums":"') + len('"checksums":"') + 32 :]
    old_seal = header["__metadata__"]["specs"].encode()
    text = text.replace(old_seal, xxhash.xxh3_128_hexdigest(after).encode())  # a forger would think of that
    text += b" " * (-len(text) % 8)
    saved.state.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])
    assert saved.problem(saved.state) is StoreProblem.FOREIGN


@pytest.mark.parametrize(
    "text", [b"[" * 500_000, b'{"a":' * 150_000, b"9" * 900_000, b"\xff" * 64, b"null", b"{}", b"[]"]
)
def test_a_state_with_hostile_json_is_rejected(saved: Saved, text: bytes) -> None:
    saved.state.write_bytes(struct.pack("<Q", len(text)) + text + bytes(60))
    assert saved.problem(saved.state) is StoreProblem.FOREIGN


def test_a_system_error_while_reading_is_told(saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int, buffers: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "readv", fail)
    assert saved.problem(saved.chunks[0]) is StoreProblem.UNREADABLE
    assert saved.problem(saved.state) is StoreProblem.UNREADABLE


def test_reads_that_come_in_pieces_are_put_together(saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.readv
    dice = random.Random(0)
    monkeypatch.setattr(os, "readv", lambda fd, views: real(fd, [views[0][: dice.randint(1, 700)]]))
    assert [saved.problem(path) for path in saved.original] == [None] * 4
    monkeypatch.delattr(os, "readv")  # as on Windows
    assert [saved.problem(path) for path in saved.original] == [None] * 4


def test_reading_can_be_cancelled(saved: Saved) -> None:
    jobs, _ = saved.store.jobs(saved.manifest)
    result = saved.store.reader.read_chunks(jobs, lambda: True)
    assert (result.num_intact, result.problem, result.bytes_read) == (0, None, 0)
    asked = iter([False, False])
    result = saved.store.reader.read_chunks(jobs, lambda: next(asked, True))
    assert result.problem is None
    assert result.num_intact <= 2


def test_memory_of_the_wrong_size_is_a_mistake_of_ours(saved: Saved) -> None:
    ref = saved.manifest.chunks[0]
    job = ChunkJob(ref, IDS[:256], chunk_specs(256), [(memoryview(bytearray(5)),)] * 2)
    with pytest.raises(ValueError, match="wrong size"):
        saved.store.reader.read_chunks([job])


def test_a_damaged_chunk_takes_what_follows_with_it(saved: Saved) -> None:
    store = saved.store
    store.must_save("shares it", IDS[:512] + ids(50, seed=3), [300])
    store.must_save("shares the first only", IDS[:300])
    store.must_save("apart", ids(300, seed=4))
    used = {key: store.catalog.used_ns(key) for key in store.catalog.conversation_ids()}
    second = saved.manifest.chunks[1].key
    assert store.catalog.drop_from(second) == ["c", "shares it"]
    assert not store.catalog.is_stored(second)
    assert store.catalog.is_stored(saved.manifest.chunks[0].key)
    for catalog in (store.catalog, Catalog(store.files, store.fingerprint)):
        for key, expected in {"c": 256, "shares it": 256, "shares the first only": 300, "apart": 300}.items():
            manifest = catalog.manifest(key)
            assert manifest is not None
            assert len(manifest.token_ids) == expected
            assert catalog.used_ns(key) == used[key]
            assert manifest.states == ()
        assert catalog.total_bytes == store.disk_bytes()
    assert store.check_whole("c") == tuple(IDS[:256])
    store.must_save("c", IDS, [600])
    assert store.check_whole("c") == tuple(IDS)


def test_a_damaged_first_chunk_takes_the_whole_chat(saved: Saved) -> None:
    store = saved.store
    store.catalog.drop_from(saved.manifest.chunks[0].key)
    assert store.catalog.manifest("c") is None
    assert store.data_files() == []


def test_a_damaged_state_takes_only_itself(saved: Saved) -> None:
    store = saved.store
    state = saved.manifest.states[0]
    assert store.catalog.is_stored(state.key, is_state=True)
    assert store.catalog.drop_from(state.key, is_state=True) == ["c"]
    assert store.catalog.is_stored(state.key)  # the chunk of the same name
    assert store.check_whole("c") == tuple(IDS)
    assert not saved.state.exists()
    assert store.catalog.drop_from("0" * 64) == []


def test_a_damaged_file_that_cannot_be_deleted_is_written_anew(saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    store = saved.store
    path = saved.chunks[0]
    path.write_bytes(bytes(len(saved.original[path])))
    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", lambda *_, **__: (_ for _ in ()).throw(PermissionError(13, "in use")))
        store.catalog.drop_from(path.stem)
    assert not store.catalog.is_stored(path.stem)
    store.must_save("c", IDS, [600])
    assert store.check_whole("c") == tuple(IDS)


def test_unknown_keys_are_missing(store: Store) -> None:
    with pytest.raises(ChunkRejectedError) as caught:
        read_one(store, ChunkRef("0" * 64, 1), [1], [], [])
    assert caught.value.code is StoreProblem.MISSING
    with pytest.raises(ChunkRejectedError):
        store.reader.read_state(StateRef("0" * 64, 1))
