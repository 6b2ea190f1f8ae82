"""A store on real files, and conversations whose bytes are a function of their ids: equal ids, equal bytes."""

from __future__ import annotations

import array
import os
import queue
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import xxhash

from engine.kv.block_keys import CHUNK_TOKENS, chunk_keys
from engine.kv.fingerprint import Fingerprint, canonical_json
from engine.kv.store.catalog import Catalog
from engine.kv.store.chunk_format import chunk_file
from engine.kv.store.collector import Collector, Limits
from engine.kv.store.files import StoreFiles
from engine.kv.store.leftovers import remove_leftovers
from engine.kv.store.manifest import lossy_keys, root_of
from engine.kv.store.reader import ChunkJob, ReadResult, StoreReader
from engine.kv.store.records import ChunkRef, Manifest, NewFile, StateRef, TensorBytes, TensorSpec
from engine.kv.store.writer import SaveResult, StoreWriter

FORMAT_VERSION = 2
WAIT_S = 20.0
NO_LIMITS = Limits(cap_bytes=2**60, min_free_bytes=0)


def fields_of(model: str) -> dict[str, object]:
    return {"format": FORMAT_VERSION, "model": model}


def fingerprint_of(model: str) -> str:
    return Fingerprint.of_fields(fields_of(model)).digest


def ids(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(49_152), k=count)


def chunk_specs(tokens: int, item: int = 8) -> list[TensorSpec]:
    """Two tensors of `item` bytes a token each."""
    return [TensorSpec(f"layers.0.{side}", "BF16", (tokens, 1, item // 2), 2) for side in ("key", "value")]


def content(token_ids: Sequence[int], spec: TensorSpec) -> bytes:
    seed = xxhash.xxh3_64_intdigest(array.array("I", token_ids).tobytes() + spec.name.encode())
    return random.Random(seed).randbytes(spec.nbytes)


def refs_of(fingerprint: str, token_ids: Sequence[int], *, is_exact: bool = True) -> tuple[ChunkRef, ...]:
    root, num_chunks = root_of(fingerprint, is_exact=is_exact), -(-len(token_ids) // CHUNK_TOKENS)
    tags = [""] * num_chunks if is_exact else [f"{index:032x}" for index in range(num_chunks)]
    keys = chunk_keys(root, token_ids) if is_exact else lossy_keys(root, token_ids, tags)
    return tuple(
        ChunkRef(key, min(CHUNK_TOKENS, len(token_ids) - index * CHUNK_TOKENS), tag)
        for index, (key, tag) in enumerate(zip(keys, tags, strict=True))
    )


@dataclass
class Store:
    """One process's view of a store: everything wired as the engine does it."""

    kv_dir: Path
    model: str = "m"
    limits: Limits = NO_LIMITS
    item: int = 8
    results: queue.Queue[SaveResult] = field(default_factory=queue.Queue)

    def __post_init__(self) -> None:
        self.fingerprint = fingerprint_of(self.model)
        self.files = StoreFiles(self.kv_dir, FORMAT_VERSION)
        remove_leftovers(self.files)
        self.files.prepare(self.fingerprint, canonical_json(fields_of(self.model)))
        self.catalog = Catalog(self.files, self.fingerprint)
        self.collector = Collector(self.files, self.catalog, self.limits)
        self.writer = StoreWriter(self.catalog, self.collector, self.results.put)
        self.reader = StoreReader(self.files, self.fingerprint)

    def close(self) -> None:
        assert self.writer.close(WAIT_S)
        self.reader.close()

    @property
    def folder(self) -> Path:
        return self.files.folder(self.fingerprint)

    def manifest(
        self, conversation_id: str, token_ids: Sequence[int], states: Sequence[int] = (), *, is_exact: bool = True
    ) -> Manifest:
        refs = refs_of(self.fingerprint, token_ids, is_exact=is_exact)
        tagged = tuple(StateRef(self.state_key(token_ids[:position]), position) for position in states)
        codecs = () if is_exact else ("int8",)
        return Manifest(conversation_id, tuple(token_ids), refs, tagged, is_exact, "bf16", codecs=codecs)

    def state_key(self, token_ids: Sequence[int]) -> str:
        return refs_of(self.fingerprint, token_ids)[-1].key

    def new_files(self, manifest: Manifest) -> list[NewFile]:
        found: list[NewFile] = []
        start = 0
        for ref in manifest.chunks:
            part = manifest.token_ids[start : start + ref.tokens]
            tensors = [
                TensorBytes(spec, (memoryview(content(part, spec)),)) for spec in chunk_specs(ref.tokens, self.item)
            ]
            found.append(chunk_file(ref.key, part, tensors))
            start += ref.tokens
        for state in manifest.states:
            spec = TensorSpec("conv.0", "F32", (3, 5), 4)
            data = content(manifest.token_ids[: state.position], spec)
            found.append(NewFile(state.key, True, (TensorBytes(spec, (memoryview(data),)),)))
        return found

    def start_save(
        self, conversation_id: str, token_ids: Sequence[int], states: Sequence[int] = (), *, is_exact: bool = True
    ) -> Manifest:
        manifest = self.manifest(conversation_id, token_ids, states, is_exact=is_exact)
        self.writer.save(manifest, self.new_files(manifest), "r")
        return manifest

    def save(self, conversation_id: str, token_ids: Sequence[int], states: Sequence[int] = ()) -> SaveResult:
        self.start_save(conversation_id, token_ids, states)
        return self.results.get(timeout=WAIT_S)

    def must_save(self, conversation_id: str, token_ids: Sequence[int], states: Sequence[int] = ()) -> SaveResult:
        result = self.save(conversation_id, token_ids, states)
        assert result.error is None, result.error
        assert not result.is_cancelled
        return result

    def jobs(self, manifest: Manifest) -> tuple[list[ChunkJob], list[list[bytearray]]]:
        jobs: list[ChunkJob] = []
        memory: list[list[bytearray]] = []
        start = 0
        for ref in manifest.chunks:
            specs = chunk_specs(ref.tokens, self.item)
            buffers = [bytearray(spec.nbytes) for spec in specs]
            part = manifest.token_ids[start : start + ref.tokens]
            jobs.append(ChunkJob(ref, part, specs, [(memoryview(buffer),) for buffer in buffers]))
            memory.append(buffers)
            start += ref.tokens
        return jobs, memory

    def read(self, manifest: Manifest) -> ReadResult:
        """Read what a manifest refers to; whatever is said to be intact must be right."""
        jobs, memory = self.jobs(manifest)
        result = self.reader.read_chunks(jobs)
        for job, buffers in list(zip(jobs, memory, strict=True))[: result.num_intact]:
            for spec, buffer in zip(job.specs, buffers, strict=True):
                assert buffer == content(job.token_ids, spec)
        return result

    def check_whole(self, conversation_id: str) -> tuple[int, ...] | None:
        """The ids stored for a conversation, everything behind them intact; None if there is nothing."""
        manifest = self.catalog.manifest(conversation_id)
        if manifest is None:
            return None
        result = self.read(manifest)
        assert result.problem is None
        assert result.num_intact == len(manifest.chunks)
        for state in manifest.states:
            ((spec, data),) = self.reader.read_state(state).values()
            assert data == content(manifest.token_ids[: state.position], spec)
        return manifest.token_ids

    def data_files(self) -> list[Path]:
        """Chunks, states, manifests and temporary files under every fingerprint."""
        return sorted(each for each in self.kv_dir.glob("*/*/**/*") if each.is_file())

    def disk_bytes(self) -> int:
        return sum(each.stat().st_size for each in self.data_files())


@pytest.fixture(autouse=True, scope="module")
def no_waiting_for_the_disk() -> Iterator[None]:
    """fsync does nothing here: what it is for, `faults.Disk` tests without a real power cut."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "kv")
    yield store
    store.close()
