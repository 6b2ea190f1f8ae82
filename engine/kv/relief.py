"""Carries out what the pressure policy plans: reads the memory, acts in order, and tells every step with its bytes.

Inference thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.kv import pressure
from engine.kv.chat_key import conversation_of
from engine.kv.codecs.encoded import ENCODED_TOKENS, BlockCodec
from engine.kv.codecs.registry import codec_named
from engine.kv.pressure import Action, ChatMemory, MemoryLimits, PressureKind
from engine.kv.resident import Resident
from engine.memory import read_memory, return_freed_memory
from engine.model.forward import is_out_of_memory
from engine.model.loader import LoadedModel
from engine.protocol.config import EngineConfig
from engine.protocol.errors import MemoryBudgetError
from engine.protocol.events import PressureActed

if TYPE_CHECKING:
    from engine.kv.manager import CacheManager

_SAVE_WAIT_S = 30.0
_POLL_S = 0.002
ACTIVE_RECENT_TOKENS = 128  # of an active chat, never encoded


class Relief:
    """Frees the manager's memory. `on_pressure` hears of every action, after it."""

    def __init__(
        self,
        model: LoadedModel,
        config: EngineConfig,
        caches: CacheManager,
        on_pressure: Callable[[PressureActed], None],
    ) -> None:
        self._model = model
        self._config = config
        self._caches = caches
        self._on_pressure = on_pressure

    def configure(self, config: EngineConfig) -> None:
        self._config = config

    def make_room(self, needed_bytes: int, active_id: str) -> None:
        """Follow the policy until it has nothing to do, for a cache of `needed_bytes` about to be made."""
        actions = self._plan(needed_bytes, active_id)
        if actions and self._caches.spare.release():
            actions = self._plan(needed_bytes, active_id)
        if any(action.kind is PressureKind.QUANTIZE for action in actions) and not self._caches.codecs.is_probed:
            self._caches.codecs.probe()
            actions = self._plan(needed_bytes, active_id)
        for action in actions:
            self.carry_out(action)
        if actions:
            return_freed_memory()

    def relieve_active(self, resident: Resident) -> bool:
        """Amid a turn: where memory is short even so, encode the active chat's cold part. Returns whether it was."""
        if not self.is_tight():
            return False
        self.make_room(0, resident.conversation_id)
        if not self.is_tight() or resident.has_states:
            return False
        self._caches.codecs.probe()
        for codec in self._caches.codecs.ladder:
            if not codec.is_read_in_place:
                continue
            if self._encode_active(resident, codec) and not self.is_tight():
                break
        return_freed_memory()
        return True

    def _encode_active(self, resident: Resident, codec: BlockCodec) -> bool:
        before = self._caches.memory_bytes
        self._caches.persistence.writer.release(resident.conversation_id)
        try:
            resident.encode_cold(codec, ACTIVE_RECENT_TOKENS)
            resident.quantize(codec)
        except ValueError:
            return False
        freed = before - self._caches.memory_bytes
        if freed <= 0:
            return False
        memory, budget = self._caches.memory_bytes, self._config.memory_budget_bytes
        self._on_pressure(
            PressureActed(resident.conversation_id, str(PressureKind.QUANTIZE), freed, 0.0, memory, budget, codec.name)
        )
        return True

    def is_tight(self) -> bool:
        """Whether the caches take more than they should where the model runs."""
        host, device = self._limits()
        limits = device or host
        return limits.used_bytes > pressure.effective_budget(limits) * pressure.HIGH_WATER_PERCENT // 100

    def most_bytes(self) -> int:
        """What caches may take in all where the model runs, before anything is done about it."""
        host, device = self._limits()
        return pressure.effective_budget(device or host) * pressure.HIGH_WATER_PERCENT // 100

    def room_bytes(self) -> int:
        """What may still be allocated of it."""
        host, device = self._limits()
        return self.most_bytes() - (device or host).used_bytes

    def check_growth(self, num_tokens: int, *, is_pruned: bool = False, is_whole: bool = False) -> None:
        """Raises MemoryBudgetError where a chat of so many tokens fits in no precision that this model bears; when it
        has to be `is_whole`, not in the full one.

        What the system keeps in reserve for other programs is not counted: a reply is worth it.
        """
        host, device = self._limits()
        limits = device or host
        budget = limits.budget_bytes
        if limits.free_bytes is not None:
            budget = min(budget, limits.used_bytes + limits.free_bytes)
        smallest = min(map(self._sixteenths, self._caches.codecs.ladder), default=16)
        if not self._model.reads_encoded or is_pruned:
            smallest = 0  # nothing is known of what it will take
        if self._config.allows_compression:
            smallest //= 4  # it is compressed between turns
        if is_whole:
            smallest = 16
        per_token = self._model.geometry.bytes_per_token
        recent = min(num_tokens, ACTIVE_RECENT_TOKENS)
        needed = (num_tokens - recent) * per_token * smallest // 16 + recent * per_token * bool(smallest)
        if needed > budget:
            raise MemoryBudgetError(
                f"The chat needs about {_mb(needed)} MB of memory, and caches may take {_mb(budget)} MB;"
                " raise the memory budget, compress the chat, or start a new one.",
                needed_mb=_mb(needed),
                budget_mb=_mb(budget),
            )

    def emergency(self, active_id: str) -> bool:
        """Memory really ran out: drop every other conversation, saving first what can be. Returns whether any was."""
        before = self._caches.memory_bytes
        self._caches.spare.release()
        for resident in self._caches.residents:
            if resident.conversation_id != active_id and resident.own_bytes:
                if self.can_save(resident) and not self._caches.is_kept_on_disk(resident):
                    self.save_now(resident)
                self.carry_out(Action(PressureKind.DROP, resident.conversation_id, resident.own_bytes, 0.0))
        return self._caches.memory_bytes < before

    def _plan(self, needed_bytes: int, active_id: str) -> list[Action]:
        caches = self._caches
        host, device = self._limits()
        chats = [self._reading(one, active_id) for one in caches.residents]
        rates, per_token = caches.rates.snapshot(), self._model.geometry.bytes_per_token
        codecs = {codec.name: self._sixteenths(codec) for codec in caches.codecs.ladder}
        return pressure.plan(host, device, chats, rates, per_token, needed_bytes, codecs)

    def _sixteenths(self, codec: BlockCodec) -> int:
        """Of a full block."""
        geometry = self._model.geometry
        full = ENCODED_TOKENS * geometry.bytes_per_token
        return -(-16 * codec.nbytes(geometry, ENCODED_TOKENS) // full) if full else 16

    def _limits(self) -> tuple[MemoryLimits, MemoryLimits | None]:
        memory = read_memory(self._model.device.type)
        caches = self._caches
        device_bytes = caches.device_bytes
        host = MemoryLimits(
            self._config.memory_budget_bytes, caches.memory_bytes - device_bytes, memory.host_free_bytes
        )
        device = None
        if memory.device_free_bytes is not None:
            budget = self._config.device_budget_bytes
            device = MemoryLimits(
                budget if budget is not None else device_bytes + memory.device_free_bytes,
                device_bytes,
                memory.device_free_bytes,
            )
        return host, device

    def _reading(self, resident: Resident, active_id: str) -> ChatMemory:
        caches = self._caches
        is_saved = caches.is_kept_on_disk(resident)
        codecs = caches.codecs.ladder if not resident.has_states else ()
        return ChatMemory(
            conversation_id=resident.conversation_id,
            place=resident.place,
            own_bytes=resident.own_bytes,
            quantizable_bytes=resident.quantizable_bytes if codecs else 0,
            tokens=resident.length,
            last_used=float(resident.last_used),
            is_pinned=conversation_of(resident.conversation_id) in caches.pinned,
            is_active=resident.conversation_id == active_id,
            is_saved=is_saved,
            can_save=self.can_save(resident),
            codec=resident.lossiest,
            encoded_bytes=resident.encoded_bytes if codecs else 0,
        )

    def can_save(self, resident: Resident) -> bool:
        is_keepable = resident.is_exact or not resident.has_states  # a lossy cache is kept as it is, but for states
        return self._model.can_persist and not resident.is_incognito and is_keepable

    def carry_out(self, action: Action) -> None:
        """And tell it. A chat that has gone meanwhile is passed over."""
        resident = next((one for one in self._caches.residents if one.conversation_id == action.conversation_id), None)
        if resident is None:
            return
        before = self._bytes_where_freed(action.kind)
        match action.kind:
            case PressureKind.SAVE:
                self.save_now(resident)
            case PressureKind.QUANTIZE | PressureKind.TO_HOST:
                self._make_smaller(resident, action)
            case PressureKind.DROP:
                self._caches.drop(action.conversation_id)
        freed = before - self._bytes_where_freed(action.kind)
        if action.kind is PressureKind.QUANTIZE and freed <= 0:  # nothing of it made whole blocks
            return
        self._on_pressure(
            PressureActed(
                conversation_id=action.conversation_id,
                action=str(action.kind),
                bytes_freed=freed,
                comes_back_s=action.comes_back_s,
                memory_bytes=self._caches.memory_bytes,
                budget_bytes=self._config.memory_budget_bytes,
                precision=action.codec,
            )
        )

    def _bytes_where_freed(self, kind: PressureKind) -> int:
        return self._caches.device_bytes if kind is PressureKind.TO_HOST else self._caches.memory_bytes

    def _make_smaller(self, resident: Resident, action: Action) -> None:
        """Where there is not even memory for that, or a number that no codec takes, the chat is put away instead."""
        try:
            if action.kind is PressureKind.QUANTIZE:
                codec = codec_named(action.codec)
                self._caches.persistence.writer.release(resident.conversation_id)
                resident.park(codec=codec)
                resident.quantize(codec)
            else:
                resident.park(is_to_host=True)
                resident.move_to_host()
        except (RuntimeError, MemoryError, ValueError) as error:
            if not isinstance(error, ValueError) and not is_out_of_memory(error):
                raise
            self._caches.drop(resident.conversation_id)

    def save_now(self, resident: Resident) -> None:
        """Save now and wait: what follows frees this memory."""
        writer = self._caches.persistence.writer
        if not writer.is_pending(resident.conversation_id):
            self._caches.save(resident.conversation_id, "")
        writer.resume()
        deadline = time.monotonic() + _SAVE_WAIT_S
        while writer.is_pending(resident.conversation_id) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        writer.pause()


def _mb(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.0f}" if nbytes >= 10e6 else f"{nbytes / 1e6:,.1f}"
