"""`ember models` and `ember models add PATH_OR_HUB_ID`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from app.commands.call import Call
from app.model_library import ModelEntry


def models(call: Call) -> int:
    found = call.library().models()
    if call.arguments.json:
        call.print_json({"models": [_content(entry) for entry in found]})
        return 0
    for entry in found:
        call.print(_line(entry))
        if entry.loads:
            call.print(f"    {_loads(entry)}")
    if not found:
        call.note("No model is here yet; run `make run` once, or bring one in with `ember models add`.")
    return 0


def add_model(call: Call) -> int:
    with call.lock():
        entry = call.library().add(call.arguments.source)
    if call.arguments.json:
        call.print_json(_content(entry))
    else:
        call.print(_line(entry))
    return 0


def _content(entry: ModelEntry) -> dict[str, Any]:
    return asdict(entry) | {"path": str(entry.path)}


def _loads(entry: ModelEntry) -> str:
    """What loading took, as "16bit 0.7 s 269 MB · 4bit 0.4 s 96 MB"."""
    return " · ".join(
        f"{weights} {one.load_s:.1f} s {one.weights_bytes / 1e6:,.0f} MB" for weights, one in entry.loads.items()
    )


def _line(entry: ModelEntry) -> str:
    context = f"{entry.context_length:,} tokens" if entry.context_length else "-"
    default = "  (default)" if entry.is_default else ""
    return f"{entry.name}  {entry.size_bytes / 1e6:,.0f} MB  {context}  {entry.path}{default}"
