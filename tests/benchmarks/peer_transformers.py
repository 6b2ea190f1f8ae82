"""transformers as it comes, one of the engines of `make peers`: bfloat16, SDPA, DynamicCache and a plain loop.

A chat that was closed has to be read again: there is no way of its own to save a cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.cache_utils import DynamicCache
from transformers.utils import logging

from tests.benchmarks import peer_measures
from tests.benchmarks.peer_job import Job


class TransformersPeer:
    def __init__(self, job: Job) -> None:
        torch.set_num_threads(job.threads)
        logging.disable_progress_bar()
        self._model: Any = AutoModelForCausalLM.from_pretrained(
            job.model, dtype=torch.bfloat16, attn_implementation="sdpa", local_files_only=True
        )
        self._model.eval()
        self._cache = DynamicCache(config=self._model.config)
        self._logits = torch.empty(0)

    @torch.inference_mode()
    def feed(self, token_ids: Sequence[int]) -> None:
        output = self._model(
            input_ids=torch.tensor([list(token_ids)]), cache=self._cache, use_cache=True, logits_to_keep=1
        )
        self._logits = output.logits[0, -1]

    def greedy(self) -> int:
        return int(self._logits.argmax())

    def rollback(self, num_tokens: int) -> None:
        if num_tokens == 0:
            self._cache = DynamicCache(config=self._model.config)
        elif surplus := self._cache.get_seq_length() - num_tokens:
            self._cache.crop(-surplus)

    def kv_bytes_per_token(self) -> float:
        layers: list[Any] = list(self._cache.layers)
        nbytes = sum(int(layer.keys.nbytes + layer.values.nbytes) for layer in layers)
        return nbytes / int(self._cache.get_seq_length())

    def restart(self, job: Job) -> dict[str, float] | None:
        return None

    def note(self) -> str:
        return ""

    def close(self) -> None:
        pass


if __name__ == "__main__":
    peer_measures.run(TransformersPeer)
