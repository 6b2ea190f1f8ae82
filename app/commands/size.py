"""`ember size`: how large a KV cache gets. Arithmetic only; no model is loaded."""

from __future__ import annotations

from app.commands.call import Call
from app.errors import UserError
from app.model_config import ModelConfig, read_model_config

BYTES_PER_VALUE = {"float32": 4, "16bit": 2, "bf16": 2, "fp16": 2}


def size(call: Call) -> int:
    config = _config(call)
    bytes_per_token = config.kv_bytes_per_token(bytes_per_value=BYTES_PER_VALUE[call.arguments.precision])
    if bytes_per_token is None:
        raise UserError("The model's config.json does not tell; give --layers, --kv-heads and --head-dim.")
    tokens = call.arguments.tokens or config.context_length or 1
    content = {
        "layers": config.num_layers,
        "kv_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "precision": call.arguments.precision,
        "bytes_per_token": bytes_per_token,
        "tokens": tokens,
        "bytes": bytes_per_token * tokens,
    }
    if call.arguments.json:
        call.print_json(content)
    else:
        call.print(f"{bytes_per_token:,} bytes a token, {bytes_per_token * tokens:,} bytes for {tokens:,} tokens")
    return 0


def _config(call: Call) -> ModelConfig:
    given = (call.arguments.layers, call.arguments.kv_heads, call.arguments.head_dim)
    if call.arguments.model is not None:
        if any(given):
            raise UserError("Give either --model, or --layers, --kv-heads and --head-dim.")
        path = call.library().resolve(call.arguments.model)
        config = read_model_config(path) if path.is_dir() else None
        if config is None:
            raise UserError(f"{path} has no config.json that tells; give --layers, --kv-heads and --head-dim.")
        return config
    if not all(given):
        raise UserError("Give --model, or all of --layers, --kv-heads and --head-dim.")
    layers, kv_heads, head_dim = given
    return ModelConfig(num_layers=layers, num_kv_heads=kv_heads, head_dim=head_dim)
