"""The small steps between matrices, each against torch in float64."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch.nn import functional

from engine.kernels import plan

WIDTH = 96


@pytest.fixture(scope="module")
def vectors() -> ModuleType:
    pytest.importorskip("numba")
    from engine.kernels import vectors

    return vectors


@pytest.fixture(scope="module")
def exp() -> Callable[[torch.Tensor], torch.Tensor]:
    numba = pytest.importorskip("numba")
    from engine.kernels.simd import exp_lanes, load_f32, store_f32

    @numba.njit
    def run(x: int, out: int, count: int) -> None:
        for i in range(0, count, 16):
            store_f32(out + 4 * i, exp_lanes(load_f32(x + 4 * i)))

    def exp(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        run(x.data_ptr(), out.data_ptr(), len(x))
        return out

    return exp


def test_the_exponential_is_right_to_the_last_bits(exp: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.cat([torch.linspace(-60, 88, 1 << 20), torch.linspace(-1, 1, 1 << 16)])
    exact = x.double().exp()
    assert ((exp(x) - exact).abs() / exact).max() < 2.5e-7


def test_the_exponential_ends_where_it_says(exp: Callable[[torch.Tensor], torch.Tensor]) -> None:
    inf, nan = float("inf"), float("nan")
    found = exp(torch.tensor([-inf, -3e38, -61.0, -60.01, 0.0, 88.0, 89.0, 3e38, inf, nan, *[0.0] * 6]))
    assert found[:4].tolist() == [0.0] * 4
    assert found[4] == 1.0
    assert found[5:9].tolist() == [found[5]] * 4
    assert found[9].isnan()


@pytest.mark.parametrize(
    ("kind", "act"),
    [
        pytest.param(plan.SILU, functional.silu, id="silu"),
        pytest.param(plan.GELU_TANH, lambda x: functional.gelu(x, approximate="tanh"), id="gelu"),
    ],
)
@pytest.mark.parametrize("is_biased", [False, True])
def test_activations_are_those_of_torch(
    vectors: ModuleType, kind: int, act: Callable[[torch.Tensor], torch.Tensor], is_biased: bool
) -> None:
    gate = torch.cat([torch.linspace(-100, 100, WIDTH * 20), torch.linspace(-5, 5, WIDTH * 20)])
    count = len(gate)
    torch.manual_seed(1)
    up, gate_bias, up_bias = torch.randn(3, count)
    out, sums = torch.empty(count, dtype=torch.bfloat16), torch.empty(count // 32)
    biases = [one.data_ptr() if is_biased else 0 for one in (gate_bias, up_bias)]
    pointers = gate.data_ptr(), biases[0], up.data_ptr(), biases[1]
    vectors.activate(*pointers, kind, 0, count, out.data_ptr(), sums.data_ptr())
    if is_biased:
        gate, up = gate + gate_bias, up + up_bias
    exact = act(gate.double()) * up.double()
    torch.testing.assert_close(out.double(), exact, rtol=0.004, atol=2e-6)  # bfloat16 has 8 bits
    torch.testing.assert_close(sums, out.float().view(-1, 32).sum(1), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
def test_the_norm_is_that_of_torch_and_rounded_once(vectors: ModuleType, size: float) -> None:
    torch.manual_seed(2)
    x, weight = torch.randn(WIDTH) * size, torch.rand(WIDTH) + 0.5
    factor = vectors.inverse_rms(x.data_ptr(), WIDTH, torch.tensor(1e-6).numpy()[()])
    exact = functional.rms_norm(x.double(), [WIDTH], weight.double(), 1e-6)
    out, sums = torch.empty(WIDTH, dtype=torch.bfloat16), torch.empty(WIDTH // 32)
    vectors.store_input(x.data_ptr(), WIDTH, factor, weight.data_ptr(), out.data_ptr(), sums.data_ptr())
    torch.testing.assert_close(out.double(), exact, rtol=0.004, atol=0)
    torch.testing.assert_close(sums, out.float().view(-1, 32).sum(1), rtol=1e-5, atol=1e-5)


def test_rounding_to_bfloat16_is_that_of_torch(vectors: ModuleType) -> None:
    """To nearest, halves to even: also of the least and the largest numbers, and what is no number stays so."""
    torch.manual_seed(3)
    bits = torch.randint(-(2**31), 2**31, (1 << 16,)).to(torch.int32)
    halves = (bits & -65536) | 0x8000
    x = torch.cat([bits, halves]).view(torch.float32)
    x = x[: len(x) // 32 * 32].contiguous()
    quiet = torch.where(x.isnan(), torch.tensor(float("nan")), x)
    out, sums = torch.empty(len(x), dtype=torch.bfloat16), torch.empty(len(x) // 32)
    one = torch.tensor(1.0).numpy()[()]
    vectors.store_input(quiet.data_ptr(), len(x), one, 0, out.data_ptr(), sums.data_ptr())
    torch.testing.assert_close(out, quiet.bfloat16(), rtol=0, atol=0, equal_nan=True)
