"""What the pressure policy does, and what it never does in 5,000 random situations."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from engine.kv.pressure import (
    HIGH_WATER_PERCENT,
    LOW_WATER_PERCENT,
    RESERVE_BYTES,
    Action,
    ChatMemory,
    MemoryLimits,
    PressureKind,
    Rates,
    effective_budget,
)
from engine.kv.pressure import plan as plan_by

SAVE, QUANTIZE, TO_HOST, DROP = PressureKind
MIB = 2**20
PER_TOKEN = 20_000
SLOW_DISK = Rates(dequantize_bps=5e9, host_copy_bps=1e9, disk_bps=50e6, prefill_tps=300.0)
FAST_DISK = replace(SLOW_DISK, disk_bps=4e9)
UNMEASURED = Rates(None, None, None, None)


def chat(name: str, mib: int = 160, **changes: object) -> ChatMemory:
    """An idle, saved chat in full precision on the host; names are in order of last use."""
    usual = ChatMemory(
        name,
        "cpu",
        mib * MIB,
        mib * MIB,
        mib * MIB // PER_TOKEN,
        ord(name[0]),
        False,
        False,
        is_saved=True,
        can_save=True,
    )
    return replace(usual, **changes)  # type: ignore[arg-type]


def plan(*args: Any, **kwargs: Any) -> list[Action]:
    """With one rung of precision; those with all are further below."""
    return plan_by(*args, codecs={"int8": 9}, **kwargs)


def limits(used_mib: int, budget_mib: int = 1000, free_mib: int | None = None) -> MemoryLimits:
    return MemoryLimits(budget_mib * MIB, used_mib * MIB, None if free_mib is None else free_mib * MIB)


def steps(actions: Sequence[Action]) -> list[tuple[PressureKind, str]]:
    return [(action.kind, action.conversation_id) for action in actions]


def on_host(
    used_mib: int, chats: Sequence[ChatMemory], rates: Rates = SLOW_DISK, needed_mib: int = 0
) -> list[tuple[PressureKind, str]]:
    return steps(plan(limits(used_mib), None, chats, rates, PER_TOKEN, needed_mib * MIB))


# --- when ---


def test_nothing_happens_up_to_the_high_water_mark() -> None:
    assert on_host(950, [chat("a")]) == []
    assert on_host(951, [chat("a")]) != []


def test_what_is_needed_counts_as_used() -> None:
    assert on_host(900, [chat("a")], needed_mib=50) == []
    assert on_host(900, [chat("a")], needed_mib=51) != []


def test_it_frees_down_to_the_low_water_mark() -> None:
    chats = [chat("a"), chat("b"), chat("c"), chat("d")]
    assert on_host(960, chats) == [(QUANTIZE, "a"), (QUANTIZE, "b"), (QUANTIZE, "c")]  # 70 MiB each, 160 needed


def test_other_programs_shrink_the_budget() -> None:
    taken = limits(600, free_mib=RESERVE_BYTES // MIB + 10)
    assert effective_budget(taken) == 610 * MIB
    assert steps(plan(taken, None, [chat("a"), chat("b")], SLOW_DISK, PER_TOKEN)) == [(QUANTIZE, "a"), (QUANTIZE, "b")]
    assert plan(replace(taken, free_bytes=10_000 * MIB), None, [chat("a")], SLOW_DISK, PER_TOKEN) == []


def test_freeing_does_not_change_the_budget() -> None:
    before = limits(600, free_mib=100)
    after = limits(500, free_mib=200)
    assert effective_budget(before) == effective_budget(after) < 600 * MIB


# --- what ---


def test_an_idle_saved_chat_is_quantized_when_the_disk_is_slow() -> None:
    assert on_host(960, [chat("a", 400)]) == [(QUANTIZE, "a")]


def test_it_is_dropped_when_the_disk_is_fast() -> None:
    assert on_host(960, [chat("a", 400)], FAST_DISK) == [(DROP, "a")]


def test_a_fast_disk_does_not_help_a_chat_that_is_not_on_it() -> None:
    chats = [chat("a", 400, is_saved=False, can_save=False)]
    assert on_host(960, chats, FAST_DISK) == [(QUANTIZE, "a")]


def test_an_unsaved_chat_is_saved_before_anything_is_lost() -> None:
    actions = plan(limits(960), None, [chat("a", 400, is_saved=False)], FAST_DISK, PER_TOKEN)
    assert steps(actions) == [(SAVE, "a"), (QUANTIZE, "a")]
    assert actions[0].frees_bytes == 0


def test_unmeasured_rates_drop_nothing_that_can_be_quantized() -> None:
    assert on_host(960, [chat("a", 400)], UNMEASURED) == [(QUANTIZE, "a")]


def test_where_quantizing_is_not_enough_the_oldest_is_dropped_and_not_quantized_before() -> None:
    assert on_host(1000, [chat("a"), chat("b")]) == [(DROP, "a"), (QUANTIZE, "b")]


def test_a_drop_that_frees_enough_alone_lets_the_others_off() -> None:
    assert on_host(1000, [chat("a", 250), chat("b", 60), chat("c", 60)]) == [(DROP, "a")]


def test_a_chat_quantized_long_ago_can_only_be_dropped() -> None:
    assert on_host(960, [chat("a", 400, quantizable_bytes=0)]) == [(DROP, "a")]


def test_times_to_come_back_follow_the_measured_rates() -> None:
    (quantize,) = plan(limits(960), None, [chat("a", 400)], SLOW_DISK, PER_TOKEN)
    assert quantize.frees_bytes == 175 * MIB  # seven sixteenths
    assert quantize.comes_back_s == pytest.approx(400 * MIB / 5e9)
    (drop,) = plan(limits(960), None, [chat("a", 400)], FAST_DISK, PER_TOKEN)
    assert drop.comes_back_s == pytest.approx(400 * MIB / 4e9, rel=1e-3)


def test_the_disk_returns_full_precision_whatever_memory_held() -> None:
    (drop,) = plan(limits(960), None, [chat("a", 225, quantizable_bytes=0, tokens=10**6)], SLOW_DISK, PER_TOKEN)
    assert drop.comes_back_s == pytest.approx(400 * MIB / 50e6)


# --- who ---


def test_the_chat_used_longest_ago_goes_first_in_whatever_order_they_come() -> None:
    assert on_host(960, [chat("c"), chat("a"), chat("b"), chat("d")]) == [
        (QUANTIZE, "a"),
        (QUANTIZE, "b"),
        (QUANTIZE, "c"),
    ]


def test_pinned_chats_are_spared_while_others_can_be_dropped() -> None:
    assert on_host(960, [chat("a", is_pinned=True), chat("b"), chat("c", 10)]) == [(DROP, "b")]


def test_when_everything_is_pinned_the_oldest_goes_first() -> None:
    assert on_host(870, [chat(n, is_pinned=True) for n in "ab"], needed_mib=90) == [(DROP, "a")]


def test_the_active_chat_is_never_touched_even_alone_above_the_budget() -> None:
    active = chat("a", 2000, is_active=True)
    assert on_host(2000, [active]) == []
    assert on_host(2160, [active, chat("b")]) == [(DROP, "b")]  # what is possible


def test_a_chat_that_could_only_be_lost_is_quantized_but_dropped_last() -> None:
    incognito = chat("a", is_saved=False, can_save=False)
    others = [chat("b", is_pinned=True), chat("c", is_pinned=True)]
    assert on_host(1020, [incognito, *others]) == [(QUANTIZE, "a"), (DROP, "b")]
    assert on_host(1270, [incognito, *others]) == [(DROP, "b"), (DROP, "c"), (DROP, "a")]


def test_a_zero_budget_keeps_only_the_active_chat() -> None:
    chats = [chat("a"), chat("b", is_active=True), chat("c", is_saved=False)]
    assert steps(plan(limits(480, 0), None, chats, SLOW_DISK, PER_TOKEN)) == [(DROP, "a"), (SAVE, "c"), (DROP, "c")]
    assert plan(limits(0, 0), None, [], SLOW_DISK, PER_TOKEN, 10) == []


def test_nothing_is_given_up_for_what_can_never_fit() -> None:
    assert on_host(500, [chat("a")], needed_mib=1001) == []
    assert on_host(960, [chat("a", 400)], needed_mib=1001) == [(QUANTIZE, "a")]  # the pressure there is without it


# --- a device beside the host ---


def on_device(
    device_mib: int, host_mib: int, chats: Sequence[ChatMemory], rates: Rates = SLOW_DISK
) -> list[tuple[PressureKind, str]]:
    return steps(plan(limits(host_mib), limits(device_mib), chats, rates, PER_TOKEN))


def test_on_a_tight_device_chats_are_quantized_then_moved_to_the_host() -> None:
    assert on_device(960, 100, [chat("a", 400, place="cuda")]) == [(QUANTIZE, "a")]
    assert on_device(960, 100, [chat("a", 200, place="cuda")]) == [(QUANTIZE, "a"), (TO_HOST, "a")]


def test_moving_needs_no_save() -> None:
    quick_copy = replace(SLOW_DISK, host_copy_bps=20e9)
    assert on_device(960, 100, [chat("a", 200, place="cuda", is_saved=False)], quick_copy) == [(TO_HOST, "a")]


def test_a_chat_that_fits_the_host_is_moved_rather_than_dropped() -> None:
    quick_copy = replace(FAST_DISK, host_copy_bps=20e9)
    assert on_device(960, 100, [chat("a", 200, place="cuda")], quick_copy) == [(TO_HOST, "a")]


def test_a_full_host_takes_nothing_in_and_the_chat_is_dropped() -> None:
    assert on_device(960, 800, [chat("a", 200, place="cuda")]) == [(DROP, "a")]


def test_older_chats_on_the_host_make_room_first() -> None:
    chats = [chat("a", 300), chat("b", 200, place="cuda")]
    assert on_device(960, 900, chats) == [(DROP, "a"), (QUANTIZE, "b"), (TO_HOST, "b")]


def test_newer_chats_on_the_host_make_no_room() -> None:
    assert on_device(960, 900, [chat("a", 200, place="cuda"), chat("b", 300)]) == [(DROP, "a")]


def test_where_not_all_fit_the_host_the_most_recent_move_there() -> None:
    chats = [chat(name, 300, place="cuda", quantizable_bytes=0) for name in "ab"]
    assert on_device(1200, 500, chats) == [(DROP, "a"), (TO_HOST, "b")]


def test_no_chat_on_the_host_is_lost_to_make_room() -> None:
    incognito = {"quantizable_bytes": 0, "is_saved": False, "can_save": False}
    assert on_device(960, 900, [chat("a", 700, **incognito), chat("b", 200, place="cuda", **incognito)]) == [
        (DROP, "b")
    ]


def test_a_chat_larger_than_the_host_does_not_clear_it() -> None:
    chats = [chat("a", 200), chat("b", 2000, place="cuda", quantizable_bytes=0), chat("c", 200)]
    assert on_device(2500, 500, chats) == [(DROP, "b")]


def test_a_tight_host_does_not_touch_the_device() -> None:
    assert on_device(900, 960, [chat("a", place="cuda"), chat("b", 400)]) == [(QUANTIZE, "b")]


def test_what_is_needed_is_needed_on_the_device() -> None:
    chats = [chat("a", 400, place="cuda"), chat("b", 400)]
    assert steps(plan(limits(900), limits(900), chats, SLOW_DISK, PER_TOKEN, 60 * MIB)) == [(QUANTIZE, "a")]


# --- always ---


def random_situation(rng: random.Random) -> tuple[MemoryLimits, MemoryLimits | None, list[ChatMemory], Rates, int]:
    has_device = rng.random() < 0.5
    chats = []
    for index in range(rng.randint(0, 8)):
        own = rng.choice([0, rng.randint(1, 40), rng.randint(1, 400 * MIB)])
        is_saved = rng.random() < 0.5
        chats.append(
            ChatMemory(
                f"{index}",
                "cuda" if has_device and rng.random() < 0.6 else "cpu",
                own,
                rng.choice([0, own, rng.randint(0, own)]),
                rng.randint(1, 20_000),
                float(rng.randint(0, 5)),
                rng.random() < 0.3,
                rng.random() < 0.15,
                is_saved,
                is_saved or rng.random() < 0.5,
            )
        )
    rng.shuffle(chats)

    def memory(place: str) -> MemoryLimits:
        used = sum(c.own_bytes for c in chats if c.place == place) + rng.randint(0, 200 * MIB)
        budget = int(used * rng.choice([0.0, 0.3, 0.8, 1.0, 1.05, 1.3, 3.0]))
        return MemoryLimits(budget, used, rng.choice([None, 0, rng.randint(0, 2000 * MIB), 10**12]))

    def rate(low: float, high: float) -> float | None:
        return rng.choice([None, low * (high / low) ** rng.random()])

    rates = Rates(rate(1e8, 1e11), rate(1e8, 5e10), rate(1e6, 1e10), rate(1, 1e5))
    needed = rng.choice([0, 0, rng.randint(0, 300 * MIB), 10**13])
    return memory("cpu"), memory("cuda") if has_device else None, chats, rates, needed


class Machine:
    """Carries out actions, and refuses what must not happen."""

    def __init__(self, host: MemoryLimits, device: MemoryLimits | None, chats: Sequence[ChatMemory]) -> None:
        self.memories = {"cpu": host, "cuda": device}
        self.chats = {c.conversation_id: c for c in chats}

    def use(self, place: str, num_bytes: int) -> None:
        memory = self.memories[place]
        assert memory is not None
        free = None if memory.free_bytes is None else memory.free_bytes - num_bytes
        self.memories[place] = replace(memory, used_bytes=memory.used_bytes + num_bytes, free_bytes=free)

    def carry_out(self, action: Action) -> None:
        c = self.chats[action.conversation_id]
        assert not c.is_active
        assert action.comes_back_s >= 0
        self.use(c.place, -action.frees_bytes)
        left = replace(c, own_bytes=c.own_bytes - action.frees_bytes)
        if action.kind is SAVE:
            assert action.frees_bytes == 0
            assert not c.is_saved
            assert c.can_save
            left = replace(left, is_saved=True)
        else:
            assert action.frees_bytes > 0
        if action.kind in (QUANTIZE, DROP):
            assert c.is_saved or not c.can_save, "lost what could have been saved"
        if action.kind is QUANTIZE:
            assert action.frees_bytes == c.quantizable_bytes * 7 // 16
            left = replace(left, quantizable_bytes=0)
        else:
            assert action.kind is SAVE or left.own_bytes == 0
        if action.kind is TO_HOST:
            assert c.place == "cuda"
            self.use("cpu", action.frees_bytes)
            assert self.is_under("cpu", HIGH_WATER_PERCENT), "pushed the host over its mark"
            left = replace(left, place="cpu", own_bytes=action.frees_bytes)
        self.chats[c.conversation_id] = left

    def is_under(self, place: str, percent: int, needed: int = 0) -> bool:
        memory = self.memories[place]
        assert memory is not None
        return memory.used_bytes + needed <= effective_budget(memory) * percent // 100


@pytest.mark.parametrize("seed", range(5))
def test_it_holds_its_promises_in_random_situations(seed: int) -> None:
    rng = random.Random(seed)
    num_planned = 0
    for _ in range(1000):
        host, device, chats, rates, needed = random_situation(rng)
        actions = plan(host, device, chats, rates, PER_TOKEN, needed)
        assert actions == plan(host, device, chats[::-1], rates, PER_TOKEN, needed), "depends on the order of the chats"
        num_planned += bool(actions)
        machine = Machine(host, device, chats)
        for action in actions:
            machine.carry_out(action)
        check_the_outcome(machine, host, device, chats, actions, needed)
        again = plan(
            machine.memories["cpu"],  # type: ignore[arg-type]
            machine.memories["cuda"],
            list(machine.chats.values()),
            rates,
            PER_TOKEN,
            needed,
        )
        assert again == [], "not done after the first time"
    assert num_planned > 300


def check_the_outcome(
    machine: Machine,
    host: MemoryLimits,
    device: MemoryLimits | None,
    chats: Sequence[ChatMemory],
    actions: Sequence[Action],
    needed: int,
) -> None:
    touched = {a.conversation_id for a in actions}
    has_moves = any(a.kind is TO_HOST for a in actions)
    for place, memory in (("cpu", host), ("cuda", device)):
        if memory is None:
            continue
        here = needed if place == "cuda" or device is None else 0
        here = here if here <= effective_budget(memory) else 0
        idle = [c for c in chats if c.place == place and not c.is_active and c.own_bytes]
        gone = {c.conversation_id for c in idle if not has_bytes(machine, c, place)}
        hit = [c for c in idle if c.conversation_id in touched]
        was_fine = Machine(host, device, chats).is_under(place, HIGH_WATER_PERCENT, here)
        if was_fine:
            assert not hit or (place == "cpu" and has_moves)  # only to make room for what moves here
        elif not machine.is_under(place, LOW_WATER_PERCENT, here):
            assert gone == {c.conversation_id for c in idle}, "gave up too early"
        kept_on_disk = [c for c in idle if c.can_save]
        if any(c.is_pinned for c in hit):
            assert all(c.conversation_id in gone for c in kept_on_disk if not c.is_pinned), "pinned before others"
        lost = [c for c in hit if c.conversation_id in gone and not c.can_save and not is_moved(machine, c)]
        if lost and (place == "cpu" or (not was_fine and not has_moves)):
            assert all(c.conversation_id in gone for c in kept_on_disk), "lost while others could have given way"
        for newer in hit:
            for older in idle:
                is_alike = older.is_pinned == newer.is_pinned and older.quantizable_bytes * 7 // 16 > 0
                if is_alike and newer not in lost and older.last_used < newer.last_used:
                    assert older.conversation_id in touched, "not the least recently used"
        if hit and (device is None or (place == "cuda" and machine.memories["cpu"] == host)):
            last = [a for a in actions if a.frees_bytes][-1].conversation_id
            freed = sum(a.frees_bytes for a in actions if a.conversation_id == last)
            assert not machine.is_under(place, LOW_WATER_PERCENT, here + freed), "one chat more than needed"


def has_bytes(machine: Machine, c: ChatMemory, place: str) -> bool:
    now = machine.chats[c.conversation_id]
    return now.place == place and now.own_bytes > 0


def is_moved(machine: Machine, c: ChatMemory) -> bool:
    return machine.chats[c.conversation_id].place != c.place


# --- several rungs of precision ---


def rungs(actions: Sequence[Action]) -> list[tuple[str, str]]:
    return [(action.conversation_id, action.codec) for action in actions if action.kind is QUANTIZE]


def on_ladder(used_mib: int, chats: Sequence[ChatMemory], **kwargs: Any) -> list[tuple[str, str]]:
    return rungs(plan_by(limits(used_mib), None, chats, SLOW_DISK, PER_TOKEN, **kwargs))


def test_all_go_to_eight_bits_before_one_goes_further() -> None:
    chats = [chat("a"), chat("b"), chat("c"), chat("d")]  # in eight bits each frees 70 MiB, balanced 90, compact 110
    assert on_ladder(960, chats) == [("a", "int8"), ("b", "int8"), ("c", "int8")]
    assert on_ladder(1060, chats) == [("a", "int8"), ("b", "int8"), ("c", "int8"), ("d", "int8")]
    assert on_ladder(1090, chats) == [("a", "balanced"), ("b", "int8"), ("c", "int8"), ("d", "int8")]
    assert on_ladder(1180, chats) == [("a", "compact"), ("b", "balanced"), ("c", "balanced"), ("d", "balanced")]


def test_pinned_chats_go_down_after_all_others() -> None:
    chats = [chat("a", is_pinned=True), chat("b"), chat("c")]
    assert on_ladder(1000, chats) == [("b", "compact"), ("c", "balanced")]


def test_what_is_encoded_goes_down_from_where_it_is() -> None:
    in_eight = chat("a", 90, quantizable_bytes=0, codec="int8", encoded_bytes=90 * MIB)
    assert on_ladder(955, [in_eight, chat("b", 400)]) == [("b", "int8")]
    assert on_ladder(990, [in_eight, chat("b", 400)]) == [("a", "balanced"), ("b", "int8")]
    (action,) = plan_by(limits(955), None, [in_eight], SLOW_DISK, PER_TOKEN, codecs={"int8": 9, "balanced": 7})[:1]
    assert action.codec in ("", "balanced")


def test_a_codec_that_the_model_does_not_bear_is_never_taken() -> None:
    chats = [chat(name) for name in "abcd"]
    for used in range(960, 1300, 20):
        assert {codec for _, codec in on_ladder(used, chats, codecs={"int8": 9})} <= {"int8"}
        assert on_ladder(used, chats, codecs={}) == []


@pytest.mark.parametrize("seed", range(3))
def test_what_is_promised_on_the_ladder_adds_up(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(300):
        chats = [chat(name, rng.randint(20, 300), is_pinned=rng.random() < 0.2) for name in "abcdef"]
        used = sum(one.own_bytes for one in chats) // MIB
        actions = plan_by(limits(used), None, chats, SLOW_DISK, PER_TOKEN)
        freed = sum(action.frees_bytes for action in actions)
        if used > 1000 * HIGH_WATER_PERCENT // 100:
            assert used * MIB - freed <= 1000 * MIB * LOW_WATER_PERCENT // 100
        else:
            assert actions == []
        for action in actions:
            if action.kind is QUANTIZE:
                whole = next(one for one in chats if one.conversation_id == action.conversation_id).own_bytes
                size = {"int8": 9, "balanced": 7, "compact": 5}[action.codec]
                assert action.frees_bytes == whole - -(-whole * size // 16)
