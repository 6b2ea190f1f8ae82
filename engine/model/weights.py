"""Weight precision: the compute dtype a device does well, and bitsandbytes for 8 and 4 bit (the room that knows it)."""

from __future__ import annotations

import logging

import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, PreTrainedConfig, PreTrainedModel
from transformers.quantizers.base import get_keys_to_not_convert

from engine.protocol.config import Weights

_NF4_BLOCK = 64

# It warns on every multiplication (bfloat16 to float16) and about optional kernels that no user can install.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)


def pick_device() -> torch.device:
    """The device to run on: CUDA where there is one, else the CPU."""
    return torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")


def compute_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 where the hardware multiplies it natively (AVX512-BF16, AMX, recent CUDA), else a type that it does."""
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    has_native_bf16 = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if has_native_bf16 else torch.float32


def quantization_config(
    weights: Weights, config: PreTrainedConfig, dtype: torch.dtype, device: torch.device
) -> BitsAndBytesConfig | None:
    """bitsandbytes settings for `weights`: LLM.int8 (arXiv 2208.07339) or NF4 (arXiv 2305.14314); None for 16 bit."""
    match weights:
        case Weights.BITS_16:
            return None
        case Weights.BITS_8:
            return BitsAndBytesConfig(load_in_8bit=True)
        case Weights.BITS_4:
            return BitsAndBytesConfig(
                load_in_4bit=True,
                bnb_4bit_quant_type="nf4",
                bnb_4bit_compute_dtype=dtype,
                llm_int8_skip_modules=_unpackable_modules(config) if device.type == "cpu" else None,
            )


def _unpackable_modules(config: PreTrainedConfig) -> list[str] | None:
    """Linear layers that 4-bit kernels of the CPU cannot hold; None when all fit.

    WORKAROUND bitsandbytes 0.50.2: packing for AVX-512 needs rows that are a multiple of the block size of 64.
    """
    with torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(config)
    names = [
        name
        for name, module in skeleton.named_modules()
        if isinstance(module, torch.nn.Linear) and module.in_features % _NF4_BLOCK
    ]
    return [*names, *get_keys_to_not_convert(skeleton)] if names else None


def weights_nbytes(model: PreTrainedModel) -> int:
    """Bytes of parameters and buffers in memory, each shared tensor counted once, quantization state included."""
    seen: set[int] = set()
    total = 0
    tensors = [*model.parameters(), *model.buffers()]
    for parameter in model.parameters():
        state = getattr(parameter, "quant_state", None)
        if state is not None:
            tensors += [tensor for tensor in (state.absmax, state.code) if tensor is not None]
    for tensor in tensors:
        if tensor.data_ptr() not in seen:
            seen.add(tensor.data_ptr())
            total += tensor.nbytes
    return total
