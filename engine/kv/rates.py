"""How fast caches come back here, measured as they do, and remembered beside the model's snapshots.

What decides (`load_s`, `prefill_s`) is what this program measured itself; what is told ahead (`first_token_s`) also
uses what was measured before the last start, on the same processors. Inference thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import statistics
import time
from collections import deque
from pathlib import Path

import torch

from engine.kv import pressure
from engine.kv.prefill_speed import PrefillSpeed, Reading
from engine.kv.pressure import Rates
from engine.kv.rates_moves import Move, MoveSpeed
from engine.kv.resident import Resident

_WEIGHT = 0.3
_MIN_BYTES = 1_000_000  # less says more about overhead than about bandwidth
_MIN_TOKENS = 32
_TURNS = 9  # that tell what a turn takes beside reading and moving
_SUFFIX = ".rates.json"
_FORMAT = 3
_MOST = 10**12  # tokens or bytes; a file with more, or with such seconds, is damaged


class MeasuredRates:
    """Bytes a second of full-precision cache, and prefilled tokens a second: running means, None until measured.

    `folder`: of the model's snapshots; what was measured is remembered beside it. `pair_share`: see `PrefillSpeed`.
    """

    def __init__(self, folder: Path | None = None, pair_share: float = 0.0) -> None:
        self._rates: dict[str, float] = {}
        self._speed = {is_exact: PrefillSpeed(pair_share) for is_exact in (True, False)}
        self._moves = MoveSpeed()
        self._beside_s: deque[float] = deque(maxlen=_TURNS)
        self._copied_bytes = 0  # since the last activation
        self._file = folder.with_name(folder.name + _SUFFIX) if folder is not None else None
        self._is_changed = False
        self.is_private = False  # what is measured from now on is of an incognito chat, and reaches no file
        self._read()

    def memory_read(self, nbytes: int, started: float, source: Resident) -> None:
        """A cache was copied from blocks or from another cache since `started`."""
        self._copied_bytes += nbytes
        if source.place != "cpu":
            return
        name = "host_copy_bps" if source.is_exact else "dequantize_bps"
        self._note(name, nbytes, time.perf_counter() - started, _MIN_BYTES)

    def disk_read(self, nbytes: int, seconds: float) -> None:
        self._note("disk_bps", nbytes, seconds, _MIN_BYTES)

    def prefilled(self, num_tokens: int, seconds: float, cached: int = 0, *, is_exact: bool = True) -> None:
        """So many tokens were fed after `cached` ones; `is_exact`: which were in full precision."""
        self._note("prefill_tps", num_tokens, seconds, _MIN_TOKENS)
        self._speed[is_exact].add(Reading(num_tokens, cached, seconds, self.is_private))
        self._is_changed |= not self.is_private

    def begun(self, beside_s: float) -> None:
        """A turn took this long from the request to its first token, beside moving its cache and reading."""
        self._beside_s.append(max(0.0, beside_s))

    def decoded(self, tokens_per_s: float | None) -> None:
        """A reply came at this speed; None where it was too short to tell."""
        if tokens_per_s:
            for speed in self._speed.values():
                speed.decoded(1 / tokens_per_s)

    def activated(self, nbytes: int, seconds: float, *, is_from_disk: bool) -> None:
        """A cache of so many bytes was made ready, all in all, before anything was fed."""
        copied, self._copied_bytes = min(self._copied_bytes, nbytes), 0
        restored = nbytes - copied if is_from_disk else 0
        if seconds > 0 and (copied or restored):
            self._moves.add(Move(restored, copied, seconds, self.is_private))
            self._is_changed |= not self.is_private

    def load_s(self, nbytes: int) -> float:
        """Seconds to load this much from disk."""
        return nbytes / self._rates.get("disk_bps", pressure.DEFAULT_DISK_BPS)

    def prefill_s(self, num_tokens: int) -> float:
        """Seconds to feed this many tokens."""
        return num_tokens / self._rates.get("prefill_tps", pressure.DEFAULT_PREFILL_TPS)

    def first_token_s(
        self, new_tokens: int, cached: int, restored_bytes: int, copied_bytes: int, *, is_exact: bool = True
    ) -> float | None:
        """Seconds until the first new token, where so many are fed after `cached` ones, some of which come from disk or
        are copied in memory first. None while the speed of any of this is not known.
        """
        reading_s = self._speed[is_exact].seconds(new_tokens, cached)
        if reading_s is None:
            reading_s = self._speed[True].seconds(new_tokens, cached)
        moving_s = self._moves.seconds(restored_bytes, copied_bytes)
        beside_s = statistics.median(self._beside_s) if self._beside_s else 0.0
        return None if reading_s is None or moving_s is None else reading_s + moving_s + beside_s

    def snapshot(self) -> Rates:
        get = self._rates.get
        return Rates(get("dequantize_bps"), get("host_copy_bps"), get("disk_bps"), get("prefill_tps"))

    def write(self) -> None:
        """Remember what was measured since the last time. Best effort, and only where snapshots are."""
        if not self._is_changed or self._file is None or not self._file.parent.is_dir():
            return
        content = {
            "format": _FORMAT,
            "machine": _machine(),
            "readings": [
                [one.tokens, one.cached, one.seconds, is_exact]
                for is_exact, speed in self._speed.items()
                for one in speed.readings()
                if not one.is_private
            ],
            "moves": [
                [one.restored_bytes, one.copied_bytes, one.seconds] for one in self._moves.moves() if not one.is_private
            ],
        }
        with contextlib.suppress(OSError):
            self._file.write_text(json.dumps(content), "utf-8")
            self._is_changed = False

    def _read(self) -> None:
        if self._file is None:
            return
        try:
            content = json.loads(self._file.read_text("utf-8"))
            if content["format"] != _FORMAT or content["machine"] != _machine():
                return
            readings = [(bool(exact), Reading(int(n), int(c), float(s))) for n, c, s, exact in content["readings"]]
            moves = [Move(int(r), int(c), float(s)) for r, c, s in content["moves"]]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return
        for is_exact, reading in readings:
            if 0 < reading.tokens < _MOST and 0 <= reading.cached < _MOST and _is_likely(reading.seconds):
                self._speed[is_exact].add(reading)
        for move in moves:
            if all(0 <= nbytes < _MOST for nbytes in (move.restored_bytes, move.copied_bytes)) and _is_likely(
                move.seconds
            ):
                self._moves.add(move)

    def _note(self, name: str, amount: int, seconds: float, least: int) -> None:
        if amount < least or seconds <= 0:
            return
        rate = amount / seconds
        known = self._rates.get(name)
        self._rates[name] = rate if known is None else known + _WEIGHT * (rate - known)


def _is_likely(seconds: float) -> bool:
    return 1e-7 < seconds < 1e5


def _machine() -> str:
    """What speeds depend on, and may differ from one start to the next."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor()
    return f"{platform.machine()} {device}, {os.cpu_count()} processors, {torch.get_num_threads()} threads"
