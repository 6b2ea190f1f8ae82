"""Weights survive packing: every number comes back, whatever the shape, and rounding stays within its promise."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.packing import Format, can_pack, pack_q4, pack_q8, plain, quantize, unpack

SHAPES = [(16, 32), (48, 96), (192, 576), (4112, 64), (16, 4096), (1040, 1024)]


@pytest.mark.parametrize("shape", SHAPES)
def test_four_bit_numbers_come_back(shape):
    torch.manual_seed(1)
    numbers = torch.randint(0, 16, shape, dtype=torch.uint8)
    ones = torch.ones(shape[0], shape[1] // 32).half()
    assert torch.equal(unpack(pack_q4(numbers, ones, 0 * ones)), numbers.bfloat16())


@pytest.mark.parametrize("shape", SHAPES)
def test_eight_bit_numbers_come_back(shape):
    torch.manual_seed(1)
    numbers = torch.randint(-128, 128, shape, dtype=torch.int8)
    ones = torch.ones(shape[0], shape[1] // 32).half()
    assert torch.equal(unpack(pack_q8(numbers, ones)), numbers.bfloat16())


def test_the_words_lie_as_the_kernels_read_them():
    """Word [b, j, r, l]: bits 4p.. are row 16b + r, column 8j + 2p + l; Q8 bytes are columns 4j + l, 4j + 2 + l."""
    torch.manual_seed(1)
    four = torch.randint(0, 16, (32, 64), dtype=torch.uint8)
    eight = torch.randint(-128, 128, (32, 64), dtype=torch.int8)
    ones = torch.ones(32, 2).half()
    q4, q8 = pack_q4(four, ones, ones).words.int() & 0xFFFF, pack_q8(eight, ones).words.int() & 0xFFFF
    for block, j, row, low in [(0, 0, 0, 0), (1, 3, 7, 1), (1, 7, 15, 0), (0, 5, 9, 1)]:
        for plane in range(4):
            assert q4[block, j, row, low] >> 4 * plane & 15 == four[16 * block + row, 8 * j + 2 * plane + low]
        for plane in range(2):
            byte = q8[block, j, row, low] >> 8 * plane & 255
            assert byte - 128 == eight[16 * block + row, 4 * j + 2 * plane + low]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("target", [Format.Q4, Format.Q8])
def test_some_rows_unpack_as_in_the_whole(target, dtype):
    torch.manual_seed(2)
    matrix = quantize(torch.randn(96, 64), target)
    assert torch.equal(unpack(matrix.part(slice(32, 80)), dtype), unpack(matrix, dtype)[32:80])


def test_a_shape_that_no_kernel_takes_is_refused():
    assert not can_pack(24, 64)
    assert not can_pack(32, 48)
    with pytest.raises(ValueError, match="24 x 64"):
        quantize(torch.randn(24, 64), Format.Q4)


def test_sixteen_bits_are_kept_as_they_are():
    weight = torch.randn(16, 32).bfloat16()
    assert plain(weight).words is weight
    assert torch.equal(unpack(quantize(weight, Format.BF16)), weight)


def plain_rounding_error(groups: torch.Tensor) -> float:
    """Between the least and the greatest of a group: what the fit must beat."""
    low, high = groups.aminmax(dim=-1, keepdim=True)
    scale = ((high - low) / 15).half().float()
    low = low.half().float()
    return float((((groups - low) / scale).round().clamp(0, 15) * scale + low - groups).norm())


@pytest.mark.parametrize("draw", [torch.randn, lambda *shape: torch.distributions.StudentT(4.0).sample(shape)])
def test_fitted_scales_lower_the_error_of_four_bits_by_six_percent(draw):
    torch.manual_seed(4)
    weight = draw(256, 1024)
    error = float((unpack(quantize(weight, Format.Q4), torch.float32) - weight).norm())
    assert error < 0.94 * plain_rounding_error(weight.view(-1, 32))


@pytest.mark.parametrize("target", [Format.Q4, Format.Q8])
def test_rounding_stays_within_half_a_step(target):
    torch.manual_seed(5)
    weight = torch.randn(64, 256)
    error = (unpack(quantize(weight, target), torch.float32) - weight).view(-1, 32).abs().amax(-1)
    low, high = weight.view(-1, 32).aminmax(dim=-1)
    step = (high - low) / 15 if target is Format.Q4 else weight.view(-1, 32).abs().amax(-1) / 127
    # a fitted 4-bit scale may leave the ends a little further away than half a step, for the good of the rest
    assert (error <= step * (1.0 if target is Format.Q4 else 0.52)).all()


@pytest.mark.parametrize("value", [0.0, 3.3, -1e-9, 1e-30])
@pytest.mark.parametrize("target", [Format.Q4, Format.Q8])
def test_a_group_of_one_value_is_kept(target, value):
    weight = torch.full((16, 32), value)
    assert torch.allclose(unpack(quantize(weight, target), torch.float32), weight, rtol=2**-8, atol=1e-7)


def test_numbers_that_are_four_bits_already_come_through():
    torch.manual_seed(6)
    numbers = torch.randint(0, 16, (64, 128), dtype=torch.uint8)
    numbers[:, ::32], numbers[:, 1::32] = 0, 15  # every group reaches both ends, so its grid can be seen
    scales, minima = torch.rand(64, 4).add(0.5).half(), torch.randn(64, 4).half()
    values = unpack(pack_q4(numbers, scales, minima), torch.float32)
    again = unpack(quantize(values, Format.Q4), torch.float32)
    assert (again - values).abs().max() < 0.01
