"""What was saved comes back bit for bit, a turn costs what it adds, and equal beginnings are kept once."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from engine.kv.store.report import report_disk
from tests.engine.store.conftest import Store, ids


@pytest.mark.parametrize("num_tokens", [1, 31, 32, 33, 255, 256, 257, 511, 512, 513, 1000])
def test_what_was_saved_comes_back_in_another_process(tmp_path: Path, num_tokens: int) -> None:
    first = Store(tmp_path)
    result = first.must_save("c", ids(num_tokens), [num_tokens, 1])
    first.close()
    assert result.tokens == num_tokens
    assert result.bytes_written == result.bytes_total == first.disk_bytes()
    second = Store(tmp_path)
    assert second.check_whole("c") == tuple(ids(num_tokens))
    assert second.catalog.total_bytes == second.catalog.disk_bytes("c") == second.disk_bytes()
    second.close()


def test_files_are_plain_safetensors_and_private(store: Store) -> None:
    from safetensors import safe_open

    store.must_save("c", ids(300), [300])
    tail, state = sorted(store.kv_dir.rglob(f"{store.state_key(ids(300))}.safetensors"))
    with safe_open(tail, "pt") as file:
        assert file.get_tensor("token_ids").tolist() == ids(300)[256:]
        assert tuple(file.get_tensor("layers.0.value").shape) == (44, 1, 4)
    with safe_open(state, "pt") as file:
        assert tuple(file.get_tensor("conv.0").shape) == (3, 5)
    for each in store.kv_dir.rglob("*"):
        assert stat.S_IMODE(each.stat().st_mode) == (0o700 if each.is_dir() else 0o600), each


def test_a_turn_writes_what_it_adds_and_one_tail(tmp_path: Path) -> None:
    store = Store(tmp_path, item=512)  # 1 kB a token: headers do not dominate
    history = ids(6200)
    store.must_save("c", history[:6000])
    tail = 6000 % 256 * 1028
    result = store.must_save("c", history)
    assert result.bytes_written <= 1.3 * 200 * 1028 + tail
    assert result.bytes_total == store.disk_bytes() == store.catalog.total_bytes
    assert store.check_whole("c") == tuple(history)
    store.close()


def test_saving_the_same_again_writes_only_the_manifest(store: Store) -> None:
    first = store.must_save("c", ids(600))
    again = store.must_save("c", ids(600))
    manifest = store.files.manifest_path(store.fingerprint, "c").stat().st_size
    assert again.bytes_written == manifest
    assert again.bytes_total == first.bytes_total


def test_two_chats_with_a_common_beginning_share_its_files(store: Store) -> None:
    common = ids(2000)
    first = store.must_save("a", common + ids(100, seed=1))
    second = store.must_save("b", common + ids(100, seed=2))
    assert second.bytes_written < first.bytes_written / 2
    shared = store.catalog.shared_bytes("a")
    assert shared == store.catalog.shared_bytes("b") > 0
    total = store.catalog.disk_bytes("a") + store.catalog.disk_bytes("b") - shared
    assert total == store.catalog.total_bytes == store.disk_bytes()
    store.writer.delete_conversation("a")
    assert store.check_whole("b") == tuple(common + ids(100, seed=2))
    assert store.catalog.shared_bytes("b") == 0
    assert store.disk_bytes() == store.catalog.total_bytes == store.catalog.disk_bytes("b")


def test_a_shortened_history_leaves_no_file_of_the_longer_one(store: Store) -> None:
    store.must_save("c", ids(1000), [900, 300])
    result = store.must_save("c", ids(400), [300])
    assert store.check_whole("c") == tuple(ids(400))
    assert store.disk_bytes() == result.bytes_total


@pytest.mark.parametrize("conversation_id", ["../../x", "A", "a", "ü\ud800", "h-" + "0" * 64, "x" * 200, "con/nul"])
def test_any_id_can_be_saved_and_deleted(store: Store, conversation_id: str) -> None:
    store.must_save("other", ids(40))
    before = store.data_files()
    store.must_save(conversation_id, ids(50, seed=1))
    assert all(path.is_relative_to(store.folder) for path in store.kv_dir.rglob("*") if path.is_file())
    assert store.check_whole(conversation_id) == tuple(ids(50, seed=1))
    assert conversation_id in {row.conversation_id for row in report_disk(store.kv_dir, 1).conversations}
    store.writer.delete_conversation(conversation_id)
    assert store.data_files() == before


def test_the_report_needs_no_engine_and_agrees_with_the_disk(tmp_path: Path) -> None:
    common = ids(600)
    first, second = Store(tmp_path, "m"), Store(tmp_path, "n")
    first.must_save("a", common)
    first.must_save("b", common + ids(10, seed=1))
    second.must_save("a", ids(700, seed=2))
    (first.folder / "chunks" / "aa").mkdir(exist_ok=True)
    (first.folder / "chunks" / "aa" / ".x.tmp").write_bytes(b"temporary")
    report = report_disk(tmp_path, 7)
    rows = {row.conversation_id: row for row in report.conversations}
    assert report.budget_bytes == 7
    assert report.disk_bytes == first.catalog.total_bytes + second.catalog.total_bytes
    assert report.shared_bytes == first.catalog.shared_bytes("a")
    assert rows["a"].disk_bytes == first.catalog.disk_bytes("a") + second.catalog.disk_bytes("a")
    assert rows["a"].tokens == 700  # the newest
    assert rows["b"].shared_bytes == first.catalog.shared_bytes("b") == rows["a"].shared_bytes > 0
    assert rows["b"].precision == "bf16"
    first.close()
    second.close()


def test_the_report_tolerates_rubbish(tmp_path: Path) -> None:
    assert report_disk(tmp_path / "none", 1).disk_bytes == 0
    (tmp_path / "weight-hashes.json").write_text("{}")
    for name, text in (("0" * 16, "{"), ("1" * 16, "[" * 100_000), ("2" * 16, "")):
        folder = tmp_path / name / "conversations"
        folder.mkdir(parents=True)
        (folder / "c.json").write_text(text)
        (folder.parent / "fingerprint.json").write_text(text)
        (folder.parent / "chunks").write_text("a file where a folder belongs")
    report = report_disk(tmp_path, 1)
    assert report.conversations == ()
    assert report.disk_bytes == 1 + 100_000


def test_the_store_needs_no_torch() -> None:
    modules = "engine.kv.store.writer, engine.kv.store.reader, engine.kv.store.report"
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
