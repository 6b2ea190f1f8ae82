"""The engine's side of the store: caches as chunks and states on disk, and back. Inference thread."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from engine.kv import state_layers, transfer
from engine.kv.block_keys import CHUNK_TOKENS, chain_keys, chunk_keys
from engine.kv.blocks import BlockPool
from engine.kv.chat_key import conversation_of
from engine.kv.compressed_persistence import CompressedPersistence, held_blocks
from engine.kv.fingerprint import Fingerprint, canonical_json
from engine.kv.geometry import KVGeometry
from engine.kv.resident import Resident
from engine.kv.state_layers import StateSnapshot
from engine.kv.store.catalog import Catalog
from engine.kv.store.chunk_format import chunk_file
from engine.kv.store.collector import Collector, Limits
from engine.kv.store.files import StoreFiles, file_stem
from engine.kv.store.manifest import root_of
from engine.kv.store.problems import ChunkRejectedError, StoreProblem
from engine.kv.store.reader import ChunkJob, StoreReader
from engine.kv.store.records import ChunkRef, Manifest, NewFile, StateRef, TensorBytes, TensorSpec
from engine.kv.store.writer import SaveResult, StoreWriter
from engine.kv.tensor_bytes import spec_of, tensor_of
from engine.kv.working_cache import WorkingCache
from engine.protocol.misses import Miss, MissCode


@dataclass(frozen=True, slots=True)
class Restored:
    """How far a cache could be filled from disk, what was read for it, and what was wrong."""

    length: int
    bytes_read: int
    seconds: float
    miss: Miss | None


class Persistence:
    """Saves and restores the caches of one model."""

    def __init__(
        self,
        files: StoreFiles,
        fingerprint: Fingerprint,
        geometry: KVGeometry,
        template: str,
        limits: Limits,
        on_done: Callable[[SaveResult], None],
    ) -> None:
        self.fingerprint = fingerprint
        self.catalog = Catalog(files, fingerprint.digest)
        lossy = Catalog(files, fingerprint.compressed.digest)
        self.collector = Collector(files, self.catalog, limits, [lossy])
        self.writer = StoreWriter(self.catalog, self.collector, self._saved)
        self.compressed = CompressedPersistence(files, fingerprint.compressed, geometry, template, lossy, self.writer)
        self._on_done = on_done
        self._outdated: dict[str, Manifest] = {}  # lossy ones that an exact save is about to replace
        self._files = files
        self._geometry = geometry
        self.template = template
        self._reader = StoreReader(files, fingerprint.digest)

    def save(self, resident: Resident, request_id: str) -> bool:
        """Queue what the disk does not have of a conversation yet. False if it can only be kept in full precision.

        A lossy cache is kept beside the exact snapshot, which stays as it is; an exact one takes the place of both,
        once it is on disk. Raises OSError if the folder cannot be made.
        """
        if not resident.is_exact:
            self._outdated.pop(resident.conversation_id, None)
            return self.compressed.save(resident, request_id)
        self._save_exact(resident, request_id)
        return True

    def _save_exact(self, resident: Resident, request_id: str) -> None:
        self._files.prepare(self.fingerprint.digest, canonical_json(self.fingerprint.fields))
        ids = resident.token_ids
        root = root_of(self.fingerprint.digest, is_exact=True)
        refs = [
            ChunkRef(key, min(CHUNK_TOKENS, len(ids) - index * CHUNK_TOKENS))
            for index, key in enumerate(chunk_keys(root, ids))
        ]
        positions = sorted(position for position in resident.states if position <= len(ids))
        states = {position: StateRef(self._state_key(root, ids, position), position) for position in positions}
        new_files = [
            self._chunk_file(resident, ref, index * CHUNK_TOKENS)
            for index, ref in enumerate(refs)
            if not self.catalog.is_stored(ref.key)
        ]
        new_files += [
            _state_file(ref, resident.states[position])
            for position, ref in states.items()
            if not self.catalog.is_stored(ref.key, is_state=True)
        ]
        precision = resident.precision(self._geometry.precision)
        manifest = Manifest(
            resident.conversation_id,
            tuple(ids),
            tuple(refs),
            tuple(states.values()),
            True,
            precision,
            self.template,
        )
        lossy = self.compressed.catalog.manifest(resident.conversation_id)
        if lossy is not None:
            self._outdated[resident.conversation_id] = lossy
        self.writer.save(manifest, new_files, request_id)

    def restore(
        self, manifest: Manifest, stop: int, cache: WorkingCache, is_cancelled: Callable[[], bool] | None = None
    ) -> Restored:
        """Extend `cache` to the first `stop` tokens of a manifest that begins as the cache does.

        Every file is checked; a damaged one is dropped from the store, and the cache ends before it. A cache with state
        layers ends at the last intact checkpoint.
        """
        start = cache.length
        first = start // CHUNK_TOKENS
        refs = manifest.chunks[first : -(-stop // CHUNK_TOKENS)]
        end = first * CHUNK_TOKENS + sum(ref.tokens for ref in refs)
        cache.reserve(end)
        upload = transfer.ArenaUpload(cache.arena, start, end)
        intact, bytes_read, seconds, miss = start, 0, 0.0, None
        try:
            for done in range(0, len(refs), upload.batch_chunks):
                batch = refs[done : done + upload.batch_chunks]
                upload.begin(intact)
                result = self._reader.read_chunks(
                    self._jobs(manifest, batch, first + done, intact, upload), is_cancelled
                )
                bytes_read, seconds = bytes_read + result.bytes_read, seconds + result.seconds
                reached = (first + done) * CHUNK_TOKENS + sum(ref.tokens for ref in batch[: result.num_intact])
                if reached > intact:
                    upload.upload(intact, reached)
                    intact = reached
                if result.problem is not None:
                    miss = self._drop(result.problem, self.catalog, is_state=False)
                if result.num_intact < len(batch):
                    break
        finally:
            upload.finish()
        intact = min(stop, intact)
        state: StateSnapshot | None = None
        if not cache.can_crop:
            state, problem = self._best_state(manifest, intact)
            miss = miss or problem
            intact = state.position if state else 0
        if intact > start:
            cache.publish(manifest.token_ids[:intact], state)
        return Restored(cache.length, bytes_read, seconds, miss)

    def restore_compressed(
        self,
        manifest: Manifest,
        stop: int,
        resident: Resident,
        pool: BlockPool,
        device: torch.device,
        is_cancelled: Callable[[], bool] | None = None,
    ) -> Restored:
        """Give an empty conversation the first `stop` tokens of its lossy manifest, parked, or a little more.

        What comes after a damaged file is dropped from the store, and not given.
        """
        read = self.compressed.restore(manifest, stop, pool, device, is_cancelled)
        resident.adopt(read.ids, read.blocks, read.loss)
        problem = read.problem
        miss = self._drop(problem, self.compressed.catalog, is_state=False) if problem is not None else None
        return Restored(resident.length, read.bytes_read, read.seconds, miss)

    def _jobs(
        self, manifest: Manifest, refs: Sequence[ChunkRef], first: int, start: int, upload: transfer.ArenaUpload
    ) -> list[ChunkJob]:
        """What to read, from chunk number `first` on, into the memory of `upload`.

        What the cache holds already, before `start`, is read aside: a damaged file must not spoil it.
        """
        jobs: list[ChunkJob] = []
        for index, ref in enumerate(refs, first):
            at = index * CHUNK_TOKENS
            specs = self._specs(ref.tokens)
            regions = upload.regions(max(at, start), at + ref.tokens)
            pieces = [
                (memoryview(bytearray(spec.nbytes - len(region))), region)
                for spec, region in zip(specs, regions, strict=True)
            ]
            jobs.append(ChunkJob(ref, manifest.token_ids[at : at + ref.tokens], specs, pieces))
        return jobs

    def usable(self, manifest: Manifest, shared: int, *, can_crop: bool) -> int:
        """How many of the `shared` leading tokens this manifest can give to a cache."""
        if can_crop:
            return shared
        return max((ref.position for ref in manifest.states if ref.position <= shared), default=0)

    def exact_manifest(self, conversation_id: str) -> Manifest | None:
        """What is kept of a conversation in full precision."""
        manifest = self.catalog.manifest(conversation_id)
        return manifest if manifest is not None and manifest.is_exact else None

    def exact_reach(self, conversation_id: str, token_ids: Sequence[int]) -> int:
        """How many leading ids of `token_ids` are on disk in full precision, whoever they belong to."""
        found = self.catalog.longest_prefix(token_ids, conversation_id)
        return found[1] if found is not None else 0

    def stored_conversations(self) -> set[str]:
        """Those of which anything is on disk, in whatever precision."""
        catalogs = (self.catalog, self.compressed.catalog)
        return {conversation_of(key) for catalog in catalogs for key in catalog.conversation_ids()}

    def touch(self, conversation_id: str) -> None:
        """The conversation is used now."""
        self.catalog.touch(conversation_id)
        self.compressed.catalog.touch(conversation_id)

    def close(self, timeout_s: float) -> None:
        """Write what is queued and end the threads."""
        self.writer.close(timeout_s)
        self._reader.close()
        self.compressed.close()

    def _saved(self, result: SaveResult) -> None:
        """On the saver's thread: what is there in full precision needs no lossy form."""
        is_kept = result.is_exact and result.error is None and not result.is_cancelled
        lossy = self._outdated.pop(result.conversation_id, None) if is_kept else None
        if lossy is not None:
            catalog = self.compressed.catalog
            if catalog.manifest(result.conversation_id) == lossy:
                with contextlib.suppress(OSError):  # the next save tries again
                    catalog.remove(result.conversation_id)
                result = replace(result, bytes_total=self.collector.disk_bytes(result.conversation_id))
        self._on_done(result)

    def _specs(self, num_tokens: int) -> list[TensorSpec]:
        """Tensors of a chunk after its ids: per full-attention layer keys, then values, `[tokens, kv_heads, dim]`."""
        dtype = self._geometry.dtype
        return [
            spec_of(f"layers.{index}.{side}", (num_tokens, shape.kv_heads, dim), dtype)
            for index, shape in enumerate(self._geometry.layers)
            for side, dim in (("key", shape.key_dim), ("value", shape.value_dim))
        ]

    def _chunk_file(self, resident: Resident, ref: ChunkRef, start: int) -> NewFile:
        specs = self._specs(ref.tokens)
        regions = self._regions(resident, start, start + ref.tokens)
        tensors = [TensorBytes(spec, pieces) for spec, pieces in zip(specs, regions, strict=True)]
        return chunk_file(ref.key, resident.token_ids[start : start + ref.tokens], tensors)

    def _regions(self, resident: Resident, start: int, stop: int) -> list[tuple[memoryview, ...]]:
        """Bytes of these positions, per layer keys then values, wherever they are: a piece per block or arena."""
        parts: list[list[memoryview]] = []
        position = 0
        for block in held_blocks(resident):
            first, last = max(start - position, 0), min(stop - position, block.num_tokens)
            if first < last:
                part = [tensor[:, first:last] for tensor in block.tensors]
                parts.append(transfer.block_regions(self._geometry, part))
            position += block.num_tokens
        if resident.working is not None and max(start, position) < stop:
            parts.append(transfer.host_regions(resident.working.arena, max(start, position), stop))
        return list(zip(*parts, strict=True))

    def _state_key(self, root: bytes, ids: Sequence[int], position: int) -> str:
        return hashlib.sha256(chain_keys(root, ids[:position])[-1] + b"state").hexdigest()

    def _best_state(self, manifest: Manifest, limit: int) -> tuple[StateSnapshot | None, Miss | None]:
        """The last intact checkpoint up to `limit`; damaged ones are dropped from the store."""
        miss: Miss | None = None
        for ref in sorted(manifest.states, key=lambda one: one.position, reverse=True):
            if ref.position > limit:
                continue
            try:
                named = [(name, tensor_of(spec, data)) for name, (spec, data) in self._reader.read_state(ref).items()]
                return state_layers.from_tensors(named, ref.position), miss
            except ChunkRejectedError as problem:
                miss = self._drop(problem, self.catalog, is_state=True)
            except ValueError as error:
                foreign = ChunkRejectedError(StoreProblem.FOREIGN, ref.key, str(error))
                miss = self._drop(foreign, self.catalog, is_state=True)
        return None, miss

    def _drop(self, problem: ChunkRejectedError, catalog: Catalog, *, is_state: bool) -> Miss:
        for conversation_id in catalog.drop_from(problem.key, is_state=is_state):  # all that share the file
            self._files.lost[file_stem(conversation_id)] = problem.code
        return miss_of(problem.code, str(problem))


def miss_of(code: StoreProblem, detail: str = "") -> Miss:
    """A file's problem as a reason for reading again."""
    words = {
        StoreProblem.CUT_SHORT: "cut short",
        StoreProblem.CHECKSUM: "checksum differs",
        StoreProblem.FOREIGN: "not the file that was saved",
    }
    if code is StoreProblem.MISSING:
        return Miss(MissCode.FILE_MISSING)
    if code is StoreProblem.UNREADABLE:
        return Miss(MissCode.FILE_UNREADABLE, {"detail": detail})
    return Miss(MissCode.FILE_DAMAGED, {"detail": words[code]})


def _state_file(ref: StateRef, state: StateSnapshot) -> NewFile:
    hosts = [(name, tensor.detach().cpu().contiguous()) for name, tensor in state_layers.to_tensors(state)]
    tensors = [
        TensorBytes(spec_of(name, tuple(host.shape), host.dtype), (transfer.bytes_of(host),)) for name, host in hosts
    ]
    return NewFile(ref.key, True, tuple(tensors))
