"""Caches of random numbers, without a model: made, saved, and looked at bit for bit."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers.cache_utils import DynamicLayer

from engine.kv import transfer
from engine.kv.arena import KVArena
from engine.kv.block_keys import root_key
from engine.kv.blocks import BlockPool
from engine.kv.fingerprint import Fingerprint
from engine.kv.geometry import KVGeometry, LayerShape
from engine.kv.persistence import Persistence
from engine.kv.resident import Resident
from engine.kv.store.collector import Limits
from engine.kv.store.files import StoreFiles
from engine.kv.store.records import FORMAT_VERSION, Manifest
from engine.kv.working_cache import WorkingCache

CPU = torch.device("cpu")
GEOMETRY = KVGeometry((LayerShape(2, 8, 8), LayerShape(1, 16, 8), LayerShape(2, 8, 8)), torch.bfloat16)
FINGERPRINT = Fingerprint.of_fields({"model": "random"})
CHAT = "chat"
_CONTEXT = 16384


def random_arena(num_tokens: int, seed: int = 0, *, geometry: KVGeometry = GEOMETRY) -> KVArena:
    """Always in host memory; the same numbers for the same seed."""
    arena = KVArena(geometry, num_tokens, CPU)
    generator = torch.Generator().manual_seed(seed)
    for tensor in arena.groups:
        tensor.copy_(torch.randn(tensor.shape, generator=generator))
    return arena


def bits(tensors: Sequence[torch.Tensor]) -> list[bytes]:
    return [bytes(transfer.bytes_of(tensor.cpu())) for tensor in tensors]


def new_cache(num_tokens: int, device: torch.device = CPU, *, geometry: KVGeometry = GEOMETRY) -> WorkingCache:
    return WorkingCache(geometry, [DynamicLayer() for _ in geometry.layers], _CONTEXT, device, num_tokens)


def filled_resident(source: KVArena, num_tokens: int, device: torch.device = CPU) -> tuple[Resident, BlockPool]:
    """An active conversation that holds the first `num_tokens` of `source`; the ids are 0, 1, 2, ..."""
    pool = BlockPool(root_key(FINGERPRINT.digest), source.geometry)
    resident = Resident(CHAT, pool)
    resident.working = new_cache(num_tokens, device, geometry=source.geometry)
    resident.working.arena.write(0, source.read(0, num_tokens))
    resident.working.publish(list(range(num_tokens)))
    return resident, pool


class SavedCaches:
    """A store on disk, and saving to it that waits."""

    def __init__(self, folder: Path, geometry: KVGeometry = GEOMETRY) -> None:
        self._is_saved = threading.Event()
        files = StoreFiles(folder, FORMAT_VERSION)
        limits = Limits(1 << 36, 0)
        self.persistence = Persistence(
            files, FINGERPRINT, geometry, "template", limits, lambda result: self._is_saved.set()
        )

    def save(self, resident: Resident) -> Manifest:
        self._is_saved.clear()
        self.persistence.save(resident, "")
        assert self._is_saved.wait(60.0)
        manifest = self.persistence.catalog.manifest(resident.conversation_id)
        assert manifest is not None
        return manifest

    def close(self) -> None:
        self.persistence.close(10.0)
