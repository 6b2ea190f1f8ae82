from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from app.errors import ReadOnlyError
from app.hub import is_hub_id
from app.model_config import read_model_config
from app.model_library import DEFAULT_MODEL, ModelLibrary
from app.model_loads import LoadRecord
from engine.protocol.config import Weights
from engine.protocol.errors import ModelDamagedError, ModelError, ModelNotFoundError, NotALanguageModelError
from engine.protocol.events import EngineStopped, ModelLoaded
from tests.fakes import a_model

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "hidden_size": 576,
    "max_position_embeddings": 8192,
}


def a_folder(path: Path, **changes: object) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(CONFIG | changes))
    (path / "model.safetensors").touch()
    (path / "model.safetensors").write_bytes(b"x" * 1000)
    return path


@pytest.fixture
def resources(tmp_path: Path) -> Path:
    return tmp_path / "resources"


@pytest.fixture
def library(resources: Path, data_dir: Path) -> ModelLibrary:
    return ModelLibrary(resources, data_dir)


def test_the_default_model_comes_first_and_is_described_from_its_config(library, resources):
    a_folder(resources / "models" / "A-smaller-one")
    default = a_folder(resources / "models" / DEFAULT_MODEL)
    first, second = library.models()
    assert (first.name, first.path, first.is_default) == (DEFAULT_MODEL, default, True)
    assert (first.family, first.context_length, first.kv_bytes_per_token) == ("llama", 8192, 2 * 30 * 3 * 64 * 2)
    assert first.size_bytes == 1000 + (default / "config.json").stat().st_size
    assert (second.name, second.is_default) == ("A-smaller-one", False)
    assert library.resolve("") == default
    assert library.resolve("A-smaller-one") == second.path


def test_a_missing_default_model_says_what_to_do(library):
    assert library.models() == []
    with pytest.raises(ModelNotFoundError, match="make run"):
        library.resolve("")


def test_an_unknown_name_says_where_the_names_are(library):
    with pytest.raises(ModelNotFoundError, match="ember models"):
        library.resolve("no-such-model")


def test_a_path_needs_no_adding(library, tmp_path, monkeypatch):
    folder = a_folder(tmp_path / "somewhere" / "model")
    assert library.resolve(str(folder)) == folder
    monkeypatch.chdir(folder.parent)
    assert library.resolve("model") == folder


def test_an_added_folder_is_listed_where_it_lies_and_known_by_its_name(library, tmp_path, resources, data_dir):
    folder = a_folder(tmp_path / "모델")
    entry = library.add(str(folder))
    assert (entry.name, entry.path) == ("모델", folder)
    assert ModelLibrary(resources, data_dir).models() == [entry]
    assert library.resolve("모델") == folder
    assert library.add(str(folder)) == entry, "adding twice changes nothing"
    assert len(library.models()) == 1


def test_two_models_of_the_same_name_are_told_apart(library, tmp_path):
    names = [library.add(str(a_folder(tmp_path / place / "model"))).name for place in ("a", "b", "c")]
    assert names == ["model", "model-2", "model-3"]


def test_a_gguf_file_is_added_by_its_first_bytes(library, tmp_path):
    good, bad = tmp_path / "good.gguf", tmp_path / "bad.gguf"
    good.write_bytes(b"GGUF" + b"\0" * 100)
    bad.write_bytes(b"<html>")
    entry = library.add(str(good))
    assert (entry.name, entry.size_bytes, entry.family) == ("good", 104, None)
    with pytest.raises(ModelDamagedError, match="no GGUF file"):
        library.add(str(bad))
    assert [known.name for known in library.models()] == ["good"]


@pytest.mark.parametrize("content", [None, "not json", "[]", '{"architectures": []}'])
def test_a_folder_without_a_model_is_refused_at_once(library, tmp_path, content):
    folder = tmp_path / "pictures"
    folder.mkdir()
    if content is not None:
        (folder / "config.json").write_text(content)
    with pytest.raises(NotALanguageModelError, match="holds no language model"):
        library.add(str(folder))
    assert library.models() == []


def test_nothing_at_the_path_is_said(library):
    with pytest.raises(ModelNotFoundError, match="hub id"):
        library.add("/no/such/folder")


def test_a_folder_with_nothing_but_packed_numbers_holds_no_weights(library, tmp_path):
    folder = a_folder(tmp_path / "model")
    (folder / "model.safetensors").rename(folder / "packed.safetensors")
    with pytest.raises(NotALanguageModelError, match="no safetensors weights"):
        library.add(str(folder))


def test_what_a_load_took_is_told_with_the_model(library, tmp_path):
    folder = a_folder(tmp_path / "model")
    library.add(str(folder))
    library.handle(EngineStopped())
    assert library.models()[0].loads == {}
    library.handle(ModelLoaded("r", dataclasses.replace(a_model(), path=folder)))
    assert library.models()[0].loads == library.loads(folder) == {Weights.BITS_16: LoadRecord(0.5, 1000)}


def test_a_model_that_was_moved_away_is_left_out(library, tmp_path):
    folder = a_folder(tmp_path / "model")
    library.add(str(folder))
    folder.rename(tmp_path / "moved")
    assert library.models() == []
    with pytest.raises(ModelNotFoundError):
        library.resolve("model")


def test_a_damaged_list_costs_the_list_only(library, resources, data_dir):
    a_folder(resources / "models" / DEFAULT_MODEL)
    data_dir.mkdir()
    for content in ("{", "[]", '{"models": 3}', ""):
        (data_dir / "models.json").write_text(content)
        assert [entry.name for entry in library.models()] == [DEFAULT_MODEL]


def test_a_list_that_cannot_be_kept_is_a_storage_error(tmp_path, resources):
    (tmp_path / "file").touch()
    folder = a_folder(tmp_path / "model")
    with pytest.raises(ReadOnlyError):
        ModelLibrary(resources, tmp_path / "file" / "data").add(str(folder))


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("owner/name", True),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", True),
        *((text, False) for text in ("a/b/c", "../x", "/x/y", "name", "./a", "a/", "a/..")),
    ],
)
def test_a_hub_id_is_an_owner_and_a_name(text, is_one):
    assert is_hub_id(text) is is_one


def test_a_model_is_fetched_from_the_hub_into_the_data_folder(library, data_dir, monkeypatch):
    def download(hub_id, *, local_dir, allow_patterns):
        assert "*.safetensors" in allow_patterns
        assert not any("py" in pattern or "bin" in pattern for pattern in allow_patterns), "no code, no pickles"
        (Path(local_dir) / "config.json").write_text(json.dumps(CONFIG))
        (Path(local_dir) / "model.safetensors").touch()
        (Path(local_dir) / "model.safetensors").write_bytes(b"x")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    entry = library.add("owner/name")
    assert entry.path == data_dir / "models" / "owner--name"
    assert library.resolve(entry.name) == entry.path


def offline(*positional, **named):
    from huggingface_hub.errors import LocalEntryNotFoundError

    raise LocalEntryNotFoundError("offline")


def interrupted(*positional, **named):
    import httpx2

    raise httpx2.ReadError("connection reset")


@pytest.mark.parametrize("failure", [offline, interrupted])
def test_without_a_connection_one_sentence_says_so_and_nothing_is_left(library, data_dir, monkeypatch, failure):
    monkeypatch.setattr("huggingface_hub.snapshot_download", failure)
    with pytest.raises(ModelError, match="internet connection"):
        library.add("owner/name")
    assert library.models() == []
    assert list((data_dir / "models").iterdir()) == []


def test_a_disk_that_fills_up_while_fetching_is_a_storage_error(library, monkeypatch):
    from app.errors import DiskFullError

    def full(*positional, **named):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("huggingface_hub.snapshot_download", full)
    with pytest.raises(DiskFullError):
        library.add("owner/name")


@pytest.mark.parametrize(
    ("changes", "bytes_per_token"),
    [
        ({}, 2 * 30 * 3 * 64 * 2),
        ({"head_dim": 128}, 2 * 30 * 3 * 128 * 2),
        ({"num_key_value_heads": None}, 2 * 30 * 9 * 64 * 2),
        ({"layer_types": ["full_attention", "linear_attention", "sliding_attention"]}, 2 * 2 * 3 * 64 * 2),
        ({"kv_lora_rank": 512}, None),
        ({"num_hidden_layers": "many"}, None),
        ({"text_config": CONFIG | {"num_hidden_layers": 2}}, 2 * 2 * 3 * 64 * 2),
    ],
)
def test_the_cache_of_a_token_is_counted_from_the_config(tmp_path, changes, bytes_per_token):
    config = read_model_config(a_folder(tmp_path / "model", **changes))
    assert config is not None
    assert config.kv_bytes_per_token(bytes_per_value=2) == bytes_per_token
