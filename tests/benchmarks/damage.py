"""What can happen to the files of a KV folder: one random mischief at a time, told in words."""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import xxhash

ABSURD = (2**63, 2**64 - 1, 2**63 - 1, 2**40, 2**31, -1)
_SEAL_START = b',"xxh3_128":"'


@dataclass(frozen=True)
class Folder:
    """A copy of a fingerprint's folder, to be damaged, and one that was made under another fingerprint."""

    root: Path
    foreign: Path

    @property
    def chunks(self) -> list[Path]:
        return sorted(self.root.glob("chunks/*/*"))

    @property
    def states(self) -> list[Path]:
        return sorted(self.root.glob("states/*/*"))

    @property
    def manifests(self) -> list[Path]:
        return sorted(self.root.glob("conversations/*"))

    @property
    def fingerprint(self) -> Path:
        return self.root / "fingerprint.json"

    @property
    def data(self) -> list[Path]:
        return self.chunks + self.states

    @property
    def everything(self) -> list[Path]:
        return [*self.data, *self.manifests, self.fingerprint]

    def name(self, path: Path) -> str:
        relative = path.relative_to(self.root)
        return f"{relative.parts[0]}/{path.stem[:12]}" if len(relative.parts) > 1 else path.name


Mischief = Callable[[Folder, random.Random], str]


def boundaries(data: bytes) -> list[int]:
    """Where the parts of a chunk or state end: length field, header, every tensor."""
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    ends = [start + entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    return [0, 8, start, *ends]


def cut_at_a_boundary(folder: Folder, rng: random.Random) -> str:
    path = rng.choice(folder.data)
    data = path.read_bytes()
    size = rng.choice(boundaries(data)) + rng.choice((-1, 0, 1))
    size = min(max(size, 0), len(data) - 1)
    path.write_bytes(data[:size])
    return f"{folder.name(path)} cut to {size} of {len(data)}"


def cut_anywhere(folder: Folder, rng: random.Random) -> str:
    path = rng.choice(folder.everything)
    data = path.read_bytes()
    size = rng.randrange(len(data))
    path.write_bytes(data[:size])
    return f"{folder.name(path)} cut to {size} of {len(data)}"


def flip_in_the_header(folder: Folder, rng: random.Random) -> str:
    path = rng.choice(folder.data)
    return _flip(folder, path, 0, boundaries(path.read_bytes())[2], rng)


def flip_in_the_ids(folder: Folder, rng: random.Random) -> str:
    path = rng.choice(folder.chunks)
    start, end = boundaries(path.read_bytes())[2:4]
    return _flip(folder, path, start, end, rng)


def flip_in_the_body(folder: Folder, rng: random.Random) -> str:
    path = rng.choice(folder.chunks)
    ends = boundaries(path.read_bytes())
    return _flip(folder, path, ends[3], ends[-1], rng)


def flip_in_a_state(folder: Folder, rng: random.Random) -> str:
    path = rng.choice(folder.states or folder.chunks)
    return _flip(folder, path, boundaries(path.read_bytes())[2], path.stat().st_size, rng)


def flip_in_a_manifest(folder: Folder, rng: random.Random) -> str:
    path = rng.choice(folder.manifests)
    return _flip(folder, path, 0, path.stat().st_size, rng)


def flip_in_the_fingerprint(folder: Folder, rng: random.Random) -> str:
    return _flip(folder, folder.fingerprint, 0, folder.fingerprint.stat().st_size, rng)


def zeros_inside(folder: Folder, rng: random.Random) -> str:
    """As after a power cut: the size is right, a page was never written."""
    path = rng.choice(folder.everything)
    data = bytearray(path.read_bytes())
    start = rng.randrange(len(data))
    end = min(len(data), start + 4096)
    data[start:end] = bytes(end - start)
    path.write_bytes(data)
    return f"{folder.name(path)} zero from {start} to {end}"


def swapped(folder: Folder, rng: random.Random) -> str:
    kinds = [paths for paths in (folder.chunks, folder.states, folder.manifests) if len(paths) > 1]
    first, second = rng.sample(rng.choice(kinds), 2)
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)
    return f"{folder.name(first)} and {folder.name(second)} swapped"


def missing(folder: Folder, rng: random.Random) -> str:
    path = rng.choice(folder.everything)
    path.unlink()
    return f"{folder.name(path)} removed"


def missing_folder(folder: Folder, rng: random.Random) -> str:
    path = rng.choice([*{path.parent for path in folder.data}, *(one for one in folder.root.iterdir() if one.is_dir())])
    shutil.rmtree(path)
    return f"{path.relative_to(folder.root)}/ removed"


def foreign(folder: Folder, rng: random.Random) -> str:
    """A whole and sound file, of another model."""
    path = rng.choice(folder.everything)
    theirs = Folder(folder.foreign, folder.foreign)
    if path == folder.fingerprint:
        source = theirs.fingerprint
    else:
        kind = path.relative_to(folder.root).parts[0]
        source = rng.choice([one for one in theirs.everything if one.relative_to(theirs.root).parts[0] == kind])
    shutil.copyfile(source, path)
    return f"{folder.name(path)} replaced by one of another fingerprint"


def foreign_renamed(folder: Folder, rng: random.Random) -> str:
    """A manifest of another model together with all its files, under our folder's name."""
    for path in Folder(folder.foreign, folder.foreign).everything:
        target = folder.root / path.relative_to(folder.foreign)
        if path.name != folder.fingerprint.name:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    return "all files of another fingerprint put in"


def absurd_length(folder: Folder, rng: random.Random) -> str:
    path = rng.choice(folder.data)
    length = rng.choice(ABSURD) % 2**64
    path.write_bytes(struct.pack("<Q", length) + path.read_bytes()[8:])
    return f"{folder.name(path)} with a header of {length:,} bytes"


def absurd_shape(folder: Folder, rng: random.Random) -> str:
    path = rng.choice(folder.states if folder.states and rng.random() < 0.7 else folder.data)
    data = path.read_bytes()
    start = boundaries(data)[2]
    header = json.loads(data[8:start])
    name = rng.choice([name for name in header if name != "__metadata__"])
    entry, value = header[name], rng.choice((*ABSURD, 1.5, None, "9" * 5000, 10**300))
    match rng.randrange(4):
        case 0:
            entry["shape"] = [value] * rng.randrange(1, 9)
        case 1:
            entry["shape"] = [value, *entry["shape"]]
        case 2:
            entry["data_offsets"] = [0, value]
        case 3:
            entry["dtype"] = rng.choice(("F64", "BOOL", "I64", "X", "U8"))
    _write_header(path, json.dumps(header, separators=(",", ":")).encode(), data[start:])
    return f"{folder.name(path)}: {name} is {str(entry)[:80]}"


def deep_json(folder: Folder, rng: random.Random) -> str:
    path = rng.choice([*folder.data, *folder.manifests, folder.fingerprint])
    depth = rng.choice((500, 2_000, 60_000, 400_000))
    text = rng.choice((b"[" * depth, b'{"a":' * depth, b"[" * depth + b"]" * depth))
    data = path.read_bytes()
    if path in folder.data:
        _write_header(path, text, data[boundaries(data)[2] :])
    elif path in folder.manifests:
        path.write_bytes(_sealed(b'{"format":' + text))
    else:
        path.write_bytes(text)
    return f"{folder.name(path)} with JSON {depth:,} deep"


def absurd_manifest(folder: Folder, rng: random.Random) -> str:
    """Its checksum is right, what it says is not."""
    path = rng.choice(folder.manifests)
    fields = json.loads(path.read_bytes())
    del fields["xxh3_128"]
    number, key = rng.choice(ABSURD), rng.choice([key for key, _ in fields["chunks"]])
    match rng.randrange(7):
        case 0:
            fields["chunks"][-1][1] = number
        case 1:
            fields["chunks"] = [[key, number]] * rng.choice((1, 50_000))
        case 2:
            fields["token_ids"] = rng.choice(("", "AAAA", "////" * 100_000, 7, None))
        case 3:
            fields["states"] = [["../" * 20 + "etc/passwd", 3], [key, number]]
        case 4:
            fields["conversation_id"] = rng.choice(("", "../" * 20, "x" * 100_000, 5))
        case 5:
            fields["is_exact"] = rng.choice((not fields["is_exact"], 1, None))
        case 6:
            fields.pop(rng.choice(list(fields)))
    path.write_bytes(_sealed(json.dumps(fields, separators=(",", ":")).encode()[:-1]))
    return f"{folder.name(path)}: {str(fields)[:60]} ..."


def empty(folder: Folder, rng: random.Random) -> str:
    path = rng.choice(folder.everything)
    path.write_bytes(b"")
    return f"{folder.name(path)} emptied"


def longer(folder: Folder, rng: random.Random) -> str:
    path = rng.choice(folder.everything)
    extra = rng.choice((1, 8, 4096, 3_000_000))
    path.write_bytes(path.read_bytes() + bytes(extra))
    return f"{folder.name(path)} longer by {extra:,}"


def folder_instead(folder: Folder, rng: random.Random) -> str:
    path = rng.choice(folder.everything)
    path.unlink()
    path.mkdir()
    is_filled = rng.random() < 0.5
    if is_filled:
        (path / "something").write_bytes(b"else")
    return f"{folder.name(path)} is a folder{' with something in it' if is_filled else ''}"


def file_instead(folder: Folder, rng: random.Random) -> str:
    path = rng.choice([*{path.parent for path in folder.data}, *(one for one in folder.root.iterdir() if one.is_dir())])
    shutil.rmtree(path)
    path.write_bytes(b"not a folder")
    return f"{path.relative_to(folder.root)}/ is a file"


def dangling_link(folder: Folder, rng: random.Random) -> str:
    path = rng.choice(folder.everything)
    path.unlink()
    target = rng.choice((path.with_name("nowhere"), path))  # a link to itself is a loop
    path.symlink_to(target)
    return f"{folder.name(path)} links to {'itself' if target == path else 'nothing'}"


KINDS: dict[str, Mischief] = {
    mischief.__name__.replace("_", " "): mischief
    for mischief in (
        cut_at_a_boundary,
        cut_anywhere,
        flip_in_the_header,
        flip_in_the_ids,
        flip_in_the_body,
        flip_in_a_state,
        flip_in_a_manifest,
        flip_in_the_fingerprint,
        zeros_inside,
        swapped,
        missing,
        missing_folder,
        foreign,
        foreign_renamed,
        absurd_length,
        absurd_shape,
        deep_json,
        absurd_manifest,
        empty,
        longer,
        folder_instead,
        file_instead,
        dangling_link,
    )
}


def _flip(folder: Folder, path: Path, start: int, end: int, rng: random.Random) -> str:
    data = bytearray(path.read_bytes())
    places = [rng.randrange(start, end) for _ in range(rng.choice((1, 1, 1, 4, 64)))]
    for place in places:
        data[place] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    return f"{folder.name(path)} with {len(places)} bits flipped at {places[:4]}"


def _write_header(path: Path, header: bytes, body: bytes) -> None:
    header += b" " * (-len(header) % 8)
    path.write_bytes(struct.pack("<Q", len(header)) + header + body)


def _sealed(body: bytes) -> bytes:
    return body + _SEAL_START + xxhash.xxh3_128_hexdigest(body).encode() + b'"}'
