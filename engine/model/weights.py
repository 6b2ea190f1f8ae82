"""Weight precision: the compute dtype a device does well, and bitsandbytes for 8 and 4 bit (the room that knows it)."""

from __future__ import annotations

import torch
from transformers import BitsAndBytesConfig, PreTrainedModel

from engine.protocol.config import Weights


def pick_device() -> torch.device:
    """The device to run on: CUDA where there is one, else the CPU."""
    return torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")


def compute_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 where the hardware multiplies it natively (AVX512-BF16, AMX, recent CUDA), else a type that it does."""
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    has_native_bf16 = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if has_native_bf16 else torch.float32


def quantization_config(weights: Weights, dtype: torch.dtype) -> BitsAndBytesConfig | None:
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
                bnb_4bit_use_double_quant=False,
            )


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
