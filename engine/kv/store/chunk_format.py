"""What a chunk or state file looks like: plain safetensors, its header a function of fingerprint, key and specs.

Only the checksums in it are not known beforehand, and they take the same room whatever they are. So a reader of chunks
rebuilds the header and compares; for states and lossy chunks, whose shapes it cannot know, it parses within the file's
real size.
"""

from __future__ import annotations

import array
import json
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import xxhash

from engine.kv.store.problems import ChunkRejectedError, StoreProblem
from engine.kv.store.records import NewFile, TensorBytes, TensorSpec

FORMAT = "ember-kv-2"
TOKEN_IDS = "token_ids"
MAX_HEADER_BYTES = 1024 * 1024
_MAX_DIMENSIONS = 8
_CHECKSUM_CHARS = 32
_CHECKSUMS = re.compile(rb"[0-9a-f]{32}(,[0-9a-f]{32})*")
_ITEM_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8, "U8": 1, "I8": 1, "U32": 4, "I32": 4, "I64": 8, "BOOL": 1}


def token_ids_spec(num_tokens: int) -> TensorSpec:
    return TensorSpec(TOKEN_IDS, "U32", (num_tokens,), 4)


def chunk_file(key: str, token_ids: Sequence[int], tensors: Sequence[TensorBytes]) -> NewFile:
    """A chunk to be written: its token ids, then `tensors`. Only the ids are copied."""
    ids = memoryview(array.array("I", token_ids)).cast("B")
    return NewFile(key, False, (TensorBytes(token_ids_spec(len(token_ids)), (ids,)), *tensors))


@dataclass(frozen=True, slots=True)
class FileLayout:
    """The header of one file, `before` and `after` its checksums, and the tensors that follow it."""

    before: bytes
    after: bytes
    specs: tuple[TensorSpec, ...]

    @classmethod
    def of(cls, fingerprint: str, key: str, specs: Sequence[TensorSpec]) -> FileLayout:
        specs = tuple(specs)
        after = _after_checksums(specs)
        fields = {
            "format": FORMAT,
            "fingerprint": fingerprint,
            "key": key,
            "specs": xxhash.xxh3_128_hexdigest(after),  # not every reader has something to compare them with
        }
        before = ('{"__metadata__":' + json.dumps(fields, separators=(",", ":"))[:-1] + ',"checksums":"').encode()
        length = len(before) + _checksums_bytes(len(specs)) + len(after)
        padding = b" " * (-length % 8)
        return cls(struct.pack("<Q", length + len(padding)) + before, after + padding, specs)

    @property
    def header_bytes(self) -> int:
        return len(self.before) + _checksums_bytes(len(self.specs)) + len(self.after)

    @property
    def file_bytes(self) -> int:
        return self.header_bytes + sum(spec.nbytes for spec in self.specs)

    def header(self, checksums: Sequence[str] | None = None) -> bytes:
        """The complete header, length field included; blank checksums when they are not known yet."""
        text = ",".join(checksums if checksums is not None else ["0" * _CHECKSUM_CHARS] * len(self.specs))
        return self.before + text.encode("ascii") + self.after

    def checksums(self, raw: bytes) -> list[str] | None:
        """The checksums in a header read from disk; None unless everything else in it is as expected."""
        middle = raw[len(self.before) : len(raw) - len(self.after)]
        is_ours = raw.startswith(self.before) and raw.endswith(self.after) and len(raw) == self.header_bytes
        if not is_ours or not _CHECKSUMS.fullmatch(middle):
            return None
        return middle.decode("ascii").split(",")


def parse_header(raw: bytes, fingerprint: str, key: str, data_bytes: int) -> FileLayout:
    """The layout a file claims, once it fits the `data_bytes` that follow. Raises ChunkRejectedError."""
    try:
        entries = json.loads(raw[8:])
        entries.pop("__metadata__")
        specs = tuple(_parse_spec(name, entry, data_bytes) for name, entry in entries.items())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ChunkRejectedError(StoreProblem.FOREIGN, key, "header unreadable") from error
    layout = FileLayout.of(fingerprint, key, specs)
    if layout.checksums(raw) is None:
        raise ChunkRejectedError(StoreProblem.FOREIGN, key, "header differs")
    return layout


def content_tag(specs: Sequence[TensorSpec], checksums: Sequence[str]) -> str:
    """Names what is in a file, whatever it is called: all there is in its header but fingerprint and key."""
    return xxhash.xxh3_128_hexdigest(_after_checksums(tuple(specs)) + ",".join(checksums).encode("ascii"))


def _parse_spec(name: str, entry: dict[str, Any], data_bytes: int) -> TensorSpec:
    shape = entry["shape"]
    if type(shape) is not list or len(shape) > _MAX_DIMENSIONS:
        raise ValueError("impossible shape")
    if any(type(length) is not int or not 0 <= length <= data_bytes for length in shape):
        raise ValueError("impossible shape")
    return TensorSpec(name, entry["dtype"], tuple(shape), _ITEM_BYTES[entry["dtype"]])


def _checksums_bytes(count: int) -> int:
    return (_CHECKSUM_CHARS + 1) * count - 1 if count else 0


@lru_cache(maxsize=8)
def _after_checksums(specs: tuple[TensorSpec, ...]) -> bytes:
    """From the end of the checksums to the end of the header, without padding."""
    parts = ['"}']
    offset = 0
    for spec in specs:
        shape = ",".join(str(length) for length in spec.shape)
        end = offset + spec.nbytes
        entry = f'{{"dtype":"{spec.dtype}","shape":[{shape}],"data_offsets":[{offset},{end}]}}'
        parts.append(f",{json.dumps(spec.name)}:{entry}")
        offset = end
    return ("".join(parts) + "}").encode()
