"""What may be asked of the engine: frozen commands, put on the worker's queue from any thread."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from engine.protocol.config import ContextPolicy, EngineConfig, Sampling, Weights


class Role(StrEnum):
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of the history, oldest first.

    `token_ids` are the ids the model itself generated for `text` (assistant only): they are fed again as they are,
    never re-tokenized. None when the text was edited, imported, or made with another tokenizer.
    """

    role: Role
    text: str
    token_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class LoadModel:
    """Load the model at `path` (a safetensors folder or a GGUF file), replacing the one loaded before."""

    request_id: str
    path: Path
    weights: Weights = Weights.BITS_16


@dataclass(frozen=True, slots=True)
class Generate:
    """Reply to `messages`, whose last one is the user's. Answered by TextArrived ..., then Finished or Failed.

    `branch` names one of several ways the conversation went on: each has a cache of its own, and what they share is
    kept once. `continues`: the last message is the assistant's, cut short, and goes on; the events then carry only what
    is new. `on_overflow`: what to do when the messages leave too little room for a reply (see `ContextPolicy`).
    `started_on` is the day the conversation began: templates that print a date get this one, so that the prompt, and
    with it the cache, stays the same on every later day.
    """

    conversation_id: str
    request_id: str
    messages: tuple[ChatMessage, ...]
    sampling: Sampling
    max_new_tokens: int
    stop: tuple[str, ...] = ()
    started_on: dt.date | None = None
    is_incognito: bool = False
    branch: str = ""
    continues: bool = False
    on_overflow: ContextPolicy = ContextPolicy.STOP


@dataclass(frozen=True, slots=True)
class Pin:
    """Keep these conversations' caches longest when memory or disk runs short; replaces the set given before."""

    conversation_ids: frozenset[str]


@dataclass(frozen=True, slots=True)
class Forget:
    """Drop everything kept for a conversation: its cache in memory and its snapshots on disk."""

    conversation_id: str


@dataclass(frozen=True, slots=True)
class ForgetUnknown:
    """Forget what lies on disk of any conversation but these: a deletion that was cut off is finished at the start."""

    known_ids: frozenset[str]


class CompressMethod(StrEnum):
    """`KVZIP` keeps what the model needs to repeat the chat; `STREAMING` forgets the middle: only start and most
    recent tokens are left.
    """

    KVZIP = "kvzip"
    STREAMING = "streaming"


@dataclass(frozen=True, slots=True)
class Compress:
    """Keep only the share `keep` (0.1 to 0.9) of a conversation's key-value pairs. Answered by Compressed or Failed.

    The system prompt and the most recent tokens are kept whole. `is_int8`: what is kept goes to 8 bits as well. The
    full cache stays on disk, so that `Undo` can bring it back. May be cancelled; nothing has changed then.
    """

    conversation_id: str
    request_id: str
    messages: tuple[ChatMessage, ...]
    keep: float = 0.3
    method: CompressMethod = CompressMethod.KVZIP
    is_int8: bool = False
    started_on: dt.date | None = None
    is_incognito: bool = False
    branch: str = ""


@dataclass(frozen=True, slots=True)
class Undo:
    """Bring a compressed or quantized conversation back to full precision: from disk, else by reading it again.

    Answered by Compressed or Failed.
    """

    conversation_id: str
    request_id: str
    messages: tuple[ChatMessage, ...]
    started_on: dt.date | None = None
    is_incognito: bool = False
    branch: str = ""


@dataclass(frozen=True, slots=True)
class ReportCache:
    """Answered by CacheReported. `conversation_ids` bounds the report; None means every one the engine knows."""

    request_id: str
    conversation_ids: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class ReportBlocks:
    """Answered by BlocksReported, amid a reply too: cheap enough to be asked twice a second."""

    request_id: str


@dataclass(frozen=True, slots=True)
class FreeNow:
    """Put these conversations away from memory to disk, saving them first; None means all. Told by PressureActed.

    What cannot be saved is read again when it is needed.
    """

    conversation_ids: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Verify:
    """Compare the next greedy tokens from the kept cache with a cold prefill. Answered by Verified or Failed."""

    conversation_id: str
    request_id: str
    messages: tuple[ChatMessage, ...]
    num_tokens: int = 32
    started_on: dt.date | None = None
    branch: str = ""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What would `Generate` with these messages cost now? Answered by Estimated or Failed; nothing is changed or read.

    An estimate is dropped unanswered when a newer one for the same conversation waits. `conversation_id` "": a chat
    that is not stored yet. `max_new_tokens` is what the reply may take; None for as much as the policy would leave it.
    """

    conversation_id: str
    request_id: str
    messages: tuple[ChatMessage, ...]
    started_on: dt.date | None = None
    branch: str = ""
    on_overflow: ContextPolicy = ContextPolicy.STOP
    max_new_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class CountTokens:
    """How many tokens each of the texts has under the loaded model. Answered by TokensCounted or Failed."""

    request_id: str
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Configure:
    """Use another configuration from now on: budgets, caps, precision, chunk. Folders and threads stay as they were."""

    config: EngineConfig


class BenchName(StrEnum):
    DECODE = "decode"
    PREFILL = "prefill"
    RESUME = "resume"
    FIDELITY = "fidelity"
    USE_CACHE = "use-cache"
    MEMORY = "memory"
    LOOP = "loop"
    PRECISIONS = "precisions"
    ATTENTION = "attention"
    SHARED_PREFIX = "shared-prefix"
    HEADS = "heads"
    KVZIP = "kvzip"
    PREFILL_DECODE = "prefill-decode"


@dataclass(frozen=True, slots=True)
class RunBench:
    """Measure the loaded model at `context` tokens; None for what is usual, as far as the model reads so much.

    Answered by BenchProgress ..., then BenchFinished or Failed. The chats' caches stay as they are.
    """

    request_id: str
    name: BenchName
    context: int | None = None


Command = (
    LoadModel
    | Generate
    | Estimate
    | CountTokens
    | Configure
    | Pin
    | Forget
    | ForgetUnknown
    | Compress
    | Undo
    | ReportCache
    | ReportBlocks
    | FreeNow
    | Verify
    | RunBench
)
