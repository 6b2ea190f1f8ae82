"""Which form of a chat its next turn begins with: asked before a cache is made, and by whoever wants to know ahead.

Changes nothing. Inference thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from engine.kv.block_keys import BLOCK_TOKENS
from engine.kv.chat_key import conversation_of
from engine.kv.codec_choice import CodecChoice
from engine.kv.outline import Outline
from engine.kv.persistence import Persistence
from engine.kv.prefix import PrefixFiller
from engine.kv.relief import Relief
from engine.kv.resident import Resident, common_prefix
from engine.kv.store.records import Manifest, is_pruned
from engine.model.loader import LoadedModel


class Choices:
    """For the caches of one model."""

    def __init__(
        self, model: LoadedModel, persistence: Persistence, filler: PrefixFiller, relief: Relief, codecs: CodecChoice
    ) -> None:
        self._model = model
        self._persistence = persistence
        self._filler = filler
        self._relief = relief
        self._codecs = codecs

    def comes_back_exact(self, chat: Outline, token_ids: Sequence[int]) -> bool:
        """Whether a chat that pressure quantized is better read from disk, in full precision: quick, and it fits."""
        if chat.is_exact or chat.is_pruned or self._codecs.fixed is not None or chat.length == 0:
            return False
        return self._fits(token_ids) and self._filler.is_soon_exact(chat.key, token_ids, chat.usable(token_ids))

    def lossy_manifest(self, key: str, token_ids: Sequence[int]) -> tuple[Manifest, int] | None:
        """The lossy snapshot that an empty chat begins with, and how many tokens of it are wanted; None for none.

        What the user compressed is; what pressure made smaller only where full precision takes long, or much memory.
        """
        manifest = self._persistence.compressed.catalog.manifest(key) or self._branch_manifest(key, token_ids)
        if manifest is None or not self._model.can_persist:
            return None
        shared = common_prefix(manifest.token_ids, token_ids)
        if shared < manifest.moved_tokens:
            return None
        if shared < min(BLOCK_TOKENS, len(manifest.token_ids)) or not self._takes(manifest, key, token_ids, shared):
            return None
        return manifest, shared

    def moved_branch(
        self, key: str, token_ids: Sequence[int], residents: Iterable[Resident]
    ) -> tuple[Resident, int] | None:
        """What an empty branch without a snapshot begins with: another one whose chat was moved together to fit the
        context, and how much of it. Nothing else holds what it needs."""
        if self._persistence.compressed.catalog.manifest(key) is not None:
            return None
        others = [one for one in residents if conversation_of(one.conversation_id) == conversation_of(key)]
        found = [(one, one.shareable(common_prefix(one.token_ids, token_ids))) for one in others]
        best = max(found, key=lambda pair: pair[1], default=None)
        return best if best is not None and best[1] else None

    def is_resumed_in_place(self, chat: Outline, token_ids: Sequence[int], others: Iterable[Resident]) -> bool:
        """Whether a parked chat's encoded blocks are read where they are: nothing else reaches as far."""
        if chat.is_active or not chat.is_encoded or not self._model.reads_encoded or chat.checkpoints is not None:
            return False
        if not all(part.is_read_in_place for part in chat.parts):
            return False
        if chat.is_pruned:
            return True
        reach = common_prefix(chat.token_ids, token_ids)
        return reach >= max((one.usable(token_ids) for one in others if one.is_exact), default=0)

    def _branch_manifest(self, key: str, token_ids: Sequence[int]) -> Manifest | None:
        """The same on disk."""
        catalog, conversation = self._persistence.compressed.catalog, conversation_of(key)
        keys = [one for one in catalog.conversation_ids() if conversation_of(one) == conversation]
        found = [manifest for one in keys if (manifest := catalog.manifest(one)) is not None and manifest.moved_tokens]
        return max(found, key=lambda one: common_prefix(one.token_ids, token_ids), default=None)

    def _takes(self, manifest: Manifest, key: str, token_ids: Sequence[int], shared: int) -> bool:
        if is_pruned(manifest):
            return self._model.reads_encoded
        if self._codecs.fixed is not None:
            return True
        is_exact_there = self._persistence.exact_reach(key, token_ids) >= shared
        return not (self._fits(token_ids) and (is_exact_there or self._filler.is_soon_exact(key, token_ids, shared)))

    def _fits(self, token_ids: Sequence[int]) -> bool:
        return len(token_ids) * self._model.geometry.bytes_per_token <= self._relief.most_bytes()


def may_share(one: Resident, key: str) -> bool:
    """Whether what a chat holds may serve another: an incognito one only serves branches of its own conversation."""
    return not one.is_incognito or conversation_of(one.conversation_id) == conversation_of(key)
