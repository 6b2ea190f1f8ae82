"""The texts on which a cache scheme is measured: written for Ember, shipped in `resources/fidelity`."""

from __future__ import annotations

from pathlib import Path

from transformers import PreTrainedTokenizerBase

FOLDER = Path(__file__).parents[2] / "resources" / "fidelity"
NAMES = ("prose-en", "prose-ko", "dialogue-en", "dialogue-ko", "code-en", "code-ko")
ENGLISH = ("dialogue-en", "prose-en", "code-en")


def read_text(name: str) -> str:
    return (FOLDER / f"{name}.txt").read_text(encoding="utf-8").strip() + "\n"


class Texts:
    """All of them as ids of one tokenizer, each with the one a tokenizer puts before a text, if it does."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._first: list[int] = [one for one in tokenizer.encode("")[:1] if one == tokenizer.bos_token_id]
        self._ids: dict[str, list[int]] = {
            name: tokenizer.encode(read_text(name), add_special_tokens=False) for name in NAMES
        }

    @property
    def num_tokens(self) -> int:
        """Of all together: the longest window."""
        return len(self._first) + sum(map(len, self._ids.values()))

    def window(self, name: str, count: int) -> list[int]:
        """`count` ids from the beginning of a text; where it is too short, from others that are put before it."""
        room = count - len(self._first)
        ids = self._ids[name][:room]
        before = NAMES.index(name)
        for step in range(1, len(NAMES)):
            if len(ids) >= room:
                break
            other = self._ids[NAMES[before - step]]
            ids = other[-(room - len(ids)) :] + ids
        if len(ids) < room:
            raise ValueError(f"the texts have {self.num_tokens} tokens")
        return self._first + ids
