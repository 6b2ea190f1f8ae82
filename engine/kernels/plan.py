"""What one decode step works on, as tables of addresses and sizes that a kernel can read: what each column means.

All float vectors are float32. Addresses are int64; 0 means that the model has no such part.
"""

from __future__ import annotations

# sizes[...]: int64
(
    LAYERS,
    HIDDEN,
    HEADS,
    KV_HEADS,
    HEAD_DIM,
    ROPE_DIM,  # leading numbers of each head that are rotated
    INTERMEDIATE,
    VOCABULARY,
    KV_ROW_BYTES,  # from one cached token to the next
    QK_NORM,  # NO_NORM, PER_HEAD or FULL_WIDTH
    ACTIVATION,  # SILU or GELU_TANH
    THREADS,
    COS,  # float32 [tokens, ROPE_DIM / 2]
    SIN,
    FINAL_NORM,
    QKV,  # shared scratch, float32 [tokens fed, (HEADS + 2 KV_HEADS) * HEAD_DIM]
    HOT_START,  # position of the first token in the cache's own memory; those before it are in cold units
    COLD_UNITS,  # int64 [units, COLD_COLUMNS], layer by layer
    COLD_FIRST,  # int64 [LAYERS + 1]: where the units of a layer begin
    COLD_SLOTS,  # int64 [LAYERS, KV_HEADS]: how many units a head of a layer has
    MOST_SLOTS,  # the largest of them
    PARTIAL,  # float32 [tokens fed, HEADS, head_floats]
    DELTA,  # float32 [tokens fed, HIDDEN]: what attention or the MLP adds to the residual
    GATE,  # float32 [tokens fed, INTERMEDIATE]
    UP,
    ACTIVATED,  # bfloat16 [tokens fed, INTERMEDIATE]
    ACTIVATED_SUMS,  # float32 [tokens fed, INTERMEDIATE / 32]
    LOGITS,  # float32 [tokens fed, VOCABULARY]
    PRIVATE,  # a thread's own scratch, one after the other
    PRIVATE_BYTES,
    RESIDUAL,  # offsets in it: float32 [tokens fed, HIDDEN]
    INPUT,  # bfloat16 [tokens fed, widest input]
    INPUT_SUMS,
    INPUT_BYTES,  # from one vector to the next in INPUT
    QUERY,  # bfloat16 [KV_HEADS, tokens fed, heads of one KV head, HEAD_DIM]
    SCORES,
    HEAD,  # float32 [HEAD_DIM]
    SCALED,  # float32 [heads of one KV head, HEAD_DIM]
    NUM_SIZES,
) = range(39)

# A cold unit: up to SEGMENT tokens of one KV head as they are encoded (engine.kv.cold_table); addresses, bytes a row
(
    COLD_HEAD,
    COLD_SLOT,  # which of the head's partial results it makes
    COLD_FORMAT,  # PLAIN, KEYS_8_VALUES_8, KEYS_8_VALUES_4 or KEYS_4_VALUES_4
    COLD_COUNT,
    COLD_KEYS,
    COLD_KEY_ROW,
    COLD_VALUES,
    COLD_VALUE_ROW,
    COLD_KEY_SCALE,  # bfloat16 [HEAD_DIM]
    COLD_KEY_OFFSET,
    COLD_VALUE_SCALE,  # bfloat16 [tokens]
    COLD_VALUE_OFFSET,
    COLD_COLUMNS,
) = range(13)
PLAIN, KEYS_8_VALUES_8, KEYS_8_VALUES_4, KEYS_4_VALUES_4 = range(4)

NO_NORM, PER_HEAD, FULL_WIDTH = range(3)
SILU, GELU_TANH = range(2)

# numbers[...]: float32
EPSILON, ATTENTION_SCALE, RESIDUAL_SCALE, EMBEDDING_SCALE, LOGITS_SCALE, NUM_NUMBERS = range(6)

# matrices[layer * MATRICES_A_LAYER + ...]: (format, weights, scales, minima, rows, columns)
(
    QUERY_PROJECTION,
    KEY_PROJECTION,
    VALUE_PROJECTION,
    OUTPUT_PROJECTION,
    GATE_PROJECTION,
    UP_PROJECTION,
    DOWN_PROJECTION,
) = range(7)
MATRICES_A_LAYER = 7  # then the embedding and the head

# vectors[layer, ...]: addresses
(
    ATTENTION_NORM,
    MLP_NORM,
    POST_ATTENTION_NORM,
    POST_MLP_NORM,
    QUERY_NORM,
    KEY_NORM,
    QUERY_BIAS,
    KEY_BIAS,
    VALUE_BIAS,
    OUTPUT_BIAS,
    GATE_BIAS,
    UP_BIAS,
    DOWN_BIAS,
    HAS_ROPE,  # 0 or 1
    NUM_VECTORS,
) = range(15)

# control[...]: int64 words, 8 to a cache line; logits are wanted of the tokens FIRST_LOGITS to COUNT
REQUESTED, ARRIVED, STOP, START, COUNT, FIRST_LOGITS, TOKENS, PARKED = 0, 8, 16, 24, 25, 26, 32, 40
MAX_FED = 8  # TOKENS has room for them
CONTROL_WORDS = 40 + 8 * 65

SEGMENT = 128  # tokens of a partial attention result


def padded(segments: int) -> int:
    return (segments + 15) // 16 * 16


def head_floats(segments: int, head_dim: int) -> int:
    """Size of one head's partial results: largest scores, sums (each padded to 16), then the weighted values."""
    return 2 * ((segments + 15) // 16 * 16) + segments * head_dim
