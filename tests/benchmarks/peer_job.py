"""What every engine of `make peers` is asked to do: the same token ids, lengths and threads, handed over as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from tokenizers import Tokenizer

# The words that `ember bench` reads, so that its figures and these are of the same text.
TEXT = (
    "A harbour town keeps its own time. The ferries leave when the tide allows, the bakers rise before the gulls, "
    "and the lighthouse keeper writes down every ship that passes, with its cargo, its flag and the hour. "
)
MESSAGE_TOKENS = 12  # of the next message after a restart
WARM_STEPS = 2  # before every measured decode


@dataclass(frozen=True, slots=True)
class Job:
    """`variant` is the engine's own choice, such as the weights or the type of the cache.

    prompts, contexts: numbers of tokens, ascending. steps: decode steps measured at each context. chunk: tokens fed at
    a time while prefilling. is_restart_measured: also save, come back and read one more message.
    scratch: a folder that all rounds of one run share, so that what an engine keeps from its first load is there.
    """

    variant: str
    token_ids: tuple[int, ...]
    prompts: tuple[int, ...]
    contexts: tuple[int, ...]
    steps: int
    threads: int
    chunk: int
    is_restart_measured: bool
    model: Path
    gguf: Path
    scratch: Path

    @property
    def longest(self) -> int:
        """Tokens in the cache when it is full."""
        return max((*self.prompts, *self.contexts))

    @property
    def message(self) -> list[int]:
        """The ids of the next message, which follow the longest context."""
        return list(self.token_ids[self.longest : self.longest + MESSAGE_TOKENS])

    def to_json(self) -> str:
        return json.dumps(asdict(self), default=str)

    @staticmethod
    def from_json(text: str) -> Job:
        fields = json.loads(text)
        for name in ("token_ids", "prompts", "contexts"):
            fields[name] = tuple(fields[name])
        for name in ("model", "gguf", "scratch"):
            fields[name] = Path(fields[name])
        return Job(**fields)


def num_token_ids(prompts: tuple[int, ...], contexts: tuple[int, ...], steps: int) -> int:
    """How many ids such a job needs: what follows the longest context included."""
    return max((*prompts, *contexts)) + max(steps, WARM_STEPS, MESSAGE_TOKENS)


def make_token_ids(model: Path, count: int) -> tuple[int, ...]:
    """`count` ids of the text, again and again, in the model's own vocabulary."""
    ids: list[int] = Tokenizer.from_file(str(model / "tokenizer.json")).encode(TEXT, add_special_tokens=False).ids
    return tuple((ids * (count // len(ids) + 1))[:count])
