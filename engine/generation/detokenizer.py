"""Token ids -> text as it grows. Never shows half a character; special tokens are left out."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers.decoders import DecodeStream
from transformers import PreTrainedTokenizerBase

_REPLACEMENT = "\ufffd"


class Detokenizer:
    """Incremental decoding of one reply. A syllable split over byte tokens appears once it is whole.

    Bytes that form no character are dropped: they appear neither on screen nor in the store.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._backend = tokenizer.backend_tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._held: list[int] = []
        self._told = ""  # of what is held back, what was shown before

    def resume(self, token_ids: Sequence[int]) -> None:
        """Begin after these ids, the text of which was shown: a character cut in two is completed."""
        for token_id in token_ids:
            self.add(token_id)
        self._told = self._readable()

    def add(self, token_id: int) -> str:
        """The text that `token_id` completes; "" while a character is still open."""
        self._held.append(token_id)
        text = self._stream.step(self._backend, token_id)
        if text is None:
            return ""
        self._held.clear()
        return self._untold(text.replace(_REPLACEMENT, ""))

    def flush(self) -> str:
        """What can be read of the ids still held back at the end of the reply."""
        text = self._untold(self._readable())
        self._held.clear()
        return text

    def _readable(self) -> str:
        text: str = self._backend.decode(self._held, skip_special_tokens=True)
        return text.replace(_REPLACEMENT, "")

    def _untold(self, text: str) -> str:
        told, self._told = self._told, ""
        return text.removeprefix(told)
