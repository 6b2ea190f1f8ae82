"""Tensors by name out of a model's safetensors files, each mapped when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors import safe_open


class TensorFiles:
    """Use with `with`. Opening raises what safetensors raises for a damaged file; OSError for one that is not there."""

    def __init__(self, files: list[Path]) -> None:
        self._stack = ExitStack()
        self._files = files
        self._handles: dict[str, Any] = {}

    def __enter__(self) -> Self:
        for file in self._files:
            handle: Any = self._stack.enter_context(safe_open(file, framework="pt"))
            self._handles |= dict.fromkeys(handle.keys(), handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handles = {}
        self._stack.close()

    def __contains__(self, name: str) -> bool:
        return name in self._handles

    def __iter__(self) -> Iterator[str]:
        return iter(self._handles)

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._handles[name].get_tensor(name)
        return tensor

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._handles[name].get_slice(name).get_shape())
