"""What the engine is configured with. Standard library only, so that the window and the app import it without torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Weights(StrEnum):
    """Storage precision of the model's weights. 8 and 4 bit: packed for the CPU's kernels, in groups of 32 as in GGUF;
    through bitsandbytes (LLM.int8, NF4) on CUDA and for families without kernels.
    """

    BITS_16 = "16bit"
    BITS_8 = "8bit"
    BITS_4 = "4bit"


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is drawn. `temperature == 0` is greedy; a neutral value switches a filter off."""

    temperature: float = 0.7
    top_k: int = 0
    top_p: float = 0.95
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0


GREEDY = Sampling(temperature=0.0, top_p=1.0)


class ContextPolicy(StrEnum):
    """What happens when a chat has grown to the length that its model reads. `STOP`: the turn is refused, with the
    numbers. `DROP_OLDEST`: the oldest turns leave the model's view, the system prompt stays. `COMPRESS`: the cache is
    compressed and what is left of it moved together, so that the chat goes on with a thinned-out memory of all of it.
    """

    STOP = "stop"
    DROP_OLDEST = "drop_oldest"
    COMPRESS = "compress"


KV_AUTO = "auto"
KV_PRECISIONS = (KV_AUTO, "int8", "balanced", "compact", "bnb-8bit", "bnb-nf4")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Where the engine keeps its files and how much it may hold.

    kv_dir: root of the KV snapshots. converted_dir: safetensors made once from GGUF files.
    memory_budget_bytes: KV bytes kept in host memory over all conversations; least recently used ones go first.
    device_budget_bytes: the same on the GPU; None takes what the weights leave free.
    disk_cap_bytes: most that all snapshots may take; disk_floor_bytes: free space that saving leaves untouched.
    prefill_chunk: tokens fed per forward pass while prefilling; cancel and progress act between chunks.
    num_threads: None decides by `engine.thread_count`.
    kv_precision: "auto" keeps full precision until memory is short; else the codec that all chats are kept in.
    allows_compression: whether the last rung before refusing to grow may compress the active chat by itself.
    """

    kv_dir: Path
    converted_dir: Path
    memory_budget_bytes: int = 2_048_000_000
    device_budget_bytes: int | None = None
    disk_cap_bytes: int = 20_480_000_000
    disk_floor_bytes: int = 1_024_000_000
    prefill_chunk: int = 512
    num_threads: int | None = None
    kv_precision: str = KV_AUTO
    allows_compression: bool = False
