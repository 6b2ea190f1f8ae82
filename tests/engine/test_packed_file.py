"""A file of packed matrices is there whole or not at all, and one that is not right is never used."""

from __future__ import annotations

import errno
import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.kernels.packing import Format, Matrix, quantize, unpack
from engine.model import packed_file
from engine.model.packed_file import Shape, is_current, read, write

WEIGHTS = "0123456789abcdef"


def some_matrices() -> dict[str, Matrix]:
    torch.manual_seed(1)
    return {
        "model.layers.0.mlp.up_proj": quantize(torch.randn(48, 96), Format.Q4),
        "model.embed_tokens": quantize(torch.randn(320, 32), Format.Q8),
        "lm_head": quantize(torch.randn(16, 32), Format.Q4),
    }


def shapes_of(matrices: dict[str, Matrix]) -> dict[str, Shape]:
    return {name: Shape(matrix.format, matrix.rows, matrix.columns) for name, matrix in matrices.items()}


@pytest.fixture
def matrices() -> dict[str, Matrix]:
    return some_matrices()


@pytest.fixture
def file(tmp_path: Path, matrices: dict[str, Matrix]) -> Path:
    path = tmp_path / "packed" / "model.safetensors"
    write(path, WEIGHTS, shapes_of(matrices), matrices.items())
    return path


def test_matrices_come_back_and_a_register_of_words_lies_in_one_cache_line(file, matrices):
    found = read(file, WEIGHTS)
    assert found is not None
    assert found.keys() == matrices.keys()
    for name, matrix in matrices.items():
        assert (found[name].format, found[name].rows, found[name].columns) == (
            matrix.format,
            matrix.rows,
            matrix.columns,
        )
        assert torch.equal(unpack(found[name], torch.float32), unpack(matrix, torch.float32))
        assert found[name].words.data_ptr() % 64 == 0
        assert shapes_of(matrices)[name].nbytes == matrix.nbytes


def test_any_program_can_read_the_file(file, matrices):
    tensors = load_file(file)
    assert len(tensors) == 8
    assert torch.equal(tensors["lm_head.minima"], matrices["lm_head"].minima)


def test_nothing_else_is_left_beside_it(file):
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    assert file.stat().st_mode & 0o777 == 0o644


def test_a_file_of_no_matrices_says_that_there_are_none(tmp_path):
    write(tmp_path / "empty.safetensors", WEIGHTS, {}, [])
    assert read(tmp_path / "empty.safetensors", WEIGHTS) == {}
    assert is_current(tmp_path / "empty.safetensors")


def test_the_file_of_other_weights_is_not_used(file):
    assert read(file, "another") is None
    assert read(file.with_name("gone"), WEIGHTS) is None
    assert not is_current(file.with_name("gone"))


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1000] ^= 4
    path.write_bytes(content)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-64])


def cut_in_the_header(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def another_version(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"version":"1"', b'"version":"0"'))


def another_program(path: Path) -> None:
    save_file({"lm_head.words": torch.zeros(1, 4, 16, 2, dtype=torch.int16)}, path)


@pytest.mark.parametrize("spoil", [flip_a_bit, cut_short, cut_in_the_header, empty, another_version, another_program])
def test_a_spoilt_file_is_not_used(file, spoil: Callable[[Path], None]):
    spoil(file)
    assert read(file, WEIGHTS) is None


def test_a_matrix_whose_parts_do_not_fit_together_is_left_out(tmp_path):
    """Only another program's doing, with the right checksum: the kernels must never see it."""
    path = tmp_path / "odd.safetensors"
    words = torch.zeros(1, 8, 16, 2, dtype=torch.int16)
    save_file({"a.words": words, "a.scales": torch.zeros(1, 3, 16, dtype=torch.float16)}, path)
    metadata = {"version": packed_file.VERSION, "weights": WEIGHTS, "digest": packed_file._digest(path)}
    save_file(load_file(path), path, metadata=metadata)
    assert read(path, WEIGHTS) == {}


def test_a_full_disk_leaves_nothing_new_and_what_was_there(file, matrices):
    def until_full() -> Iterator[tuple[str, Matrix]]:
        yield next(iter(matrices.items()))
        raise OSError(errno.ENOSPC, "No space left on device")

    before = file.read_bytes()
    with pytest.raises(OSError, match="No space"):
        write(file, "newer", shapes_of(matrices), until_full())
    assert file.read_bytes() == before
    assert len(list(file.parent.iterdir())) == 1


def test_the_header_is_plain_json(file):
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    assert (8 + length) % 64 == 0
    assert json.loads(content[8 : 8 + length])["__metadata__"]["weights"] == WEIGHTS
