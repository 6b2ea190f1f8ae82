"""The calculator's bytes against the engine's own: chats put through every codec, at lengths around its blocks."""

from __future__ import annotations

import pytest
import torch

from app.cache_size import BLOCK_TOKENS, Precision, cache_bytes, largest_context, typed_shape
from engine.kv.blocks import BlockPool
from engine.kv.codecs.encoded import ENCODED_TOKENS
from engine.kv.codecs.registry import NAMES, codec_named
from engine.kv.geometry import KVGeometry, LayerShape
from engine.kv.resident import Resident
from engine.kv.working_cache import WorkingCache

LAYERS, KV_HEADS, HEAD_DIM = 2, 3, 32
GEOMETRY = KVGeometry((LayerShape(KV_HEADS, HEAD_DIM, HEAD_DIM),) * LAYERS, torch.bfloat16)
SHAPE = typed_shape(LAYERS, KV_HEADS, HEAD_DIM)
LENGTHS = [1, 63, 64, 65, 127, 128, 191, 192, 193, 255, 256, 257, 320, 449]


def at_rest(codec: str | None, tokens: int) -> int:
    """Bytes of a chat's blocks after the engine has parked it."""
    from transformers.cache_utils import DynamicLayer

    pool = BlockPool(b"test", GEOMETRY)
    chat = Resident("test", pool)
    chat.working = WorkingCache(GEOMETRY, [DynamicLayer() for _ in range(LAYERS)], 512, torch.device("cpu"), tokens)
    torch.manual_seed(tokens)
    chat.working.arena.write(0, [torch.randn(group.shape(tokens)) for group in GEOMETRY.groups])
    chat.working.publish(list(range(tokens)))
    if codec is None:
        chat.park()
    else:
        chat.park(codec=codec_named(codec))
        chat.quantize(codec_named(codec))
    return pool.nbytes


def test_the_calculator_knows_every_codec_and_its_block() -> None:
    assert {*NAMES} == {*Precision} - {Precision.BITS_16, Precision.FLOAT32}
    assert BLOCK_TOKENS == ENCODED_TOKENS


@pytest.mark.parametrize("codec", [None, *NAMES])
def test_a_chat_at_rest_takes_the_bytes_that_were_calculated(codec: str | None) -> None:
    precision = Precision(codec or "16bit")
    calculated = [cache_bytes(SHAPE, tokens, precision).total_bytes for tokens in LENGTHS]
    assert calculated == [at_rest(codec, tokens) for tokens in LENGTHS]


@pytest.mark.parametrize("precision", list(Precision))
def test_the_largest_context_fits_and_no_larger_one_does(precision: Precision) -> None:
    for room in (0, 767, 768, 100_000, 123_457, 345_678):
        most = largest_context(SHAPE, precision, room, batch=2)
        assert most is not None
        assert most == 0 or cache_bytes(SHAPE, most, precision, 2).total_bytes <= room
        further = range(most + 1, most + 3 * BLOCK_TOKENS)
        assert all(cache_bytes(SHAPE, tokens, precision, 2).total_bytes > room for tokens in further)
