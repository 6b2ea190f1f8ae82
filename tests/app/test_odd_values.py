"""What makes no sense, in a file that is imported or in a damaged database, costs its own field and nothing else."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from app.conversation import ChatOptions
from app.conversation_store import ConversationStore
from app.exchange.html_export import export_html
from app.exchange.import_file import import_file
from app.exchange.markdown_export import export_markdown
from app.records import options_from_json, statistics_from_json, time_from
from ui.sidebar.list_rows import heading_of

HUGE = 10**400
INFINITE = float("inf")
CACHE: dict[str, Any] = {"tokens": 1, "bytes": 1, "precision": "bf16", "place": "cpu", "kept": 1.0}
STATISTICS: dict[str, Any] = {
    "prompt_tokens": 1,
    "reused_tokens": 1,
    "prefilled_tokens": 1,
    "new_tokens": 1,
    "miss_reason": None,
    "load_s": 0.0,
    "restore_s": 0.0,
    "ttft_s": 0.1,
    "prefill_tps": 1.0,
    "decode_tps": None,
    "cache": CACHE,
    "miss_code": None,
    "miss_params": {"a": "b"},
    "drafted_tokens": 0,
    "accepted_tokens": 0,
}
ODD: list[Any] = [HUGE, -1, INFINITE, float("nan"), 1e300, True, "x", [1], {"a": 1}, {"a": None}, 2**53 + 1]
EXTREME = [
    "9999-12-31T23:59:59.999999+00:00",
    "9999-12-31T23:59:59.999999-14:00",
    "0001-01-01T00:00:00+00:00",
    "0001-01-01T00:00:00+14:00",
    "0001-01-01",
    "1969-12-31T23:59:59+00:00",
]


@pytest.fixture
def store(data_dir: Path):
    opened = ConversationStore(data_dir / "ember.db")
    yield opened
    opened.close()


@pytest.fixture(params=["Pacific/Kiritimati", "America/New_York", "Asia/Seoul", "Pacific/Pago_Pago"])
def zone(request, monkeypatch):
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


def export(tmp_path: Path, message: dict[str, Any] | None = None, **changes: object) -> Path:
    told = {"id": 1, "parent_id": None, "role": "user", "text": "hi", "created_at": "2026-01-01T00:00:00+00:00"}
    times = {"created_at": "2026-01-01T00:00:00+00:00", "updated_at": "2026-01-01T00:00:00+00:00"}
    chat = {"title": "t", "system_prompt": "", "messages": [told | (message or {})]} | times | changes
    path = tmp_path / "chats.json"
    path.write_text(json.dumps({"format": "ember-export", "version": 1, "conversations": [chat]}))
    return path


@pytest.mark.parametrize("name", [name for name in STATISTICS if name != "cache"])
@pytest.mark.parametrize("value", ODD, ids=range(len(ODD)))
def test_statistics_with_a_field_of_another_type_are_left_out(name: str, value: object) -> None:
    is_sound = value == "x" and name in ("miss_reason", "miss_code")
    read = statistics_from_json(json.dumps(STATISTICS | {name: value}))
    assert (read is not None) is is_sound


@pytest.mark.parametrize("name", list(CACHE))
@pytest.mark.parametrize("value", ODD, ids=range(len(ODD)))
def test_statistics_with_an_odd_reading_of_the_cache_are_left_out(name: str, value: object) -> None:
    is_sound = value == "x" and name in ("precision", "place")
    read = statistics_from_json(json.dumps(STATISTICS | {"cache": CACHE | {name: value}}))
    assert (read is not None) is is_sound


@pytest.mark.parametrize("text", ["", "7", "[]", "null", '{"cache": []}', "[" * 5000, b"\xff", 7, 1.5])
def test_what_is_no_object_at_all_is_no_statistics_and_no_options(text: object) -> None:
    assert statistics_from_json(text) is None
    assert options_from_json(text) == ChatOptions()


def test_sound_statistics_and_those_of_a_later_version_are_read() -> None:
    read = statistics_from_json(json.dumps(STATISTICS | {"later": [1]}))
    assert read is not None
    assert (read.ttft_s, read.cache.place, read.miss_params) == (0.1, "cpu", {"a": "b"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (name, value)
        for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_new_tokens")
        for value in (HUGE, -HUGE, INFINITE, -5, 1e300, True, "x", [1], {"a": 1})
    ],
)
def test_an_option_outside_the_bounds_of_the_settings_costs_itself(store, tmp_path, name, value) -> None:
    sound = {"temperature": 0.5} if name != "temperature" else {"top_k": 7}
    import_file(store, export(tmp_path, options=sound | {name: value}))
    assert store.conversations()[0].options == ChatOptions(**sound)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [HUGE, -1, INFINITE, -1e300, "x", None, [1], True])
def test_an_attached_file_of_an_odd_size_comes_in_with_that_of_its_text(store, tmp_path, value) -> None:
    import_file(store, export(tmp_path, {"attachments": [{"name": "a.txt", "text": "가", "num_bytes": value}]}))
    (attached,) = store.messages(store.conversations()[0].id)[0].attachments
    assert (attached.name, attached.text, attached.num_bytes) == ("a.txt", "가", 3)


@pytest.mark.parametrize("written", EXTREME)
def test_extreme_times_in_a_file_are_moved_to_where_every_zone_has_days(store, tmp_path, zone, written) -> None:
    import_file(store, export(tmp_path, {"created_at": written}, created_at=written, updated_at=written))
    (chat,) = store.conversations()
    heading_of(chat.updated_at, datetime.now(UTC).date())
    messages = store.messages(chat.id)
    assert export_html([(chat, messages)])
    assert export_markdown(chat, messages)
    assert {1970 <= each.astimezone().year <= 2200 for each in (chat.created_at, messages[0].created_at)} == {True}


@pytest.mark.parametrize("seconds", [253402300799, -62135596800, 1e11, 1e400, -HUGE])
def test_extreme_times_of_chatgpt_too(store, tmp_path, zone, seconds) -> None:
    message = {"author": {"role": "user"}, "content": {"parts": ["hello"]}, "create_time": seconds}
    path = tmp_path / "chats.json"
    path.write_text(json.dumps([{"mapping": {"a": {"message": message}}, "create_time": seconds}]))
    import_file(store, path)
    (chat,) = store.conversations()
    assert 1970 <= chat.created_at.astimezone().year <= 2200


@pytest.mark.parametrize("stored", [*EXTREME, "2026-1q", "", None, 7, 1.5, b"\xff", "2026-01-01"])
def test_a_stored_time_is_always_a_time_that_every_zone_has(zone, stored) -> None:
    read = time_from(stored)
    assert read.tzinfo is UTC
    assert 1970 <= read.astimezone().year <= 2200
