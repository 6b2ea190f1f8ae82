"""The model without any cache: for every token the whole sequence is computed again."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from engine.kv import attention
from engine.kv.transfer import synchronize


class WithoutCache:
    """A forward pass that is given no cache object and keeps none."""

    def __init__(self, model: PreTrainedModel, device: torch.device) -> None:
        self._model = model
        self._device = device
        self._keeps_logits = "logits_to_keep" in inspect.signature(model.forward).parameters

    @torch.inference_mode()
    def __call__(self, token_ids: Sequence[int]) -> torch.Tensor:
        """Logits after the last of `token_ids`, `[vocab]` in float32."""
        attention.announce(0, None)
        extra: dict[str, object] = {"logits_to_keep": 1} if self._keeps_logits else {}
        input_ids = torch.tensor([list(token_ids)], dtype=torch.long, device=self._device)
        output = self._model(input_ids=input_ids, use_cache=False, **extra)
        logits: torch.Tensor = output.logits[0, -1].float()
        synchronize(self._device)
        return logits
