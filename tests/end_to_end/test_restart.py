"""A chat that survives a restart, as the public contract promises it to scripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.conftest import TIMEOUT_S, Ember, long_message

pytestmark = pytest.mark.timeout(600)

CONTRACT = {
    "conversation_id": str,
    "reply": str,
    "token_ids": list,
    "finish_reason": str,
    "prompt_tokens": int,
    "reused_tokens": int,
    "prefilled_tokens": int,
    "miss_reason": (str, type(None)),
    "load_s": float,
    "restore_s": float,
    "ttft_s": float,
    "prefill_tps": float,
    "decode_tps": float,
    "cache": dict,
    "snapshot": dict,
}


def stored_files(data_dir: Path) -> list[Path]:
    """Chunks, states and manifests of the cache."""
    kinds = ("chunks", "states", "conversations")
    return [file for kind in kinds for file in (data_dir / "kv").glob(f"*/{kind}/**/*") if file.is_file()]


def test_a_long_chat_goes_on_in_a_new_process_and_reads_only_what_is_new(ember: Ember) -> None:
    first = ember.ask(long_message(50), "--new")
    chat = first["conversation_id"]
    second = ember.ask("hi", "--conversation", chat)
    for answer in (first, second):
        for key, kind in CONTRACT.items():
            assert isinstance(answer[key], kind), key
        assert answer["cache"]["bytes"] == answer["cache"]["tokens"] * 23_040 * (
            answer["cache"]["precision"] == "bf16" or 2
        )
    assert first["prompt_tokens"] > 1_400
    assert first["prefilled_tokens"] == first["prompt_tokens"]
    read_ahead = first["prompt_tokens"] + len(first["token_ids"]) + 6  # the end of the turn and the start of the next
    assert read_ahead - 3 <= second["reused_tokens"] <= read_ahead
    assert second["prefilled_tokens"] == second["prompt_tokens"] - second["reused_tokens"] < 12
    assert second["miss_reason"] is None
    assert second["ttft_s"] < first["ttft_s"]
    assert sum(file.stat().st_size for file in stored_files(ember.data_dir)) == second["snapshot"]["bytes_total"]
    new_tokens = second["prompt_tokens"] + len(second["token_ids"]) - first["prompt_tokens"] - len(first["token_ids"])
    assert second["snapshot"]["bytes_written"] < (1.3 * new_tokens + 256) * 23_040 + 100_000  # and one tail
    report = ember.json("cache")
    assert report["conversations"][0]["state"] == "on_disk"
    assert report["conversations"][0]["tokens"] >= second["cache"]["tokens"]
    assert report["disk_bytes"] == second["snapshot"]["bytes_total"]
    verified = ember.json("verify", chat)
    assert verified["equal"] is True
    assert verified["tokens_compared"] == 32
    ember.run("delete", chat)
    assert stored_files(ember.data_dir) == []
    assert ember.json("conversations")["conversations"] == []


def test_a_damaged_snapshot_gives_the_right_reply_and_the_reason(ember: Ember) -> None:
    first = ember.ask(long_message(4), "--new")
    snapshot = next((ember.data_dir / "kv").glob("*/chunks/*/*.safetensors"))
    data = bytearray(snapshot.read_bytes())
    data[len(data) // 2] ^= 0x10
    snapshot.write_bytes(bytes(data))
    second = ember.ask("and now?", "--conversation", first["conversation_id"])
    assert second["reused_tokens"] == 0
    assert "damaged" in second["miss_reason"]
    assert ember.json("verify", first["conversation_id"])["equal"] is True


def test_a_full_disk_saves_no_snapshot_but_every_word(data_dir: Path, default_model: Path) -> None:
    """No file may grow beyond 2 MB: the database fits, the snapshot does not."""
    limited = Ember(data_dir, ("bash", "-c", 'ulimit -f 2048; exec "$@"', "limited"))
    first = limited.ask(long_message(5), "--new")
    assert first["reply"]
    assert first["snapshot"]["bytes_total"] == 0
    assert stored_files(data_dir) == []
    free = Ember(data_dir)
    second = free.ask("go on", "--conversation", first["conversation_id"])
    assert second["miss_reason"] == "no snapshot was kept"
    assert second["snapshot"]["bytes_total"] > 2_000_000
    third = limited.ask("and on", "--conversation", first["conversation_id"])
    assert third["miss_reason"] is None
    assert third["reused_tokens"] > 100


def test_a_message_longer_than_the_context_is_refused_with_the_numbers_and_nothing_is_lost(ember: Ember) -> None:
    chat = ember.ask("Hello.", "--new", tokens=3)["conversation_id"]
    process = ember.start("ask", "--conversation", chat, "-")
    _, err = process.communicate(long_message(300), timeout=TIMEOUT_S)
    assert process.returncode == 2
    assert "8,192" in err
    assert err.count("\n") == 1
    assert len(ember.json("show", chat)["messages"]) == 2
    assert ember.ask("Still there?", "--conversation", chat, tokens=3)["miss_reason"] is None


def test_hangul_goes_in_and_comes_back_whole(ember: Ember) -> None:
    chat = ember.ask("안녕하세요, 한국어로 대답해 주세요.", "--new", tokens=40)["conversation_id"]
    messages = ember.json("show", chat)["messages"]
    assert messages[0]["text"] == "안녕하세요, 한국어로 대답해 주세요."
    assert "�" not in messages[1]["text"]
