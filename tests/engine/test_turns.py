"""A conversation over several turns: what is fed, what is reused, how it ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from engine.protocol.commands import ChatMessage, Forget, ForgetUnknown, Generate, Role
from engine.protocol.config import GREEDY, Sampling
from engine.protocol.events import (
    CacheState,
    Failed,
    Finished,
    FinishReason,
    Phase,
    PhaseChanged,
    SnapshotSaved,
    StatisticsChanged,
    TextArrived,
)
from engine.protocol.misses import MissCode
from tests.engine.conftest import ColdReply, Engine, user

StartEngine = Callable[..., Engine]
KINDS = ("chunks", "states", "conversations")


def test_the_second_turn_feeds_only_what_is_new(start_engine: StartEngine, tiny_model: Path) -> None:
    engine = start_engine(tiny_model)
    messages = [user("tell a story " * 10)]
    first = engine.reply("a", messages)
    messages.append(user("go on"))
    second = engine.reply("a", messages)
    assert first.statistics.reused_tokens == 0
    assert first.statistics.prefilled_tokens == first.statistics.prompt_tokens
    kept = first.statistics.prompt_tokens + len(first.token_ids)
    ahead = second.statistics.reused_tokens - kept  # end of the reply and beginning of the question, read while idle
    assert 0 < ahead < 16
    assert second.statistics.prefilled_tokens == second.statistics.prompt_tokens - second.statistics.reused_tokens
    assert second.statistics.prefilled_tokens < 24
    assert second.statistics.miss_code is None


def test_events_of_a_turn_come_in_order_and_add_up(start_engine: StartEngine, tiny_model: Path) -> None:
    engine = start_engine(tiny_model)
    engine.events.clear()
    finished = engine.reply("a", [user("hello there " * 20)])
    phases = [event.phase for event in engine.events if isinstance(event, PhaseChanged)]
    assert list(dict.fromkeys(phases)) == [Phase.RESTORING, Phase.PREFILL, Phase.ANSWERING, Phase.SAVING]
    texts = [event for event in engine.events if isinstance(event, TextArrived)]
    assert "".join(event.text for event in texts) == finished.text
    assert tuple(i for event in texts for i in event.token_ids) == finished.token_ids
    progress = [e for e in engine.events if isinstance(e, PhaseChanged) and e.phase is Phase.PREFILL]
    assert [e.done_tokens for e in progress] == [
        *range(0, finished.statistics.prompt_tokens, 32),
        finished.statistics.prompt_tokens,
    ]
    readings = [event for event in engine.events if isinstance(event, StatisticsChanged)]
    assert readings[-1].cache == finished.statistics.cache
    assert readings[-1].context_tokens == finished.statistics.prompt_tokens + len(finished.token_ids) - 1


def test_regenerating_feeds_exactly_one_token(start_engine: StartEngine, tiny_model: Path) -> None:
    engine = start_engine(tiny_model)
    question = [user("a question of some length, please")]
    first = engine.reply("a", list(question))
    again = engine.reply("a", list(question))
    assert again.statistics.prefilled_tokens == 1
    assert again.token_ids == first.token_ids


def test_editing_the_last_message_reads_nothing_of_the_history_again(
    start_engine: StartEngine, tiny_model: Path, cold_reply: ColdReply
) -> None:
    engine = start_engine(tiny_model)
    messages = [user("first message")]
    first = engine.reply("a", messages)
    kept = [*messages]
    messages.append(user("second message"))
    engine.reply("a", messages)
    edited = engine.reply("a", [*kept, user("another second message")])
    assert edited.statistics.reused_tokens >= first.statistics.prompt_tokens + len(first.token_ids)
    assert edited.statistics.miss_code is None
    assert edited.token_ids == cold_reply(tiny_model, [*kept, user("another second message")]).token_ids


def test_editing_an_early_message_keeps_the_prefix_before_it_and_says_why_the_rest_is_read_again(
    start_engine: StartEngine, tiny_model: Path, cold_reply: ColdReply
) -> None:
    engine = start_engine(tiny_model)
    messages = [user("first message")]
    engine.reply("a", messages)
    messages.append(user("second message"))
    engine.reply("a", messages)
    messages.append(user("third message"))
    engine.reply("a", messages)
    messages[2:3] = [user("another second message")]
    edited = engine.reply("a", messages[:-1])
    assert edited.statistics.reused_tokens > 20
    assert edited.statistics.miss_code == MissCode.HISTORY_CHANGED
    assert int(edited.statistics.miss_params["token"]) == edited.statistics.reused_tokens
    assert edited.token_ids == cold_reply(tiny_model, messages[:-1]).token_ids


def test_conversations_do_not_disturb_one_another(
    start_engine: StartEngine, tiny_model: Path, cold_reply: ColdReply
) -> None:
    engine = start_engine(tiny_model)
    one, two = [user("one " * 8)], [user("two " * 9)]
    engine.reply("one", one)
    engine.reply("two", two)
    one.append(user("more"))
    resumed = engine.reply("one", one)
    assert resumed.token_ids == cold_reply(tiny_model, one[:-1]).token_ids
    assert resumed.statistics.miss_code is None


def test_a_reply_stops_at_a_stop_string_and_never_shows_part_of_it(start_engine: StartEngine, tiny_model: Path) -> None:
    engine = start_engine(tiny_model)
    whole = engine.reply("a", [user("say much")], max_new_tokens=30).text
    stop = whole[6:9]
    engine.events.clear()
    stopped = engine.reply("b", [user("say much")], max_new_tokens=30, stop=(stop,))
    assert stopped.text == whole[: whole.index(stop)]
    assert stopped.finish_reason is FinishReason.STOP
    assert not stopped.ids_match_text
    assert "".join(e.text for e in engine.events if isinstance(e, TextArrived)) == stopped.text


def test_the_reply_ends_where_the_context_ends(start_engine: StartEngine, tiny_model: Path) -> None:
    engine = start_engine(tiny_model)
    long = engine.reply("a", [user("x" * 440)], max_new_tokens=400)
    total = long.statistics.prompt_tokens + len(long.token_ids)
    assert long.finish_reason is FinishReason.LENGTH
    assert total == 512


def test_a_prompt_longer_than_the_context_is_refused_with_the_numbers(
    start_engine: StartEngine, tiny_model: Path
) -> None:
    engine = start_engine(tiny_model)
    messages = [user("short")]
    engine.reply("a", messages)
    failed = engine.fail("a", [*messages, user("y" * 600)])
    assert failed.code == "context_overflow"
    assert failed.params["context_length"] == "512"
    assert int(failed.params["prompt_tokens"]) > 600
    messages.append(user("still here"))
    assert engine.reply("a", messages).statistics.miss_code is None


def test_cancel_before_the_start_and_in_the_middle_keeps_the_cache_usable(
    start_engine: StartEngine, tiny_model: Path, cold_reply: ColdReply
) -> None:
    engine = start_engine(tiny_model)
    messages = [user("begin")]
    for request in ("early", "middle"):
        engine.worker.submit(Generate("a", request, tuple(messages), GREEDY, 200))
        if request == "middle":
            engine.wait(TextArrived, request_id=request)
        engine.worker.cancel(request)
        finished = engine.wait(Finished, Failed, request_id=request)
        assert isinstance(finished, Finished)
        assert finished.finish_reason is FinishReason.CANCELLED
    messages.append(ChatMessage(Role.ASSISTANT, finished.text, finished.token_ids))
    messages.append(user("and now"))
    resumed = engine.reply("a", messages)
    assert resumed.token_ids == cold_reply(tiny_model, messages[:-1]).token_ids
    assert resumed.statistics.reused_tokens > 0


def test_cancel_during_prefill_stops_between_chunks_and_the_next_try_goes_on(
    start_engine: StartEngine, tiny_model: Path, cold_reply: ColdReply
) -> None:
    engine = start_engine(tiny_model)
    messages = (user("word " * 60),)
    engine.worker.submit(Generate("a", "r", messages, GREEDY, 4))
    while True:
        event = engine.wait(PhaseChanged, Finished, request_id="r")
        if isinstance(event, PhaseChanged) and event.phase is Phase.PREFILL:
            engine.worker.cancel("r")
            break
    finished = engine.wait(Finished, request_id="r")
    assert isinstance(finished, Finished)
    if finished.finish_reason is FinishReason.CANCELLED:  # else the machine was faster than the cancel
        assert finished.statistics.ttft_s is None or finished.token_ids
    again = engine.reply("a", list(messages), max_new_tokens=4)
    assert again.token_ids == cold_reply(tiny_model, list(messages), max_new_tokens=4).token_ids


def test_seeded_sampling_repeats_and_greedy_ignores_the_seed(start_engine: StartEngine, tiny_model: Path) -> None:
    engine = start_engine(tiny_model)
    seeded = Sampling(temperature=1.0, top_p=0.9, seed=7)
    replies = [engine.reply(str(n), [user("roll")], sampling=seeded).token_ids for n in range(2)]
    other = engine.reply("x", [user("roll")], sampling=Sampling(temperature=1.0, top_p=0.9, seed=8)).token_ids
    assert replies[0] == replies[1] != other


def test_a_hangul_reply_never_shows_half_a_syllable(start_engine: StartEngine, tiny_model: Path) -> None:
    engine = start_engine(tiny_model)
    engine.reply("a", [user("안녕하세요, 오늘은 날씨가 어때요?")], max_new_tokens=200)
    assert not any("�" in event.text for event in engine.events if isinstance(event, TextArrived))


def test_forgetting_removes_memory_and_files(start_engine: StartEngine, tiny_model: Path, tmp_path: Path) -> None:
    engine = start_engine(tiny_model)
    engine.reply("a", [user("remember " * 60)])
    engine.reply("b", [user("me too")])
    engine.forget("a")
    report = engine.report()
    assert [row.conversation_id for row in report.conversations] == ["b"]
    assert report.memory_bytes == report.conversations[0].memory_bytes
    assert [path.name for path in (tmp_path / "kv").glob("*/conversations/*")] == ["b.json"]
    assert len(list((tmp_path / "kv").glob("*/chunks/*/*"))) == 1


def test_forgetting_right_after_a_reply_leaves_nothing_behind(
    start_engine: StartEngine, tiny_model: Path, tmp_path: Path
) -> None:
    """The save is still running when the deletion comes."""
    engine = start_engine(tiny_model)
    for number in range(20):
        engine.reply(f"c{number}", [user("remember")], max_new_tokens=3, is_saved=False)
        engine.worker.submit(Forget(f"c{number}"))
    start_engine()
    assert [path for kind in KINDS for path in (tmp_path / "kv").glob(f"*/{kind}/**/*.*")] == []


def test_what_is_left_of_a_deletion_that_was_cut_off_goes_at_the_next_start(
    start_engine: StartEngine, tiny_model: Path, tmp_path: Path
) -> None:
    engine = start_engine(tiny_model)
    messages = {name: [user(f"{name} has something to say")] for name in ("kept", "deleted")}
    for name, chat in messages.items():
        engine.reply(name, chat)
    engine = start_engine()
    engine.worker.submit(ForgetUnknown(frozenset({"kept"})))
    engine.load(tiny_model)
    assert [row.conversation_id for row in engine.report().conversations] == ["kept"]
    assert [path.stem for path in (tmp_path / "kv").glob("*/conversations/*")] == ["kept"]
    messages["kept"].append(user("go on"))
    assert engine.reply("kept", messages["kept"]).statistics.miss_code is None


def test_the_report_agrees_with_tensors_and_files(start_engine: StartEngine, tiny_model: Path, tmp_path: Path) -> None:
    engine = start_engine(tiny_model)
    finished = engine.reply("a", [user("count me " * 45)])
    report = engine.report()
    row = report.conversations[0]
    itemsize = 2 if row.precision == "bf16" else 4
    cached = row.tokens * 3 * 2 * 2 * 16 * itemsize
    files = [path for kind in KINDS for path in (tmp_path / "kv").glob(f"*/{kind}/**/*.*")]
    assert row.state is CacheState.WARM
    assert row.tokens >= finished.statistics.prompt_tokens + len(finished.token_ids)
    assert row.memory_bytes == report.memory_bytes == cached + row.waste_bytes
    assert row.waste_bytes <= 0.04 * row.memory_bytes
    assert report.waste_ratio == row.waste_bytes / row.memory_bytes
    assert row.shared_bytes == report.shared_bytes == 0
    assert row.disk_bytes == report.disk_bytes == sum(file.stat().st_size for file in files)


def test_memory_over_the_budget_goes_least_recently_used_first_and_comes_back_from_disk(
    start_engine: StartEngine, tiny_model: Path, cold_reply: ColdReply
) -> None:
    engine = start_engine(tiny_model, memory_budget_bytes=200_000)
    chats = {name: [user(f"{name} " * 60)] for name in ("a", "b", "c", "d")}
    for name, messages in chats.items():
        engine.reply(name, messages)
    states = {row.conversation_id: row.state for row in engine.report().conversations}
    assert states["d"] is CacheState.WARM
    assert states["a"] is CacheState.ON_DISK
    chats["a"].append(user("back"))
    back = engine.reply("a", chats["a"])
    assert back.statistics.reused_tokens > 60
    assert back.statistics.restore_s > 0
    assert back.statistics.miss_code is None
    assert back.token_ids == cold_reply(tiny_model, chats["a"][:-1]).token_ids


@pytest.mark.parametrize("count", [1, 2])
def test_speed_is_a_number_or_none_never_zero(start_engine: StartEngine, tiny_model: Path, count: int) -> None:
    engine = start_engine(tiny_model)
    statistics = engine.reply("a", [user("hi")], max_new_tokens=count).statistics
    assert statistics.ttft_s is not None
    assert statistics.ttft_s > 0
    assert (statistics.decode_tps is None) == (count == 1)


def test_shutdown_in_the_middle_of_a_reply_saves_and_ends(
    start_engine: StartEngine, tiny_model: Path, tmp_path: Path
) -> None:
    engine = start_engine(tiny_model)
    engine.worker.submit(Generate("a", "r", (user("long"),), GREEDY, 400))
    engine.wait(TextArrived)
    start_engine()
    kinds = [type(event) for event in engine.events]
    assert Finished in kinds
    assert SnapshotSaved in kinds
    assert len(list((tmp_path / "kv").glob("*/conversations/*.json"))) == 1


def test_asking_without_a_model_says_so(start_engine: StartEngine) -> None:
    engine = start_engine()
    assert engine.fail("a", [user("hello")]).code == "no_model_loaded"
