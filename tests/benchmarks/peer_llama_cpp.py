"""llama.cpp through llama-cpp-python, one of the engines of `make peers`, with the GGUF file of the same weights.

The variant is the type of its KV cache, f16 or q8_0; "-flash" after it asks for flash attention, which q8_0 needs.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence

import llama_cpp
import numpy as np

from tests.benchmarks import peer_measures
from tests.benchmarks.peer_job import Job

_MIN_CONTEXT = 8192
_TYPES = {"f16": llama_cpp.GGML_TYPE_F16, "q8_0": llama_cpp.GGML_TYPE_Q8_0}


class LlamaCppPeer:
    def __init__(self, job: Job) -> None:
        cache_type, _, flash = job.variant.partition("-")
        self._llama = llama_cpp.Llama(
            str(job.gguf),
            n_ctx=max(_MIN_CONTEXT, len(job.token_ids)),
            n_batch=job.chunk,
            n_ubatch=job.chunk,
            n_threads=job.threads,
            n_threads_batch=job.threads,
            type_k=_TYPES[cache_type],
            type_v=_TYPES[cache_type],
            flash_attn=bool(flash),
            verbose=False,
        )
        self._context = self._llama.ctx

    def feed(self, token_ids: Sequence[int]) -> None:
        self._llama.eval(token_ids)

    def greedy(self) -> int:
        logits = llama_cpp.llama_get_logits_ith(self._context, -1)
        return int(np.ctypeslib.as_array(logits, (self._llama.n_vocab(),)).argmax())

    def rollback(self, num_tokens: int) -> None:
        """The tokens beyond are taken out of the cache by the next `eval` as well; here so that a save has none."""
        self._llama.n_tokens = num_tokens
        llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(self._context), 0, num_tokens, -1)

    def kv_bytes_per_token(self) -> float:
        return int(llama_cpp.llama_state_seq_get_size(self._context, 0)) / int(self._llama.n_tokens)

    def restart(self, job: Job) -> dict[str, float] | None:
        """A state file of the one sequence, as llama.cpp's own programs write and read it."""
        count = job.longest
        path = job.scratch / "llama.state"
        ids = (llama_cpp.llama_token * count)(*job.token_ids[:count])
        started = time.perf_counter()
        saved_bytes = llama_cpp.llama_state_seq_save_file(self._context, str(path).encode(), 0, ids, count)
        save_s = time.perf_counter() - started
        self.rollback(0)
        read_ids, num_read = (llama_cpp.llama_token * count)(), ctypes.c_size_t()
        started = time.perf_counter()
        read_bytes = llama_cpp.llama_state_seq_load_file(
            self._context, str(path).encode(), 0, read_ids, count, ctypes.byref(num_read)
        )
        restore_s = time.perf_counter() - started
        path.unlink()
        if read_bytes != saved_bytes or list(read_ids) != list(ids):
            raise RuntimeError("the state file did not come back whole")
        self._llama.n_tokens = count
        self._llama.eval(job.message)
        resumed_s = time.perf_counter() - started
        return {"save_s": save_s, "saved_bytes": saved_bytes, "restore_s": restore_s, "resumed_ttft_s": resumed_s}

    def note(self) -> str:
        return ""

    def close(self) -> None:
        self._llama.close()


if __name__ == "__main__":
    peer_measures.run(LlamaCppPeer)
