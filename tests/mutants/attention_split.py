"""Mutants of `split_keys`: shares of keys, and a key head's query heads folded into one tile."""

from __future__ import annotations

from kernel_workbench.oracles import ATTENTION_FORWARD
from tests.mutants import named_cases as at
from tests.mutants.mutant import ACCESS, ERROR, NAN, UNWRITTEN, Family
from tests.mutants.named_cases import bf16, fp16, fp32

_KERNELS, _FP32 = "attention/split_kernels.py", "split_keys_fp32"
_split = Family("fwd", ATTENTION_FORWARD, "split_keys", _KERNELS)

MUTANTS = (
    _split(
        "split_share_floored",
        "a split's share of the key tiles is rounded down, and the last tiles are left out",
        (fp32(at.DECODING), fp32(at.DECODING_ALL)),
        "share = tl.cdiv(high - low, splits)",
        "share = (high - low) // splits",
        bugs=(17, 34),
        kernel=_FP32,
    ),
    _split(
        "split_last_dropped",
        "the step that joins shares leaves the last one out",
        (fp16(at.DECODING_SINK), bf16(at.DECODING_BIAS)),
        "used = offs_s < splits",
        "used = offs_s < splits - 1",
        bugs=(17, 34),
    ),
    _split(
        "split_shares_averaged",
        "shares are joined without the weights of their sums",
        (fp16(at.DECODING_SINK), bf16(at.DECODING_BIAS)),
        "weights = tl.exp(share - m_used)",
        "weights = tl.where(used, 1.0, 0.0)",
        bugs=(44,),
    ),
    _split(
        "split_dead_rows",
        "joining shares that are all empty takes -inf off -inf",
        (fp16(at.SPLIT_DEAD_ROWS),),
        'm_used = tl.where(m_i == float("-inf"), 0.0, m_i)\n    # A share',
        "m_used = m_i\n    # A share",
        bugs=(8, 14),
        rules=NAN,
    ),
    _split(
        "folded_rows_masked_as_queries",
        "the mask counts the rows of a tile, which are query heads too, as if each were a query",
        (fp16(at.DECODING_CORNER), bf16(at.DECODING_CAUSAL)),
        "mask, offs_m, WalkTiles(",
        "mask, rows, WalkTiles(",
        bugs=(13,),
        rules=(*ERROR, *NAN),
    ),
    _split(
        "folded_keys_of_first_query",
        "the keys of a tile end where its first query's do",
        (fp16(at.SPLIT_DEAD_ROWS),),
        "last_m = tl.minimum((start_r + BLOCK_M - 1) // group, s_q - 1)",
        "last_m = tl.minimum(start_r // group, s_q - 1)",
        bugs=(13, 17),
    ),
    _split(
        "folded_heads_in_turn",
        "the query heads of a tile are those in turn, not the key head's group",
        (fp32(at.DECODING), fp32(at.DECODING_ALL)),
        "heads = kv_head * group + rows % group",
        "heads = kv_head + rows % group * h_kv",
        kernel=_FP32,
    ),
    _split(
        "folded_tile_of_whole_queries",
        "a tile begins with a query's first head, and the heads between two tiles are left out",
        (bf16(at.DECODING_CAUSAL),),
        "rows = start_r + tl.arange(0, BLOCK_M)",
        "rows = (start_r + group - 1) // group * group + tl.arange(0, BLOCK_M)",
        bugs=(17, 34),
        rules=(*ACCESS, *UNWRITTEN),
    ),
    _split(
        "folded_bias_of_first_head",
        "all query heads of a group get the first one's bias",
        (bf16(at.DECODING_BIAS),),
        "terms_of(options, batch, wide_heads[:, None])",
        "terms_of(options, batch, wide_kv_head * group)",
        bugs=(19,),
    ),
    _split(
        "folded_dropout_of_key_head",
        "all query heads of a group drop the same keys",
        (bf16(at.DECODING_BIAS),),
        "batch_heads = ((batch_head // h_kv) * h_q + heads)[:, None]",
        "batch_heads = (batch_head // h_kv) * h_q + kv_head * group",
        bugs=(47,),
    ),
)
