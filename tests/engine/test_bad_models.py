"""What people choose by mistake: each is named, with what to do, and the engine goes on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.protocol.events import Failed, ModelLoaded
from tests.engine.conftest import Engine, user

StartEngine = Callable[..., Engine]


def _html(folder: Path) -> None:
    (folder / "model.safetensors").write_text("<!DOCTYPE html><html><body>404</body></html>" * 50)


def _lfs_pointer(folder: Path) -> None:
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")


def _half(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _empty(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")


def _no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def _pickle(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def _no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def _broken_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "lla')


def _vision(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "vit", "architectures": ["ViTModel"]}))


def _no_tokenizer(folder: Path) -> None:
    for file in folder.glob("token*"):
        file.unlink()


def _broken_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"version": "1.0", "model": 7}')


def _missing_tensor(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["num_hidden_layers"] += 1
    if "layer_types" in config:
        config["layer_types"] = [*config["layer_types"], config["layer_types"][-1]]
    (folder / "config.json").write_text(json.dumps(config))


def _missing_shard(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": "model-00002.safetensors"}}))


@pytest.mark.parametrize(
    ("spoil", "code", "words"),
    [
        (_html, "model_damaged", "web page"),
        (_lfs_pointer, "model_damaged", "Git LFS pointer"),
        (_half, "model_damaged", "cut short"),
        (_empty, "model_damaged", "cut short"),
        (_no_weights, "not_a_language_model", "no weights"),
        (_pickle, "not_a_language_model", "pickled"),
        (_no_config, "not_a_language_model", "no config.json"),
        (_broken_config, "model_damaged", "not valid JSON"),
        (_vision, "not_a_language_model", "cannot chat"),
        (_no_tokenizer, "not_a_language_model", "no tokenizer"),
        (_broken_tokenizer, "model_damaged", "tokenizer"),
        (_missing_tensor, "model_damaged", "lack"),
        (_missing_shard, "model_damaged", "missing"),
    ],
)
def test_a_bad_folder_is_named_and_a_good_one_loads_afterwards(
    start_engine: StartEngine,
    tiny_model: Path,
    tmp_path: Path,
    spoil: Callable[[Path], None],
    code: str,
    words: str,
) -> None:
    folder = tmp_path / "bad"
    shutil.copytree(tiny_model, folder)
    spoil(folder)
    engine = start_engine()
    failed = engine.load(folder)
    assert isinstance(failed, Failed), failed
    assert failed.code == code
    assert words in failed.message
    assert "\n" not in failed.message
    assert isinstance(engine.load(tiny_model), ModelLoaded)
    assert engine.reply("a", [user("hello")]).token_ids


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("gone", None, "model_not_found"),
        ("gone.gguf", None, "model_not_found"),
        ("page.gguf", b"<html>not here</html>", "model_damaged"),
        ("empty.gguf", b"", "model_damaged"),
        ("half.gguf", b"GGUF\x03\x00\x00\x00" + b"\xff" * 60, "model_damaged"),
        ("letter.txt", b"dear reader", "not_a_language_model"),
    ],
)
def test_a_bad_file_is_named(
    start_engine: StartEngine, tmp_path: Path, name: str, content: bytes | None, code: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    failed = start_engine().load(path)
    assert isinstance(failed, Failed), failed
    assert failed.code == code
    assert name in failed.message
