"""Token ids -> text as it grows. Never shows half a character; special tokens are left out."""

from __future__ import annotations

from tokenizers.decoders import DecodeStream
from transformers import PreTrainedTokenizerBase


class Detokenizer:
    """Incremental decoding of one reply. A syllable split over byte tokens appears once it is whole."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._backend = tokenizer.backend_tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)

    def add(self, token_id: int) -> str:
        """The text that `token_id` completes; "" while a character is still open."""
        return self._stream.step(self._backend, token_id) or ""
