"""The codecs by name, and the order in which memory pressure takes them."""

from __future__ import annotations

import dataclasses

from engine.kv.codecs.affine import AffineCodec
from engine.kv.codecs.blockwise import BlockwiseCodec
from engine.kv.codecs.encoded import BlockCodec

INT8 = AffineCodec("int8", 8, 8)
BALANCED = AffineCodec("balanced", 8, 4)
COMPACT = AffineCodec("compact", 4, 4, first_tokens=64, recent_tokens=128)
LADDER: tuple[AffineCodec, ...] = (INT8, BALANCED, COMPACT)

_CODECS: dict[str, BlockCodec] = {
    **{codec.name: codec for codec in LADDER},
    **{codec.name: codec for codec in (BlockwiseCodec("bnb-8bit", 8), BlockwiseCodec("bnb-nf4", 4))},
}
NAMES = tuple(_CODECS)


def codec_named(name: str) -> BlockCodec:
    """Raises KeyError for a name that is not in `NAMES`."""
    return _CODECS[name]


def without_ends(codec: BlockCodec) -> BlockCodec:
    """The same codec, but for the beginning and end of a chat, which it encodes as well: for measurements."""
    assert isinstance(codec, AffineCodec | BlockwiseCodec)
    return dataclasses.replace(codec, first_tokens=0, recent_tokens=0)
