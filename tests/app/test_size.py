"""`ember size`: known models to the byte, kinds of heads and layers, what fits, and refusals in one sentence."""

from __future__ import annotations

import argparse
import io
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app import cli
from app.cache_config import ShapeUnknownError, shape_of_config
from app.cache_fit import what_fits
from app.cache_shape import HeadKind
from app.cache_size import Precision, cache_bytes, heads_compared, largest_context, typed_shape
from app.commands.size import NAMES
from app.machine_memory import MachineMemory
from app.model_on_disk import read_model
from engine.protocol.config import KV_PRECISIONS
from engine.protocol.errors import ModelDamagedError

GIB = 2**30
FALCON = {
    "model_type": "falcon",
    "num_hidden_layers": 32,
    "num_attention_heads": 71,
    "hidden_size": 4544,
    "multi_query": True,
    "new_decoder_architecture": False,
}
Ember = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ember(tmp_path: Path) -> Ember:
    """Calls `ember size`: exit code, standard output, standard error."""

    def no_engine(*given: object) -> Any:
        raise AssertionError("arithmetic needs no engine")

    def call(*arguments: str) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        parsed: argparse.Namespace = cli.parse(["--data-dir", str(tmp_path / "data"), "size", *arguments])
        code = cli.run(parsed, make_engine=no_engine, resources_dir=tmp_path, out=out, err=err)
        return code, out.getvalue(), err.getvalue()

    return call


def content(told: tuple[int, str, str]) -> dict[str, Any]:
    assert (told[0], told[2]) == (0, "")
    found = json.loads(told[1])
    assert isinstance(found, dict)
    return found


def typed(layers: int, kv_heads: int, head_dim: int, *more: str) -> list[str]:
    return ["--layers", str(layers), "--kv-heads", str(kv_heads), "--head-dim", str(head_dim), *more]


def a_folder(folder: Path, config: dict[str, Any]) -> str:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def test_a_llama_2_7b_of_2048_tokens_is_one_gib(ember: Ember) -> None:
    found = content(ember(*typed(32, 32, 128, "--heads", "32", "--tokens", "2048", "--json")))
    assert (found["bytes"], found["gib"], found["bytes_per_token"], found["kind"]) == (GIB, 1.0, 524_288, "MHA")
    out = ember(*typed(32, 32, 128, "--tokens", "2048"))[1]
    assert "1,073,741,824 bytes (1.00 GiB) for 2,048 tokens" in out


def test_a_70b_of_131072_tokens_is_forty_gib(ember: Ember) -> None:
    found = content(ember(*typed(80, 8, 128, "--heads", "64", "--tokens", "131072", "--json")))
    assert (found["gib"], found["kind"]) == (40.0, "GQA")
    multiples = {row["kind"]: (row["kv_heads"], row["multiple"]) for row in found["heads_compared"]}
    assert multiples == {"MHA": (64, 64.0), "GQA": (8, 8.0), "MQA": (1, 1.0)}


def test_a_falcon_7b_takes_8192_bytes_a_token(ember: Ember, tmp_path: Path) -> None:
    found = content(ember("--model", a_folder(tmp_path / "falcon", FALCON), "--tokens", "1", "--json"))
    assert (found["bytes_per_token"], found["bytes"], found["kind"]) == (8192, 8192, "MQA")
    assert (found["layers"], found["heads"], found["kv_heads"], found["head_dim"]) == (32, 71, 1, 64)


def test_a_batch_takes_as_many_times_as_much(ember: Ember) -> None:
    one, many = (content(ember(*typed(3, 2, 8, "--tokens", "500", "--batch", n, "--json"))) for n in ("1", "7"))
    assert many["bytes"] == 7 * one["bytes"]
    assert many["bytes_per_token"] == one["bytes_per_token"]
    assert one["fits"]["contexts"][0]["tokens"] > 6 * many["fits"]["contexts"][0]["tokens"]


def test_a_codec_has_its_scales_and_says_that_a_token_is_an_average(ember: Ember) -> None:
    found = content(ember(*typed(30, 3, 64, "--tokens", "1000", "--precision", "int8", "--json")))
    assert (found["bytes_per_token"], found["bytes_per_token_is"]) == (12_240, "average")
    assert found["bytes"] == 960 * 12_240 + 40 * 23_040  # the last 40 tokens make no block
    by_name = {row["precision"]: row for row in found["precisions"]}
    assert (by_name["16bit"]["ratio"], by_name["float32"]["ratio"]) == (1.0, 2.0)
    assert by_name["16bit"]["bytes_per_token_is"] == "exact"
    each = [by_name[name]["bytes_per_token"] for name in ("int8", "balanced", "compact")]
    assert each == [12_240, 9_360, 6_480]


def test_every_precision_of_the_caches_can_be_asked_for() -> None:
    assert {*NAMES} == {"16bit", "bf16", "fp16", "float32", *KV_PRECISIONS} - {"auto"}


def test_layers_are_counted_by_their_kind(ember: Ember, tmp_path: Path) -> None:
    config = {
        "model_type": "gemma3n_text",
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "sliding_window": 512,
        "num_kv_shared_layers": 1,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "full_attention"],
    }
    told = ember("--model", a_folder(tmp_path / "model", config), "--tokens", "10000", "--json")
    found = content(told)
    one_layer = 2 * 2 * 256 * 2
    assert [(row["kind"], row["layers"], row["tokens_kept"], row["bytes"]) for row in found["layer_kinds"]] == [
        ("sliding", 2, 512, 2 * 512 * one_layer),
        ("full", 1, 10_000, 10_000 * one_layer),
        ("shared", 1, 0, 0),
    ]
    assert found["bytes"] == (2 * 512 + 10_000) * one_layer
    assert (found["bytes_per_token"], found["further_bytes_per_token"]) == (3 * one_layer, one_layer)
    assert "sliding (512)" in ember("--model", str(tmp_path / "model"), "--tokens", "10000")[1]


def test_a_state_that_does_not_grow_is_counted_once() -> None:
    config = {"model_type": "mamba", "num_hidden_layers": 2, "hidden_size": 64, "state_size": 16, "conv_kernel": 4}
    shape = shape_of_config(config)
    few, many = (cache_bytes(shape, tokens) for tokens in (1, 100_000))
    assert few.total_bytes == many.total_bytes == 2 * 128 * (4 * 2 + 16 * 4)
    assert few.bytes_per_token == 0
    assert largest_context(shape, Precision.BITS_16, 10) is None
    assert shape.kind is None


def test_a_compressed_vector_a_token_is_counted_as_such() -> None:
    config = {"model_type": "deepseek_v3", "num_hidden_layers": 61, "num_attention_heads": 128}
    shape = shape_of_config(config | {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "hidden_size": 7168})
    assert cache_bytes(shape, 1).total_bytes == 61 * (512 + 64) * 2
    assert shape.kind is HeadKind.MLA
    assert heads_compared(shape) == ()


@pytest.mark.parametrize(
    ("kv_heads", "heads", "kind"),
    [(8, 8, "MHA"), (4, 8, "GQA"), (1, 8, "MQA"), (1, 1, "MHA"), (1, None, "MQA"), (8, None, None)],
)
def test_heads_are_told_apart(kv_heads: int, heads: int | None, kind: str | None) -> None:
    assert typed_shape(2, kv_heads, 16, heads).kind == kind


def test_what_fits_is_what_the_weights_leave() -> None:
    shape = shape_of_config(FALCON | {"max_position_embeddings": 2048})
    fits = what_fits(shape, MachineMemory(20 * GIB, 32 * GIB), weights_bytes=19 * GIB)
    tokens = {row.precision: (row.tokens, row.is_whole_context) for row in fits.rows}
    assert tokens[Precision.BITS_16] == (GIB // 8192, True)
    assert tokens[Precision.FLOAT32] == (GIB // 16_384, True)
    nothing = what_fits(shape, MachineMemory(1, 32 * GIB), weights_bytes=19 * GIB)
    assert nothing.room_bytes == 0
    assert {(row.tokens, row.is_whole_context) for row in nothing.rows} == {(0, False)}
    assert what_fits(shape, MachineMemory(GIB, GIB), GIB, is_loaded=True).room_bytes == GIB


def test_the_call_reads_this_machines_memory(ember: Ember, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.commands.size.read_machine_memory", lambda: MachineMemory(3 * GIB, 8 * GIB))
    arguments = typed(32, 32, 128, "--weights-bytes", str(2 * GIB))
    fits = content(ember(*arguments, "--json"))["fits"]
    assert (fits["memory_free_bytes"], fits["memory_total_bytes"], fits["room_bytes"]) == (3 * GIB, 8 * GIB, GIB)
    assert fits["contexts"][0] == {"precision": "16bit", "tokens": 2048, "is_whole_context": None}
    assert "3.0 of 8.0 GiB are free, 2.00 GiB of it for the weights" in ember(*arguments)[1]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--tokens", "1" + 12 * "0" + "1"],
        ["--batch", "1000001"],
        ["--layers", "10001"],
        ["--head-dim", "9" * 18],
        ["--heads", "7"],
    ],
    ids=" ".join,
)
def test_numbers_that_no_model_has_are_refused_in_one_sentence(ember: Ember, arguments: list[str]) -> None:
    code, out, err = ember(*typed(3, 2, 8), *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("ember: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("number", ["0", "-1", "1.5", "many", "1e9", "²", "9" * 30, "9" * 5000])
def test_what_is_no_number_is_wrong_usage(ember: Ember, number: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        ember(*typed(3, 2, 8), f"--tokens={number}")
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("ember: Argument --tokens: ")
    assert (err.count("\n"), len(err) < 200) == (1, True)


def test_a_model_whose_cache_is_not_told_is_refused(ember: Ember, tmp_path: Path) -> None:
    code, _, err = ember("--model", a_folder(tmp_path / "rwkv", {"model_type": "rwkv", "num_hidden_layers": 2}))
    assert (code, "rwkv" in err, err.count("\n")) == (2, True, 1)
    (tmp_path / "empty").mkdir()
    assert "config.json" in ember("--model", str(tmp_path / "empty"))[2]
    (tmp_path / "empty" / "config.json").write_text("[" * 200_000)
    assert "config.json" in ember("--model", str(tmp_path / "empty"))[2]


def gguf(fields: dict[str, Any], tensors: dict[str, tuple[int, ...]]) -> bytes:
    """A GGUF header as llama.cpp writes it: texts, unsigned numbers, and lists of either."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    def plain(value: Any) -> tuple[int, bytes]:
        return (8, text(value)) if isinstance(value, str) else (4, struct.pack("<I", value))

    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(fields))]
    for name, value in fields.items():
        if isinstance(value, list):
            kinds = [plain(one) for one in value]
            parts += [text(name), struct.pack("<IIQ", 9, kinds[0][0], len(kinds)), *(data for _, data in kinds)]
        else:
            kind, data = plain(value)
            parts += [text(name), struct.pack("<I", kind), data]
    for name, shape in tensors.items():
        parts += [text(name), struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 2, 0)]
    return b"".join(parts)


FIELDS = {
    "general.architecture": "llama",
    "tokenizer.ggml.tokens": ["a"] * 5000,
    "tokenizer.ggml.token_type": [1] * 5000,
    "llama.block_count": 30,
    "llama.embedding_length": 576,
    "llama.attention.head_count": 9,
    "llama.attention.head_count_kv": 3,
    "llama.context_length": 8192,
}


@pytest.mark.parametrize(
    "config",
    [
        {"num_hidden_layers": 10**12},
        {"num_hidden_layers": 10_001},
        {"num_hidden_layers": 0},
        {"num_hidden_layers": -4},
        {"hidden_size": 2},
        {"hidden_size": "64"},
        {"num_attention_heads": 0},
        {"layer_types": ["mlp", "moe"]},
        {"layer_types": ["full_attention", None]},
        {"layer_types": ["sliding_attention"]},
        {"layer_types": ["sliding_attention"], "sliding_window": -1},
        {"kv_lora_rank": 512, "qk_rope_head_dim": 0},
    ],
    ids=str,
)
def test_a_configuration_that_makes_no_sense_is_refused_and_not_computed_with(config: dict[str, Any]) -> None:
    sound = {"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}
    assert cache_bytes(shape_of_config(sound), 1).total_bytes == 2 * 2 * 64 * 2
    with pytest.raises(ShapeUnknownError, match=r"^The configuration of llama models does not tell .*; give --layers"):
        shape_of_config(sound | config)


def test_a_gguf_file_tells_by_its_header(ember: Ember, tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(gguf(FIELDS, {"a": (576, 100), "b": (576,)}))
    found = content(ember("--model", str(file), "--json"))
    assert (found["bytes_per_token"], found["kind"], found["tokens"]) == (23_040, "GQA", 8192)
    assert read_model(file).num_parameters == 57_600 + 576
    assert found["fits"]["weights_bytes"] == 2 * (57_600 + 576)


def test_a_gguf_file_that_is_cut_short_is_damaged(tmp_path: Path) -> None:
    whole = gguf(FIELDS, {"a": (576, 100)})
    file = tmp_path / "model.gguf"
    for length in (0, 3, 10, 24, 60, 5000, len(whole) - 1):
        file.write_bytes(whole[:length])
        with pytest.raises(ModelDamagedError, match="download the model file again"):
            read_model(file)
    file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1 << 60))
    with pytest.raises(ModelDamagedError):
        read_model(file)


def test_parameters_are_counted_from_the_files_but_for_the_engines_own(tmp_path: Path) -> None:
    folder = Path(a_folder(tmp_path / "model", FALCON))
    assert read_model(folder).num_parameters is None
    header = json.dumps({"__metadata__": {}, "w": {"dtype": "BF16", "shape": [3, 4], "data_offsets": [0, 24]}}).encode()
    for name in ("model-1.safetensors", "model-2.safetensors", "packed.safetensors"):
        (folder / name).write_bytes(struct.pack("<Q", len(header)) + header)
    assert (read_model(folder).num_parameters, read_model(folder).weights_bytes) == (24, 48)
    (folder / "model-1.safetensors").write_bytes(b"nothing")
    assert read_model(folder).num_parameters is None


@pytest.mark.parametrize(
    "shape", ["[-1000000000000]", "[NaN]", "[1e308, 1e308]", '["4"]', "[" + "9" * 4000 + "]", "[" * 200_000], ids=len
)
def test_shapes_that_no_tensor_has_are_not_counted(tmp_path: Path, shape: str) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64})
    )
    header = f'{{"a": {{"shape": {shape}}}}}'.encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    assert read_model(tmp_path).num_parameters is None


def test_a_window_from_no_layer_on_is_one_of_all() -> None:
    config = {"model_type": "qwen2", "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}
    config |= {"use_sliding_window": True, "sliding_window": 8}
    null, zero = (shape_of_config(config | {"max_window_layers": first}) for first in (None, 0))
    assert null == zero
