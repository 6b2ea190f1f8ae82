"""A GGUF file's own numbers reach the kernels without any rounding, in transformers' order of rows."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from transformers import AutoModelForCausalLM, GgufConfig, PreTrainedModel

from engine.kernels.packing import Format, unpack
from engine.kv.fingerprint import hash_weights
from engine.model import gguf_import, packed_file
from engine.model.gguf_numbers import _packed, keep_numbers
from engine.model.model_files import OWN_NUMBERS, check_weights

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, LAYERS, VOCABULARY = 128, 96, 4, 2, 2, 320
KINDS = [Kind.Q4_0, Kind.Q4_1, Kind.Q8_0]


def write_gguf(path: Path, kind: Kind, *, other: dict[str, Kind] | None = None, architecture: str = "llama") -> Path:
    """A tiny model; `other` gives some tensors another type."""
    generator = np.random.default_rng(7)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_vocab_size(VOCABULARY)
    width = HIDDEN // HEADS * KV_HEADS
    shapes = {"token_embd": (VOCABULARY, HIDDEN), "output": (VOCABULARY, HIDDEN)}
    for block in range(LAYERS):
        shapes |= {f"blk.{block}.{name}": (HIDDEN, HIDDEN) for name in ("attn_q", "attn_output")}
        shapes |= {f"blk.{block}.{name}": (width, HIDDEN) for name in ("attn_k", "attn_v")}
        shapes |= {f"blk.{block}.{name}": (INTERMEDIATE, HIDDEN) for name in ("ffn_gate", "ffn_up")}
        shapes[f"blk.{block}.ffn_down"] = (HIDDEN, INTERMEDIATE)
    for name, shape in shapes.items():
        weight = generator.normal(size=shape).astype(np.float32)
        tensor_kind = (other or {}).get(name, kind)
        raw = weight if tensor_kind is Kind.F32 else gguf.quants.quantize(weight, tensor_kind)
        writer.add_tensor(f"{name}.weight", raw, raw_dtype=tensor_kind)
    norms = ["output_norm", *(f"blk.{block}.{name}_norm" for block in range(LAYERS) for name in ("attn", "ffn"))]
    for name in norms:
        writer.add_tensor(f"{name}.weight", np.ones(HIDDEN, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def convert(source: Path, folder: Path) -> PreTrainedModel:
    """As `gguf_import` does, without a tokenizer; returns transformers' model in float32."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    exact = {name: parameter.clone() for name, parameter in model.named_parameters()}
    model.bfloat16().save_pretrained(folder)
    model.float().load_state_dict(exact, strict=False)
    return model


def own_numbers(folder: Path) -> dict[str, packed_file.Matrix]:
    found = packed_file.read(folder / OWN_NUMBERS, hash_weights(check_weights(folder), None))
    assert found is not None
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_the_numbers_are_gguf_s_to_the_last_bit(tmp_path, kind):
    for tensor in gguf.GGUFReader(write_gguf(tmp_path / "tiny.gguf", kind)).tensors:
        if tensor.tensor_type == kind:
            exact = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            assert torch.equal(unpack(_packed(tensor, None), torch.float32), torch.from_numpy(exact))


@pytest.mark.parametrize("kind", KINDS)
def test_every_matrix_is_transformers_own_to_the_last_bit(tmp_path, kind):
    source = write_gguf(tmp_path / "tiny.gguf", kind)
    model = convert(source, tmp_path / "folder")
    assert keep_numbers(source, tmp_path / "folder") == 7 * LAYERS + 2
    for name, matrix in own_numbers(tmp_path / "folder").items():
        assert matrix.format is (Format.Q8 if kind is Kind.Q8_0 else Format.Q4)
        assert torch.equal(unpack(matrix, torch.float32), model.get_submodule(name).weight.detach()), name


def test_where_rows_are_not_interleaved_they_stay(tmp_path):
    source = write_gguf(tmp_path / "tiny.gguf", Kind.Q4_0, architecture="qwen2")
    convert(source, tmp_path / "folder")
    assert keep_numbers(source, tmp_path / "folder") == 7 * LAYERS + 2


def test_other_types_are_left_to_rounding(tmp_path):
    other = {"token_embd": Kind.F32, "output": Kind.Q8_0, "blk.1.ffn_down": Kind.Q5_0}
    source = write_gguf(tmp_path / "tiny.gguf", Kind.Q4_1, other=other)
    convert(source, tmp_path / "folder")
    assert keep_numbers(source, tmp_path / "folder") == 7 * LAYERS
    found = own_numbers(tmp_path / "folder")
    assert found["lm_head"].format is Format.Q8
    assert "model.embed_tokens" not in found
    assert "model.layers.1.mlp.down_proj" not in found


def test_numbers_of_other_weights_are_left_out(tmp_path):
    """The folder is not the conversion of this file: nothing of it may be mixed in."""
    convert(write_gguf(tmp_path / "tiny.gguf", Kind.Q4_0), tmp_path / "folder")
    another = write_gguf(tmp_path / "another.gguf", Kind.Q4_1)
    assert keep_numbers(another, tmp_path / "folder") == 0
    assert own_numbers(tmp_path / "folder") == {}


def test_a_family_without_kernels_keeps_an_empty_file(tmp_path):
    source = write_gguf(tmp_path / "tiny.gguf", Kind.Q4_0)
    convert(source, tmp_path / "folder")
    config = tmp_path / "folder" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"model_type": "starcoder2"}))
    assert keep_numbers(source, tmp_path / "folder") == 0
    assert not gguf_import.lacks_numbers(source, tmp_path / "folder")


def test_numbers_are_added_to_an_earlier_conversion_and_a_full_disk_is_no_failure(tmp_path, monkeypatch, caplog):
    source = write_gguf(tmp_path / "tiny.gguf", Kind.Q4_0)
    folder = tmp_path / "folder"
    convert(source, folder)
    assert gguf_import.lacks_numbers(source, folder)

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(packed_file, "write", full)
        gguf_import.add_numbers(source, folder)
    assert "No space left" in caplog.text
    assert gguf_import.lacks_numbers(source, folder)
    gguf_import.add_numbers(source, folder)
    assert not gguf_import.lacks_numbers(source, folder)
    shutil.rmtree(folder)
    gguf_import.add_numbers(source, folder)  # nothing there to add to: told, not raised


def test_the_model_s_files_and_their_identity_do_not_change(tmp_path):
    source = write_gguf(tmp_path / "tiny.gguf", Kind.Q4_0)
    folder = tmp_path / "folder"
    convert(source, folder)
    files, identity = check_weights(folder), hash_weights(check_weights(folder), None)
    keep_numbers(source, folder)
    assert check_weights(folder) == files == [folder / "model.safetensors"]
    assert hash_weights(check_weights(folder), None) == identity
    _, loading = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not loading["unexpected_keys"]
