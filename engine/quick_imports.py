"""Imports transformers without what only clusters and compilers need of torch: 1.5 instead of 2.9 s of a start.

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


def import_transformers() -> None:
    """Import transformers' model classes; what asks for torch's compiler afterwards gets it. Raises ImportError."""
    if "transformers.modeling_utils" in sys.modules:
        return
    importlib.import_module("transformers")
    _leave_out_distributed()
    # WORKAROUND transformers 5.24: the package would read 1,500 files for names that are all in `transformers`.
    sys.modules.setdefault("transformers.models", _unread("transformers.models"))
    with _compiler_left_out():
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
def _compiler_left_out() -> Iterator[None]:
    """WORKAROUND transformers 5.24: functions are marked for a compiler while they are defined, which loads it."""
    name = "torch._dynamo"
    if name in sys.modules:
        yield
        return
    stand_in: Any = _unread(name)
    stand_in.allow_in_graph = stand_in.assume_constant_result = lambda function: function
    stand_in.disable = _not_disabled
    sys.modules[name] = stand_in
    try:
        yield
    finally:
        del sys.modules[name]


def _unread(name: str) -> ModuleType:
    """A package whose submodules can be imported, without its own code having run."""
    spec = find_spec(name)
    if spec is None:
        raise ModuleNotFoundError(f"{name} is missing", name=name)
    return module_from_spec(spec)


def _not_disabled(function: Callable[..., Any] | None = None, recursive: bool = True, **_: Any) -> Callable[..., Any]:
    """Of a decorator with and without arguments, what does nothing."""
    return function if function is not None else lambda decorated: decorated
