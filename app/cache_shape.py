"""What a model keeps of the tokens it has read: layers by kind, and how its heads share keys and values.

Plain numbers, without torch or Qt. What comes from where: `app.cache_config`, `app.gguf_header`, or typed in.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class HeadKind(StrEnum):
    """How query heads share keys and values: each its own (MHA), a few together (GQA, arXiv 2305.13245), all of them
    (MQA, arXiv 1911.02150), or all from one compressed vector a token (MLA, arXiv 2405.04434).
    """

    MHA = "MHA"
    GQA = "GQA"
    MQA = "MQA"
    MLA = "MLA"


class LayerKind(StrEnum):
    """`FULL` keeps every token, `SLIDING` and `CHUNKED` the latest only, `SHARED` reads another layer's, `RECURRENT`
    keeps a state that does not grow.
    """

    FULL = "full"
    SLIDING = "sliding"
    CHUNKED = "chunked"
    SHARED = "shared"
    RECURRENT = "recurrent"


GROWING = (LayerKind.FULL, LayerKind.SLIDING, LayerKind.CHUNKED)


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """`num_layers` layers of one kind and size.

    Keys of a token are `kv_heads` x `key_dim` numbers, values `kv_heads` x `value_dim`. `window`: the most tokens that
    a sliding or chunked layer keeps. `state_half`, `state_float`: the numbers of a recurrent layer's state that are in
    16 bit and those in 32; None where the configuration does not tell.
    """

    kind: LayerKind
    num_layers: int
    kv_heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    window: int | None = None
    state_half: int | None = None
    state_float: int | None = None

    @property
    def numbers_per_token(self) -> int:
        """Of one layer."""
        return self.kv_heads * (self.key_dim + self.value_dim) if self.kind in GROWING else 0

    def tokens_kept(self, tokens: int) -> int:
        """Of `tokens` that were read."""
        if self.kind not in GROWING:
            return 0
        return tokens if self.window is None else min(tokens, self.window)


@dataclass(frozen=True, slots=True)
class CacheShape:
    """`heads` are the query heads. `is_latent`: keys and values are kept as one compressed vector a token (MLA)."""

    groups: tuple[LayerGroup, ...]
    heads: int | None = None
    context_length: int | None = None
    family: str | None = None
    is_latent: bool = False

    @property
    def attention(self) -> tuple[LayerGroup, ...]:
        """The groups that keep tokens."""
        return tuple(group for group in self.groups if group.kind in GROWING)

    @property
    def num_layers(self) -> int:
        """That keep tokens."""
        return sum(group.num_layers for group in self.attention)

    @property
    def first(self) -> LayerGroup | None:
        """The group whose heads are told where one has to speak for all: a full one, if there is any."""
        full = [group for group in self.attention if group.kind is LayerKind.FULL]
        return next(iter(full or self.attention), None)

    @property
    def kind(self) -> HeadKind | None:
        """None where the number of query heads is not known, or nothing is kept of a token."""
        if self.is_latent:
            return HeadKind.MLA
        if self.first is None:
            return None
        return head_kind(self.first.kv_heads, self.heads)


def head_kind(kv_heads: int, heads: int | None) -> HeadKind | None:
    """One head for several is MQA, for one it is MHA. None while it cannot be told."""
    if heads is not None and kv_heads == heads:
        return HeadKind.MHA
    if kv_heads == 1:
        return HeadKind.MQA
    return None if heads is None else HeadKind.GQA
