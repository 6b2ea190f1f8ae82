"""How fast caches come back here, measured as they do: a running mean of each way, None until it was taken once."""

from __future__ import annotations

import time

from engine.kv import pressure
from engine.kv.pressure import Rates
from engine.kv.resident import Resident

_WEIGHT = 0.3
_MIN_BYTES = 1_000_000  # less says more about overhead than about bandwidth
_MIN_TOKENS = 32


class MeasuredRates:
    """Bytes a second of full-precision cache, and prefilled tokens a second."""

    def __init__(self) -> None:
        self._rates: dict[str, float] = {}

    def memory_read(self, nbytes: int, started: float, source: Resident) -> None:
        """A cache was copied from blocks or from another cache since `started`."""
        if source.place != "cpu":
            return
        name = "host_copy_bps" if source.is_exact else "dequantize_bps"
        self._note(name, nbytes, time.perf_counter() - started, _MIN_BYTES)

    def disk_read(self, nbytes: int, seconds: float) -> None:
        self._note("disk_bps", nbytes, seconds, _MIN_BYTES)

    def prefilled(self, num_tokens: int, seconds: float) -> None:
        self._note("prefill_tps", num_tokens, seconds, _MIN_TOKENS)

    def load_s(self, nbytes: int) -> float:
        """Seconds to load this much from disk."""
        return nbytes / self._rates.get("disk_bps", pressure.DEFAULT_DISK_BPS)

    def prefill_s(self, num_tokens: int) -> float:
        """Seconds to feed this many tokens."""
        return num_tokens / self._rates.get("prefill_tps", pressure.DEFAULT_PREFILL_TPS)

    def snapshot(self) -> Rates:
        get = self._rates.get
        return Rates(get("dequantize_bps"), get("host_copy_bps"), get("disk_bps"), get("prefill_tps"))

    def _note(self, name: str, amount: int, seconds: float, least: int) -> None:
        if amount < least or seconds <= 0:
            return
        rate = amount / seconds
        known = self._rates.get(name)
        self._rates[name] = rate if known is None else known + _WEIGHT * (rate - known)
