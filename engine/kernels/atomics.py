"""Memory that threads of one kernel share without locks: ordered loads, stores, counting, and a polite spin.

Words are int64, given by address; each sits on a cache line of its own where threads meet often.
"""

from __future__ import annotations

import ctypes
import platform
import sys

import llvmlite.binding
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

CACHE_LINE = 64
_SPINS_BEFORE_YIELD = 2000
_I64 = ir.IntType(64)
_IS_X86 = platform.machine().lower() in ("x86_64", "amd64", "i686", "x86")

if sys.platform == "win32":
    llvmlite.binding.add_symbol(
        "ember_yield", ctypes.cast(ctypes.windll.kernel32.SwitchToThread, ctypes.c_void_p).value
    )
else:
    llvmlite.binding.add_symbol("ember_yield", ctypes.cast(ctypes.CDLL(None).sched_yield, ctypes.c_void_p).value)


def _pointer(builder, address):
    return builder.inttoptr(address, _I64.as_pointer())


@intrinsic
def load_word(typingctx, address):
    """The int64 at `address`; what its writer wrote before it is visible."""

    def codegen(context, builder, signature, args):
        return builder.load_atomic(_pointer(builder, args[0]), "seq_cst", 8)

    return types.int64(types.int64), codegen


@intrinsic
def store_word(typingctx, address, value):
    """Write the int64 at `address`, after everything written before."""

    def codegen(context, builder, signature, args):
        builder.store_atomic(args[1], _pointer(builder, args[0]), "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def count_up(typingctx, address):
    """Add one to the int64 at `address` and return what it was."""

    def codegen(context, builder, signature, args):
        return builder.atomic_rmw("add", _pointer(builder, args[0]), _I64(1), "seq_cst")

    return types.int64(types.int64), codegen


@intrinsic
def exchange_if(typingctx, address, expected, new):
    """Write `new` to `address` if it holds `expected`; whether it did."""

    def codegen(context, builder, signature, args):
        pair = builder.cmpxchg(_pointer(builder, args[0]), args[1], args[2], "seq_cst", "seq_cst")
        return builder.extract_value(pair, 1)

    return types.boolean(types.int64, types.int64, types.int64), codegen


@intrinsic
def _pause(typingctx):
    """Tell the processor that this is a spin."""

    def codegen(context, builder, signature, args):
        if _IS_X86:
            function_type = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, function_type, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.void(), codegen


_yield = types.ExternalFunction("ember_yield", types.int32())


@njit(nogil=True)
def wait_turn(spins: int) -> int:
    """One look's pause in a spin: a few cycles, and after many of them the rest of the time slice for others."""
    if spins < _SPINS_BEFORE_YIELD:
        _pause()
    else:
        _yield()
    return spins + 1


@njit(nogil=True)
def meet(counter: int, rounds: int, num_threads: int) -> int:
    """Barrier: return when all threads have come `rounds + 1` times; returns `rounds + 1`. Nothing for one thread."""
    if num_threads == 1:
        return rounds
    rounds += 1
    count_up(counter)
    spins = 0
    while load_word(counter) < rounds * num_threads:
        spins = wait_turn(spins)
    return rounds
