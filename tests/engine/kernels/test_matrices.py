"""Matrix times vectors in every format, against torch in float64 on the numbers that the packed words stand for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from engine.kernels.packing import Format, Matrix, pack_q4, pack_q8, plain, quantize, unpack

FORMATS = list(Format)
SHAPES = [(16, 32), (16, 576), (80, 96), (240, 32)]
Multiply = Callable[[Matrix, torch.Tensor], torch.Tensor]


@pytest.fixture
def multiply(compiled_kernels: None) -> Multiply:
    from engine.kernels import unpack as kernels  # it imports numba

    def multiply(matrix: Matrix, vectors: torch.Tensor) -> torch.Tensor:
        """vectors: bfloat16 `[n, columns]`; returns float32 `[n, rows]`."""
        count = len(vectors)
        sums, y = torch.empty(count, matrix.columns // 32), torch.full((count, matrix.rows), float("nan"))
        scales, minima = (0 if one is None else one.data_ptr() for one in (matrix.scales, matrix.minima))
        shape = matrix.rows, matrix.columns
        words = matrix.words.data_ptr()
        kernels.multiply(
            int(matrix.format), words, scales, minima, *shape, vectors.data_ptr(), sums.data_ptr(), y.data_ptr(), count
        )
        return y

    return multiply


def check(matrix: Matrix, vectors: torch.Tensor, y: torch.Tensor) -> None:
    """Float32 sums of so many products may be wrong by a few roundings of the sum of their sizes."""
    numbers = unpack(matrix, torch.float32).double()
    exact = vectors.double() @ numbers.T
    sizes = vectors.double().abs() @ numbers.abs().T
    if matrix.format is not Format.BF16:  # what is packed is multiplied as 128 + q and more, and set right at the end
        most = numbers.abs().amax(dim=1) * (20 if matrix.format is Format.Q8 else 40)
        sizes = vectors.double().abs().sum(dim=1, keepdim=True) * most
    assert ((y - exact).abs() <= 1e-6 * sizes + 1e-30).all()


@pytest.mark.parametrize("target", FORMATS, ids=lambda target: target.name)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("count", [1, 2, 7, 8])
def test_products_are_those_of_torch(multiply: Multiply, target: Format, shape: tuple[int, int], count: int) -> None:
    torch.manual_seed(count)
    matrix = quantize(torch.randn(shape), target)
    vectors = torch.randn(count, shape[1]).bfloat16()
    check(matrix, vectors, multiply(matrix, vectors))


@pytest.mark.parametrize("target", FORMATS, ids=lambda target: target.name)
@pytest.mark.parametrize("at_once", [2, 3, 8])
def test_a_vector_does_not_know_of_the_others(multiply: Multiply, target: Format, at_once: int) -> None:
    torch.manual_seed(3)
    matrix = quantize(torch.randn(48, 576), target)
    vectors = torch.randn(8, 576).bfloat16()
    single = torch.cat([multiply(matrix, vector[None]) for vector in vectors])
    together = torch.cat([multiply(matrix, piece) for piece in torch.split(vectors, at_once)])
    assert torch.equal(together, single)


# extreme values


@pytest.mark.parametrize("target", FORMATS, ids=lambda target: target.name)
def test_zeros_give_zeros(multiply: Multiply, target: Format) -> None:
    vectors = torch.randn(3, 64).bfloat16()
    assert (multiply(quantize(torch.zeros(32, 64), target), vectors) == 0).all()
    assert (multiply(quantize(torch.randn(32, 64), target), torch.zeros_like(vectors)) == 0).all()


@pytest.mark.parametrize("target", FORMATS, ids=lambda target: target.name)
@pytest.mark.parametrize("size", [1e-3, 1e3])
def test_large_and_small_weights(multiply: Multiply, target: Format, size: float) -> None:
    torch.manual_seed(4)
    matrix = quantize(torch.randn(32, 256) * size, target)
    vectors = (torch.randn(4, 256) / size).bfloat16()
    check(matrix, vectors, multiply(matrix, vectors))


@pytest.mark.parametrize("scale", [2.0**-24, 2.0**-15, 65504.0])
def test_scales_at_the_ends_of_float16(multiply: Multiply, scale: float) -> None:
    """The least are denormal numbers."""
    torch.manual_seed(5)
    scales = torch.full((16, 2), scale, dtype=torch.float16)
    nibbles = torch.randint(0, 16, (16, 64), dtype=torch.uint8)
    signed = torch.randint(-128, 128, (16, 64), dtype=torch.int8)
    vectors = torch.randn(2, 64).bfloat16()
    for matrix in (pack_q4(nibbles, scales, -scales), pack_q4(nibbles, scales, scales), pack_q8(signed, scales)):
        y = multiply(matrix, vectors)
        assert (y != 0).any()
        check(matrix, vectors, y)


def test_every_number_of_a_format_counts(multiply: Multiply) -> None:
    ones = torch.ones(16, 8, dtype=torch.float16)
    vectors = torch.eye(256).bfloat16()
    signed = torch.arange(-128, 128).to(torch.int8).expand(16, 256)
    assert torch.equal(multiply(pack_q8(signed, ones), vectors), signed.T.float())
    nibbles = (torch.arange(256) % 16).to(torch.uint8).expand(16, 256)
    assert torch.equal(multiply(pack_q4(nibbles, ones, ones), vectors), nibbles.T.float() + 1)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_is_not_lost(multiply: Multiply, value: float) -> None:
    weight = torch.randn(16, 64).bfloat16()
    weight[3, 40] = value
    y = multiply(plain(weight), torch.ones(2, 64).bfloat16())
    assert not torch.isfinite(y[:, 3]).any()
    assert torch.isfinite(y[:, :3]).all()
    vectors = torch.ones(2, 64).bfloat16()
    vectors[1, 5] = value
    for target in FORMATS:
        y = multiply(quantize(torch.randn(16, 64), target), vectors)
        assert torch.isfinite(y[0]).all()
        assert not torch.isfinite(y[1]).any()
