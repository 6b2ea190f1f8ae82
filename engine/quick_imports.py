"""Imports transformers without what only clusters and compilers need of torch: 1.6 instead of 3.1 s of a start.

What is left out are three things that transformers imports for every model, whether they are used or not: torch's
distributed tensors, its compiler (with sympy), and the second of two readings of all its model files.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

_COMPILER = "torch._dynamo"


def import_transformers() -> None:
    """Import transformers' model classes; what asks for torch's compiler afterwards gets it. Raises ImportError."""
    if "transformers.modeling_utils" in sys.modules:
        return
    importlib.import_module("transformers")
    _leave_out_distributed()
    # WORKAROUND transformers 5.24: the package would read 1,500 files for names that are all in `transformers`.
    sys.modules.setdefault("transformers.models", _unread("transformers.models"))
    with compiler_left_out():
        importlib.import_module("transformers.modeling_utils")
        importlib.import_module("transformers.masking_utils")


def _leave_out_distributed() -> None:
    """WORKAROUND transformers 5.24: it imports distributed tensors wherever torch can do them. It asks once."""
    import torch  # noqa: PLC0415 - on the inference thread, behind the window
    from transformers.utils.import_utils import is_torch_distributed_available  # noqa: PLC0415 - the same

    is_available = torch.distributed.is_available
    torch.distributed.is_available = lambda: False
    try:
        is_torch_distributed_available()
    finally:
        torch.distributed.is_available = is_available


@contextmanager
def compiler_left_out() -> Iterator[None]:
    """Inside, what only marks functions for torch's compiler does not load it; whatever else is asked of it does.

    WORKAROUND transformers 5.24, which marks functions while it is imported, and torch 2.13, which does so while a
    model is laid out without memory.
    """
    import torch  # noqa: PLC0415 - on the inference thread, behind the window

    if _COMPILER in sys.modules:
        yield
        return
    compile_ = torch.compile
    stand_in: Any = _unread(_COMPILER)

    def take_its_place(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        put_back()
        return getattr(importlib.import_module("torch._dynamo"), name)

    def put_back() -> None:
        torch.compile = compile_
        if sys.modules.get(_COMPILER) is stand_in:
            del sys.modules[_COMPILER]

    def compile_really(*arguments: Any, **options: Any) -> Any:
        put_back()
        return compile_(*arguments, **options)

    stand_in.allow_in_graph = stand_in.assume_constant_result = lambda function: function
    stand_in.disable = _not_disabled
    stand_in.__getattr__ = take_its_place
    sys.modules[_COMPILER] = stand_in
    torch.compile = compile_really
    try:
        yield
    finally:
        put_back()


def _unread(name: str) -> ModuleType:
    """A package whose submodules can be imported, without its own code having run."""
    spec = find_spec(name)
    if spec is None:
        raise ModuleNotFoundError(f"{name} is missing", name=name)
    return module_from_spec(spec)


def _not_disabled(function: Callable[..., Any] | None = None, recursive: bool = True, **_: Any) -> Callable[..., Any]:
    """Of a decorator with and without arguments, what does nothing."""
    return function if function is not None else lambda decorated: decorated
