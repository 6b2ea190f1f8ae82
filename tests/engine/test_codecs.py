"""Every codec of blocks: how close they come back, how small they are, what they refuse."""

from __future__ import annotations

import pytest
import torch

from engine.kv.codecs.affine import AffineCodec
from engine.kv.codecs.encoded import BlockCodec, decode
from engine.kv.codecs.registry import LADDER, NAMES, codec_named
from engine.kv.geometry import KVGeometry, LayerShape

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
STEPS = {8: 500, 4: 29}  # of a range, of which an error is at most one
every_codec = pytest.mark.parametrize("codec", [codec_named(name) for name in NAMES], ids=NAMES)
affine = pytest.mark.parametrize("codec", LADDER, ids=[codec.name for codec in LADDER])


def geometry_of(dtype: torch.dtype, head_dim: int = 64, kv_heads: int = 3, layers: int = 3) -> KVGeometry:
    return KVGeometry((LayerShape(kv_heads, head_dim, head_dim),) * layers, dtype)


def random_block(geometry: KVGeometry, num_tokens: int = 64, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(group.shape(num_tokens), generator=generator).to(geometry.dtype) for group in geometry.groups]


def round_trip(codec: BlockCodec, block: list[torch.Tensor], geometry: KVGeometry) -> list[torch.Tensor]:
    out = [torch.full_like(x, torch.nan) for x in block]
    decode(codec, codec.encode(block, geometry), out, geometry)
    return out


def assert_close(codec: AffineCodec, block: list[torch.Tensor], geometry: KVGeometry, num_steps: int = 1) -> None:
    """The bound that the codec's docstring states."""
    for x, y, group in zip(block, round_trip(codec, block, geometry), geometry.groups, strict=True):
        assert y.dtype == x.dtype
        assert torch.isfinite(y).all()
        axis = 1 if group.is_key else 3
        exact = x.double()
        low, high = exact.amin(axis, keepdim=True), exact.amax(axis, keepdim=True)
        info = torch.finfo(x.dtype)
        bound = (
            num_steps * (high - low) / STEPS[codec.key_bits if group.is_key else codec.value_bits]
            + info.eps * torch.maximum(low.abs(), high.abs())
            + info.smallest_normal * info.eps
        )
        assert ((y.double() - exact).abs() <= bound).all()


@affine
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("kv_heads", [1, 3])
def test_a_block_comes_back_within_the_stated_error(
    codec: AffineCodec, dtype: torch.dtype, head_dim: int, kv_heads: int
) -> None:
    geometry = geometry_of(dtype, head_dim, kv_heads)
    assert_close(codec, random_block(geometry), geometry)


@affine
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_tokens", [1, 2, 17, 31, 32, 63, 64])
def test_any_number_of_tokens_up_to_a_block(codec: AffineCodec, dtype: torch.dtype, num_tokens: int) -> None:
    geometry = geometry_of(dtype, layers=2)
    assert_close(codec, random_block(geometry, num_tokens), geometry)


@affine
@pytest.mark.parametrize("dtype", DTYPES)
def test_regions_of_several_shapes(codec: AffineCodec, dtype: torch.dtype) -> None:
    shapes = (LayerShape(2, 64, 64), LayerShape(1, 192, 128), LayerShape(2, 64, 64))
    geometry = KVGeometry(shapes, dtype)
    assert len(geometry.groups) == 4
    assert_close(codec, random_block(geometry), geometry)


@affine
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_outlier_channel_does_not_coarsen_its_neighbours(codec: AffineCodec, dtype: torch.dtype) -> None:
    geometry = geometry_of(dtype)
    block = random_block(geometry)
    plain = round_trip(codec, block, geometry)[0]
    block[0][..., 7] *= 50
    assert_close(codec, block, geometry)
    loud = round_trip(codec, block, geometry)[0]
    others = [channel for channel in range(64) if channel != 7]
    assert torch.equal(loud[..., others], plain[..., others])


@affine
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_channel_far_from_zero_keeps_its_detail(codec: AffineCodec, dtype: torch.dtype) -> None:
    geometry = geometry_of(dtype)
    block = random_block(geometry)
    block[0] += 40
    block[1] -= 40
    assert_close(codec, block, geometry)


@affine
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [0.0, 1.0, -3.140625, 6e-8, 65504.0, -65280.0])
def test_what_is_constant_comes_back_exactly(codec: AffineCodec, dtype: torch.dtype, value: float) -> None:
    geometry = geometry_of(dtype)
    block = [torch.full(group.shape(32), value, dtype=dtype) for group in geometry.groups]
    for x, y in zip(block, round_trip(codec, block, geometry), strict=True):
        assert torch.equal(x, y)


@affine
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1e-30, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2])
def test_tiny_numbers(codec: AffineCodec, dtype: torch.dtype, size: float) -> None:
    geometry = geometry_of(dtype)
    assert_close(codec, [x * size for x in random_block(geometry)], geometry)


@affine
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_smallest_numbers_there_are(codec: AffineCodec, dtype: torch.dtype) -> None:
    geometry = geometry_of(dtype)
    smallest = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    block = [torch.full(group.shape(32), smallest, dtype=dtype) for group in geometry.groups]
    block[0][:, ::2] = 0
    assert_close(codec, block, geometry)


@affine
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(8))
def test_the_largest_numbers_there_are_do_not_become_infinite(
    codec: AffineCodec, dtype: torch.dtype, seed: int
) -> None:
    geometry = geometry_of(dtype)
    largest = torch.finfo(dtype).max
    block = [x.float().clamp(-1, 1).mul(largest).to(dtype) for x in random_block(geometry, seed=seed)]
    if codec.value_bits == 4 and dtype is not torch.float16:
        with pytest.raises(ValueError, match="too far apart"):
            codec.encode(block, geometry)
        return
    assert_close(codec, block, geometry, num_steps=2)
    block = [(x.abs() * 0.5 + largest * (1 - seed / 50)).clamp(max=largest) for x in block]  # all of one sign
    assert_close(codec, block, geometry, num_steps=2)


@every_codec
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("group", [0, 1])
def test_numbers_that_are_not_finite_are_refused(codec: BlockCodec, dtype: torch.dtype, bad: float, group: int) -> None:
    geometry = geometry_of(dtype)
    block = random_block(geometry)
    block[group][2, 17, 1, 33] = bad
    with pytest.raises(ValueError, match="not finite"):
        codec.encode(block, geometry)


@every_codec
def test_both_infinities_in_one_channel_are_refused(codec: BlockCodec) -> None:
    geometry = geometry_of(torch.bfloat16)
    block = random_block(geometry)
    block[0][0, 0, 0, 0], block[0][0, 1, 0, 0] = float("inf"), float("-inf")
    with pytest.raises(ValueError, match="not finite"):
        codec.encode(block, geometry)


@every_codec
def test_a_block_of_another_model_is_refused(codec: BlockCodec) -> None:
    with pytest.raises(ValueError, match="shape"):
        codec.encode(random_block(geometry_of(torch.bfloat16, kv_heads=2)), geometry_of(torch.bfloat16, kv_heads=3))
    with pytest.raises(ValueError, match="argument"):
        codec.encode(random_block(geometry_of(torch.bfloat16))[:1], geometry_of(torch.bfloat16))


@every_codec
@pytest.mark.parametrize("dtype", DTYPES)
def test_encoding_and_decoding_are_deterministic(codec: BlockCodec, dtype: torch.dtype) -> None:
    geometry = geometry_of(dtype)
    block = random_block(geometry)
    first, second = codec.encode(block, geometry), codec.encode([x.clone() for x in block], geometry)
    for one, other in zip(first.groups, second.groups, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert all(
        torch.equal(a, b)
        for a, b in zip(round_trip(codec, block, geometry), round_trip(codec, block, geometry), strict=True)
    )


@every_codec
@pytest.mark.parametrize("dtype", DTYPES)
def test_it_reads_and_writes_views_of_a_longer_cache_and_nothing_beside_them(
    codec: BlockCodec, dtype: torch.dtype
) -> None:
    geometry = geometry_of(dtype)
    caches = random_block(geometry, 100)
    block = [cache[:, 40:72] for cache in caches]
    before = [cache.clone() for cache in caches]
    expected = round_trip(codec, [x.contiguous() for x in block], geometry)
    decode(codec, codec.encode(block, geometry), block, geometry)
    for cache, old, new in zip(caches, before, expected, strict=True):
        assert torch.equal(cache[:, 40:72], new)
        assert torch.equal(cache[:, :40], old[:, :40])
        assert torch.equal(cache[:, 72:], old[:, 72:])


@every_codec
def test_encoding_leaves_its_input_alone(codec: BlockCodec) -> None:
    geometry = geometry_of(torch.float32)
    block = random_block(geometry)
    before = [x.clone() for x in block]
    codec.encode(block, geometry)
    assert all(torch.equal(a, b) for a, b in zip(block, before, strict=True))


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("name", "most"), [("int8", 0.54), ("balanced", 0.41), ("compact", 0.31), ("bnb-8bit", 0.54), ("bnb-nf4", 0.31)]
)
def test_a_whole_block_is_as_small_as_promised(name: str, most: float, dtype: torch.dtype, head_dim: int) -> None:
    geometry = geometry_of(dtype, head_dim)
    encoded = codec_named(name).encode(random_block(geometry), geometry)
    assert encoded.nbytes <= most * 64 * geometry.bytes_per_token


@every_codec
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_all_codecs_come_close(codec: BlockCodec, dtype: torch.dtype, head_dim: int) -> None:
    geometry = geometry_of(dtype, head_dim)
    block = random_block(geometry)
    for x, y in zip(block, round_trip(codec, block, geometry), strict=True):
        error = float((x.double() - y.double()).norm() / x.double().norm())
        assert error < (0.015 if codec.name in ("int8", "bnb-8bit") else 0.13)


@every_codec
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_tokens", [1, 31, 32])
def test_its_size_is_known_before_encoding(codec: BlockCodec, dtype: torch.dtype, num_tokens: int) -> None:
    geometry = KVGeometry((LayerShape(2, 64, 64), LayerShape(1, 192, 128)), dtype)
    encoded = codec.encode(random_block(geometry, num_tokens), geometry)
    assert codec.nbytes(geometry, num_tokens) == encoded.nbytes
