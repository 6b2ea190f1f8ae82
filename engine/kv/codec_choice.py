"""Which codecs a model bears: measured once on a short text, remembered beside its snapshots. Inference thread."""

from __future__ import annotations

import contextlib
import json
import logging
import math
from collections.abc import Callable
from pathlib import Path

import torch

from engine.kv.blocks import BlockPool
from engine.kv.codecs.encoded import BlockCodec
from engine.kv.codecs.registry import LADDER, NAMES, codec_named, without_ends
from engine.kv.resident import Resident
from engine.kv.working_cache import WorkingCache
from engine.model.forward import is_out_of_memory
from engine.model.loader import LoadedModel
from engine.protocol.config import KV_AUTO, EngineConfig
from engine.protocol.events import CodecsProbed

_log = logging.getLogger(__name__)
_FILE = "codecs.json"
_FORMAT = 1
MOST_KL = {"int8": 0.005, "balanced": 0.02, "compact": 0.08, "bnb-8bit": 0.01, "bnb-nf4": 0.2}
"""Nats a token; several times what a model that takes a codec well loses by it (performance of SmolLM2-135M)."""
_SAFER = {"bnb-nf4": "compact", "compact": "balanced", "balanced": "int8", "bnb-8bit": "int8"}
_CONTEXT_TOKENS = 192
_SCORED_TOKENS = 48
_TEXT = (
    "The ferry to the island leaves at ten past seven, Marta wrote, and costs 14 euros for two; take the north quay, "
    "not the old harbour. If the wind turns to the west, it waits until noon. In the museum ask for Mr. Okafor: he "
    "keeps the key to the lighthouse, and knows why the lamp was lit on 3 March 1962.\n"
    "def total(prices, rate=0.19):\n    return sum(price * (1 + rate) for price in prices)\n"
    "안녕하세요. 내일 오전 열 시에 서울역 앞에서 만나요. 표는 제가 두 장 사 두었습니다.\n"
    "Question: what does the ferry cost? Answer: 14 euros for two. Question: who keeps the key? Answer: "
)


class CodecChoice:
    """The codecs that may be used for one loaded model. `on_probed` hears the result."""

    def __init__(
        self, model: LoadedModel, config: EngineConfig, folder: Path, on_probed: Callable[[CodecsProbed], None]
    ) -> None:
        self._model = model
        self._file = folder / _FILE
        self._on_probed = on_probed
        self._wanted: str | None = None
        self.configure(config)
        self._kl: dict[str, float] = self._read()
        if self._kl:
            self._tell()

    def configure(self, config: EngineConfig) -> None:
        """What the user wants chats to be kept in, from now on."""
        self._wanted = None if config.kv_precision == KV_AUTO else config.kv_precision

    @property
    def is_probed(self) -> bool:
        return all(codec.name in self._kl for codec in self._candidates)

    @property
    def ladder(self) -> tuple[BlockCodec, ...]:
        """In the order in which memory pressure takes them; what the probe refuses is left out."""
        return tuple(codec for codec in self._candidates if not self._is_refused(codec.name))

    @property
    def fixed(self) -> BlockCodec | None:
        """The codec that the user wants for all chats, or the next safer one that this model bears."""
        name = self._wanted
        while name is not None and self._is_refused(name):
            name = _SAFER.get(name)
        return codec_named(name) if name is not None else None

    @property
    def refused(self) -> tuple[str, ...]:
        return tuple(name for name in NAMES if self._is_refused(name))

    def probe(self, is_wanted: Callable[[], bool] = lambda: False) -> None:
        """Measure what is not known yet; given up between codecs when `is_wanted` says that somebody waits."""
        if self.is_probed or not self._model.can_persist:
            return
        fed = self._model.forward.tokens_fed
        try:
            measured = self._measure(is_wanted)
        except (torch.OutOfMemoryError, RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return
        finally:
            self._model.forward.tokens_fed = fed  # they belong to no chat
        if not measured:
            return
        self._kl |= measured
        self._write()
        self._tell()

    @property
    def _candidates(self) -> tuple[BlockCodec, ...]:
        if self._wanted is None:
            return LADDER
        name, chain = self._wanted, [codec_named(self._wanted)]
        while name := _SAFER.get(name, ""):
            chain.append(codec_named(name))
        return tuple(chain) if self._is_refused(self._wanted) else tuple(chain[:1])

    def _is_refused(self, name: str) -> bool:
        return not self._kl.get(name, 0.0) <= MOST_KL[name]

    def _tell(self) -> None:
        self._on_probed(CodecsProbed(dict(self._kl), self.refused))
        for name in self.refused:
            _log.warning("%s is not used with this model: its KL divergence is %.3g", name, self._kl[name])

    @torch.inference_mode()
    def _measure(self, is_wanted: Callable[[], bool]) -> dict[str, float]:
        ids = self._model.tokenizer.encode(_TEXT * 2, add_special_tokens=False)[: _CONTEXT_TOKENS + _SCORED_TOKENS]
        context, scored = ids[:-_SCORED_TOKENS], ids[-_SCORED_TOKENS:]
        if not context:
            return {}
        pool = BlockPool(b"probe", self._model.geometry)
        forward = self._model.forward
        source = Resident("probe", pool)
        source.is_incognito = True
        source.working = self._model.new_cache(len(ids))
        forward(context, source.working)
        expected = forward.all_logits(scored, source.working).log_softmax(-1)
        source.working.rollback(len(context))
        found: dict[str, float] = {}
        names = dict.fromkeys([*(codec.name for codec in LADDER), *([self._wanted] if self._wanted else [])])
        for name in names:
            if is_wanted():
                break
            if name in self._kl:
                continue
            codec = codec_named(name)
            try:
                cache = _through(source, codec, pool, self._model)
                got = forward.all_logits(scored, cache).log_softmax(-1)
            except (RuntimeError, ValueError) as error:
                if is_out_of_memory(error):
                    raise
                _log.warning("%s does not work with this model: %s", name, error)
                found[name] = math.inf
                continue
            found[name] = float((expected.exp() * (expected - got)).sum(-1).mean().clamp(min=0))
        source.give_up()
        return found

    def _read(self) -> dict[str, float]:
        try:
            content = json.loads(self._file.read_text("utf-8"))
            if content["format"] == _FORMAT:
                return {str(name): float(value) for name, value in content["kl"].items() if name in NAMES}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            pass
        return {}

    def _write(self) -> None:
        """Best effort: without it the next load measures again. Only where snapshots of this model are kept."""
        with contextlib.suppress(OSError):
            if self._file.parent.is_dir():
                self._file.write_text(json.dumps({"format": _FORMAT, "kl": self._kl}), "utf-8")


def _through(source: Resident, codec: BlockCodec, pool: BlockPool, model: LoadedModel) -> WorkingCache:
    """A cache with what `source` holds, all of it that makes whole blocks encoded."""
    resident = Resident("probe", pool)
    resident.is_incognito = True
    resident.working = model.new_cache(source.length)
    source.copy_to(resident.working, 0, source.length)
    resident.park()
    resident.quantize(without_ends(codec))
    cache = model.new_cache(source.length)
    if model.reads_encoded and codec.is_read_in_place:
        resident.resume(cache)
    else:
        resident.copy_to(cache, 0, resident.length)
    return cache
