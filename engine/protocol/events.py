"""What the engine tells: frozen events, delivered in order on the worker thread through one callback.

Every event of a request carries its `request_id`, and its `conversation_id` where there is one. Bytes and counts are
plain ints inside dataclasses (a Qt `Signal(int)` would wrap past 2^31); a missing value is None, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from engine.protocol.config import Weights
from engine.protocol.misses import SaveProblem


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"


class Phase(StrEnum):
    """What the engine does for a request now; the meter shows it."""

    LOADING = "loading"
    RESTORING = "restoring"
    PREFILL = "prefill"
    COMPRESSING = "compressing"
    ANSWERING = "answering"
    SAVING = "saving"


class LoadStage(StrEnum):
    IMPORTING = "importing"
    CONVERTING = "converting"
    TOKENIZER = "tokenizer"
    WEIGHTS = "weights"
    WARMING_UP = "warming_up"


class CacheState(StrEnum):
    WARM = "warm"
    ON_DISK = "on_disk"
    COLD = "cold"


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The loaded model. `weights_bytes`: parameters and buffers in memory, of which `second_copy_bytes` are the packed
    numbers that a 16-bit model decodes with. `kv_bytes_per_token`: all layers.

    `cannot_resume_reason` is None when conversations can be saved and restored. `tokenizer_id` identifies the
    vocabulary: stored token ids are only reused under the same one.
    """

    name: str
    path: Path
    family: str
    num_layers: int
    num_kv_heads: int
    num_heads: int
    head_dim: int
    context_length: int
    kv_bytes_per_token: int
    weights: Weights
    weights_bytes: int
    dtype: str
    device: str
    tokenizer_id: str
    load_s: float
    cannot_resume_reason: str | None = None
    notes: tuple[str, ...] = ()
    second_copy_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ModelLoading:
    """`fraction` in 0..1, or None while the length of the stage is unknown."""

    request_id: str
    stage: LoadStage
    fraction: float | None


@dataclass(frozen=True, slots=True)
class ModelLoaded:
    request_id: str
    model: ModelInfo


@dataclass(frozen=True, slots=True)
class PhaseChanged:
    """Progress of a request. `done_tokens` of `total_tokens` in this phase; `remaining_s` is an estimate or None."""

    conversation_id: str
    request_id: str
    phase: Phase
    done_tokens: int | None = None
    total_tokens: int | None = None
    remaining_s: float | None = None


@dataclass(frozen=True, slots=True)
class TextArrived:
    """New text of the reply, coalesced to about 30 a second, with the ids generated since the last one.

    Texts concatenate to the reply; ids concatenate to all ids generated (the text may lag behind by a held-back
    partial character or stop string).
    """

    conversation_id: str
    request_id: str
    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CacheReading:
    """KV cache of one conversation: cached tokens, their bytes, precision ("bf16", "float32") and place.

    `kept` is the share of their key-value pairs that compressing has left.
    """

    tokens: int
    bytes: int
    precision: str
    place: str
    kept: float = 1.0


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """Bytes; other programs are counted, since `*_free` is what the system says is free. Device fields: CUDA only."""

    process_bytes: int
    host_free_bytes: int
    host_total_bytes: int
    device_free_bytes: int | None = None
    device_total_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class StatisticsChanged:
    """The meter's reading while a request runs, at most about 10 a second; the last one is always sent."""

    conversation_id: str
    request_id: str
    context_tokens: int
    context_length: int
    cache: CacheReading
    all_caches_bytes: int
    memory: MemoryReading
    ttft_s: float | None
    decode_tps: float | None


@dataclass(frozen=True, slots=True)
class TurnStatistics:
    """What one reply cost, kept with the message. Times in seconds, speeds in tokens a second.

    `ttft_s` runs from the request (model already loaded) to the first token, restore included; None if none came.
    `prefilled_tokens` counts the tokens fed to the model before the first new one, where they are fed.
    `decode_tps` never mixes in the time to the first token; None for fewer than two tokens.
    `miss_reason` says why tokens that had been read before were read again; None when nothing was. `miss_code` (a
    `MissCode`) and `miss_params` say the same for the window's words. `drafted_tokens` were fed as guesses of what the
    chat repeats; `accepted_tokens` of them the model chose: passes that the reply did without.
    """

    prompt_tokens: int
    reused_tokens: int
    prefilled_tokens: int
    new_tokens: int
    miss_reason: str | None
    load_s: float
    restore_s: float
    ttft_s: float | None
    prefill_tps: float | None
    decode_tps: float | None
    cache: CacheReading
    miss_code: str | None = None
    miss_params: dict[str, str] = field(default_factory=dict)
    drafted_tokens: int = 0
    accepted_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """The whole reply. `token_ids` are the generated ids without the end-of-turn id.

    `ids_match_text` is False when a stop string cut the text inside a token: the ids must not be fed again as history.
    """

    conversation_id: str
    request_id: str
    text: str
    token_ids: tuple[int, ...]
    ids_match_text: bool
    finish_reason: FinishReason
    statistics: TurnStatistics
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Failed:
    """A request ended in a known failure (`EngineError`) or, with code "bug", in an unknown one, which is logged."""

    request_id: str
    conversation_id: str | None
    code: str
    message: str
    params: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ViewMoved:
    """The oldest `num_dropped` messages of the request, the system prompt not counted, left the model's view: later
    requests come without them. `tokens` are left in view. `is_ahead`: moved after the turn, for the next one.
    """

    conversation_id: str
    request_id: str
    num_dropped: int
    tokens: int
    is_ahead: bool = False


@dataclass(frozen=True, slots=True)
class Estimated:
    """The answer to `Estimate`: `prompt_tokens` in all, `new_tokens` of which would be fed to the model, exactly; the
    time to the first token in seconds, None while no speed is known.

    `from_disk_tokens` of the rest would be restored. `miss_code` and `miss_params` say why what had been read before
    must be read again, as in `TurnStatistics`. `num_dropped`: messages that would leave the model's view. `fits` is
    False when the prompt leaves no room for a reply, whatever the policy does.
    """

    conversation_id: str
    request_id: str
    prompt_tokens: int
    new_tokens: int
    from_disk_tokens: int
    seconds: float | None
    context_length: int
    num_dropped: int = 0
    fits: bool = True
    miss_code: str | None = None
    miss_params: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TokensCounted:
    """The answer to `CountTokens`, in the order of its texts."""

    request_id: str
    counts: tuple[int, ...]
    context_length: int


@dataclass(frozen=True, slots=True)
class SnapshotSaved:
    """The conversation's cache is on disk. `bytes_written` by this save, `bytes_total` of the whole snapshot."""

    conversation_id: str
    request_id: str
    tokens: int
    bytes_written: int
    bytes_total: int
    save_s: float


@dataclass(frozen=True, slots=True)
class SnapshotNotSaved:
    """Saving stopped (disk full, unable model, ...); chatting goes on. `reason` is one English sentence."""

    conversation_id: str
    request_id: str
    reason: str
    code: SaveProblem = SaveProblem.DISK_ERROR
    params: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PressureActed:
    """One step taken to free memory or disk. `action`: save, quantize, compress, to_host, drop or evict_disk.

    `bytes_freed` in the place that was tight; `comes_back_s` is the estimated time until the chat is ready again.
    `precision`: what a quantized or compressed chat has from now on.
    """

    conversation_id: str
    action: str
    bytes_freed: int
    comes_back_s: float | None
    memory_bytes: int
    budget_bytes: int
    precision: str = ""


@dataclass(frozen=True, slots=True)
class Compressed:
    """The answer to `Compress` and `Undo`. `kept` is the share of all key-value pairs that is left, 1.0 after an undo;
    `bytes_before`, `bytes_after` of the conversation's cache in memory; `read_tokens` had to be read (again) for it.
    """

    conversation_id: str
    request_id: str
    tokens: int
    kept: float
    precision: str
    bytes_before: int
    bytes_after: int
    seconds: float
    read_tokens: int = 0


@dataclass(frozen=True, slots=True)
class CodecsProbed:
    """What each codec costs with this model on a short text: KL divergence of its predictions in nats a token.

    `refused` are too bad for it and never used; infinity stands for a codec that does not work with this model at all.
    """

    kl: dict[str, float]
    refused: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ConversationCache:
    """Where one conversation's cache is: in memory, on disk, both or nowhere.

    `memory_bytes` counts shared blocks in full; `shared_bytes` of them (or, for a chat that is only on disk, of its
    files) are held by other chats too. `waste_bytes`: slack of its own buffers. `precision`: "bf16", "int8", "mixed",
    "balanced", "compact", "bnb-8bit", "bnb-nf4", "kvzip", "kvzip-int8", "streaming". `kept`: see `CacheReading`.
    """

    conversation_id: str
    tokens: int
    memory_bytes: int
    disk_bytes: int
    shared_bytes: int
    precision: str
    place: str
    state: CacheState
    waste_bytes: int = 0
    is_pinned: bool = False
    kept: float = 1.0


@dataclass(frozen=True, slots=True)
class CacheReported:
    """The whole cache. `memory_bytes` and `disk_bytes` count what is shared once: they are the sums of the tensors and
    of the files. `waste_ratio` is the share of the chats' buffers that holds no cached token; `spare_bytes` of the
    memory belong to no chat, but are kept ready for the next one.
    """

    request_id: str | None
    budget_bytes: int
    memory_bytes: int
    disk_bytes: int
    shared_bytes: int
    waste_ratio: float
    conversations: tuple[ConversationCache, ...]
    device_bytes: int = 0
    disk_cap_bytes: int | None = None
    spare_bytes: int = 0
    memory: MemoryReading | None = None


class BlockPlace(StrEnum):
    MEMORY = "memory"
    DEVICE = "device"
    DISK = "disk"


@dataclass(frozen=True, slots=True)
class BlockRun:
    """`count` blocks of 32 tokens that are alike, the last one perhaps shorter: `tokens` in all, in `bytes`.

    `precision` as in `CacheReading`. `is_shared`: another conversation holds them too; their bytes are in both.
    """

    count: int
    tokens: int
    precision: str
    is_shared: bool
    place: BlockPlace
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class ConversationBlocks:
    """Where the blocks of one conversation are, in order; what its other branches have of their own comes after.

    `tokens`, `precision` and `kept` are those of the branch used last. `held_bytes` of memory: those of the runs there
    and the slack of its buffers. `comes_back_s`: for one on disk, as far as the disk's speed has been measured.
    """

    conversation_id: str
    runs: tuple[BlockRun, ...]
    tokens: int = 0
    precision: str = ""
    kept: float = 1.0
    held_bytes: int = 0
    comes_back_s: float | None = None


@dataclass(frozen=True, slots=True)
class BlocksReported:
    """The answer to `ReportBlocks`: conversations in memory, most recent first, then those on disk only.

    Numbers that `CacheReported` has as well are the same there. Above `high_water_bytes` room is made, down to
    `low_water_bytes`.
    """

    request_id: str
    conversations: tuple[ConversationBlocks, ...]
    memory_bytes: int
    budget_bytes: int
    disk_bytes: int
    high_water_bytes: int
    low_water_bytes: int
    disk_cap_bytes: int
    spare_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Verified:
    """See `Verify`. Logit errors are absolute differences in float32."""

    conversation_id: str
    request_id: str
    equal: bool
    tokens_compared: int
    first_difference: int | None
    max_logit_error: float
    noise_floor: float
    precision: str


@dataclass(frozen=True, slots=True)
class BenchProgress:
    """A measurement has done `done` of `total` steps. `row` is one that the result will have, as soon as it is known:
    a plot can grow by it; None where there is no new one.
    """

    request_id: str
    done: int
    total: int
    row: dict[str, object] | None = None


@dataclass(frozen=True, slots=True)
class BenchFinished:
    """`result` is the JSON object of the public contract, plain numbers and strings."""

    request_id: str
    result: dict[str, object]


@dataclass(frozen=True, slots=True)
class EngineStopped:
    """The worker thread has ended; nothing follows."""


Event = (
    ModelLoading
    | ModelLoaded
    | PhaseChanged
    | TextArrived
    | StatisticsChanged
    | Finished
    | ViewMoved
    | Estimated
    | TokensCounted
    | Failed
    | SnapshotSaved
    | SnapshotNotSaved
    | PressureActed
    | Compressed
    | CodecsProbed
    | CacheReported
    | BlocksReported
    | Verified
    | BenchProgress
    | BenchFinished
    | EngineStopped
)
