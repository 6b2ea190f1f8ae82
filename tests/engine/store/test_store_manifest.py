"""A manifest is what was written, or nothing; leftovers go at the start; prefixes are found among thousands."""

from __future__ import annotations

import json
import random
import time
from dataclasses import replace
from pathlib import Path

import pytest
import xxhash

from engine.kv.store.catalog import Catalog
from engine.kv.store.files import FileName
from engine.kv.store.leftovers import remove_leftovers
from engine.kv.store.manifest import decode_manifest, encode_manifest, read_manifest
from engine.kv.store.problems import ManifestRejectedError
from engine.kv.store.records import ChunkRef, Manifest, StateRef
from tests.engine.store.conftest import Store, fingerprint_of, ids, refs_of

PRINT = fingerprint_of("m")


def manifest_of(token_ids: list[int], conversation_id: str = "c", *, is_exact: bool = True) -> Manifest:
    refs = refs_of(PRINT, token_ids, is_exact=is_exact)
    codecs = () if is_exact else ("int8",)
    return Manifest(conversation_id, tuple(token_ids), refs, (StateRef("ab" * 32, 1),), is_exact, "bf16", codecs=codecs)


def sealed(fields: dict[str, object]) -> bytes:
    """What an attacker writes: anything, with a right checksum."""
    body = json.dumps(fields, separators=(",", ":")).encode()[:-1]
    return body + f',"xxh3_128":"{xxhash.xxh3_128_hexdigest(body)}"}}'.encode()


@pytest.mark.parametrize("num_tokens", [1, 255, 256, 257, 5000])
@pytest.mark.parametrize("is_exact", [True, False])
def test_a_manifest_comes_back(num_tokens: int, *, is_exact: bool) -> None:
    manifest = manifest_of(ids(num_tokens), "any id \ud800 \n ü", is_exact=is_exact)
    data = encode_manifest(manifest)
    assert decode_manifest(data, PRINT) == manifest
    with pytest.raises(ManifestRejectedError):
        decode_manifest(data, fingerprint_of("another"))


def test_any_change_is_noticed() -> None:
    data = encode_manifest(manifest_of(ids(40)))
    dice = random.Random(0)
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << dice.randrange(8)
        for bad in (bytes(damaged), data[:at]):
            with pytest.raises(ManifestRejectedError):
                decode_manifest(bad, PRINT)


GOOD = manifest_of(ids(600))
LOSSY = manifest_of(ids(600), is_exact=False)


@pytest.mark.parametrize(
    "bad",
    [
        replace(GOOD, token_ids=GOOD.token_ids[:-1]),
        replace(GOOD, token_ids=(*GOOD.token_ids[:-1], 0)),
        replace(GOOD, token_ids=(), chunks=()),
        replace(GOOD, chunks=GOOD.chunks[::-1]),
        replace(GOOD, chunks=GOOD.chunks[:2]),
        replace(GOOD, chunks=(*GOOD.chunks, ChunkRef("ab" * 32, 0))),
        replace(GOOD, chunks=(ChunkRef(GOOD.chunks[0].key, 600),)),
        replace(GOOD, chunks=(*GOOD.chunks[:2], ChunkRef("../../etc/passwd", 88))),
        replace(GOOD, states=(StateRef("ab" * 32, 0),)),
        replace(GOOD, states=(StateRef("ab" * 32, 601),)),
        replace(GOOD, states=(StateRef("../" * 21 + "x", 5),)),
        replace(GOOD, is_exact=False),
        replace(GOOD, chunks=(replace(GOOD.chunks[0], tag="0" * 32), *GOOD.chunks[1:])),
        replace(LOSSY, is_exact=True),
        replace(LOSSY, codecs=()),
        replace(LOSSY, chunks=(replace(LOSSY.chunks[0], tag="f" * 32), *LOSSY.chunks[1:])),
        replace(LOSSY, chunks=(replace(LOSSY.chunks[0], tag="0" * 30), *LOSSY.chunks[1:])),
        replace(LOSSY, chunks=(replace(LOSSY.chunks[0], tag=""), *LOSSY.chunks[1:])),
    ],
)
def test_contradictions_are_rejected_though_the_checksum_is_right(bad: Manifest) -> None:
    with pytest.raises(ManifestRejectedError):
        decode_manifest(encode_manifest(bad), PRINT)


@pytest.mark.parametrize(
    "change",
    [
        {"format": "ember-kv-3"},
        {"conversation_id": 5},
        {"token_ids": "AAAA"},
        {"token_ids": "A" * 7},
        {"token_ids": None},
        {"token_ids": "äöü"},
        {"chunks": None},
        {"chunks": [["a", 1, 2]]},
        {"chunks": [[1, "a"]]},
        {"chunks": {"a": 1}},
        {"chunks": [[GOOD.chunks[0].key, True]]},
        {"states": [["ab" * 32, 1.0]]},
        {"is_exact": 1},
        {"precision": None},
        {"extra": 1},
    ],
)
def test_wrong_types_are_rejected_though_the_checksum_is_right(change: dict[str, object]) -> None:
    fields = json.loads(encode_manifest(GOOD))
    del fields["xxh3_128"]
    assert decode_manifest(sealed(fields), PRINT) == GOOD
    with pytest.raises(ManifestRejectedError):
        decode_manifest(sealed({**fields, **change}), PRINT)


@pytest.mark.parametrize("body", [b"", b"[" * 200_000, b"null", b"5", b'{"format"', b"\xff\xfe"])
def test_hostile_json_is_rejected(body: bytes) -> None:
    data = body + f',"xxh3_128":"{xxhash.xxh3_128_hexdigest(body)}"}}'.encode()
    with pytest.raises(ManifestRejectedError):
        decode_manifest(data, PRINT)


def test_a_huge_manifest_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    with file.open("wb") as handle:
        handle.truncate(10**12)
    with pytest.raises(ManifestRejectedError, match="large"):
        read_manifest(file, PRINT)


def test_a_manifest_under_another_name_does_not_count(store: Store) -> None:
    store.must_save("a", ids(50))
    store.must_save("b", ids(60))
    path = store.files.manifest_path(store.fingerprint, "a")
    path.rename(store.files.manifest_path(store.fingerprint, "b"))
    assert Catalog(store.files, store.fingerprint).conversation_ids() == []


def test_files_that_are_gone_shorten_what_is_stored(store: Store) -> None:
    manifest = store.start_save("c", ids(1000), [300, 900])
    store.results.get(timeout=20)
    store.files.path(store.fingerprint, FileName(manifest.chunks[2].key, False)).unlink()
    found = Catalog(store.files, store.fingerprint).manifest("c")
    assert found is not None
    assert found.token_ids == tuple(ids(1000)[:512])
    assert [state.position for state in found.states] == [300]


def test_leftovers_go_and_the_rest_stays(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.must_save("c", ids(300), [300])
    kept = set(store.data_files())
    chunk = next(iter(store.folder.glob("chunks/*/*")))
    stray = store.folder / "chunks" / ("ee" * 32)[:2] / f"{'ee' * 32}.safetensors"
    for path in (
        chunk.with_name(f".{chunk.stem}.abcd.tmp"),
        chunk.with_name("0" * 64 + ".safetensors"),
        stray,
        store.folder / "conversations" / ".c.abcd.tmp",
        store.folder / "conversations" / "damaged.json",
        store.folder / "conversations" / "old.safetensors",
        store.folder / "states" / "loose",
    ):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
    stale = {
        "0" * 16: '{"format":1}',
        "1" * 16: "{",
        "2" * 16: "[" * 100_000,
        "3" * 16: None,
    }
    for name, text in stale.items():
        (tmp_path / name / "conversations").mkdir(parents=True)
        (tmp_path / name / "conversations" / "c.safetensors").write_bytes(b"x")
        if text is not None:
            (tmp_path / name / "fingerprint.json").write_text(text)
    others = [tmp_path / "weight-hashes.json", tmp_path / "bench-x" / "conversations" / "c.json"]
    for path in others:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    remove_leftovers(store.files)
    assert all(path.exists() for path in others)
    others[1].unlink()
    assert set(store.data_files()) == kept
    assert not any((tmp_path / name).exists() for name in stale)
    assert store.check_whole("c") == tuple(ids(300))
    store.close()


def test_a_folder_of_an_older_format_goes_even_with_a_right_name(tmp_path: Path) -> None:
    import hashlib

    text = '{"format":1}'
    folder = tmp_path / hashlib.sha256(text.encode()).hexdigest()[:16]
    (folder / "conversations").mkdir(parents=True)
    (folder / "fingerprint.json").write_text(text)
    (folder / "conversations" / "c.safetensors").write_bytes(b"old")
    store = Store(tmp_path)
    assert not folder.exists()
    assert store.files.fingerprint_fields(folder.name) is None
    assert store.files.fingerprint_fields(store.folder.name) == {"format": 2, "model": "m"}
    store.close()


def test_an_error_of_the_system_is_no_reason_to_delete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    store.must_save("c", ids(300))
    kept = store.data_files()
    real = Path.open

    def fail(path: Path, *rest: object, **other: object) -> object:
        if path.suffix == ".json":
            raise OSError(5, "Input/output error")
        return real(path, *rest, **other)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", fail)
        remove_leftovers(store.files)
    with monkeypatch.context() as patched:
        patched.setattr(
            Path, "open", lambda path, *a, **k: fail(path, *a, **k) if path.stem == "c" else real(path, *a, **k)
        )
        remove_leftovers(store.files)
        half_blind = Catalog(store.files, store.fingerprint)
        with pytest.raises(OSError, match="could not be read"):
            half_blind.purge_orphans()
    assert store.data_files() == kept
    store.close()


def naive_prefix(first: tuple[int, ...], second: list[int]) -> int:
    return next(
        (at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


def test_the_longest_prefix_is_found_at_token_granularity(store: Store) -> None:
    dice = random.Random(0)
    base = ids(900)
    for number in range(25):
        cut = dice.choice([0, 1, 31, 32, 255, 256, 257, 500, 512, 600, 900])
        token_ids = base[:cut] + ids(dice.choice([1, 40, 300]), seed=100 + number)
        store.start_save(f"c{number}", token_ids, is_exact=number % 5 != 0)
        assert store.results.get(timeout=20).error is None
    for catalog in (store.catalog, Catalog(store.files, store.fingerprint)):
        manifests = [catalog.manifest(key) for key in catalog.conversation_ids()]
        exact = [each.token_ids for each in manifests if each is not None and each.is_exact]
        assert len(manifests) == 25
        for cut in (0, 1, 30, 255, 256, 258, 511, 512, 700, 900):
            wanted = base[:cut] + ids(dice.choice([0, 5, 400]), seed=dice.choice([999, 100 + dice.randrange(25)]))
            found = catalog.longest_prefix(wanted)
            best = max(naive_prefix(each, wanted) for each in exact)
            assert (found[1] if found else 0) == best
            if found:
                assert naive_prefix(found[0].token_ids, wanted) == best
                assert found[0].is_exact


def test_of_equal_prefixes_the_preferred_wins_then_the_latest_used(store: Store) -> None:
    for key in ("a", "b", "d"):
        store.must_save(key, ids(300) + ids(5, seed=ord(key)))
        time.sleep(0.005)  # file times have a resolution
    wanted = ids(400)
    assert store.catalog.longest_prefix(wanted, "b")[0].conversation_id == "b"  # type: ignore[index]
    assert store.catalog.longest_prefix(wanted)[0].conversation_id == "d"  # type: ignore[index]
    store.catalog.touch("a")
    for catalog in (store.catalog, Catalog(store.files, store.fingerprint)):
        assert catalog.longest_prefix(wanted)[0].conversation_id == "a"  # type: ignore[index]
        assert catalog.conversation_ids() == ["a", "d", "b"]
    store.catalog.touch("nobody")
    assert store.catalog.longest_prefix([]) is None
    assert store.catalog.longest_prefix(ids(400, seed=5)) is None


def test_a_thousand_chats_are_searched_in_milliseconds(store: Store) -> None:
    from engine.kv.store.index import ManifestIndex
    from engine.kv.store.manifest import root_of

    index = ManifestIndex()
    base = ids(6000)
    for number in range(1000):
        token_ids = [*base[: (0, 100, 5990)[number % 3]], number]
        index.add(Manifest(f"c{number}", tuple(token_ids), refs_of(PRINT, token_ids)), 1, number)
    root = root_of(PRINT, is_exact=True)
    for wanted, expected in ((base, 5990), (base[:200] + ids(5800, seed=1), 200), (base[:50] + ids(50, seed=1), 50)):
        took = []
        for _ in range(5):
            started = time.perf_counter()
            found = index.longest_prefix(root, wanted, None)
            took.append(time.perf_counter() - started)
        assert found is not None
        assert found[1] == expected
        assert min(took) < 0.020
