"""Caches that went through a lossy codec, on disk and back: bit for bit, or dropped from where they are damaged."""

from __future__ import annotations

import dataclasses
import os
import queue
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from engine.kv import codec_choice
from engine.kv.block_keys import CHUNK_TOKENS
from engine.kv.blocks import Block, BlockPool
from engine.kv.codecs.encoded import EncodedBlock
from engine.kv.codecs.registry import NAMES, codec_named
from engine.kv.compressed_chunks import encoded_tensors, full_tensors, pieces_of
from engine.kv.fingerprint import Fingerprint
from engine.kv.geometry import KVGeometry
from engine.kv.persistence import Persistence
from engine.kv.pruned import KVZIP, STREAMING, PrunedBlock
from engine.kv.resident import Resident
from engine.kv.store.collector import Limits
from engine.kv.store.deletion import delete_from_disk, delete_unknown
from engine.kv.store.files import StoreFiles
from engine.kv.store.leftovers import remove_leftovers
from engine.kv.store.records import FORMAT_VERSION, PRUNED_CODECS, Manifest, TensorBytes, TensorSpec
from engine.kv.store.report import report_disk
from engine.kv.store.writer import SaveResult
from engine.kv.tensor_bytes import tensor_of
from engine.kv.transfer import block_regions
from engine.protocol.commands import Compress, CompressMethod, Undo
from engine.protocol.events import Compressed, Failed, Finished, SnapshotNotSaved, SnapshotSaved
from engine.protocol.misses import MissCode
from tests.engine.conftest import ColdReply, Engine, build_model, user
from tests.engine.random_caches import CHAT, CPU, GEOMETRY, bits, filled_resident, new_cache, random_arena
from tests.engine.store.faults import Disk

FINGERPRINT = Fingerprint.of_fields({"format": FORMAT_VERSION, "model": "random", "codec": "full"})
PRUNED = tuple(sorted(PRUNED_CODECS))
KINDS = (*NAMES, *PRUNED)
TOKENS = 700
WAIT_S = 60.0
NO_LIMITS = Limits(1 << 40, 0)


class Saved:
    """A store on disk as one process sees it; saves wait."""

    def __init__(self, folder: Path, limits: Limits = NO_LIMITS) -> None:
        self.results: queue.Queue[SaveResult] = queue.Queue()
        self.files = StoreFiles(folder, FORMAT_VERSION)
        remove_leftovers(self.files)
        self.persistence = Persistence(self.files, FINGERPRINT, GEOMETRY, "template", limits, self.results.put)

    def save(self, resident: Resident) -> SaveResult:
        assert self.persistence.save(resident, "")
        result = self.results.get(timeout=WAIT_S)
        assert result.error is None, result.error
        assert not result.is_cancelled
        return result

    @property
    def lossy(self) -> Manifest | None:
        return self.persistence.compressed.catalog.manifest(CHAT)

    def restore(self, stop: int = 1 << 20, conversation_id: str = CHAT) -> tuple[Resident, object]:
        pool = BlockPool(b"root", GEOMETRY)
        resident = Resident(conversation_id, pool)
        manifest = self.persistence.compressed.catalog.manifest(conversation_id)
        assert manifest is not None
        restored = self.persistence.restore_compressed(manifest, stop, resident, pool, CPU)
        assert pool.nbytes == sum(block.nbytes for block in resident.blocks)
        return resident, restored.miss

    def close(self) -> None:
        self.persistence.close(WAIT_S)


@pytest.fixture
def reopen(tmp_path: Path) -> Iterator[Callable[..., Saved]]:
    """The store again, as after a restart: each call closes the one before."""
    opened: list[Saved] = []

    def start(limits: Limits = NO_LIMITS) -> Saved:
        while opened:
            opened.pop().close()
        opened.append(Saved(tmp_path, limits))
        return opened[-1]

    yield start
    while opened:
        opened.pop().close()


def lossy_resident(kind: str, num_tokens: int = TOKENS, *, seed: int = 0, cold: int = 600) -> Resident:
    """An active chat whose first `cold` tokens went through `kind`; the last ones are in full precision."""
    if kind in NAMES:
        pytest.importorskip("bitsandbytes") if kind.startswith("bnb") else None
    resident, _ = filled_resident(random_arena(num_tokens, seed), num_tokens)
    if kind in PRUNED:
        kept = torch.rand(GEOMETRY.num_lanes, cold, generator=torch.Generator().manual_seed(seed)) < 0.3
        kept[0, 256:512] = False  # a lane of which nothing is left
        resident.prune(kind.removesuffix("-int8"), kept, is_int8=kind.endswith("-int8"))
    else:
        resident.encode_cold(codec_named(kind), num_tokens - cold)
    assert not resident.is_exact
    return resident


def tensors_of(block: Block) -> list[torch.Tensor]:
    if isinstance(block.encoded, PrunedBlock):
        return list(block.encoded.tensors().values())
    if isinstance(block.encoded, EncodedBlock):
        return [tensor for group in block.encoded.groups for tensor in group]
    return block.tensors


def contents(resident: Resident) -> list[tuple[str, list[bytes]]]:
    """All of a cache's numbers: of each encoded block, and of what is in full precision as one."""
    found: list[tuple[str, list[bytes]]] = []
    cache = resident.working
    blocks = resident.blocks if cache is None else cache.cold.blocks if cache.cold is not None else ()
    full: list[list[torch.Tensor]] = []
    for block in blocks:
        if block.encoded is None:
            full.append(block.tensors)
        else:
            found.append((block.encoded.codec, bits(tensors_of(block))))
    if cache is not None:
        full.append(cache.arena.read(cache.hot_start, cache.length))
    return [*found, ("full", bits([torch.cat(parts, 1) for parts in zip(*full, strict=True)]))]


def chunk_files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.glob("*/chunks/*/*")}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_parked", [False, True])
def test_what_comes_back_is_what_was_saved_bit_for_bit(
    reopen: Callable[..., Saved], kind: str, *, is_parked: bool
) -> None:
    resident = lossy_resident(kind)
    before, loss, precision = contents(resident), resident.loss, resident.precision("bf16")
    if is_parked:
        resident.park()
    reopen().save(resident)
    restored, miss = reopen().restore()
    assert miss is None
    assert restored.token_ids == list(range(TOKENS))
    assert (restored.loss, restored.precision("bf16")) == (loss, precision)
    assert contents(restored) == before
    if not kind.startswith("bnb"):  # those are decoded instead
        restored.resume(new_cache(TOKENS))
        assert contents(restored) == before


@pytest.mark.parametrize("kind", ["int8", "compact", "kvzip", "streaming-int8"])
def test_a_further_turn_writes_only_what_is_new(reopen: Callable[..., Saved], tmp_path: Path, kind: str) -> None:
    saved = reopen()
    resident = lossy_resident(kind, 1500, cold=1100)
    saved.save(resident)
    before = chunk_files(tmp_path)
    cache = resident.working
    assert cache is not None
    cache.reserve(1510)
    cache.append_ids(range(1500, 1510))
    result = saved.save(resident)
    after = chunk_files(tmp_path)
    assert len(after) == 6
    (new,) = after.keys() - before.keys()  # in place of the last one
    (manifest,) = tmp_path.glob("*/conversations/*")
    assert result.bytes_written == len(after[new]) + manifest.stat().st_size
    saved = reopen()
    restored, _ = saved.restore()
    assert contents(restored) == contents(resident)
    assert saved.save(restored).bytes_written < 20_000  # a manifest: what came back has the same names
    resident.park()
    assert saved.save(resident).bytes_written < 20_000


@pytest.mark.parametrize("kind", KINDS)
def test_a_chat_that_is_cut_while_it_comes_back(reopen: Callable[..., Saved], kind: str) -> None:
    resident = lossy_resident(kind)
    reopen().save(resident)
    restored, miss = reopen().restore(stop=300)
    assert miss is None
    assert restored.token_ids == list(range(512))
    assert contents(restored)[:2] == contents(resident)[:2]


@pytest.mark.parametrize("kind", ["int8", "kvzip"])
def test_the_exact_snapshot_stays_as_it_is_until_the_chat_is_exact_again(
    reopen: Callable[..., Saved], tmp_path: Path, kind: str
) -> None:
    saved = reopen()
    exact, _ = filled_resident(random_arena(TOKENS), TOKENS)
    saved.save(exact)
    folder = saved.files.folder(FINGERPRINT.digest)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    lossy = lossy_resident(kind)
    result = saved.save(lossy)
    assert result.bytes_total == report_disk(tmp_path, 0).conversations[0].disk_bytes
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    saved = reopen()
    assert saved.persistence.exact_manifest(CHAT) is not None
    assert saved.lossy is not None
    saved.save(exact)
    assert saved.lossy is None
    assert not list(saved.files.folder(FINGERPRINT.compressed.digest).glob("*/*/*.safetensors"))
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.suffix == ".safetensors"}.items() <= (
        before.items()
    )


def test_the_same_tokens_in_different_codecs_do_not_mix(reopen: Callable[..., Saved]) -> None:
    saved = reopen()
    chats = {kind: lossy_resident(kind) for kind in ("int8", "balanced", "kvzip", "kvzip-int8", "streaming")}
    for kind, resident in chats.items():
        resident.conversation_id = kind
        saved.save(resident)
    saved = reopen()
    for kind, resident in chats.items():
        restored, miss = saved.restore(conversation_id=kind)
        assert miss is None
        assert contents(restored) == contents(resident)
    saved.persistence.writer.delete_conversation("int8")
    restored, miss = saved.restore(conversation_id="balanced")
    assert contents(restored) == contents(chats["balanced"])


def test_a_deleted_chat_leaves_no_byte_in_either_folder(reopen: Callable[..., Saved], tmp_path: Path) -> None:
    def save_both() -> Saved:
        saved = reopen()
        saved.save(filled_resident(random_arena(TOKENS), TOKENS)[0])
        saved.save(lossy_resident("int8"))
        assert len(chunk_files(tmp_path)) == 6
        return saved

    def check_gone() -> None:
        assert not [path for path in tmp_path.glob("*/*/**/*") if path.is_file()]

    save_both().persistence.writer.delete_conversation(CHAT)
    check_gone()
    save_both().close()
    delete_from_disk(tmp_path, CHAT)
    check_gone()
    save_both().close()
    assert delete_unknown(tmp_path, {"another"}) == [CHAT]
    check_gone()
    save_both().persistence.compressed.forget(CHAT)
    assert len(chunk_files(tmp_path)) == 3


def test_the_cap_takes_both_forms_of_the_chat_used_longest_ago(reopen: Callable[..., Saved], tmp_path: Path) -> None:
    saved = reopen()
    old, _ = filled_resident(random_arena(TOKENS), TOKENS)
    saved.save(old)
    saved.save(lossy_resident("int8"))
    newer = lossy_resident("balanced", seed=1)
    newer.conversation_id = "newer"
    saved.persistence.collector.limits = Limits(report_disk(tmp_path, 0).disk_bytes, 0)
    result = saved.save(newer)
    assert [one.conversation_id for one in result.evicted] == [CHAT]
    assert {row.conversation_id for row in report_disk(tmp_path, 0).conversations} == {"newer"}
    assert report_disk(tmp_path, 0).disk_bytes == result.bytes_total


@pytest.mark.parametrize(
    ("kind", "exact_tokens", "expected"),
    [("int8", TOKENS, "bf16"), ("int8", 300, "int8"), ("kvzip", TOKENS, "kvzip"), ("kvzip-int8", 300, "kvzip-int8")],
)
def test_the_report_tells_the_form_that_would_be_used_and_the_bytes_of_both(
    reopen: Callable[..., Saved], tmp_path: Path, kind: str, exact_tokens: int, expected: str
) -> None:
    saved = reopen()
    saved.save(filled_resident(random_arena(TOKENS), exact_tokens)[0])
    saved.save(lossy_resident(kind))
    report = report_disk(tmp_path, 0)
    (row,) = report.conversations
    assert row.precision == expected
    assert row.disk_bytes == report.disk_bytes
    assert row.disk_bytes == sum(path.stat().st_size for path in tmp_path.glob("*/c*/**/*.*") if path.is_file())
    assert report.shared_bytes == 0


def test_a_chat_that_cannot_be_cut_where_chunks_end_is_not_saved(reopen: Callable[..., Saved]) -> None:
    resident = lossy_resident("int8")
    resident.park()
    del resident.blocks[0]  # from here on blocks lie 64 tokens before where they should
    resident._parked_ids = resident._parked_ids[64:]
    resident.blocks.insert(0, resident.blocks.pop())
    resident._parked_ids = [token_id for block in resident.blocks for token_id in block.token_ids]
    assert resident.blocks[0].num_tokens % 64
    assert not reopen().persistence.save(resident, "")


# -- damage --------------------------------------------------------------------------------------------------------


def damage(path: Path, how: str, seed: int = 0) -> None:
    """Change a file in one of the ways disks and hands do."""
    data = bytearray(path.read_bytes())
    dice = random.Random(seed)
    start = 8 + int.from_bytes(data[:8], "little")
    header = bytes(data[8:start])
    match how:
        case "truncated":
            del data[dice.randrange(1, len(data)) :]
        case "empty":
            data.clear()
        case "longer":
            data += b"\0"
        case "length":
            data[dice.randrange(8)] ^= 0xFF
        case "header":
            data[dice.randrange(8, start)] ^= 1 << dice.randrange(8)
        case "missing":
            path.unlink()
            return
        case "codec":
            name = next(name for name in (b".balanced.", b".kvzip-int8.") if name in header)
            data[8:start] = header.replace(name, b"." + bytes(reversed(name[1:-1])) + b".")
        case _:
            entry = next(at for at in header.split(b'"') if at.endswith(how.encode()))
            offset = int(header.split(b'"' + entry + b'"')[1].split(b'"data_offsets":[')[1].split(b",")[0])
            end = int(header.split(b'"' + entry + b'"')[1].split(b'"data_offsets":[')[1].split(b",")[1].split(b"]")[0])
            data[start + dice.randrange(offset, end)] ^= 1 << dice.randrange(8)
    path.write_bytes(bytes(data))


WAYS = ["truncated", "empty", "longer", "length", "header", "missing", "codec", "token_ids"]
PARTS = {
    "balanced": ["0.codes", "0.scale", "1.codes", "1.offset"],
    "kvzip-int8": ["counts", "positions", "keys", "values", "key_scale", "value_offset"],
}


@pytest.mark.parametrize(("kind", "how"), [(kind, how) for kind, parts in PARTS.items() for how in (*WAYS, *parts)])
@pytest.mark.parametrize("chunk", [0, 1])
def test_a_damaged_chunk_and_what_comes_after_it_are_dropped(
    reopen: Callable[..., Saved], kind: str, how: str, chunk: int
) -> None:
    resident = lossy_resident(kind)
    saved = reopen()
    saved.save(resident)
    manifest = saved.lossy
    assert manifest is not None
    key = manifest.chunks[chunk].key
    (path,) = saved.files.kv_dir.glob(f"*/chunks/{key[:2]}/{key}.safetensors")
    for seed in range(3) if how in ("truncated", "header", "length") else (0,):
        whole = path.read_bytes()
        damage(path, how, seed)
        restored, miss = saved.restore()
        assert miss is not None
        assert restored.length == chunk * CHUNK_TOKENS
        expected = contents(resident)[: 4 * chunk if kind == "balanced" else chunk]
        assert [one for one in contents(restored) if one[0] != "full"] == expected if chunk else not restored.blocks
        left = saved.lossy
        assert left is None if chunk == 0 else left is not None and len(left.chunks) == chunk
        path.write_bytes(whole)
        saved.save(resident)  # what was dropped is written again
        assert contents(saved.restore()[0]) == contents(resident)


def test_swapped_files_are_noticed(reopen: Callable[..., Saved]) -> None:
    saved = reopen()
    saved.save(lossy_resident("int8"))
    manifest = saved.lossy
    assert manifest is not None
    first, second = (next(saved.files.kv_dir.glob(f"*/chunks/*/{one.key}.safetensors")) for one in manifest.chunks[:2])
    aside = first.with_suffix(".aside")
    shutil.move(first, aside)
    shutil.move(second, first)
    shutil.move(aside, second)
    restored, miss = saved.restore()
    assert miss is not None
    assert restored.length == 0


@pytest.mark.parametrize("what", ["manifest", "fingerprint", "chunks"])
def test_an_unreadable_folder_does_not_harm_the_exact_snapshot(reopen: Callable[..., Saved], what: str) -> None:
    saved = reopen()
    exact, _ = filled_resident(random_arena(TOKENS), TOKENS)
    saved.save(exact)
    saved.save(lossy_resident("int8"))
    folder = saved.files.folder(FINGERPRINT.compressed.digest)
    saved.close()
    if what == "manifest":
        (folder / "conversations" / f"{CHAT}.json").write_bytes(b"{}")
    elif what == "fingerprint":
        (folder / "fingerprint.json").write_bytes(b"\0")
    else:
        shutil.rmtree(folder / "chunks")
        (folder / "chunks").write_bytes(b"not a folder")
    saved = reopen()
    manifest = saved.persistence.exact_manifest(CHAT)
    assert manifest is not None
    cache = new_cache(TOKENS)
    assert saved.persistence.restore(manifest, TOKENS, cache).length == TOKENS
    saved.save(exact)


# -- forged files: every check of a file's content is right, and what it says is impossible -----------------------


def stored(kind: str, geometry: KVGeometry = GEOMETRY) -> tuple[list[tuple[TensorSpec, torch.Tensor]], int]:
    """The tensors of one piece as they are read from a file."""
    resident = lossy_resident(kind)
    block = next(block for block in resident.blocks if block.encoded is not None)
    assert block.encoded is not None
    return read_again(encoded_tensors(0, block.num_tokens, block.encoded)), block.num_tokens


def read_again(tensors: list[TensorBytes]) -> list[tuple[TensorSpec, torch.Tensor]]:
    return [
        (one.spec, tensor_of(one.spec, memoryview(bytearray(b"".join(bytes(piece) for piece in one.pieces)))))
        for one in tensors
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_piece_of_any_other_shape_type_or_name_is_refused(kind: str) -> None:
    tensors, num_tokens = stored(kind)
    assert len(pieces_of(tensors, GEOMETRY, num_tokens)) == 1
    for index, (spec, tensor) in enumerate(tensors):
        others = [tensor.reshape(-1)[:-1], torch.cat([tensor, tensor]), tensor.double(), tensor[None]]
        for other in others:
            with pytest.raises(ValueError, match=r".+"):
                pieces_of([*tensors[:index], (spec, other), *tensors[index + 1 :]], GEOMETRY, num_tokens)
        for bad in (
            [*tensors[:index], *tensors[index + 1 :]],
            [*tensors[:index], tensors[index], *tensors[index:]],
            [(dataclasses.replace(one[0], name="1" + one[0].name[1:]), one[1]) for one in tensors],
            [(dataclasses.replace(one[0], name=one[0].name.replace(kind, "int16")), one[1]) for one in tensors],
            [
                (dataclasses.replace(one[0], name=one[0].name.replace(f".{num_tokens}.", ".300.")), one[1])
                for one in tensors
            ],
        ):
            with pytest.raises(ValueError, match=r".+"):
                pieces_of(bad, GEOMETRY, num_tokens)
        if spec.name.endswith(("scale", "offset")):
            for number in (torch.nan, torch.inf):
                spoilt = tensor.clone()
                spoilt.reshape(-1)[-1] = number
                with pytest.raises(ValueError, match="finite"):
                    pieces_of([*tensors[:index], (spec, spoilt), *tensors[index + 1 :]], GEOMETRY, num_tokens)
    with pytest.raises(ValueError, match="differ in number"):
        pieces_of(tensors, GEOMETRY, num_tokens + 1)
    if len(tensors) > 2:
        with pytest.raises(ValueError, match=r".+"):
            pieces_of([tensors[1], tensors[0], *tensors[2:]], GEOMETRY, num_tokens)


@pytest.mark.parametrize("kind", PRUNED)
def test_counts_and_positions_that_would_read_outside_are_refused(kind: str) -> None:
    tensors, num_tokens = stored(kind)
    for field, number in (("counts", -1), ("counts", 257), ("counts", 2**31 - 1), ("counts", 0)):
        for lane in (0, -1):
            bad = [(spec, tensor.clone()) for spec, tensor in tensors]
            next(tensor for spec, tensor in bad if spec.name.endswith(field))[lane] = number
            with pytest.raises(ValueError, match=r".+"):
                pieces_of(bad, GEOMETRY, num_tokens)
    short = lossy_resident(kind).blocks[-1]
    assert short.encoded is not None
    assert short.num_tokens < 256
    bad = read_again(encoded_tensors(0, short.num_tokens, short.encoded))
    next(tensor for spec, tensor in bad if spec.name.endswith("positions"))[0] = short.num_tokens
    with pytest.raises(ValueError, match="position"):
        pieces_of(bad, GEOMETRY, short.num_tokens)


def test_full_precision_pieces_come_back_and_no_other_shape_does() -> None:
    arena = random_arena(40)
    regions = [block_regions(GEOMETRY, [t[:, a:b].contiguous() for t in arena.groups]) for a, b in ((0, 32), (32, 40))]
    tensors = read_again(full_tensors(0, 40, regions, GEOMETRY))
    (piece,) = pieces_of(tensors, GEOMETRY, 40)
    assert bits(piece.groups) == bits([group[:, :40] for group in arena.groups])
    with pytest.raises(ValueError, match=r".+"):
        pieces_of([(tensors[0][0], tensors[0][1][:, :-1]), *tensors[1:]], GEOMETRY, 40)
    other = KVGeometry(GEOMETRY.layers[:2], torch.bfloat16)
    with pytest.raises(ValueError, match=r".+"):
        pieces_of(tensors, other, 40)


@pytest.mark.parametrize("method", [KVZIP, STREAMING])
def test_a_piece_of_another_method_is_not_taken_for_int8(method: str) -> None:
    tensors, num_tokens = stored(method)
    renamed = [(dataclasses.replace(spec, name=spec.name.replace(method, method + "-int8")), t) for spec, t in tensors]
    with pytest.raises(ValueError, match=r".+"):
        pieces_of(renamed, GEOMETRY, num_tokens)


# -- a failure or a power cut at any step --------------------------------------------------------------------------


@pytest.mark.parametrize("is_power_cut", [False, True])
def test_a_save_that_is_cut_short_leaves_the_old_state_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_power_cut: bool
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # what it is for, `Disk` tests
    before, kv_dir, grave = tmp_path / "before", tmp_path / "kv", tmp_path / "grave"
    old, new = lossy_resident("int8"), lossy_resident("balanced", 800, cold=650)
    allowed = [contents(old), contents(new)]
    first = Saved(before)
    first.save(filled_resident(random_arena(TOKENS), TOKENS)[0])
    first.save(old)
    first.close()
    step, dice, is_hit = 1, random.Random(0), True
    while is_hit:
        shutil.copytree(before, kv_dir)
        saved = Saved(kv_dir)
        disk = Disk(kv_dir, grave, step, is_power_cut=is_power_cut)
        with disk.installed():
            try:
                saved.persistence.save(new, "")
                saved.results.get(timeout=WAIT_S)
            except OSError:
                pass
            saved.close()
        if is_power_cut:
            disk.lose_power(dice)
        saved = Saved(kv_dir)
        restored, miss = saved.restore()
        assert miss is None
        assert contents(restored) in allowed
        exact = saved.persistence.exact_manifest(CHAT)
        assert exact is not None
        assert saved.persistence.restore(exact, TOKENS, new_cache(TOKENS)).length == TOKENS
        saved.save(new)
        assert contents(saved.restore()[0]) == allowed[1]
        saved.persistence.writer.delete_conversation(CHAT)
        saved.close()
        assert not [path for path in kv_dir.glob("*/*/**/*") if path.is_file()]
        shutil.rmtree(kv_dir)
        shutil.rmtree(grave, ignore_errors=True)
        step, is_hit = step + 1, disk.failed is not None
    assert step > 12


def test_memory_that_is_about_to_change_is_not_read_any_more(reopen: Callable[..., Saved]) -> None:
    saved = reopen()
    resident = lossy_resident("int8")
    saved.persistence.writer.pause()
    assert saved.persistence.save(resident, "")
    assert saved.persistence.writer.is_pending(CHAT)
    saved.persistence.writer.release(CHAT)
    assert not saved.persistence.writer.is_pending(CHAT)
    saved.persistence.writer.resume()
    assert saved.results.get(timeout=WAIT_S).is_cancelled
    assert saved.lossy is None


# -- from outside --------------------------------------------------------------------------------------------------

FIXED = ("int8", "balanced", "compact", "bnb-8bit", "bnb-nf4")
COMPRESSED = {
    "kvzip": (CompressMethod.KVZIP, False),
    "kvzip-int8": (CompressMethod.KVZIP, True),
    "streaming": (CompressMethod.STREAMING, False),
}


@pytest.fixture(scope="module")
def roomy_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny, but of 2,048 tokens of context."""
    return build_model(tmp_path_factory.mktemp("models") / "roomy", max_position_embeddings=2048)


def digits(num_tokens: int, seed: int) -> str:
    return "".join(random.Random(seed).choices("0123456789", k=num_tokens))


class Chat:
    """A chat whose cache is lossy, in one of the ways there are, with an engine that can be started again."""

    def __init__(self, start_engine: Callable[..., Engine], model: Path, kind: str) -> None:
        self.kind = kind
        self._start = lambda: start_engine(model, kv_precision=kind if kind in FIXED else "auto")
        self.engine = self._start()
        self.messages = [user(digits(600, 0))]

    def restart(self) -> None:
        self.engine = self._start()

    def first_turn(self) -> None:
        del self.messages[1:]
        self.engine.reply("a", self.messages)
        if self.kind not in FIXED:
            method, is_int8 = COMPRESSED[self.kind]
            self._submit(Compress("a", "c", tuple(self.messages), 0.3, method, is_int8))

    def undo(self) -> None:
        self._submit(Undo("a", "u", tuple(self.messages)))

    def next_turn(self, text: str = "and then?") -> Finished:
        return self.engine.reply("a", [*self.messages, user(text)])

    def _submit(self, command: Compress | Undo) -> None:
        self.engine.worker.submit(command)
        ended = self.engine.wait(Compressed, Failed, request_id=command.request_id)
        assert isinstance(ended, Compressed), ended
        self.engine.wait(SnapshotSaved, SnapshotNotSaved, request_id=command.request_id)


@pytest.fixture
def chat(
    request: pytest.FixtureRequest,
    start_engine: Callable[..., Engine],
    roomy_model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Chat:
    for name in FIXED:  # a random model bears few
        monkeypatch.setitem(codec_choice.MOST_KL, name, 100.0)
    if str(request.param).startswith("bnb"):
        pytest.importorskip("bitsandbytes")
    return Chat(start_engine, roomy_model, request.param)


every_kind = pytest.mark.parametrize("chat", [*FIXED, *COMPRESSED], indirect=True)
two_kinds = pytest.mark.parametrize("chat", ["int8", "kvzip"], indirect=True)


@every_kind
def test_resumed_equals_never_closed_token_for_token(chat: Chat) -> None:
    chat.first_turn()
    never_closed = chat.next_turn()
    chat.engine.forget("a")
    chat.first_turn()
    (before,) = chat.engine.report().conversations
    chat.restart()
    (on_disk,) = chat.engine.report().conversations
    assert on_disk.precision == before.precision
    resumed = chat.next_turn()
    assert resumed.token_ids == never_closed.token_ids
    assert resumed.statistics.reused_tokens == never_closed.statistics.reused_tokens > 600
    assert resumed.statistics.miss_code is None


@two_kinds
def test_an_edited_history_is_cut_as_in_memory(chat: Chat) -> None:
    chat.first_turn()
    chat.messages[0] = user(digits(600, 0)[:500] + digits(60, 9))
    never_closed = chat.next_turn()
    chat.engine.forget("a")
    chat.messages[0] = user(digits(600, 0))
    chat.first_turn()
    chat.restart()
    chat.messages[0] = user(digits(600, 0)[:500] + digits(60, 9))
    resumed = chat.next_turn()
    assert resumed.token_ids == never_closed.token_ids
    assert resumed.statistics.reused_tokens == never_closed.statistics.reused_tokens > 0
    assert resumed.statistics.miss_code == never_closed.statistics.miss_code


@two_kinds
@pytest.mark.parametrize("how", ["truncated", "missing", "token_ids"])
def test_a_damaged_file_costs_a_reading_never_a_wrong_word(
    chat: Chat, tmp_path: Path, how: str, cold_reply: ColdReply, roomy_model: Path
) -> None:
    chat.first_turn()
    chat.restart()
    manifest = chat.engine.runtime._loaded()[1].persistence.compressed.catalog.manifest("a")
    assert manifest is not None
    (path,) = (tmp_path / "kv").glob(f"*/chunks/*/{manifest.chunks[0].key}.safetensors")
    damage(path, how)
    resumed = chat.next_turn()
    assert resumed.token_ids == cold_reply(roomy_model, [*chat.messages, user("and then?")]).token_ids
    if chat.kind == "int8":  # nothing of it was ever saved in full precision
        assert resumed.statistics.reused_tokens == 0
        expected = MissCode.FILE_MISSING if how == "missing" else MissCode.FILE_DAMAGED
        assert resumed.statistics.miss_code == expected


@pytest.mark.parametrize("chat", COMPRESSED, indirect=True)
def test_undo_after_a_restart_leaves_only_full_precision(
    chat: Chat, tmp_path: Path, cold_reply: ColdReply, roomy_model: Path
) -> None:
    chat.first_turn()
    chat.restart()
    chat.undo()
    folder = chat.engine.runtime._loaded()[0].fingerprint.compressed.folder
    assert not list((tmp_path / "kv" / folder).glob("*/**/*.*"))
    chat.restart()
    assert chat.engine.report().conversations[0].precision == "fp32"
    undone = chat.next_turn()
    assert undone.statistics.reused_tokens > 600
    assert undone.token_ids == cold_reply(roomy_model, [*chat.messages, user("and then?")]).token_ids


def quantize(engine: Engine, codec: str) -> None:
    """As memory pressure does, to a chat that is at rest."""
    caches = engine.runtime._loaded()[1]
    (resident,) = caches.residents
    caches.persistence.writer.release("a")
    resident.encode_cold(codec_named(codec), 128)
    assert not resident.is_exact


@pytest.mark.parametrize("is_slow", [False, True])
def test_what_pressure_made_smaller_comes_back_exact_where_that_is_quick(
    start_engine: Callable[..., Engine], roomy_model: Path, monkeypatch: pytest.MonkeyPatch, *, is_slow: bool
) -> None:
    engine = start_engine(roomy_model)
    messages = [user(digits(600, 0))]
    engine.reply("a", messages)
    quantize(engine, "int8")
    messages.append(user("and then?"))
    monkeypatch.setattr("engine.kv.prefix.EXACT_WAIT_S", -1.0)  # or it would be read from disk now
    engine.reply("a", messages)
    assert engine.report().conversations[0].precision == "int8"
    monkeypatch.setattr("engine.kv.prefix.EXACT_WAIT_S", -1.0 if is_slow else 1000.0)
    engine = start_engine(roomy_model)
    (on_disk,) = engine.report().conversations
    assert on_disk.precision == "int8"  # it reaches further than what is exact
    messages.append(user("go on"))
    finished = engine.reply("a", messages)
    assert finished.statistics.miss_code == (None if is_slow else MissCode.READING_IS_FASTER)
    assert finished.statistics.reused_tokens > 600
    assert engine.report().conversations[0].precision == ("int8" if is_slow else "fp32")
    compressed = engine.runtime._loaded()[1].persistence.compressed.catalog.manifest("a")
    assert (compressed is not None) is is_slow


def test_a_quantized_chat_that_is_whole_in_full_precision_comes_back_so(
    start_engine: Callable[..., Engine], roomy_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start_engine(roomy_model)
    messages = [user(digits(600, 0))]
    engine.reply("a", messages)
    quantize(engine, "int8")
    assert engine.runtime._loaded()[1].save("a", "again") is None
    engine.wait(SnapshotSaved, request_id="again")
    monkeypatch.setattr("engine.kv.prefix.EXACT_WAIT_S", -1.0)
    engine = start_engine(roomy_model)
    (on_disk,) = engine.report().conversations
    assert on_disk.precision == "fp32"
    messages.append(user("and then?"))
    assert engine.reply("a", messages).statistics.reused_tokens > 600
    assert engine.report().conversations[0].precision == "fp32"


@two_kinds
def test_forgetting_leaves_nothing_of_a_lossy_chat(chat: Chat, tmp_path: Path) -> None:
    chat.first_turn()
    chat.next_turn()
    assert chunk_files(tmp_path / "kv")
    chat.engine.forget("a")
    assert not chunk_files(tmp_path / "kv")
    assert not list((tmp_path / "kv").glob("*/conversations/*"))


def test_an_incognito_chat_writes_nothing(
    start_engine: Callable[..., Engine], roomy_model: Path, tmp_path: Path
) -> None:
    engine = start_engine(roomy_model, kv_precision="int8")
    engine.reply("a", [user(digits(600, 0))], is_incognito=True)
    start_engine()
    assert not chunk_files(tmp_path / "kv")
