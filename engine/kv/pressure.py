"""What to do when memory runs short: a pure function from readings to an ordered list of actions.

Above the high-water mark it frees down to the low one, so that a plan is rarely followed by another. Rungs, climbed
only as far as needed: save, quantize (8 bits for all, then each further codec for all), move to the host, drop. Least
recently used first, pinned chats after all others, the active one never. What could only be lost (unsaved, cannot be
saved) is dropped when nothing else is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

HIGH_WATER_PERCENT = 95
LOW_WATER_PERCENT = 80
RESERVE_BYTES = 512 * 2**20  # of the free memory, left to other programs
SIXTEENTHS = {"int8": 9, "balanced": 7, "compact": 5}
"""Usual sizes of encoded blocks, in sixteenths of full ones, scales included; in this order the codecs come."""

# Until measured: a slow disk and a slow processor, so that nothing is dropped for a hoped-for quick return.
DEFAULT_DEQUANTIZE_BPS = 1e9
DEFAULT_HOST_COPY_BPS = 2e9
DEFAULT_DISK_BPS = 100e6
DEFAULT_PREFILL_TPS = 50.0


class PressureKind(StrEnum):
    SAVE = "save"
    QUANTIZE = "quantize"
    TO_HOST = "to_host"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class ChatMemory:
    """One conversation's share of memory. Bytes shared with others count for none: dropping one frees them not."""

    conversation_id: str
    place: str  # "cuda" or "cpu"
    own_bytes: int
    quantizable_bytes: int  # of `own_bytes`: blocks in full precision that can be encoded
    tokens: int
    last_used: float  # smaller = longer ago
    is_pinned: bool
    is_active: bool  # being answered, or the last one used
    is_saved: bool  # everything cached is on disk in full precision
    can_save: bool
    codec: str = ""  # what all of `encoded_bytes` went through
    encoded_bytes: int = 0  # of `own_bytes`: blocks that a further codec could make smaller


@dataclass(frozen=True, slots=True)
class Rates:
    """Measured speeds; None = not measured yet."""

    dequantize_bps: float | None  # bytes in full precision
    host_copy_bps: float | None
    disk_bps: float | None
    prefill_tps: float | None


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """One memory. `free_bytes` is what the system calls free, other programs counted; None = unknown."""

    budget_bytes: int
    used_bytes: int
    free_bytes: int | None


@dataclass(frozen=True, slots=True)
class Action:
    """`frees_bytes`: in the memory where the chat lies. `comes_back_s`: time added to its next turn."""

    kind: PressureKind
    conversation_id: str
    frees_bytes: int
    comes_back_s: float
    codec: str = ""


def effective_budget(limits: MemoryLimits) -> int:
    """The budget, or less where other programs took the memory. Freeing does not change it: what is freed is free."""
    if limits.free_bytes is None:
        return max(0, limits.budget_bytes)
    return max(0, min(limits.budget_bytes, limits.used_bytes + limits.free_bytes - RESERVE_BYTES))


def plan(
    host: MemoryLimits,
    device: MemoryLimits | None,
    chats: Sequence[ChatMemory],
    rates: Rates,
    bytes_per_token: int,
    needed_bytes: int = 0,
    codecs: Mapping[str, int] = SIXTEENTHS,
) -> list[Action]:
    """Actions in the order to carry them out; the host's first, as they make room for what moves there.

    `codecs`: those that this model bears, in the order to try them, each with the size of its blocks in sixteenths of
    full ones.
    `needed_bytes` are about to be allocated where the model runs: on `device`, or on the host if there is none. If they
    exceed the whole budget no plan helps, and they are left out: the caller has to refuse. Frees what it can where the
    low-water mark is out of reach.
    """
    costs = _Costs(rates, bytes_per_token, codecs)
    fates = [_Fate(chat, chat.place, codecs) for chat in chats if not chat.is_active and chat.own_bytes > 0]
    if needed_bytes > effective_budget(device or host):
        needed_bytes = 0
    if device is None:
        fates = _relieve(fates, "cpu", host, needed_bytes, costs, room=0)
    else:
        room = _room_for_moves(host, fates, costs.first_codec)
        fates = _relieve(fates, "cuda", device, needed_bytes, costs, room)
        fates = _relieve_host_of_moves(fates, host, costs)
    fates.sort(key=lambda fate: (fate.chat.place == "cuda", *fate.rank))
    return [action for fate in fates for action in _actions(fate, costs)]


@dataclass(frozen=True, slots=True)
class _Fate:
    """What the plan makes of a chat: where it ends up (None: dropped) and by which codec it is encoded before."""

    chat: ChatMemory
    place: str | None
    codecs: Mapping[str, int]
    codec: str = ""

    @property
    def saving_bytes(self) -> int:
        return self.saving_by(self.codec)

    def saving_by(self, codec: str) -> int:
        """Bytes that the codec would free, of what there is now."""
        if not codec:
            return 0
        chat = self.chat
        size, present = self.codecs[codec], self.codecs.get(chat.codec, 0)
        saving = chat.quantizable_bytes - -(-chat.quantizable_bytes * size // 16)
        if size < present:
            saving += chat.encoded_bytes - -(-chat.encoded_bytes * size // present)
        return saving

    def bytes_at(self, place: str) -> int:
        return self.chat.own_bytes - self.saving_bytes if self.place == place else 0

    def can_take(self, codec: str) -> bool:
        return self.saving_by(codec) > self.saving_bytes

    @property
    def is_kept_on_disk(self) -> bool:
        return self.chat.is_saved or self.chat.can_save

    @property
    def rank(self) -> tuple[bool, bool, float, str]:
        """Smaller = given up sooner."""
        is_lost = self.place is None and not self.is_kept_on_disk
        return is_lost, self.chat.is_pinned, self.chat.last_used, self.chat.conversation_id


class _Costs:
    """Times to come back, in seconds."""

    def __init__(self, rates: Rates, bytes_per_token: int, codecs: Mapping[str, int]) -> None:
        self.codecs = codecs
        self.first_codec = next(iter(codecs), "")
        self.dequantize_bps = rates.dequantize_bps or DEFAULT_DEQUANTIZE_BPS
        self.host_copy_bps = rates.host_copy_bps or DEFAULT_HOST_COPY_BPS
        self._disk_bps = rates.disk_bps or DEFAULT_DISK_BPS
        self._prefill_tps = rates.prefill_tps or DEFAULT_PREFILL_TPS
        self._bytes_per_token = bytes_per_token
        saved = 16 - codecs.get(self.first_codec, 16)
        self._quantize_gain = self.dequantize_bps * saved / 16  # bytes freed per second

    def load_s(self, chat: ChatMemory) -> float:
        """The disk holds full precision, whatever memory holds."""
        quantized = chat.own_bytes - chat.quantizable_bytes
        on_disk = min(
            chat.tokens * self._bytes_per_token,
            chat.quantizable_bytes + quantized * 16 // self.codecs.get(chat.codec, SIXTEENTHS["int8"]),
        )
        return on_disk / self._disk_bps

    def prefill_s(self, chat: ChatMemory) -> float:
        return chat.tokens / self._prefill_tps

    def is_better_dropped(self, chat: ChatMemory) -> bool:
        """Whether a drop frees more bytes per second of time to come back; what is not on disk yet counts as lost."""
        return chat.own_bytes > self._quantize_gain * (self.load_s(chat) if chat.is_saved else self.prefill_s(chat))

    def is_better_moved(self) -> bool:
        return self.host_copy_bps > self._quantize_gain


def _room_for_moves(host: MemoryLimits, fates: Sequence[_Fate], codec: str) -> int:
    """Bytes the host can take in under its low-water mark if its own idle chats give way without loss."""
    can_free = sum(
        fate.chat.own_bytes if fate.is_kept_on_disk else fate.saving_by(codec) for fate in fates if fate.place == "cpu"
    )
    return effective_budget(host) * LOW_WATER_PERCENT // 100 - (host.used_bytes - can_free)


def _relieve_host_of_moves(fates: Sequence[_Fate], host: MemoryLimits, costs: _Costs) -> list[_Fate]:
    """Plan for the host with what moves there. A chat that would be dropped on arrival is dropped without the detour,
    and the host asks again whether it is tight at all."""
    while True:
        moved = sum(fate.bytes_at("cpu") for fate in fates if fate.chat.place == "cuda")
        relieved = _relieve(fates, "cpu", host, moved, costs, room=0)
        direct = [
            after if after.place is None and after.chat.place == "cuda" else before
            for before, after in zip(fates, relieved, strict=True)
        ]
        if direct == fates:
            return relieved
        fates = direct


def _relieve(
    fates: Sequence[_Fate],
    place: str,
    limits: MemoryLimits,
    needed_bytes: int,
    costs: _Costs,
    room: int,
) -> list[_Fate]:
    """The fates that bring one memory under its low-water mark, if it is above the high one."""
    budget = effective_budget(limits)
    if limits.used_bytes + needed_bytes <= budget * HIGH_WATER_PERCENT // 100:
        return list(fates)
    excess = limits.used_bytes + needed_bytes - budget * LOW_WATER_PERCENT // 100
    before = {fate.chat.conversation_id: fate for fate in fates}
    now = dict(before)
    for step in _ladder(now, place, costs, room):
        excess -= now[step.chat.conversation_id].bytes_at(place) - step.bytes_at(place)
        now[step.chat.conversation_id] = step
        if excess <= 0:
            break
    # A drop on the last rung may free so much that the most recent chats were quantized for nothing: they are let off.
    for fate in sorted(now.values(), key=lambda fate: fate.rank, reverse=True):
        old = before[fate.chat.conversation_id]
        freed = old.bytes_at(place) - fate.bytes_at(place)
        if freed and excess + freed > 0:
            break
        now[fate.chat.conversation_id] = old
        excess += freed
    return list(now.values())


def _ladder(now: dict[str, _Fate], place: str, costs: _Costs, room: int) -> Iterator[_Fate]:
    """One step after the other, each from what `now` holds by then. `room`: what the host can take in; should all moves
    together be more, its own plan drops the least recently used of them."""
    order = [key for key, fate in sorted(now.items(), key=lambda item: item[1].rank) if fate.place == place]
    for is_pinned in (False, True):
        tier = [key for key in order if now[key].chat.is_pinned is is_pinned]
        for index, codec in enumerate([*costs.codecs] or [""]):
            for key in tier:
                fate = now[key]
                if fate.place != place:
                    continue
                fits_host = fate.chat.own_bytes <= room
                if index == 0 and fits_host and costs.is_better_moved():
                    yield replace(fate, place="cpu")
                elif index == 0 and not fits_host and fate.is_kept_on_disk and costs.is_better_dropped(fate.chat):
                    yield replace(fate, place=None)
                elif fate.can_take(codec):
                    yield replace(fate, codec=codec)
        for key in tier:
            fate = now[key]
            if fate.place == place and fate.bytes_at(place) <= room:
                yield replace(fate, place="cpu")
        for key in tier:
            if now[key].place == place and now[key].is_kept_on_disk:
                yield replace(now[key], place=None)
    for key in order:
        if now[key].place == place:
            yield replace(now[key], place=None)


def _actions(fate: _Fate, costs: _Costs) -> Iterator[Action]:
    chat = fate.chat
    is_dropped = fate.place is None
    if (is_dropped or fate.codec) and not chat.is_saved and chat.can_save:
        yield Action(PressureKind.SAVE, chat.conversation_id, 0, 0.0)
    if is_dropped:
        back_s = costs.load_s(chat) if fate.is_kept_on_disk else costs.prefill_s(chat)
        yield Action(PressureKind.DROP, chat.conversation_id, chat.own_bytes, back_s)
        return
    if fate.codec:
        back_s = chat.quantizable_bytes / costs.dequantize_bps
        yield Action(PressureKind.QUANTIZE, chat.conversation_id, fate.saving_bytes, back_s, fate.codec)
    if fate.place != chat.place:
        moved = fate.bytes_at("cpu")
        yield Action(PressureKind.TO_HOST, chat.conversation_id, moved, moved / costs.host_copy_bps)
