"""Path -> model, tokenizer and everything derived from them. Runs on the inference thread."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import CacheLayerMixin, DynamicCache, DynamicLayer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging

from engine.kernels.compile import compile_and_wait
from engine.kv import attention, state_layers
from engine.kv.arena import KVArena
from engine.kv.fingerprint import Fingerprint, hash_weights
from engine.kv.geometry import KVGeometry, LayerShape
from engine.kv.working_cache import WorkingCache
from engine.model.acceleration import Acceleration, accelerate, keeps_bfloat16
from engine.model.chat_template import ChatTemplate
from engine.model.forward import ForwardPass, is_out_of_memory
from engine.model.gguf_import import add_numbers, convert_gguf, converted_folder, lacks_numbers
from engine.model.model_files import check_weights, read_config, tokenizer_id
from engine.model.packed_weights import LoadedWeights, load_packed, second_copy
from engine.model.tokens import HistoryTokens
from engine.model.weights import compute_dtype, pick_device, quantization_config, weights_nbytes
from engine.protocol.config import EngineConfig, Weights
from engine.protocol.errors import (
    ModelDamagedError,
    ModelError,
    ModelNeedsMemoryError,
    ModelNotFoundError,
    NotALanguageModelError,
)
from engine.protocol.events import LoadStage, ModelInfo

logging.set_verbosity_error()
logging.disable_progress_bar()
attention.register()

ReportStage = Callable[[LoadStage], None]
_CHUNK_TOLERANCE = 0.08


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to answer. `can_persist`: its caches can be saved; `geometry` covers its full-attention layers.

    `reads_encoded`: its attention reads the cold part of a cache in the blocks it is encoded in.
    """

    info: ModelInfo
    forward: ForwardPass
    tokenizer: PreTrainedTokenizerBase
    history: HistoryTokens
    stop_ids: frozenset[int]
    fingerprint: Fingerprint
    geometry: KVGeometry
    num_layers: int
    config: Any
    device: torch.device
    acceleration: Acceleration | None = None
    reads_encoded: bool = False

    @property
    def can_persist(self) -> bool:
        return self.info.cannot_resume_reason is None

    def poll(self) -> None:
        """Between commands: take into use what has been prepared in the background."""
        if self.acceleration is not None:
            self.acceleration.poll()

    def close(self) -> None:
        """End the threads that belong to the model."""
        if self.acceleration is not None:
            self.acceleration.close()

    def new_cache(self, num_tokens: int = 0, arena: KVArena | None = None) -> WorkingCache:
        """An empty cache for this model, with room for `num_tokens` from the start, or in memory that is there.

        Raises RuntimeError when memory runs out.
        """
        stock = stock_layers(self.config, self.num_layers)
        return WorkingCache(self.geometry, stock, self.info.context_length, self.device, num_tokens, arena)


def load_model(path: Path, weights: Weights, config: EngineConfig, report: ReportStage) -> LoadedModel:
    """Load a safetensors folder or a GGUF file. Raises a ModelError that says what to do."""
    started = time.perf_counter()
    name = path.stem if path.suffix == ".gguf" else path.name
    folder = _as_folder(path, config.converted_dir, report)
    raw_config = read_config(folder)
    if raw_config["model_type"] not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise NotALanguageModelError(
            f"{path} holds a {raw_config['model_type']} model, which cannot chat; choose a causal language model.",
            path=str(path),
        )
    files = check_weights(folder)
    report(LoadStage.TOKENIZER)
    vocabulary_id = tokenizer_id(folder)
    tokenizer = _load_tokenizer(folder)
    report(LoadStage.WEIGHTS)
    device = pick_device()
    dtype = compute_dtype(device)
    weights_hash = hash_weights(files, config.kv_dir)
    loaded_weights = _load_weights(folder, files, weights_hash, weights, dtype, device, config.converted_dir, report)
    model = loaded_weights.model
    report(LoadStage.WARMING_UP)
    if loaded_weights.packed and not loaded_weights.second_copy_bytes:
        compile_and_wait()  # without the kernels, packed weights take seconds for a token
    template = ChatTemplate(tokenizer)
    text_config = model.config.get_text_config(decoder=True)
    forward = ForwardPass(model, device)
    try:
        probe = _probe_cache(model, device, dtype)
    except (torch.OutOfMemoryError, TypeError, ValueError, AttributeError, KeyError, IndexError) as error:
        if is_out_of_memory(error):
            raise _needs_memory(path) from error
        raise NotALanguageModelError(
            f"{name} ({raw_config['model_type']}) cannot run with a KV cache that Ember knows"
            f" ({_first_line(error)}); choose another model.",
            path=str(path),
        ) from error
    geometry = probe.geometry
    if keeps_bfloat16(model, loaded_weights.packed, geometry):
        geometry = dataclasses.replace(geometry, dtype=torch.bfloat16)
    # Where layers differ, the configuration refuses to give one number for all: told are those of the first.
    layer_config = text_config.per_layer_config[0] if text_config.is_heterogeneous else text_config
    context_length = int(getattr(text_config, "max_position_embeddings", None) or 2048)
    info = ModelInfo(
        name=name,
        path=path,
        family=str(raw_config["model_type"]),
        num_layers=int(text_config.num_hidden_layers),
        num_kv_heads=int(getattr(layer_config, "num_key_value_heads", None) or layer_config.num_attention_heads),
        num_heads=int(layer_config.num_attention_heads),
        head_dim=int(
            getattr(layer_config, "head_dim", None) or layer_config.hidden_size // layer_config.num_attention_heads
        ),
        context_length=context_length,
        kv_bytes_per_token=geometry.bytes_per_token,
        weights=weights,
        weights_bytes=weights_nbytes(model) + loaded_weights.second_copy_bytes,
        dtype=str(dtype).removeprefix("torch."),
        device=device.type,
        tokenizer_id=vocabulary_id,
        load_s=0.0,
        cannot_resume_reason=probe.cannot_resume_reason,
        notes=template.notes,
        second_copy_bytes=loaded_weights.second_copy_bytes,
    )
    loaded = LoadedModel(
        info=info,
        forward=forward,
        tokenizer=tokenizer,
        history=HistoryTokens(tokenizer, template),
        stop_ids=_stop_ids(model, tokenizer),
        fingerprint=Fingerprint.of_model(weights_hash, weights, dtype, text_config, geometry, loaded_weights.numbers),
        geometry=geometry,
        num_layers=probe.num_layers,
        config=model.config,
        device=device,
        reads_encoded=model.config._attn_implementation == attention.NAME
        and all(shape.key_dim == shape.value_dim for shape in geometry.layers),
    )
    if len(geometry.layers) < probe.num_layers:
        forward.takes_chunks = _takes_chunks(model, device, loaded.new_cache)
    acceleration = accelerate(forward, model, loaded_weights.packed, geometry, context_length, loaded.new_cache)
    info = dataclasses.replace(info, load_s=time.perf_counter() - started)
    return dataclasses.replace(loaded, info=info, acceleration=acceleration)


def _as_folder(path: Path, converted_dir: Path, report: ReportStage) -> Path:
    if path.suffix.lower() != ".gguf":
        return path
    if not path.is_file():
        raise ModelNotFoundError(f"There is no file {path}; check the path.", path=str(path))
    folder = converted_folder(path, converted_dir)
    if not (folder / "config.json").is_file():
        report(LoadStage.CONVERTING)
        try:
            convert_gguf(path, folder)
        except OSError as error:
            raise ModelError(
                f"{path.name} could not be converted into {converted_dir}: {error.strerror}; free disk space there.",
                path=str(path),
            ) from error
    elif lacks_numbers(path, folder) and pick_device().type == "cpu":  # converted by an earlier version
        report(LoadStage.CONVERTING)
        add_numbers(path, folder)
    return folder


def _load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise ModelDamagedError(
            f"The tokenizer in {folder} cannot be read; download tokenizer.json again.", path=str(folder)
        ) from error
    except Exception as error:  # tokenizers raises bare Exception for a damaged tokenizer.json
        if type(error) is not Exception:
            raise
        raise ModelDamagedError(
            f"The tokenizer in {folder} cannot be read; download tokenizer.json again.", path=str(folder)
        ) from error


def _load_weights(
    folder: Path,
    files: list[Path],
    weights_hash: str,
    weights: Weights,
    dtype: torch.dtype,
    device: torch.device,
    converted_dir: Path,
    report: ReportStage,
) -> LoadedWeights:
    try:
        if device.type == "cpu" and weights is not Weights.BITS_16:

            def on_rounding() -> None:
                report(LoadStage.CONVERTING)

            packed = load_packed(folder, files, weights_hash, weights, dtype, converted_dir / "packed", on_rounding)
            if packed is not None:
                _choose_attention(packed.model)
                return packed
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            device_map={"": device},
            quantization_config=quantization_config(weights, config, dtype, device),
            local_files_only=True,
            output_loading_info=True,
        )
    except (
        OSError, ValueError, KeyError, TypeError, RuntimeError, AttributeError, ImportError, SafetensorError
    ) as error:  # fmt: skip
        if is_out_of_memory(error):
            raise _needs_memory(folder) from error
        raise ModelDamagedError(
            f"The model in {folder} cannot be loaded ({_first_line(error)}); download it again.", path=str(folder)
        ) from error
    model: PreTrainedModel
    model, loading = loaded
    missing = sorted(loading["missing_keys"])
    mismatched = [str(entry[0]) for entry in loading.get("mismatched_keys", ())]
    if missing or mismatched:
        raise ModelDamagedError(
            f"The weights in {folder} lack {(missing + mismatched)[0]} and {len(missing + mismatched) - 1} more;"
            " download the model again.",
            path=str(folder),
        )
    model.eval()
    _choose_attention(model)
    takes_copy = device.type == "cpu" and weights is Weights.BITS_16 and dtype is torch.bfloat16
    return LoadedWeights(model, second_copy(model, folder, weights_hash) if takes_copy else {})


def _needs_memory(path: Path) -> ModelNeedsMemoryError:
    return ModelNeedsMemoryError(
        f"The weights of {path.name} do not fit into memory; choose 8-bit or 4-bit weights or a smaller model.",
        path=str(path),
    )


def _choose_attention(model: PreTrainedModel) -> None:
    """Use our attention where every layer is plain full attention; else keep what transformers chose."""
    config = model.config.get_text_config(decoder=True)
    layers = DynamicCache(config=model.config).layers
    is_plain = all(type(layer) is DynamicLayer for layer in layers)
    has_softcap = getattr(config, "attn_logit_softcapping", None) is not None
    if is_plain and not has_softcap and model._supports_attention_backend and model._supports_sdpa:
        model.set_attn_implementation(attention.NAME)


def stock_layers(config: Any, num_layers: int) -> list[CacheLayerMixin]:
    """The cache layers transformers makes for this model, empty: by the configuration, else plain ones."""
    layers: list[Any] = list(DynamicCache(config=config).layers)
    return layers or [DynamicLayer() for _ in range(num_layers)]


@dataclass(frozen=True, slots=True)
class _CacheProbe:
    """What two tokens leave in the stock cache: shapes of the full-attention layers, and what cannot be kept."""

    geometry: KVGeometry
    num_layers: int
    cannot_resume_reason: str | None


@torch.inference_mode()
def _probe_cache(model: PreTrainedModel, device: torch.device, dtype: torch.dtype) -> _CacheProbe:
    """Run two tokens through the stock cache and read off what it really keeps; warms the kernels as well."""
    cache = DynamicCache(config=model.config)
    model(input_ids=torch.zeros((1, 2), dtype=torch.long, device=device), cache=cache, use_cache=True)
    reason = state_layers.unsupported_reason(cache.layers)
    layers: list[Any] = cache.layers
    full = [layer for layer in layers if state_layers.is_full(layer) and layer.keys is not None]
    shapes = tuple(LayerShape(layer.keys.shape[1], layer.keys.shape[3], layer.values.shape[3]) for layer in full)
    return _CacheProbe(KVGeometry(shapes, full[0].keys.dtype if full else dtype), len(cache.layers), reason)


@torch.inference_mode()
def _takes_chunks(model: PreTrainedModel, device: torch.device, new_cache: Callable[[], WorkingCache]) -> bool:
    """Whether several tokens may follow cached ones: some recurrent models then forget their state, silently.

    Eight tokens in two parts against one pass; the relative difference is 0.25 and more where it goes wrong, and at
    most 0.03 where it does not.
    """
    forward = ForwardPass(model, device)
    ids = [3, 5, 7, 11, 13, 17, 19, 23]
    whole = forward(ids, new_cache())
    cache = new_cache()
    forward(ids[:4], cache)
    parts = forward(ids[4:], cache)
    scale = (whole - whole.mean()).norm()
    return bool((parts - whole).norm() <= _CHUNK_TOLERANCE * scale)


def _stop_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Ids that end a reply: the generation config's and the tokenizer's end-of-sequence ids."""
    configured = getattr(model.generation_config, "eos_token_id", None)
    ids = configured if isinstance(configured, list) else [configured]
    return frozenset(int(i) for i in [*ids, tokenizer.eos_token_id] if i is not None)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
