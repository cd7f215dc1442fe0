"""Names for the cases that mutants are tried on: ids less the op's name, with {} for the dtype."""

from __future__ import annotations

# Attention: batches, heads, queries by keys, head size.
DENSE = "b2-h_q2-h_kv2-s_q37-s_kv41-d64-d_v64-{}-contiguous"
_ONE = "b1-h_q1-h_kv1"
_TWO = "b1-h_q2-h_kv2"
_SHORT = f"{_ONE}-s_q37-s_kv41-d64-d_v64"
_WIDE = f"{_ONE}-s_q37-s_kv70-d64-d_v64"
_TALL = f"{_ONE}-s_q70-s_kv37-d64-d_v64"
_PAIR = f"{_TWO}-s_q37-s_kv41-d64-d_v64"
_LAID = f"{_TWO}-s_q33-s_kv40-d64-d_v64"
GQA = "b1-h_q4-h_kv2-s_q17-s_kv33-d64-d_v64-{}-contiguous-gqa"
MQA = "b1-h_q3-h_kv1-s_q33-s_kv17-d64-d_v64-{}-contiguous-gqa"
MQA_OF_16 = "b1-h_q16-h_kv1-s_q33-s_kv35-d64-d_v64-{}-contiguous-positive-gqa"
MQA_OF_8 = "b1-h_q8-h_kv1-s_q19-s_kv21-d64-d_v64-{}-contiguous-gqa"
UNEQUAL = f"{_ONE}-s_q37-s_kv41-d40-d_v64-{{}}-contiguous-unequal_d"
CAUSAL = f"{_WIDE}-{{}}-contiguous-causal"
CAUSAL_TALL = f"{_TALL}-{{}}-contiguous-causal"
CORNER = f"{_WIDE}-{{}}-contiguous-bottom_right-causal"
DEAD_ROWS = f"{_TALL}-{{}}-contiguous-bottom_right-causal"
_WINDOW = "window_left5-window_right3-{}-contiguous"
WINDOW = f"{_TALL}-{_WINDOW}-window"
WINDOW_SHIFTED = f"{_WIDE}-{_WINDOW}-bottom_right-window"
WINDOW_OF_ONE = f"{_ONE}-s_q70-s_kv70-d64-d_v64-window_left0-window_right0-{{}}-contiguous-window"
BIAS = f"{_PAIR}-{{}}-contiguous-bias"
BIAS_OVER_BATCH = "b2-h_q1-h_kv1-s_q37-s_kv41-d64-d_v64-{}-contiguous-bias-bias_over_batch"
BIAS_OVER_HEADS = f"{_PAIR}-{{}}-contiguous-bias-bias_over_heads"
BIAS_OVER_QUERIES = f"{_PAIR}-{{}}-contiguous-bias-bias_over_queries"
BIAS_SOFTCAP = f"{_SHORT}-{{}}-contiguous-bias-softcap"
BIAS_CAUSAL = f"{_WIDE}-{{}}-contiguous-bias-causal"
ALIBI_CORNER = f"{_TWO}-s_q37-s_kv70-d64-d_v64-{{}}-contiguous-alibi-bottom_right-causal"
SOFTCAP = f"{_SHORT}-{{}}-contiguous-softcap"
SINK = f"{_PAIR}-{{}}-contiguous-sink"
DROPOUT = "b2-h_q1-h_kv1-s_q37-s_kv70-d64-d_v64-{}-contiguous-dropout"
DROPOUT_GQA = "b1-h_q4-h_kv2-s_q37-s_kv41-d64-d_v64-{}-contiguous-causal-dropout-gqa"
VARLEN = "b5-h_q1-h_kv1-s_q37-s_kv41-d64-d_v64-{}-contiguous-varlen"
VARLEN_CORNER = "b6-h_q2-h_kv1-s_q37-s_kv41-d64-d_v64-{}-contiguous-bottom_right-causal-gqa-varlen"
VARLEN_LONG = "b5-h_q1-h_kv1-s_q129-s_kv130-d64-d_v64-{}-contiguous-varlen"
SCALE = f"{_SHORT}-{{}}-contiguous-scale"
EVERY_OPTION = (
    "b2-h_q2-h_kv1-s_q37-s_kv41-d40-d_v24-window_left17-{}-contiguous-alibi-bias-bias_over_batch-"
    "bottom_right-causal-dropout-gqa-scale-sink-softcap-unequal_d-window"
)
# Few queries: keys split over programs, a group's query heads in one tile.
DECODING = "b2-h_q6-h_kv2-s_q3-s_kv300-d64-d_v64-{}-contiguous-gqa"
DECODING_CORNER = (
    "b1-h_q5-h_kv1-s_q7-s_kv290-d40-d_v24-{}-contiguous-bottom_right-causal-gqa-unequal_d"
)
DECODING_CAUSAL = "b1-h_q10-h_kv1-s_q7-s_kv270-d64-d_v64-{}-contiguous-causal-gqa"
DECODING_SINK = "b1-h_q4-h_kv1-s_q2-s_kv257-d64-d_v64-{}-contiguous-gqa-sink"
DECODING_BIAS = "b2-h_q6-h_kv2-s_q5-s_kv200-d64-d_v64-{}-contiguous-bias-dropout-gqa"
DECODING_ALL = (
    "b2-h_q4-h_kv2-s_q6-s_kv200-d40-d_v24-window_left170-{}-contiguous-alibi-bias-bias_over_batch-"
    "bottom_right-causal-dropout-gqa-scale-sink-softcap-unequal_d-window"
)
SPLIT_DEAD_ROWS = "b1-h_q1-h_kv1-s_q300-s_kv280-d64-d_v64-{}-contiguous-bottom_right-causal"
# Lengths and heads.
NO_QUERIES = f"{_ONE}-s_q0-s_kv17-d64-d_v64-{{}}-contiguous"
FIVE_TILES = f"{_ONE}-s_q64-s_kv257-d64-d_v64-{{}}-contiguous"
LAST_QUERY_ALONE = f"{_ONE}-s_q1025-s_kv33-d64-d_v64-{{}}-contiguous"
TAIL_OF_HEADS = "b2-h_q2-h_kv2-s_q65-s_kv35-d64-d_v64-{}-contiguous"
HEAD_320 = f"{_ONE}-s_q33-s_kv35-d320-d_v320-{{}}-contiguous"
HEAD_257 = f"{_ONE}-s_q33-s_kv35-d257-d_v257-{{}}-contiguous"
HEAD_40 = f"{_ONE}-s_q33-s_kv35-d40-d_v40-{{}}-contiguous"
# Layouts, each with its own tensor.
LAID = f"{_LAID}-{{}}"
FAR_ROWS = f"{_TWO}-s_q3-s_kv40-d64-d_v64-{{}}"
FAR_KEYS = f"{_TWO}-s_q17-s_kv3-d64-d_v64-{{}}"
FAR_HEADS = "b1-h_q3-h_kv3-s_q17-s_kv24-d64-d_v64-{}"
FAR_BATCHES = "b3-h_q1-h_kv1-s_q17-s_kv24-d64-d_v64-{}"
BIAS_INF_ROWS = (
    "b1-h_q4-h_kv4-s_q37-s_kv70-d64-d_v64-{}-contiguous-bias_inf_row-bias-bias_over_batch-"
    "bias_over_queries"
)
# Values.
VALUES = f"{_WIDE}-{{}}-contiguous"
VALUES_150 = f"{_ONE}-s_q37-s_kv150-d64-d_v64-{{}}-contiguous"
# Probes, with relations.
COARSE_WINDOW = (
    "b2-h_q1-h_kv1-s_q23-s_kv35-d40-d_v40-window_left9-window_right4-{}-contiguous-coarse-"
    "bottom_right-window"
)
COARSE_BIAS = "b1-h_q4-h_kv2-s_q19-s_kv35-d64-d_v24-{}-contiguous-coarse-bias-gqa-unequal_d"
# Layer norm.
ROWS = "m37-n760-{}-contiguous"
ODD = "m3-n229-{}-contiguous"
WEIGHED = "m11-n264-{}-contiguous"
DISTRIBUTED = "m13-n229-{}-contiguous"


def bf16(template: str) -> str:
    """The case in bfloat16."""
    return template.format("bfloat16")


def fp16(template: str) -> str:
    """The case in float16."""
    return template.format("float16")


def fp32(template: str) -> str:
    """The case in float32."""
    return template.format("float32")
