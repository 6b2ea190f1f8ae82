"""A layer with packed weights computes what a plain layer with the unpacked weights computes, and never holds those."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from engine.kernels.compile import has_numba
from engine.kernels.packing import Format, quantize, unpack
from engine.model import packed_linear
from engine.model.packed_linear import PackedEmbedding, PackedLinear

KERNELS = "kernels"
TORCH = "torch"


@pytest.fixture(params=[KERNELS, TORCH])
def means(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of computing, whether or not this machine's kernels have been compiled yet."""
    if request.param == KERNELS:
        if not has_numba():
            pytest.skip("needs numba")
        from engine.kernels import unpack as kernels

        monkeypatch.setattr(packed_linear, "_kernels", lambda: kernels)
    else:
        monkeypatch.setattr(packed_linear, "_kernels", lambda: None)
    return str(request.param)


@pytest.mark.usefixtures("means")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("target", [Format.Q4, Format.Q8])
@pytest.mark.parametrize("count", [1, 3, 8, 9, 70])
def test_a_layer_multiplies_like_a_plain_one(count, target, dtype):
    torch.manual_seed(1)
    matrix = quantize(torch.randn(96, 192) / 14, target)
    bias = torch.randn(96).to(dtype)
    x = torch.randn(2, count, 192).to(dtype)
    y = PackedLinear(matrix, bias)(x)
    exact = functional.linear(x.double(), unpack(matrix, torch.float32).double(), bias.double())
    assert y.dtype is dtype
    assert y.shape == (2, count, 96)
    tolerance = 2e-2 if dtype is torch.bfloat16 else 1e-4
    assert (y.double() - exact).abs().max() < tolerance * float(exact.abs().max())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("target", [Format.Q4, Format.Q8])
@pytest.mark.parametrize("shape", [(16, 32), (80, 96), (192, 576)])
def test_the_kernel_unpacks_to_the_same_bits_as_torch(shape, target, dtype):
    kernels = pytest.importorskip("engine.kernels.unpack")
    torch.manual_seed(2)
    matrix = quantize(torch.randn(shape), target)
    rows = slice(0, shape[0])
    assert torch.equal(packed_linear._unpacked(kernels, matrix, rows, dtype), unpack(matrix, dtype))
    if shape[0] > 32:
        rows = slice(16, 48)
        assert torch.equal(packed_linear._unpacked(kernels, matrix, rows, dtype), unpack(matrix, dtype)[rows])


@pytest.mark.usefixtures("means")
def test_a_matrix_larger_than_the_scratch_is_multiplied_in_parts(monkeypatch):
    monkeypatch.setattr(packed_linear, "_SCRATCH_WEIGHTS", 32 * 64)
    torch.manual_seed(3)
    matrix = quantize(torch.randn(144, 64), Format.Q4)
    x = torch.randn(40, 64)
    assert torch.allclose(PackedLinear(matrix)(x), functional.linear(x, unpack(matrix, torch.float32)), atol=1e-4)


@pytest.mark.usefixtures("means")
def test_a_token_s_result_does_not_depend_on_its_neighbours():
    torch.manual_seed(4)
    layer = PackedLinear(quantize(torch.randn(64, 96), Format.Q4))
    x = torch.randn(8, 96).bfloat16()
    together = layer(x)
    assert all(torch.allclose(layer(x[i : i + 1])[0], together[i], rtol=2**-7, atol=1e-3) for i in range(8))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("target", [Format.Q4, Format.Q8])
def test_an_embedding_looks_rows_up(target, dtype):
    torch.manual_seed(5)
    matrix = quantize(torch.randn(320, 64), target)
    ids = torch.tensor([[0, 319, 17, 17], [5, 16, 15, 250]])
    rows = PackedEmbedding(matrix, dtype)(ids)
    assert rows.dtype is dtype
    assert torch.equal(rows, functional.embedding(ids, unpack(matrix, dtype)))


def test_an_embedding_of_no_or_one_token():
    embedding = PackedEmbedding(quantize(torch.randn(32, 64), Format.Q8), torch.float32)
    assert embedding(torch.empty(1, 0, dtype=torch.long)).shape == (1, 0, 64)
    assert embedding(torch.tensor([[31]])).shape == (1, 1, 64)
    with pytest.raises(IndexError):
        embedding(torch.tensor([[32]]))
