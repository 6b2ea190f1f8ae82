"""Content keys: a SHA-256 chain over token ids, seeded by the fingerprint. Equal keys mean equal keys and values.

key_i = SHA-256(key_{i-1} || ids of block i), blocks of `BLOCK_TOKENS`; the last one may be shorter. A chunk on disk
is named by the key of its last block. What went through a lossy codec is not told by its tokens: its chunks have
keys of their own, which name their bytes as well. Never Python's `hash()`: it differs between processes.
"""

from __future__ import annotations

import array
import hashlib
from collections.abc import Sequence

BLOCK_TOKENS = 32
CHUNK_TOKENS = 256


def root_key(fingerprint: str, tag: str = "") -> bytes:
    """The key before the first block. `tag` keeps caches apart that went through a lossy codec; "" is exact."""
    return hashlib.sha256(f"ember-kv|{fingerprint}|{tag}".encode()).digest()


def child_key(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Key of a block of at most `BLOCK_TOKENS` ids that follows `parent`."""
    return hashlib.sha256(parent + array.array("I", token_ids).tobytes()).digest()


def chain_keys(root: bytes, token_ids: Sequence[int]) -> list[bytes]:
    """Keys of all blocks of a sequence, a shorter last one included."""
    keys: list[bytes] = []
    parent = root
    for start in range(0, len(token_ids), BLOCK_TOKENS):
        parent = child_key(parent, token_ids[start : start + BLOCK_TOKENS])
        keys.append(parent)
    return keys


def tagged_key(parent: bytes, token_ids: Sequence[int], tag: str) -> bytes:
    """Key of a lossy chunk that follows the chunk `parent`; `tag` (hex, of one length) names its bytes."""
    return hashlib.sha256(parent + array.array("I", token_ids).tobytes() + bytes.fromhex(tag)).digest()


def chunk_keys(root: bytes, token_ids: Sequence[int]) -> list[str]:
    """Names (hex) of the chunks that hold a sequence: one per `CHUNK_TOKENS`, the last may be shorter."""
    blocks = chain_keys(root, token_ids)
    per_chunk = CHUNK_TOKENS // BLOCK_TOKENS
    return [blocks[min(end, len(blocks)) - 1].hex() for end in range(per_chunk, len(blocks) + per_chunk, per_chunk)]
