"""One forward pass of the model over a cache: the only place where tokens are fed, so where they are counted."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from engine.kv.working_cache import KVCache


class ForwardPass:
    """Feeds token ids to the model on top of a cache. `tokens_fed` counts them since the program started."""

    def __init__(self, model: PreTrainedModel, device: torch.device) -> None:
        self.tokens_fed = 0
        self._model = model
        self._device = device
        parameters = inspect.signature(model.forward).parameters
        self._extra = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}

    @torch.inference_mode()
    def __call__(self, token_ids: Sequence[int], cache: KVCache) -> torch.Tensor:
        """Feed `token_ids` (at least one) and return the logits after the last of them, `[vocab]` in float32.

        The cache is extended by the ids; on any exception it is back to where it was, or empty if it cannot be cropped.
        """
        before = cache.length
        try:
            input_ids = torch.tensor([list(token_ids)], dtype=torch.long, device=self._device)
            output = self._model(input_ids=input_ids, cache=cache, use_cache=True, **self._extra)
            logits: torch.Tensor = output.logits[0, -1].float()
        except BaseException:
            cache.truncate(before if cache.can_crop else 0)
            raise
        self.tokens_fed += len(token_ids)
        cache.append_ids(list(token_ids))
        return logits
