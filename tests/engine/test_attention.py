"""Our attention against the textbook form in float64."""

from __future__ import annotations

import pytest
import torch

from engine.kv.attention import attend_causal, ember_attention_forward


def reference(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    group = query.shape[1] // key.shape[1]
    q, k, v = (t.double() for t in (query, key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)))
    scores = q @ k.transpose(2, 3) * query.shape[-1] ** -0.5
    new, total = scores.shape[-2:]
    visible = torch.ones(new, total, dtype=torch.bool).tril(total - new)
    return scores.masked_fill(~visible, -torch.inf).softmax(-1) @ v


@pytest.mark.parametrize("heads", [(9, 3), (4, 4), (8, 1)])
@pytest.mark.parametrize("new", [1, 2, 31, 33])
@pytest.mark.parametrize("past", [0, 1, 64, 511])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 2e-2)])
def test_it_equals_the_textbook(
    heads: tuple[int, int], new: int, past: int, dtype: torch.dtype, tolerance: float
) -> None:
    torch.manual_seed(past + new)
    query = torch.randn(1, heads[0], new, 64, dtype=dtype)
    buffer = torch.randn(2, 1, heads[1], past + new + 7, 64, dtype=dtype)  # views with slack, as in the arena
    key, value = buffer[0][:, :, : past + new], buffer[1][:, :, : past + new]
    result = attend_causal(query, key, value, None)
    assert result.dtype == dtype
    assert (result.double() - reference(query, key, value)).abs().max() < tolerance


def test_a_new_token_does_not_see_the_ones_after_it() -> None:
    torch.manual_seed(0)
    query = torch.randn(1, 4, 3, 32)
    key, value = torch.randn(1, 2, 10, 32), torch.randn(1, 2, 10, 32)
    before = attend_causal(query, key, value, None)
    key[:, :, -1], value[:, :, -1] = 9.0, 9.0
    after = attend_causal(query, key, value, None)
    assert torch.equal(before[:, :, :2], after[:, :, :2])
    assert not torch.equal(before[:, :, 2], after[:, :, 2])


@pytest.mark.parametrize("new", [1, 2, 33])
@pytest.mark.parametrize("past", [0, 1, 40])
def test_values_narrower_than_keys_are_attended_right_too(new: int, past: int) -> None:
    """What goes to transformers' form (latent attention) still sees all that was before it."""
    torch.manual_seed(past + new)
    module = torch.nn.Module()
    module.num_key_value_groups, module.is_causal = 2, True
    query = torch.randn(1, 4, new, 24)
    key, value = torch.randn(1, 2, past + new, 24), torch.randn(1, 2, past + new, 12)
    result, _ = ember_attention_forward(module, query, key, value, None)
    assert (result.transpose(1, 2).double() - reference(query, key, value)).abs().max() < 2e-6
