"""Vector registers for numba kernels: sixteen float32, or thirty-two 16-bit numbers, and what one can do with them.

Every operation is one LLVM instruction or intrinsic on a generic vector type, so it compiles for any processor (two
AVX2 or four NEON registers where there is no AVX-512). Only `dot_pairs` has a special form, for AVX512-BF16. Memory is
given by address (int64), as torch tells it; nothing is checked here, so callers prove their bounds.
"""

from __future__ import annotations

import struct

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core import cgutils, config
from numba.extending import intrinsic, models, register_model

LANES = 16
_LEAST_EXPONENT = -60.0
_MOST_EXPONENT = 88.0


def _has_feature(name: str) -> bool:
    """Whether numba compiles for a processor with this feature: what its settings say, else this machine's."""
    if config.CPU_NAME:
        return f"+{name}" in (config.CPU_FEATURES or "")
    return bool(llvmlite.binding.get_host_cpu_features().get(name))


HAS_BF16_DOT = _has_feature("avx512bf16")

_I32 = ir.IntType(32)
_I16 = ir.IntType(16)
_I8X16 = ir.VectorType(ir.IntType(8), LANES)
_F32 = ir.FloatType()
_F32X16 = ir.VectorType(_F32, LANES)
_I32X16 = ir.VectorType(_I32, LANES)
_I16X16 = ir.VectorType(_I16, LANES)
_I16X32 = ir.VectorType(_I16, 2 * LANES)
_F16X16 = ir.VectorType(ir.HalfType(), LANES)


class _BFloat(ir.Type):
    """LLVM's bfloat, which llvmlite has no name for."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


_BF16X32 = ir.VectorType(_BFloat(), 2 * LANES)


class Float16Lanes(types.Type):
    """Sixteen float32."""

    def __init__(self) -> None:
        super().__init__(name="f32x16")


class Pairs16Lanes(types.Type):
    """Sixteen pairs of 16-bit numbers: bfloat16 bits, or packed weights."""

    def __init__(self) -> None:
        super().__init__(name="i16x32")


f32x16 = Float16Lanes()
i16x32 = Pairs16Lanes()


@register_model(Float16Lanes)
class _Float16LanesModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, _F32X16)


@register_model(Pairs16Lanes)
class _Pairs16LanesModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, _I16X32)


def _splat(builder, value, vector):
    undefined = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(undefined, value, _I32(0))
    zeros = ir.Constant(ir.VectorType(_I32, vector.count), [0] * vector.count)
    return builder.shuffle_vector(first, undefined, zeros)


def _constant(value, vector):
    return ir.Constant(vector, [value] * vector.count)


def _call(builder, name, result, arguments):
    function_type = ir.FunctionType(result, [argument.type for argument in arguments])
    function = cgutils.get_or_insert_function(builder.module, function_type, name)
    return builder.call(function, arguments)


def _load(builder, address, vector, align):
    pointer = builder.inttoptr(address, vector.as_pointer())
    return builder.load(pointer, align=align)


@intrinsic
def load_f32(typingctx, address):
    """Sixteen float32 from `address`."""

    def codegen(context, builder, signature, args):
        return _load(builder, args[0], _F32X16, 4)

    return f32x16(types.int64), codegen


@intrinsic
def store_f32(typingctx, address, value):
    """Write sixteen float32 to `address`."""

    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], _F32X16.as_pointer())
        builder.store(args[1], pointer, align=4)
        return context.get_dummy_value()

    return types.void(types.int64, f32x16), codegen


@intrinsic
def load_f16(typingctx, address):
    """Sixteen float16 from `address`, as float32."""

    def codegen(context, builder, signature, args):
        return builder.fpext(_load(builder, args[0], _F16X16, 2), _F32X16)

    return f32x16(types.int64), codegen


@intrinsic
def load_bf16(typingctx, address):
    """Sixteen bfloat16 from `address`, as float32."""

    def codegen(context, builder, signature, args):
        wide = builder.zext(_load(builder, args[0], _I16X16, 2), _I32X16)
        return builder.bitcast(builder.shl(wide, _constant(16, _I32X16)), _F32X16)

    return f32x16(types.int64), codegen


@intrinsic
def load_i8(typingctx, address):
    """Sixteen signed bytes from `address`, as float32."""

    def codegen(context, builder, signature, args):
        return builder.sitofp(builder.sext(_load(builder, args[0], _I8X16, 1), _I32X16), _F32X16)

    return f32x16(types.int64), codegen


@intrinsic
def load_low_nibbles(typingctx, address):
    """The low halves of sixteen bytes from `address`, 0 to 15, as float32."""

    def codegen(context, builder, signature, args):
        wide = builder.zext(_load(builder, args[0], _I8X16, 1), _I32X16)
        return builder.sitofp(builder.and_(wide, _constant(15, _I32X16)), _F32X16)

    return f32x16(types.int64), codegen


@intrinsic
def load_high_nibbles(typingctx, address):
    """The high halves of sixteen bytes from `address`, 0 to 15, as float32."""

    def codegen(context, builder, signature, args):
        wide = builder.zext(_load(builder, args[0], _I8X16, 1), _I32X16)
        return builder.sitofp(builder.lshr(wide, _constant(4, _I32X16)), _F32X16)

    return f32x16(types.int64), codegen


@intrinsic
def store_bf16(typingctx, address, value):
    """Write sixteen float32 to `address` as bfloat16, rounded to nearest even."""

    def codegen(context, builder, signature, args):
        bits = builder.bitcast(args[1], _I32X16)
        odd = builder.and_(builder.lshr(bits, _constant(16, _I32X16)), _constant(1, _I32X16))
        rounded = builder.add(bits, builder.add(odd, _constant(0x7FFF, _I32X16)))
        narrow = builder.trunc(builder.lshr(rounded, _constant(16, _I32X16)), _I16X16)
        builder.store(narrow, builder.inttoptr(args[0], _I16X16.as_pointer()), align=2)
        return context.get_dummy_value()

    return types.void(types.int64, f32x16), codegen


@intrinsic
def load_pairs(typingctx, address):
    """Sixteen pairs of 16-bit numbers from `address`."""

    def codegen(context, builder, signature, args):
        return _load(builder, args[0], _I16X32, 2)

    return i16x32(types.int64), codegen


@intrinsic
def splat_pair(typingctx, address):
    """The pair of 16-bit numbers at `address` in every lane."""

    def codegen(context, builder, signature, args):
        pair = builder.load(builder.inttoptr(args[0], _I32.as_pointer()), align=2)
        return builder.bitcast(_splat(builder, pair, _I32X16), _I16X32)

    return i16x32(types.int64), codegen


@intrinsic
def nibbles(typingctx, packed, plane):
    """The 4-bit numbers of one plane (bits 4*plane and up; a constant), as bfloat16 of 128 + number, exactly.

    bfloat16 keeps 7 bits after the point, so 128 + n for n < 128 has the bits 0x4300 | n.
    """
    if not isinstance(plane, types.IntegerLiteral):
        return None
    shift = 4 * plane.literal_value

    def codegen(context, builder, signature, args):
        shifted = builder.lshr(args[0], _constant(shift, _I16X32)) if shift else args[0]
        low = builder.and_(shifted, _constant(0x000F, _I16X32))
        return builder.or_(low, _constant(0x4300, _I16X32))

    return i16x32(i16x32, plane), codegen


@intrinsic
def dot_pairs(typingctx, total, left, right):
    """total[i] + left[2i] * right[2i] + left[2i + 1] * right[2i + 1], bfloat16 inputs, float32 sums."""

    def fast(context, builder, signature, args):
        left, right = (builder.bitcast(value, _BF16X32) for value in args[1:])
        return _call(builder, "llvm.x86.avx512bf16.dpbf16ps.512", _F32X16, [args[0], left, right])

    def generic(context, builder, signature, args):
        left, right = (builder.bitcast(value, _I32X16) for value in args[1:])
        sixteen, high = _constant(16, _I32X16), _constant(0xFFFF0000, _I32X16)
        evens = [builder.bitcast(builder.shl(value, sixteen), _F32X16) for value in (left, right)]
        odds = [builder.bitcast(builder.and_(value, high), _F32X16) for value in (left, right)]
        total = _call(builder, "llvm.fma.v16f32", _F32X16, [*odds, args[0]])
        return _call(builder, "llvm.fma.v16f32", _F32X16, [*evens, total])

    return f32x16(f32x16, i16x32, i16x32), fast if HAS_BF16_DOT else generic


@intrinsic
def splat(typingctx, value):
    """`value` in every lane."""

    def codegen(context, builder, signature, args):
        return _splat(builder, args[0], _F32X16)

    return f32x16(types.float32), codegen


@intrinsic
def splat_f32(typingctx, address):
    """The float32 at `address` in every lane."""

    def codegen(context, builder, signature, args):
        value = builder.load(builder.inttoptr(args[0], _F32.as_pointer()), align=4)
        return _splat(builder, value, _F32X16)

    return f32x16(types.int64), codegen


@intrinsic
def fma(typingctx, left, right, total):
    """left * right + total, rounded once."""

    def codegen(context, builder, signature, args):
        return _call(builder, "llvm.fma.v16f32", _F32X16, list(args))

    return f32x16(f32x16, f32x16, f32x16), codegen


@intrinsic
def add(typingctx, left, right):
    def codegen(context, builder, signature, args):
        return builder.fadd(*args)

    return f32x16(f32x16, f32x16), codegen


@intrinsic
def subtract(typingctx, left, right):
    def codegen(context, builder, signature, args):
        return builder.fsub(*args)

    return f32x16(f32x16, f32x16), codegen


@intrinsic
def multiply(typingctx, left, right):
    def codegen(context, builder, signature, args):
        return builder.fmul(*args)

    return f32x16(f32x16, f32x16), codegen


@intrinsic
def divide(typingctx, left, right):
    def codegen(context, builder, signature, args):
        return builder.fdiv(*args)

    return f32x16(f32x16, f32x16), codegen


@intrinsic
def maximum(typingctx, left, right):
    def codegen(context, builder, signature, args):
        return _call(builder, "llvm.maxnum.v16f32", _F32X16, list(args))

    return f32x16(f32x16, f32x16), codegen


@intrinsic
def sum_lanes(typingctx, value):
    """The sum of the sixteen, added pairwise."""

    def codegen(context, builder, signature, args):
        vector, width = args[0], LANES
        while width > 1:
            width //= 2
            undefined = ir.Constant(vector.type, ir.Undefined)
            low = ir.Constant(ir.VectorType(_I32, width), list(range(width)))
            high = ir.Constant(ir.VectorType(_I32, width), list(range(width, 2 * width)))
            vector = builder.fadd(
                builder.shuffle_vector(vector, undefined, low), builder.shuffle_vector(vector, undefined, high)
            )
        return builder.extract_element(vector, _I32(0))

    return types.float32(f32x16), codegen


@intrinsic
def store_four_sums(typingctx, address, a, b, c, d):
    """Write the sums of four vectors, each added as `sum_lanes` does, as four float32 side by side."""

    def codegen(context, builder, signature, args):
        def shuffle(left, right, lanes):
            return builder.shuffle_vector(left, right, ir.Constant(ir.VectorType(_I32, len(lanes)), lanes))

        def fold(left, right, width):
            """Halves of every `width` lanes of both, added: those of `left`, then those of `right`."""
            half = width // 2
            firsts = [start + lane for start in range(0, 2 * LANES, width) for lane in range(half)]
            low = shuffle(left, right, firsts)
            return builder.fadd(low, shuffle(left, right, [lane + half for lane in firsts]))

        vectors = fold(fold(args[1], args[2], 16), fold(args[3], args[4], 16), 8)
        for step in (2, 1):
            vectors = builder.fadd(vectors, shuffle(vectors, vectors, [lane ^ step for lane in range(LANES)]))
        sums = shuffle(vectors, vectors, [0, 4, 8, 12])
        builder.store(sums, builder.inttoptr(args[0], sums.type.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, f32x16, f32x16, f32x16, f32x16), codegen


@intrinsic
def max_lanes(typingctx, value):
    def codegen(context, builder, signature, args):
        return _call(builder, "llvm.vector.reduce.fmax.v16f32", _F32, list(args))

    return types.float32(f32x16), codegen


@intrinsic
def exp_lanes(typingctx, value):
    """e to the power of each lane, above 88 as at 88; relative error under 2.5e-7. NaN stays NaN.

    Below -60 it is 0: less than a rounding error of any sum with 1 in it, and small enough to make denormal numbers,
    which cost a hundred times as long.

    2^n * e^r with n = round(x / ln 2) and r in two steps (Cody and Waite), e^r by its Taylor polynomial of degree 6
    over |r| <= 0.347.
    """

    def codegen(context, builder, signature, args):
        def fused(a, b, c):
            return _call(builder, "llvm.fma.v16f32", _F32X16, [a, b, c])

        def clamped(value, sign, limit):
            limits = _constant(limit, _F32X16)
            return builder.select(builder.fcmp_ordered(sign, value, limits), limits, value)

        x = clamped(clamped(args[0], "<", _LEAST_EXPONENT), ">", _MOST_EXPONENT)
        n = _call(
            builder,
            "llvm.rint.v16f32",
            _F32X16,
            [builder.fmul(x, _constant(1.4426950216293335, _F32X16))],
        )
        r = fused(n, _constant(-0.693145751953125, _F32X16), x)
        r = fused(n, _constant(-1.42860676533018e-06, _F32X16), r)
        p = _constant(_as_f32(1 / 720), _F32X16)
        for coefficient in (1 / 120, 1 / 24, 1 / 6, 0.5, 1.0, 1.0):
            p = fused(p, r, _constant(_as_f32(coefficient), _F32X16))
        exponent = builder.shl(builder.fptosi(n, _I32X16), _constant(23, _I32X16))
        result = builder.bitcast(builder.add(builder.bitcast(p, _I32X16), exponent), _F32X16)
        is_tiny = builder.fcmp_ordered("<", args[0], _constant(_LEAST_EXPONENT, _F32X16))
        return builder.select(is_tiny, _constant(0.0, _F32X16), result)

    return f32x16(f32x16), codegen


def _as_f32(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])


@intrinsic
def put_f32(typingctx, address, value):
    """Write one float32 to `address`."""

    def codegen(context, builder, signature, args):
        builder.store(args[1], builder.inttoptr(args[0], _F32.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.float32), codegen


@intrinsic
def get_f32(typingctx, address):
    """The float32 at `address`."""

    def codegen(context, builder, signature, args):
        return builder.load(builder.inttoptr(args[0], _F32.as_pointer()), align=4)

    return types.float32(types.int64), codegen


@intrinsic
def get_f16(typingctx, address):
    """The float16 at `address`, as float32."""

    def codegen(context, builder, signature, args):
        value = builder.load(builder.inttoptr(args[0], ir.HalfType().as_pointer()), align=2)
        return builder.fpext(value, _F32)

    return types.float32(types.int64), codegen


@intrinsic
def get_bf16(typingctx, address):
    """The bfloat16 at `address`, as float32."""

    def codegen(context, builder, signature, args):
        value = builder.load(builder.inttoptr(args[0], _I16.as_pointer()), align=2)
        return builder.bitcast(builder.shl(builder.zext(value, _I32), _I32(16)), _F32)

    return types.float32(types.int64), codegen


@intrinsic
def get_int64(typingctx, address):
    """The signed 64-bit number at `address`."""

    def codegen(context, builder, signature, args):
        return builder.load(builder.inttoptr(args[0], ir.IntType(64).as_pointer()), align=8)

    return types.int64(types.int64), codegen


@intrinsic
def get_word(typingctx, address):
    """The unsigned 16-bit number at `address`."""

    def codegen(context, builder, signature, args):
        value = builder.load(builder.inttoptr(args[0], _I16.as_pointer()), align=2)
        return builder.zext(value, ir.IntType(64))

    return types.int64(types.int64), codegen


@intrinsic
def prefetch(typingctx, address):
    """Ask for the cache line at `address`, which may be anywhere: nothing is read that a program could see."""

    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], ir.IntType(8).as_pointer())
        _call(builder, "llvm.prefetch.p0", ir.VoidType(), [pointer, _I32(0), _I32(2), _I32(1)])
        return context.get_dummy_value()

    return types.void(types.int64), codegen
