"""Caches that went through a lossy codec, on disk as they are, beside the exact snapshot: that one is never touched.

They have a folder of their own under `Fingerprint.compressed`. A chunk's key names its bytes as well as its tokens, so
a turn writes only what is new or changed; the writer's thread finds the keys, here only views of the memory are taken.
Inference thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
import xxhash

from engine.kv import transfer
from engine.kv.block_keys import BLOCK_TOKENS, CHUNK_TOKENS, tagged_key
from engine.kv.blocks import Block, BlockPool
from engine.kv.compressed_chunks import FULL, Piece, encoded_specs, encoded_tensors, full_tensors, pieces_of
from engine.kv.fingerprint import Fingerprint, canonical_json
from engine.kv.geometry import KVGeometry
from engine.kv.resident import Resident
from engine.kv.store.catalog import Catalog
from engine.kv.store.chunk_format import chunk_file, content_tag
from engine.kv.store.files import StoreFiles
from engine.kv.store.manifest import root_of
from engine.kv.store.problems import ChunkRejectedError, StoreProblem
from engine.kv.store.reader import StoreReader
from engine.kv.store.records import ChunkRef, Manifest, NewFile, TensorBytes
from engine.kv.store.writer import SLICE_BYTES, StoreWriter
from engine.kv.tensor_bytes import tensor_of, torch_memory


@dataclass(frozen=True, slots=True)
class RestoredBlocks:
    """The first tokens of a lossy cache, in blocks, and what was wrong with the rest; `loss` is that of `Resident`."""

    ids: list[int]
    blocks: list[Block]
    loss: str
    bytes_read: int
    seconds: float
    problem: ChunkRejectedError | None


@dataclass(slots=True)
class _Chunk:
    """What a chunk of `ids` is made of: encoded blocks, and between them runs of bytes in full precision."""

    ids: list[int]
    pieces: list[Block | list[list[memoryview]]] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    @property
    def blocks(self) -> list[Block]:
        """Those that are encoded."""
        return [piece for piece in self.pieces if isinstance(piece, Block)]

    def known_tag(self) -> str:
        """Its tag, if all it holds was read once by the store; else ""."""
        blocks = self.blocks
        if len(blocks) < len(self.pieces) or not all(block.checksums for block in blocks):
            return ""
        (ids,) = chunk_file("", self.ids, ()).tensors
        specs, checksums = [ids.spec], [xxhash.xxh3_128_hexdigest(ids.pieces[0])]
        for index, block in enumerate(blocks):
            assert block.encoded is not None
            specs += encoded_specs(index, block.num_tokens, block.encoded)
            checksums += block.checksums
        return content_tag(specs, checksums)

    def add_full(self, num_tokens: int, regions: list[memoryview]) -> None:
        last = self.pieces[-1] if self.pieces else None
        if isinstance(last, list):
            last.append(regions)
            self.counts[-1] += num_tokens
        else:
            self.pieces.append([regions])
            self.counts.append(num_tokens)

    def add_encoded(self, block: Block) -> None:
        self.pieces.append(block)
        self.counts.append(block.num_tokens)

    def tensors(self, geometry: KVGeometry) -> list[tuple[Block | None, list[TensorBytes]]]:
        """What is stored of each piece, and the block that it is, if it is one."""
        found: list[tuple[Block | None, list[TensorBytes]]] = []
        for index, (piece, count) in enumerate(zip(self.pieces, self.counts, strict=True)):
            if isinstance(piece, list):
                found.append((None, full_tensors(index, count, piece, geometry)))
            elif piece.encoded is not None:
                found.append((piece, encoded_tensors(index, count, piece.encoded)))
        return found


class CompressedPersistence:
    """Saves and restores the lossy caches of one model; `writer` and its collector know `catalog`."""

    def __init__(
        self,
        files: StoreFiles,
        fingerprint: Fingerprint,
        geometry: KVGeometry,
        template: str,
        catalog: Catalog,
        writer: StoreWriter,
    ) -> None:
        self.fingerprint = fingerprint
        self.catalog = catalog
        self._files = files
        self._geometry = geometry
        self._template = template
        self._writer = writer
        self._root = root_of(fingerprint.digest, is_exact=False)
        self._reader = StoreReader(files, fingerprint.digest)

    def save(self, resident: Resident, request_id: str) -> bool:
        """Queue what the disk does not have of a lossy conversation yet. False if it cannot be kept as it is.

        Raises OSError if the folder cannot be made.
        """
        if resident.has_states:
            return False
        chunks = self._chunks(resident)
        if chunks is None:
            return False
        self._files.prepare(self.fingerprint.digest, canonical_json(self.fingerprint.fields))
        known = self._known(chunks)
        parts = [(chunk.ids, chunk.tensors(self._geometry)) for chunk in chunks[len(known) :]]
        conversation_id, ids, template = resident.conversation_id, tuple(resident.token_ids), self._template
        precision, codecs = resident.precision(self._geometry.precision), _codecs(resident)
        kept, moved = round(resident.kept, 4), resident.moved_together

        def prepare(wait: Callable[[], None]) -> tuple[Manifest, list[NewFile]]:
            refs = list(known)
            new_files: list[NewFile] = []
            parent = bytes.fromhex(refs[-1].key) if refs else self._root
            for chunk_ids, pieces in parts:
                wait()
                file = chunk_file("", chunk_ids, [tensor for _, tensors in pieces for tensor in tensors])
                checksums = _checksums(file.tensors, wait)
                _note(pieces, checksums[1:])
                tag = content_tag([tensor.spec for tensor in file.tensors], checksums)
                parent = tagged_key(parent, chunk_ids, tag)
                refs.append(ChunkRef(parent.hex(), len(chunk_ids), tag))
                if not self.catalog.is_stored(parent.hex()):
                    new_files.append(NewFile(parent.hex(), False, file.tensors))
            manifest = Manifest(conversation_id, ids, tuple(refs), (), False, precision, template, codecs, kept, *moved)
            return manifest, new_files

        self._writer.save_prepared(conversation_id, len(ids), prepare, request_id, self.catalog)
        return True

    def restore(
        self,
        manifest: Manifest,
        stop: int,
        pool: BlockPool,
        device: torch.device,
        is_cancelled: Callable[[], bool] | None = None,
    ) -> RestoredBlocks:
        """The blocks that hold the first `stop` tokens, and the rest of the last chunk.

        Every file is checked; a damaged one is dropped from the store, and the blocks end before it.
        """
        started = time.perf_counter()
        ids: list[int] = []
        blocks: list[Block] = []
        bytes_read, problem = 0, None
        try:
            for ref in manifest.chunks[: -(-stop // CHUNK_TOKENS)]:
                if is_cancelled is not None and is_cancelled():
                    break
                chunk_ids = manifest.token_ids[len(ids) : len(ids) + ref.tokens]
                pieces, nbytes = self._read(ref, chunk_ids)
                blocks += _blocks(pieces, chunk_ids, pool, device)
                ids += chunk_ids
                bytes_read += nbytes
        except ChunkRejectedError as error:
            problem = error
        except (RuntimeError, MemoryError):
            for block in blocks:
                pool.release(block)
            raise
        seconds = time.perf_counter() - started
        return RestoredBlocks(ids, blocks, manifest.codecs[-1], bytes_read, seconds, problem)

    def layout(self, ref: ChunkRef) -> list[tuple[str, int]]:
        """Codec and number of tokens of each piece of a chunk, by its file's header; whole and full if unreadable."""
        try:
            names = [name.split(".") for name in self._reader.tensor_names(ref)]
            found = dict.fromkeys((int(index), codec, int(tokens)) for index, codec, tokens, *_ in names)
        except (ChunkRejectedError, ValueError):
            return [(FULL, ref.tokens)]
        return [(codec, tokens) for _, codec, tokens in found]

    def forget(self, conversation_id: str) -> None:
        """Leave nothing of a conversation's lossy cache on disk. Raises OSError."""
        self._writer.discard(conversation_id, self.catalog)
        self.catalog.remove(conversation_id)

    def close(self) -> None:
        self._reader.close()

    def _known(self, chunks: Sequence[_Chunk]) -> list[ChunkRef]:
        """The leading chunks that are on disk as they are, as far as that is known without reading them."""
        refs: list[ChunkRef] = []
        parent = self._root
        for chunk in chunks:
            tag = chunk.known_tag()
            parent = tagged_key(parent, chunk.ids, tag)
            if not tag or not self.catalog.is_stored(parent.hex()):
                break
            refs.append(ChunkRef(parent.hex(), len(chunk.ids), tag))
        return refs

    def _chunks(self, resident: Resident) -> list[_Chunk] | None:
        """What to write; None where a block that cannot be cut lies in two chunks."""
        ids, geometry, cache = resident.token_ids, self._geometry, resident.working
        chunks = [_Chunk(list(ids[start : start + CHUNK_TOKENS])) for start in range(0, len(ids), CHUNK_TOKENS)]
        position = 0
        for block in held_blocks(resident) or _decoded_blocks(resident):
            start, position = position, position + block.num_tokens
            if block.encoded is not None:
                if start // CHUNK_TOKENS != (position - 1) // CHUNK_TOKENS:
                    return None
                chunks[start // CHUNK_TOKENS].add_encoded(block)
                continue
            for first, last in _within_chunks(start, position):
                part = [tensor[:, first - start : last - start] for tensor in block.tensors]
                chunks[first // CHUNK_TOKENS].add_full(last - first, transfer.block_regions(geometry, part))
        if cache is not None:
            for first, last in _within_chunks(position, len(ids)):
                chunks[first // CHUNK_TOKENS].add_full(last - first, transfer.host_regions(cache.arena, first, last))
        return chunks

    def _read(self, ref: ChunkRef, token_ids: Sequence[int]) -> tuple[list[Piece], int]:
        """A chunk's pieces and the bytes read for it. Raises ChunkRejectedError."""
        found = self._reader.read_lossy(ref, token_ids, torch_memory).values()
        try:
            tensors = [(spec, tensor_of(spec, data)) for spec, data in found]
            return pieces_of(tensors, self._geometry, ref.tokens), sum(spec.nbytes for spec, _ in found)
        except ValueError as error:
            raise ChunkRejectedError(StoreProblem.FOREIGN, ref.key, str(error)) from error


def held_blocks(resident: Resident) -> Sequence[Block]:
    """Where the first tokens of a cache are, or all of a parked one; the others are in its arena."""
    if resident.working is None:
        return resident.blocks
    return resident.working.cold.blocks if resident.working.cold is not None else ()


def _decoded_blocks(resident: Resident) -> list[Block]:
    """The blocks that the beginning of an active cache was copied from, and that it still agrees with."""
    blocks: list[Block] = []
    position = 0
    for block in resident.blocks if resident.working is not None else ():
        if tuple(resident.token_ids[position : position + block.num_tokens]) != block.token_ids:
            break
        blocks.append(block)
        position += block.num_tokens
    return blocks


def _codecs(resident: Resident) -> tuple[str, ...]:
    """The names of its blocks' codecs, and last the one that it went through last."""
    kinds = {block.encoded.codec for block in resident.blocks if block.encoded is not None}
    return (*sorted(kinds - {resident.loss}), resident.loss)


def _note(pieces: Sequence[tuple[Block | None, Sequence[TensorBytes]]], checksums: Sequence[str]) -> None:
    """Let the blocks remember the checksums of their tensors: they never change."""
    at = 0
    for block, tensors in pieces:
        if block is not None:
            block.checksums = tuple(checksums[at : at + len(tensors)])
        at += len(tensors)


def _within_chunks(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """`start` to `stop`, cut where chunks end."""
    while start < stop:
        end = min(stop, (start // CHUNK_TOKENS + 1) * CHUNK_TOKENS)
        yield start, end
        start = end


def _blocks(pieces: Sequence[Piece], token_ids: Sequence[int], pool: BlockPool, device: torch.device) -> list[Block]:
    blocks: list[Block] = []
    at = 0
    for piece in pieces:
        ids = token_ids[at : at + piece.num_tokens]
        at += piece.num_tokens
        if piece.encoded is not None:
            blocks.append(pool.add_encoded(ids, piece.encoded.to(device)))
            continue
        for start in range(0, len(ids), BLOCK_TOKENS):
            part = slice(start, start + BLOCK_TOKENS)
            blocks.append(pool.obtain(None, ids[part], [group[:, part].to(device) for group in piece.groups]))
    return blocks


def _checksums(tensors: Sequence[TensorBytes], wait: Callable[[], None]) -> list[str]:
    found: list[str] = []
    for tensor in tensors:
        digest = xxhash.xxh3_128()
        for piece in tensor.pieces:
            for start in range(0, len(piece), SLICE_BYTES):
                wait()
                digest.update(piece[start : start + SLICE_BYTES])
        found.append(digest.hexdigest())
    return found
