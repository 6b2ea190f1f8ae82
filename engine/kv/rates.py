"""How fast caches come back here, measured as they do, and remembered beside the model's snapshots.

What decides (`load_s`, `prefill_s`) is what this program measured itself; what is told ahead (`first_token_s`) also
uses what was measured before the last start. Inference thread.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from pathlib import Path

from engine.kv import pressure
from engine.kv.prefill_speed import PrefillSpeed, Reading
from engine.kv.pressure import Rates
from engine.kv.resident import Resident

_WEIGHT = 0.3
_MIN_BYTES = 1_000_000  # less says more about overhead than about bandwidth
_MIN_TOKENS = 32
_FILE = "rates.json"
_FORMAT = 1
_USUAL_BPS = 1e9  # of restoring and copying, until measured
_RESTORED, _COPIED = "restored_bps", "copied_bps"


class MeasuredRates:
    """Bytes a second of full-precision cache, and prefilled tokens a second: running means, None until measured.

    `folder`: where they are remembered, if it is there; `pair_share`: see `PrefillSpeed`.
    """

    def __init__(self, folder: Path | None = None, pair_share: float = 0.0) -> None:
        self._rates: dict[str, float] = {}
        self._told: dict[str, float] = {}
        self._speed = PrefillSpeed(pair_share)
        self._file = folder / _FILE if folder is not None else None
        self._is_changed = False
        self._read()

    def memory_read(self, nbytes: int, started: float, source: Resident) -> None:
        """A cache was copied from blocks or from another cache since `started`."""
        if source.place != "cpu":
            return
        name = "host_copy_bps" if source.is_exact else "dequantize_bps"
        self._note(self._rates, name, nbytes, time.perf_counter() - started, _MIN_BYTES)

    def disk_read(self, nbytes: int, seconds: float) -> None:
        self._note(self._rates, "disk_bps", nbytes, seconds, _MIN_BYTES)

    def prefilled(self, num_tokens: int, seconds: float, cached: int = 0) -> None:
        """So many tokens were fed after `cached` ones."""
        self._note(self._rates, "prefill_tps", num_tokens, seconds, _MIN_TOKENS)
        self._speed.add(Reading(num_tokens, cached, seconds))
        self._is_changed = True

    def decoded(self, tokens_per_s: float | None) -> None:
        """A reply came at this speed; None where it was too short to tell."""
        if tokens_per_s:
            self._speed.decoded(1 / tokens_per_s)

    def activated(self, nbytes: int, seconds: float, *, is_from_disk: bool) -> None:
        """A cache of so many bytes was made ready, all in all, before anything was fed."""
        self._note(self._told, _RESTORED if is_from_disk else _COPIED, nbytes, seconds, _MIN_BYTES)

    def load_s(self, nbytes: int) -> float:
        """Seconds to load this much from disk."""
        return nbytes / self._rates.get("disk_bps", pressure.DEFAULT_DISK_BPS)

    def prefill_s(self, num_tokens: int) -> float:
        """Seconds to feed this many tokens."""
        return num_tokens / self._rates.get("prefill_tps", pressure.DEFAULT_PREFILL_TPS)

    def first_token_s(self, new_tokens: int, cached: int, restored_bytes: int, copied_bytes: int) -> float | None:
        """Seconds until the first new token, where so many are fed after `cached` ones, some of which come from disk or
        are copied in memory first. None while no speed of reading is known.
        """
        reading_s = self._speed.seconds(new_tokens, cached)
        if reading_s is None:
            return None
        restored_s = restored_bytes / self._told.get(_RESTORED, _USUAL_BPS)
        return reading_s + restored_s + copied_bytes / self._told.get(_COPIED, _USUAL_BPS)

    def snapshot(self) -> Rates:
        get = self._rates.get
        return Rates(get("dequantize_bps"), get("host_copy_bps"), get("disk_bps"), get("prefill_tps"))

    def write(self) -> None:
        """Remember what was measured since the last time. Best effort, and only where snapshots of the model are."""
        if not self._is_changed or self._file is None or not self._file.parent.is_dir():
            return
        readings = [[one.tokens, one.cached, one.seconds] for one in self._speed.readings()]
        with contextlib.suppress(OSError):
            self._file.write_text(json.dumps({"format": _FORMAT, "readings": readings, "bps": self._told}), "utf-8")
            self._is_changed = False

    def _read(self) -> None:
        if self._file is None:
            return
        try:
            content = json.loads(self._file.read_text("utf-8"))
            if content["format"] != _FORMAT:
                return
            readings = [Reading(int(n), int(c), float(s)) for n, c, s in content["readings"]]
            told = {name: float(content["bps"][name]) for name in (_RESTORED, _COPIED) if name in content["bps"]}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return
        for one in readings:
            if one.tokens > 0 and one.cached >= 0 and 0 < one.seconds < math.inf:
                self._speed.add(one)
        self._told = {name: bps for name, bps in told.items() if 0 < bps < math.inf}

    def _note(self, rates: dict[str, float], name: str, amount: int, seconds: float, least: int) -> None:
        if amount < least or seconds <= 0:
            return
        rate = amount / seconds
        known = rates.get(name)
        rates[name] = rate if known is None else known + _WEIGHT * (rate - known)
        self._is_changed = True
