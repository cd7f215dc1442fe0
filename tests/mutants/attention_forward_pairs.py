"""Mutants of our attention forwards and delta that are wrong where two or three things meet."""

from __future__ import annotations

from functools import partial

import torch

from kernel_workbench.oracles import ATTENTION_DELTA, ATTENTION_FORWARD
from kernel_workbench.oracles.attention.cases import attention_case
from kernel_workbench.oracles.attention.layouts import BIAS_STRIDES, FAR_KEYS, STRIDES
from tests.mutants.mutant import ACCESS, ERROR, NAN, Edit, Family

_KERNEL, _SCORES = "attention/forward_kernel.py", "attention/scores.py"
_WIDE, _SPLIT = "attention/wide_kernels.py", "attention/split_kernels.py"
_flash = Family("fwd", ATTENTION_FORWARD, "flash", _KERNEL)
_split = Family("fwd", ATTENTION_FORWARD, "split_keys", _SPLIT)
_delta = Family("delta", ATTENTION_DELTA, "delta", "attention/backward_kernels.py")
_LAYOUTS = {each.name: each for each in (*STRIDES, *BIAS_STRIDES, *FAR_KEYS)}
_case = partial(attention_case, ATTENTION_FORWARD.name, tier="ci")
_BF16, _FP16 = torch.bfloat16, torch.float16

_TILES = (
    "    mask = mask_of(s_q, s_kv, left, right, bottom_right)\n"
    "    tiles = key_tiles(mask, start_m, tl.minimum(start_m + BLOCK_M, s_q) - 1, BLOCK_N)"
)
_FULL_HIGH = "    full_high = tl.maximum(0, tl.minimum(s_kv, start_m + shift + right + 1))"

MUTANTS = (
    _flash(
        "softcap_from_the_other_corner",
        "under a softcap ALiBi's distance forgets s_kv - s_q",
        (
            (
                "b1-h_q1-h_kv1-s_q37-s_kv70-d64-d_v64-bfloat16-contiguous-alibi-bottom_right-causal-"
                "softcap"
            ),
        ),
        "tl.abs(offs_m + shift - offs_n)",
        "tl.abs(offs_m + (0 if options.SOFTCAP else shift) - offs_n)",
        bugs=(13,),
        file=_SCORES,
    ),
    _flash(
        "bias_of_another_batch_beside_a_sink",
        "with a sink the third batch has the first one's bias",
        ("b3-h_q1-h_kv1-s_q33-s_kv35-d111-d_v111-float16-contiguous-bias-bias_over_queries-sink",),
        "    bias_offset, slope = terms_of(options, batch, head)\n    scores = HeadScores("
        "options, bias_offset, slope, batch_head)",
        "    bias_offset, slope = terms_of(options, batch if sink_ptr is None else batch % 2, "
        "head)\n    scores = HeadScores(options, bias_offset, slope, batch_head)",
    ),
    _flash(
        "corner_of_masks_alone",
        "ALiBi's distance forgets s_kv - s_q where there is neither a causal mask nor a window",
        (_case((1, 2, 2, 37, 70, 64, 64), _BF16, options="alibi bottom_right"),),
        "shift = (s_kv - s_q) * bottom_right",
        "shift = (s_kv - s_q) * bottom_right * (tl.minimum(left, right) < 2**30).to(tl.int32)",
        bugs=(13,),
        file=_SCORES,
    ),
    _flash(
        "alibi_clamped_to_the_window",
        "ALiBi's distance ends at the window's left side, to its right as well",
        (_case((1, 2, 2, 37, 41, 64, 64), _FP16, options="alibi", window=(3, 20)),),
        "def score_tile(x, scores, offs_m, offs_n, shift, mask):",
        "def score_tile(x, scores, offs_m, offs_n, shift, mask, farthest=2**30):",
        Edit(
            _SCORES,
            "        x -= scores.slope * tl.abs(offs_m + shift - offs_n).to(tl.float32)",
            "        distance = tl.minimum(tl.abs(offs_m + shift - offs_n), farthest)\n"
            "        x -= scores.slope * distance.to(tl.float32)",
        ),
        Edit(
            _KERNEL,
            "score_tile(x, scores, offs_m, offs_n, mask.shift, reads)",
            "score_tile(x, scores, offs_m, offs_n, mask.shift, reads, mask.left)",
        ),
        file=_SCORES,
    ),
    _flash(
        "alibi_distance_in_half",
        "ALiBi's distance is kept in bfloat16, which counts to 256",
        (_case((1, 8, 8, 5, 520, 64, 64), _BF16, options="alibi"),),
        "tl.abs(offs_m + shift - offs_n).to(tl.float32)",
        "tl.abs(offs_m + shift - offs_n).to(tl.float32).to(tl.bfloat16).to(tl.float32)",
        file=_SCORES,
    ),
    _flash(
        "softcap_of_large_scores",
        "tanh is a ratio of exponentials, inf / inf where a score is 45 times the softcap",
        (_case((1, 1, 1, 37, 41, 64, 64), _FP16, options="softcap", distribution="logits1e4"),),
        "    return 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)",
        "    e = tl.exp(2.0 * x)\n    return (e - 1.0) / (e + 1.0)",
        rules=NAN,
        file=_SCORES,
    ),
    _flash(
        "group_by_a_short_reciprocal",
        "a head is divided by its group with 6 bits, too few for the last head of two groups of 7",
        (_case((1, 14, 2, 17, 33, 64, 64), _BF16),),
        "kv_head = (head // group).to(tl.int64)",
        "kv_head = ((head * ((63 + group) // group)) >> 6).to(tl.int64)",
        rules=(*ACCESS, *ERROR),
    ),
    _flash(
        "start_of_a_sequence_int32",
        "the offset of a sequence's first key is computed in 32 bits",
        (_case((3, 1, 1, 17, 2, 64, 64), _BF16, options="varlen", layout=_LAYOUTS["k_far"]),),
        "    if WIDE:\n        stride_m = stride_m.to(tl.int64)\n",
        "    first = start * (stride_m * VECTOR)\n"
        "    if WIDE:\n        stride_m = stride_m.to(tl.int64)\n",
        Edit(_SCORES, "Head(base + tl.cast(start, tl.int64) * stride_m,", "Head(base + first,"),
        bugs=(3, 15),
        rules=ACCESS,
        file=_SCORES,
    ),
    _flash(
        "sequences_of_packed_rows",
        "a sequence's first key is found as if the rows of all heads were packed",
        (
            _case(
                (5, 2, 2, 37, 41, 64, 64),
                _BF16,
                options="varlen",
                layout=_LAYOUTS["qkv_interleaved"],
            ),
        ),
        "k_ptr, stride_kb, stride_kn, stride_kh, stride_kd, batch, kv_head, start_k, ADJACENT,",
        "k_ptr + start_k * (h_q // group * d), stride_kb, stride_kn, stride_kh, stride_kd,\n"
        "        batch, kv_head, 0, ADJACENT,",
        bugs=(15, 22),
        rules=(*ERROR, *NAN, *ACCESS),
    ),
    _flash(
        "bias_from_the_first_tile",
        "a bias begins at the first key tile of a block's window, and is counted from key 0",
        (_case((1, 1, 1, 130, 130, 64, 64), _FP16, options="bias", window=(17, 3)),),
        f"    scores = HeadScores(options, bias_offset, slope, batch_head)\n{_TILES}\n",
        f"{_TILES}\n"
        "    bias_offset += tiles.low.to(tl.int64) * BLOCK_N * stride_bn\n"
        "    scores = HeadScores(options, bias_offset, slope, batch_head)\n",
        bugs=(18,),
        rules=(*ERROR, *NAN, *ACCESS),
    ),
    _flash(
        "lowest_number_taken_for_masked",
        "a row whose every key has the lowest finite bias is taken for one without keys",
        (
            _case(
                (1, 1, 1, 37, 70, 64, 64),
                _FP16,
                options="bias causal",
                distribution="bias_finfo_min",
            ),
        ),
        '    m_used = tl.where(m_new == float("-inf"), 0.0, m_new)\n    if options.NATURAL:',
        "    m_used = tl.where(m_new < -6e4, 0.0, m_new)\n    if options.NATURAL:",
        bugs=(9,),
        rules=(*ERROR, *NAN),
    ),
    _flash(
        "bias_batches_by_heads",
        "a bias's batches are taken to lie as far apart as its heads together",
        (
            _case(
                (2, 2, 2, 17, 24, 64, 64),
                _BF16,
                options="bias",
                layout=_LAYOUTS["bias_expanded_heads"],
            ),
        ),
        "        batch, head, query, key = self.bias.stride()\n",
        "        batch, head, query, key = self.bias.stride()\n"
        "        given = self.options.bias.shape\n"
        "        if given[0] > 1 and given[1] > 1:\n"
        "            batch = head * self.h_q\n",
        bugs=(25,),
        rules=(*ERROR, *NAN, *ACCESS),
        file="attention/problem.py",
    ),
    _flash(
        "sink_beside_the_maximum",
        "the sink isn't in the maximum: its exponential overflows where all scores are far below",
        (_case((1, 2, 2, 37, 41, 64, 64), _FP16, options="sink causal", distribution="logits1e4"),),
        "        m_new = tl.maximum(m_i, sink)\n"
        '        m_used = tl.where(m_new == float("-inf"), 0.0, m_new)\n',
        '        m_used = tl.where(m_i == float("-inf"), sink, m_i)\n',
        bugs=(43,),
        rules=(*ERROR, *NAN),
    ),
    _flash(
        "masked_values_by_columns",
        "values that nobody attends to are read where v's columns aren't adjacent",
        (
            _case(
                (1, 1, 1, 37, 70, 64, 64),
                _BF16,
                options="causal",
                distribution="nan_masked",
                layout=_LAYOUTS["v_transposed"],
            ),
        ),
        "        v = load_tile(v_ptrs, there[:, None],",
        "        if v_head.stride_d != 1:\n"
        "            there = keys < mask.s_kv\n"
        "        v = load_tile(v_ptrs, there[:, None],",
        bugs=(10, 24),
        rules=NAN,
    ),
    _flash(
        "whole_tiles_without_a_mask",
        "lengths of whole tiles are walked without a mask, the diagonal's tile too",
        (_case((1, 1, 1, 128, 128, 64, 64), _FP16, options="causal"),),
        f"{_FULL_HIGH} // BLOCK_N",
        f"{_FULL_HIGH}\n"
        "    whole = (mask.s_q % 128 == 0) & (s_kv % 128 == 0)\n"
        "    full_high = tl.where(whole, tl.cdiv(full_high, BLOCK_N), full_high // BLOCK_N)",
        bugs=(17,),
        file=_SCORES,
    ),
    _flash(
        "wide_corner_forgotten",
        "heads too wide for registers: the causal corner is top left whatever is asked for",
        (_case((1, 1, 1, 17, 40, 320, 320), _FP16, options="causal bottom_right"),),
        "    scores = HeadScores(options, bias_offset, slope, batch_head)\n"
        "    mask = mask_of(s_q, s_kv, left, right, bottom_right)\n",
        "    scores = HeadScores(options, bias_offset, slope, batch_head)\n"
        "    mask = mask_of(s_q, s_kv, left, right, bottom_right * 0)\n",
        bugs=(13,),
        file=_WIDE,
    ),
    _split(
        "split_sink_without_keys",
        "joining shares leaves the sink out of rows that attend to nothing",
        (
            _case(
                (1, 1, 1, 9, 200, 64, 64), _BF16, options="bias sink", distribution="bias_inf_row"
            ),
        ),
        "        l_i += tl.exp(sink - m_used)\n",
        '        dead = tl.max(share, 0) == float("-inf")\n'
        "        l_i += tl.where(dead, 0.0, tl.exp(sink - m_used))\n",
        bugs=(8, 14),
        rules=(*ERROR, *NAN),
    ),
    _split(
        "split_sink_of_first_columns",
        "joining shares counts the sink in the first 64 columns alone",
        (_case((1, 4, 1, 2, 257, 128, 128), _FP16, options="sink"),),
        "        l_i += tl.exp(sink - m_used)\n",
        "        l_i += tl.where(start == 0, tl.exp(sink - m_used), 0.0)\n",
    ),
    _split(
        "folded_rows_taken_for_adjacent",
        "with one key head the rows of a tile are taken to lie one head's stride apart",
        (_case((1, 4, 1, 3, 40, 64, 64), _FP16, layout=_LAYOUTS["q_bhsd"]),),
        "q_rows = (queries * stride_qm + wide_heads * stride_qh) * VECTOR",
        "q_rows = queries * stride_qm + wide_heads * stride_qh\n"
        "    q_rows = tl.where(h_kv == 1, rows.to(tl.int64) * stride_qh, q_rows) * VECTOR",
        bugs=(21,),
        rules=(*ERROR, *NAN, *ACCESS),
    ),
    _delta(
        "chunks_without_a_column_stride",
        "of heads past 256 columns each next chunk of do begins 256 elements on, whatever lies "
        "between its columns",
        (
            attention_case(
                ATTENTION_DELTA.name,
                (1, 1, 1, 33, 5, 300, 300),
                _FP16,
                "ci",
                layout=_LAYOUTS["do_colstride3"],
            ),
        ),
        "do = load_rows(do_head, wide_rows, offs, mask)",
        "columns = start + (offs - start)[None, :] * do_head.stride_d\n"
        "        do_offs = wide_rows[:, None] * do_head.stride_m + columns\n"
        "        do = tl.load(do_head.base + do_offs, mask=mask, other=0.0)",
        bugs=(20, 23),
        rules=(*ERROR, *NAN, *ACCESS),
    ),
)
