"""8 and 4 bits on the CPU: rounded once, kept in a file, loaded without ever holding the model whole in 16."""

from __future__ import annotations

import dataclasses
import errno
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from engine.kernels.compile import has_numba
from engine.kernels.packing import Format, quantize, unpack
from engine.kv.fingerprint import hash_weights
from engine.model import packed_file, packed_weights
from engine.model.loader import LoadedModel, load_model
from engine.model.model_files import OWN_NUMBERS, check_weights
from engine.model.packed_file import Shape
from engine.model.packed_linear import PackedEmbedding, PackedLinear
from engine.model.weights import weights_nbytes
from engine.protocol.config import EngineConfig, Weights
from engine.protocol.events import LoadStage
from tests.engine.families import BY_NAME as TINY
from tests.engine.lean_models import BY_NAME, LEAN_FAMILIES, LeanFamily

pytestmark = pytest.mark.skipif(not has_numba(), reason="needs numba")
IDS = torch.tensor([[3, 17, 5, 101, 64, 29, 7, 77, 11, 2, 53, 41, 300, 250, 9, 19, 23, 31]])
PACKED_FAMILIES = [family for family in LEAN_FAMILIES if family.name != "exaone"]
QUANTIZED = [Weights.BITS_8, Weights.BITS_4]

Load = Callable[..., LoadedModel]


@pytest.fixture
def load(compiled_kernels: None, engine_config: EngineConfig, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Loads on the processor in float32 (or another type) and closes at the end; tells the stages."""
    loaded: list[LoadedModel] = []
    monkeypatch.setattr("engine.model.loader.pick_device", lambda: torch.device("cpu"))

    def start(
        folder: Path,
        weights: Weights,
        stages: list[LoadStage] | None = None,
        dtype: torch.dtype = torch.float32,
        config: EngineConfig = engine_config,
    ) -> LoadedModel:
        monkeypatch.setattr("engine.model.loader.compute_dtype", lambda device: dtype)
        loaded.append(load_model(folder, weights, config, (stages if stages is not None else []).append))
        return loaded[-1]

    yield start
    for model in loaded:
        model.close()


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return BY_NAME["llama"].save(tmp_path / "llama")


def model_of(loaded: LoadedModel) -> PreTrainedModel:
    return loaded.forward._model


@torch.inference_mode()
def logits(model: PreTrainedModel) -> torch.Tensor:
    return model(IDS).logits[0].float()


def is_packed(loaded: LoadedModel) -> bool:
    return any(isinstance(module, PackedLinear) for module in model_of(loaded).modules())


def rounded(family: LeanFamily, folder: Path, weights: Weights) -> PreTrainedModel:
    """The model as transformers loads it, its matrices rounded and unpacked again."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    done: set[int] = set()
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear | torch.nn.Embedding) and id(module.weight) not in done:
            is_sensitive = name in ("model.embed_tokens", "lm_head")
            target = Format.Q8 if is_sensitive or weights is Weights.BITS_8 else Format.Q4
            module.weight.data = unpack(quantize(module.weight.data, target), torch.float32)
            done.add(id(module.weight))
    return model


@pytest.mark.parametrize("weights", QUANTIZED)
@pytest.mark.parametrize("family", PACKED_FAMILIES, ids=lambda family: family.name)
def test_logits_are_those_of_the_rounded_weights(load: Load, tmp_path, family: LeanFamily, weights):
    """So that norms, biases, rotary embeddings, scales and tied heads are all in their places."""
    folder = family.save(tmp_path / family.name)
    loaded = load(folder, weights)
    assert is_packed(loaded)
    expected = logits(rounded(family, folder, weights))
    assert (logits(model_of(loaded)) - expected).abs().max() < 2e-4 * float(expected.abs().max())
    assert not [name for name, tensor in model_of(loaded).named_buffers() if tensor.is_meta]


def test_fewer_bits_take_less_memory_and_a_tied_head_is_counted_once(load: Load, llama):
    sixteen, eight, four = (load(llama, weights, dtype=torch.bfloat16).info.weights_bytes for weights in Weights)
    assert eight < 0.55 * sixteen
    assert four < eight
    model = model_of(load(llama, Weights.BITS_4))
    assert isinstance(model.model.embed_tokens, PackedEmbedding)
    assert model.lm_head.matrix is model.model.embed_tokens.matrix
    matrices = {id(m.matrix): m.matrix.nbytes for m in model.modules() if hasattr(m, "matrix")}
    assert 0 < weights_nbytes(model) - sum(matrices.values()) < 10_000


def cached_file(config: EngineConfig, weights: Weights = Weights.BITS_4) -> Path:
    (file,) = (config.converted_dir / "packed").glob(f"*-{weights}.safetensors")
    return file


def test_the_second_load_only_maps_the_file(load: Load, llama, engine_config, monkeypatch):
    stages: list[LoadStage] = []
    first = logits(model_of(load(llama, Weights.BITS_4, stages)))
    assert LoadStage.CONVERTING in stages
    assert cached_file(engine_config).name.startswith("llama-")
    monkeypatch.setattr(packed_weights, "quantize", None)  # would fail if anything were rounded
    stages.clear()
    assert torch.equal(logits(model_of(load(llama, Weights.BITS_4, stages))), first)
    assert LoadStage.CONVERTING not in stages


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-500] ^= 1
    file.write_bytes(content)


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def other_version(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b'"version":"1"', b'"version":"9"'))


def other_matrices(file: Path) -> None:
    matrix = quantize(torch.randn(16, 32), Format.Q4)
    identity = packed_file.safe_open(file, framework="pt").metadata()["weights"]
    packed_file.write(file, identity, {"lm_head": Shape(Format.Q4, 16, 32)}, [("lm_head", matrix)])


def a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()
    (file / "in the way").touch()


@pytest.mark.parametrize("spoil", [flip_a_bit, cut_short, other_version, other_matrices, a_folder])
def test_a_spoilt_file_is_made_again(load: Load, llama, engine_config, spoil: Callable[[Path], None]):
    first = logits(model_of(load(llama, Weights.BITS_4)))
    spoil(cached_file(engine_config))
    assert torch.equal(logits(model_of(load(llama, Weights.BITS_4))), first)
    if spoil is not a_folder:
        assert torch.equal(logits(model_of(load(llama, Weights.BITS_4, stages := []))), first)
        assert LoadStage.CONVERTING not in stages


def test_changed_weights_are_rounded_anew(load: Load, llama, tmp_path, engine_config):
    load(llama, Weights.BITS_4)
    shutil.copy(BY_NAME["llama"].save(tmp_path / "other", seed=5) / "model.safetensors", llama / "model.safetensors")
    changed = logits(model_of(load(llama, Weights.BITS_4)))
    assert torch.equal(changed, logits(model_of(load(tmp_path / "other", Weights.BITS_4))))


def test_a_full_disk_only_means_that_nothing_is_kept(load: Load, llama, engine_config, monkeypatch, caplog):
    kept = logits(model_of(load(llama, Weights.BITS_8)))

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(packed_file, "write", full)
    elsewhere = dataclasses.replace(engine_config, converted_dir=engine_config.converted_dir / "full")
    assert torch.equal(logits(model_of(load(llama, Weights.BITS_8, config=elsewhere))), kept)
    assert "cannot be kept" in caplog.text
    assert not elsewhere.converted_dir.exists()


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "mixtral"])
def test_a_family_without_kernels_stays_with_bitsandbytes(load: Load, tmp_path, family, engine_config):
    loaded = load(TINY[family].save(tmp_path / family), Weights.BITS_4, dtype=torch.bfloat16)
    assert not is_packed(loaded)
    assert model_of(loaded).config.quantization_config.load_in_4bit
    assert "numbers" not in loaded.fingerprint.fields
    assert not (engine_config.converted_dir / "packed").exists()


def test_so_does_one_whose_files_name_their_tensors_otherwise(load: Load, tmp_path):
    assert not is_packed(load(BY_NAME["exaone"].save(tmp_path / "exaone"), Weights.BITS_8))


def test_so_does_a_shape_that_no_kernel_takes(load: Load, tiny_model):
    assert not is_packed(load(tiny_model, Weights.BITS_8))


def test_and_every_model_where_numba_is_missing(load: Load, llama, monkeypatch):
    monkeypatch.setattr(packed_weights, "has_numba", lambda: False)
    assert not is_packed(load(llama, Weights.BITS_8))


def test_snapshots_of_another_rounding_are_not_taken_for_these(load: Load, llama, monkeypatch):
    prints = [load(llama, weights).fingerprint for weights in Weights]
    monkeypatch.setattr(packed_weights, "has_numba", lambda: False)
    prints.append(load(llama, Weights.BITS_8).fingerprint)
    keep_own_numbers(llama, Format.Q4)
    monkeypatch.undo()
    prints.append(load(llama, Weights.BITS_4).fingerprint)
    assert len({one.digest for one in prints}) == 5
    assert [one.fields.get("numbers") for one in prints] == [None, "packed-1", "packed-1", None, "packed-1-gguf"]


def keep_own_numbers(folder: Path, target: Format, *, without: tuple[str, ...] = ()) -> None:
    """As a GGUF file would leave them: the folder's weights, rounded."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    matrices = {
        name: quantize(module.weight.data, Format.Q8 if name == "model.embed_tokens" else target)
        for name, module in packed_weights._modules(model).items()
        if name not in without
    }
    shapes = {name: Shape(matrix.format, matrix.rows, matrix.columns) for name, matrix in matrices.items()}
    packed_file.write(folder / OWN_NUMBERS, hash_weights(check_weights(folder), None), shapes, matrices.items())


def formats(loaded: LoadedModel) -> dict[str, Format]:
    return {
        name: module.matrix.format for name, module in model_of(loaded).named_modules() if hasattr(module, "matrix")
    }


def test_own_numbers_are_used_as_they_are_and_what_they_lack_takes_eight_bits(load: Load, llama, engine_config):
    lacking = "model.layers.1.mlp.down_proj"
    keep_own_numbers(llama, Format.Q4, without=(lacking,))
    loaded = load(llama, Weights.BITS_4)
    assert formats(loaded)[lacking] is Format.Q8
    assert formats(loaded)["model.layers.0.mlp.down_proj"] is Format.Q4
    tensors = packed_file.read(cached_file(engine_config), hash_weights(check_weights(llama), None) + "-1")
    assert tensors is not None
    assert list(tensors) == [lacking], "only what had to be rounded is kept again"


def test_eight_bits_keep_own_four_bit_numbers_which_lose_nothing(load: Load, llama, engine_config):
    keep_own_numbers(llama, Format.Q4)
    assert formats(load(llama, Weights.BITS_8)) == formats(load(llama, Weights.BITS_4))
    assert not (engine_config.converted_dir / "packed").exists(), "there was nothing to round"


def test_four_bits_asked_of_eight_bit_numbers_are_four_bits(load: Load, llama):
    keep_own_numbers(llama, Format.Q8)
    found = formats(load(llama, Weights.BITS_4))
    assert found["model.embed_tokens"] is found["lm_head"] is Format.Q8
    assert {one for name, one in found.items() if ".layers." in name} == {Format.Q4}


def test_sixteen_bits_bring_own_numbers_along_to_decode_with(load: Load, llama):
    without = load(llama, Weights.BITS_16, dtype=torch.bfloat16)
    keep_own_numbers(llama, Format.Q4)
    loaded = load(llama, Weights.BITS_16, dtype=torch.bfloat16)
    file = packed_file.read(llama / OWN_NUMBERS, hash_weights(check_weights(llama), None))
    assert file is not None
    assert loaded.info.second_copy_bytes == sum(matrix.nbytes for matrix in file.values())
    assert loaded.info.weights_bytes == without.info.weights_bytes + loaded.info.second_copy_bytes
    assert loaded.fingerprint == without.fingerprint
    assert without.info.second_copy_bytes == 0


@pytest.mark.parametrize("reason", ["memory", "stale", "float32", "damaged"])
def test_they_stay_on_the_disk_where_they_would_not_serve(load: Load, llama, tmp_path, monkeypatch, reason):
    keep_own_numbers(llama, Format.Q4)
    if reason == "memory":
        monkeypatch.setattr(packed_weights, "_SECOND_COPY_SHARE", 1e-9)
    elif reason == "stale":
        other = BY_NAME["llama"].save(tmp_path / "other", seed=5)
        shutil.copy(other / "model.safetensors", llama / "model.safetensors")
    elif reason == "damaged":
        flip_a_bit(llama / OWN_NUMBERS)
    dtype = torch.float32 if reason == "float32" else torch.bfloat16
    assert load(llama, Weights.BITS_16, dtype=dtype).info.second_copy_bytes == 0
