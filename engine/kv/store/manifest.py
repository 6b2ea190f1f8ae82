"""A manifest as bytes, and back: one line of JSON whose last field is the checksum of all before it.

The checksum is compared before anything is parsed, and what was parsed must encode to the same bytes again.
"""

from __future__ import annotations

import array
import base64
import io
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import xxhash

from engine.kv.block_keys import CHUNK_TOKENS, chunk_keys, root_key, tagged_key
from engine.kv.store.chunk_format import FORMAT
from engine.kv.store.files import KEY
from engine.kv.store.problems import ManifestRejectedError
from engine.kv.store.records import ChunkRef, Manifest, StateRef

_T = TypeVar("_T")

MAX_MANIFEST_BYTES = 64 * 1024 * 1024
LOSSY_TAG = "lossy"
_TAG = re.compile(r"[0-9a-f]{32}")
_SEAL = ',"xxh3_128":"%s"}'
_SEAL_BYTES = len(_SEAL % ("0" * 32))


def root_of(fingerprint: str, *, is_exact: bool) -> bytes:
    """Root of the key chain of a manifest's chunks."""
    return root_key(fingerprint, "" if is_exact else LOSSY_TAG)


def encode_manifest(manifest: Manifest) -> bytes:
    fields: dict[str, object] = {
        "format": FORMAT,
        "conversation_id": manifest.conversation_id,
        "is_exact": manifest.is_exact,
        "precision": manifest.precision,
        "template": manifest.template,
        "chunks": [[chunk.key, chunk.tokens, *([chunk.tag] if chunk.tag else [])] for chunk in manifest.chunks],
        "states": [[state.key, state.position] for state in manifest.states],
        "token_ids": base64.b64encode(ids_to_bytes(manifest.token_ids)).decode("ascii"),
    }
    if not manifest.is_exact:
        fields["codecs"] = manifest.codecs
        fields["kept"] = manifest.kept
    if manifest.moved_tokens:
        fields["moved"] = [manifest.moved_tokens, manifest.shift]
    body = json.dumps(fields, separators=(",", ":"), ensure_ascii=True).encode("ascii")
    return body[:-1] + (_SEAL % xxhash.xxh3_128_hexdigest(body[:-1])).encode("ascii")


def decode_manifest(data: bytes, fingerprint: str) -> Manifest:
    """The manifest, once there is no doubt about it. Raises ManifestRejectedError."""
    body, seal = data[:-_SEAL_BYTES], data[-_SEAL_BYTES:]
    if seal != (_SEAL % xxhash.xxh3_128_hexdigest(body)).encode("ascii"):
        raise ManifestRejectedError("checksum differs")
    try:
        manifest = _parse(json.loads(body + b"}"))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ManifestRejectedError("not a manifest") from error
    check_manifest(manifest, fingerprint)
    if encode_manifest(manifest) != data:
        raise ManifestRejectedError("not as it was written")
    return manifest


def read_manifest(path: Path, fingerprint: str) -> tuple[Manifest, int]:
    """The manifest in a file and the file's size. Raises OSError or ManifestRejectedError; reads a bounded amount."""
    with path.open("rb") as file:
        size = file.seek(0, io.SEEK_END)
        if size > MAX_MANIFEST_BYTES:
            raise ManifestRejectedError("too large")
        file.seek(0)
        data = file.read(size)
    return decode_manifest(data, fingerprint), len(data)


def check_manifest(manifest: Manifest, fingerprint: str) -> None:
    """Raise ManifestRejectedError unless lengths, keys and positions fit the token ids."""
    tokens = len(manifest.token_ids)
    counts = [chunk.tokens for chunk in manifest.chunks]
    if tokens < 1 or sum(counts) != tokens or any(count != CHUNK_TOKENS for count in counts[:-1]):
        raise ManifestRejectedError("chunks and token ids differ in length")
    if not 1 <= counts[-1] <= CHUNK_TOKENS:
        raise ManifestRejectedError("a chunk has an impossible length")
    if any(chunk.tag if manifest.is_exact else not _TAG.fullmatch(chunk.tag) for chunk in manifest.chunks):
        raise ManifestRejectedError("a chunk has an impossible tag")
    if bool(manifest.codecs) is manifest.is_exact:
        raise ManifestRejectedError("codecs of an exact cache, or none of a lossy one")
    if not 0 <= manifest.shift <= manifest.moved_tokens <= (0 if manifest.is_exact else tokens):
        raise ManifestRejectedError("more tokens moved than there are")
    try:
        expected = _expected_keys(manifest, root_of(fingerprint, is_exact=manifest.is_exact))
    except (TypeError, OverflowError) as error:
        raise ManifestRejectedError("token ids out of range") from error
    if [chunk.key for chunk in manifest.chunks] != expected:
        raise ManifestRejectedError("chunk keys do not belong to the token ids")
    for state in manifest.states:
        if not KEY.fullmatch(state.key) or not 1 <= state.position <= tokens:
            raise ManifestRejectedError("a state is impossible")


def lossy_keys(root: bytes, token_ids: Sequence[int], tags: Sequence[str]) -> list[str]:
    """Names of the chunks of a lossy cache."""
    keys: list[str] = []
    parent = root
    for index, tag in enumerate(tags):
        parent = tagged_key(parent, token_ids[index * CHUNK_TOKENS : (index + 1) * CHUNK_TOKENS], tag)
        keys.append(parent.hex())
    return keys


def ids_to_bytes(token_ids: Sequence[int]) -> bytes:
    """Little-endian, four bytes an id."""
    ids = array.array("I", token_ids)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tobytes()


def bytes_to_ids(data: bytes) -> tuple[int, ...]:
    """Raises ValueError if `data` is not made of whole ids."""
    ids = array.array("I")
    ids.frombytes(data)
    if sys.byteorder == "big":
        ids.byteswap()
    return tuple(ids)


def _expected_keys(manifest: Manifest, root: bytes) -> list[str]:
    ids = array.array("I", manifest.token_ids)
    return chunk_keys(root, ids) if manifest.is_exact else lossy_keys(root, ids, [one.tag for one in manifest.chunks])


def _parse(fields: dict[str, Any]) -> Manifest:
    """Raises KeyError, TypeError or ValueError when a field is missing or of another type."""
    if fields["format"] != FORMAT:
        raise ValueError("another format")
    moved_tokens, shift = fields.get("moved", (0, 0))
    return Manifest(
        conversation_id=_typed(fields["conversation_id"], str),
        token_ids=bytes_to_ids(base64.b64decode(_typed(fields["token_ids"], str), validate=True)),
        chunks=tuple(
            ChunkRef(_typed(key, str), _typed(tokens, int), *(_typed(one, str) for one in tag))
            for key, tokens, *tag in fields["chunks"]
        ),
        states=tuple(StateRef(_typed(key, str), _typed(position, int)) for key, position in fields["states"]),
        is_exact=_typed(fields["is_exact"], bool),
        precision=_typed(fields["precision"], str),
        template=_typed(fields["template"], str),
        codecs=tuple(_typed(name, str) for name in fields.get("codecs", ())),
        kept=_typed(fields.get("kept", 1.0), float),
        moved_tokens=_typed(moved_tokens, int),
        shift=_typed(shift, int),
    )


def _typed(value: Any, kind: type[_T]) -> _T:
    if type(value) is not kind:
        raise TypeError(f"not a {kind.__name__}")
    return value
