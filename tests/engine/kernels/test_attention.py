"""Attention over segments, merged, against torch in float64 on the same bfloat16 numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from engine.kernels.plan import SEGMENT, head_floats

Attend = Callable[..., torch.Tensor]
HEAD_DIM = 64
TOKENS = [1, 3, SEGMENT - 1, SEGMENT, SEGMENT + 1, 2 * SEGMENT, 17 * SEGMENT + 5]


@pytest.fixture(scope="module")
def attend() -> Attend:
    """`query` `[group, dim]` over `keys` and `values` `[tokens, dim]`, all bfloat16: float32 `[group, dim]`."""
    numba = pytest.importorskip("numba")
    from engine.kernels.attention import attend_segment, merge_segments

    @numba.njit
    def run(  # type: ignore[no-untyped-def]
        query, keys, values, count, group, head_dim, scale, scores, partial, head_bytes, weights, out
    ):
        segments = (count + SEGMENT - 1) // SEGMENT
        row = 2 * head_dim
        for segment in range(segments):
            first = segment * SEGMENT
            k, v, here = keys + first * row, values + first * row, min(SEGMENT, count - first)
            attend_segment(query, k, v, row, here, group, head_dim, scale, scores, partial, segment, segments, 0)
        for head in range(group):
            merge_segments(partial + head * head_bytes, segments, segments, head_dim, weights, out + 2 * row * head)

    def attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> torch.Tensor:
        group, count = len(query), len(keys)
        floats = head_floats(-(-count // SEGMENT), HEAD_DIM)
        scores, partial = torch.empty(group, SEGMENT), torch.full((group, floats), float("nan"))
        weights, out = torch.empty(16), torch.empty(group, HEAD_DIM)
        scale32 = torch.tensor(scale).numpy()[()]  # the kernels' type
        pointers = query.data_ptr(), keys.data_ptr(), values.data_ptr()
        scratch = scores.data_ptr(), partial.data_ptr(), 4 * floats, weights.data_ptr(), out.data_ptr()
        run(*pointers, count, group, HEAD_DIM, scale32, *scratch)
        return out

    return attend


def exact(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> torch.Tensor:
    return torch.softmax(query.double() @ keys.double().T * scale, dim=-1) @ values.double()


def numbers(group: int, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(count)
    query, keys, values = (torch.randn(size, HEAD_DIM).bfloat16() for size in (group, count, count))
    return query, keys, values


@pytest.mark.parametrize("count", TOKENS)
@pytest.mark.parametrize("group", [1, 2, 3, 4, 7])
def test_it_is_that_of_torch(attend: Attend, group: int, count: int) -> None:
    tensors = numbers(group, count)
    torch.testing.assert_close(attend(*tensors, 0.125).double(), exact(*tensors, 0.125), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scale", [4.0, 30.0])
@pytest.mark.parametrize("place", [0, SEGMENT - 1, SEGMENT, 3 * SEGMENT + 9])
def test_scores_may_differ_by_hundreds(attend: Attend, scale: float, place: int) -> None:
    query, keys, values = numbers(3, 3 * SEGMENT + 10)
    keys[place] = query[1] * 4
    scores = query.double() @ keys.double().T * scale
    assert scores.amax() - scores.amin() > 500
    out = attend(query, keys, values, scale)
    torch.testing.assert_close(out.double(), exact(query, keys, values, scale), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(out[1], values[place].float(), rtol=1e-3, atol=1e-3)


def test_scores_far_below_zero_count_as_those_above(attend: Attend) -> None:
    query, keys, values = numbers(2, SEGMENT + 3)
    keys = (keys.abs() + 1) * -50
    query = query.abs()
    scores = query.double() @ keys.double().T
    assert scores.amax() < -1000
    scale = 1 / 256
    torch.testing.assert_close(
        attend(query, keys, values, scale).double(), exact(query, keys, values, scale), rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("place", [5, SEGMENT + 2])
def test_a_score_that_is_no_number_is_not_lost(attend: Attend, value: float, place: int) -> None:
    query, keys, values = numbers(3, SEGMENT + 4)
    query = query.abs()
    keys[place, 7] = value
    assert torch.isnan(attend(query, keys, values, 0.125)).all()


def test_what_lies_behind_the_tokens_is_not_read(attend: Attend) -> None:
    query, keys, values = numbers(4, 2 * SEGMENT)
    expected = attend(query, keys[: SEGMENT + 3], values[: SEGMENT + 3], 0.125)
    for tensor in (keys, values):
        tensor[SEGMENT + 3 :] = float("nan")
    assert torch.equal(attend(query, keys[: SEGMENT + 3], values[: SEGMENT + 3], 0.125), expected)
