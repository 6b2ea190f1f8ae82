"""What unpacking weights needs of vector registers besides `engine.kernels.simd`: columns out of words, and into rows.

Sixteen rows of a packed matrix lie across a register; row-major memory wants each row's numbers side by side. Turning
them round takes four rounds of shuffles of two registers (a butterfly over the bits of the row number), 64 in all.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from engine.kernels.simd import _F32X16, _I32X16, LANES, _call, _constant, _load, f32x16

_COLUMNS = 32
_REGISTER_BYTES = 4 * LANES
columns32 = types.UniTuple(f32x16, _COLUMNS)


@intrinsic
def load_q4_columns(typingctx, address, scale, minimum):
    """A group of 32 columns of 16 rows from Q4 words: scale * number + minimum, rounded once."""

    def codegen(context, builder, signature, args):
        address, scale, minimum = args
        columns = []
        for word in range(_COLUMNS // 8):
            lanes = _load(builder, _moved(builder, address, word * _REGISTER_BYTES), _I32X16, 2)
            for plane in range(4):
                for half in range(2):
                    number = _field(builder, lanes, 16 * half + 4 * plane, 0xF)
                    columns.append(_call(builder, "llvm.fma.v16f32", _F32X16, [number, scale, minimum]))
        return context.make_tuple(builder, columns32, columns)

    return columns32(types.int64, f32x16, f32x16), codegen


@intrinsic
def load_q8_columns(typingctx, address, scale):
    """A group of 32 columns of 16 rows from Q8 words: scale * number, exactly."""

    def codegen(context, builder, signature, args):
        address, scale = args
        columns = []
        for word in range(_COLUMNS // 4):
            lanes = _load(builder, _moved(builder, address, word * _REGISTER_BYTES), _I32X16, 2)
            for shift in (0, 16, 8, 24):  # columns 4j, 4j + 1, 4j + 2, 4j + 3
                number = builder.fsub(_field(builder, lanes, shift, 0xFF), _constant(128.0, _F32X16))
                columns.append(builder.fmul(number, scale))
        return context.make_tuple(builder, columns32, columns)

    return columns32(types.int64, f32x16), codegen


@intrinsic
def store_columns_bf16(typingctx, address, row_bytes, columns):
    """Write 32 columns of 16 rows to row-major bfloat16 at `address`, rounded to nearest even."""

    def codegen(context, builder, signature, args):
        address, row_bytes, columns = args
        values = [builder.extract_value(columns, index) for index in range(_COLUMNS)]
        pairs = [_pair(builder, values[index], values[index + 1]) for index in range(0, _COLUMNS, 2)]
        _store_rows(builder, address, row_bytes, _transposed(builder, pairs))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, columns32), codegen


@intrinsic
def store_columns_f32(typingctx, address, row_bytes, columns):
    """Write 32 columns of 16 rows to row-major float32 at `address`."""

    def codegen(context, builder, signature, args):
        address, row_bytes, columns = args
        lanes = [builder.bitcast(builder.extract_value(columns, index), _I32X16) for index in range(_COLUMNS)]
        for start in (0, LANES):
            place = _moved(builder, address, 4 * start)
            _store_rows(builder, place, row_bytes, _transposed(builder, lanes[start : start + LANES]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, columns32), codegen


def _moved(builder, address, num_bytes):
    return builder.add(address, ir.Constant(address.type, num_bytes))


def _field(builder, lanes, shift, mask):
    """The number under `mask` of every 32-bit lane moved down by `shift`, as float32."""
    shifted = builder.lshr(lanes, _constant(shift, _I32X16)) if shift else lanes
    return builder.sitofp(builder.and_(shifted, _constant(mask, _I32X16)), _F32X16)


def _pair(builder, low, high):
    """Two float32 of each lane as bfloat16 in its low and its high half."""
    below = builder.lshr(_rounded(builder, low), _constant(16, _I32X16))
    return builder.or_(below, builder.and_(_rounded(builder, high), _constant(0xFFFF0000, _I32X16)))


def _rounded(builder, value):
    """Bits of float32 whose high half is the nearest bfloat16, ties to even."""
    bits = builder.bitcast(value, _I32X16)
    odd = builder.and_(builder.lshr(bits, _constant(16, _I32X16)), _constant(1, _I32X16))
    return builder.add(bits, builder.add(odd, _constant(0x7FFF, _I32X16)))


def _transposed(builder, rows):
    """Sixteen registers of sixteen 32-bit lanes, with lane i of register j in lane j of register i."""
    rows = list(rows)
    index_type = ir.VectorType(ir.IntType(32), LANES)
    for step in (8, 4, 2, 1):
        upper = [lane - step + LANES if lane & step else lane for lane in range(LANES)]
        lower = [lane + LANES if lane & step else lane + step for lane in range(LANES)]
        masks = [ir.Constant(index_type, mask) for mask in (upper, lower)]
        for index in range(LANES):
            if not index & step:
                pair = rows[index], rows[index + step]
                rows[index], rows[index + step] = (builder.shuffle_vector(*pair, mask) for mask in masks)
    return rows


def _store_rows(builder, address, row_bytes, rows):
    for row in rows:
        builder.store(row, builder.inttoptr(address, _I32X16.as_pointer()), align=2)
        address = builder.add(address, row_bytes)
