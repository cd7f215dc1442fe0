"""Mutants of our attention forwards: masks, the running softmax, offsets and options."""

from __future__ import annotations

from kernel_workbench.oracles import ATTENTION_FORWARD
from tests.mutants import named_cases as at
from tests.mutants.mutant import ACCESS, ERROR, NAN, UNDEFINED, UNWRITTEN, Edit, Family
from tests.mutants.named_cases import bf16, fp16, fp32

_KERNEL, _SCORES = "attention/forward_kernel.py", "attention/scores.py"
_FP32 = "flash_fp32"
_flash = Family("fwd", ATTENTION_FORWARD, "flash")
_USED = '    m_used = tl.where(m_new == float("-inf"), 0.0, m_new)\n    if options.NATURAL:'

MUTANTS = (
    _flash(
        "keys_past_the_end",
        (11,),
        "the last tile's keys past the end count, with scores of 0",
        (bf16(at.DENSE),),
        ERROR,
        Edit(_KERNEL, "attends = attends & (offs_n < mask.end_key) &", "attends = attends &"),
    ),
    _flash(
        "other_corner",
        (13,),
        "the causal corner is top left where bottom right is asked for, and the other way round",
        (bf16(at.CORNER), bf16(at.CAUSAL_TALL)),
        (*ERROR, *NAN),
        Edit(_SCORES, "(s_kv - s_q) * bottom_right", "(s_kv - s_q) * (1 - bottom_right)"),
    ),
    _flash(
        "diagonal_dropped",
        (17,),
        "a query doesn't see the key at its own position",
        (bf16(at.CAUSAL),),
        (*ERROR, *NAN),
        Edit(_KERNEL, "(distance <= mask.right) &", "(distance < mask.right) &"),
    ),
    _flash(
        "window_one_short",
        (18,),
        "a window's left end isn't in it",
        (bf16(at.WINDOW),),
        (*ERROR, *NAN),
        Edit(_KERNEL, "(distance >= -mask.left)", "(distance > -mask.left)"),
    ),
    _flash(
        "partial_tile_dropped",
        (17,),
        "the loop over keys ends with the last whole tile",
        (bf16(at.FIVE_TILES), bf16(at.DENSE)),
        (*ERROR, *NAN),
        Edit(
            _SCORES,
            "high = tl.cdiv(tl.maximum(0, tl.minimum(s_kv, last_m + shift + right + 1)), BLOCK_N)",
            "high = tl.maximum(0, tl.minimum(s_kv, last_m + shift + right + 1)) // BLOCK_N",
        ),
    ),
    _flash(
        "partial_tile_unmasked",
        (11, 17),
        "a tile that is only partly attended to goes through the loop without a mask",
        (bf16(at.DENSE), bf16(at.CAUSAL)),
        (*ACCESS, *ERROR),
        Edit(
            _SCORES,
            "full_high = tl.maximum(0, tl.minimum(s_kv, start_m + shift + right + 1)) // BLOCK_N",
            "full_high = tl.cdiv(tl.maximum(0, tl.minimum(s_kv, start_m + shift + right + 1)), "
            "BLOCK_N)",
        ),
    ),
    _flash(
        "one_tile_of_diagonal_dropped",
        (17,),
        "the last tile of a causal row ends one key early, which shows at a tile's edge alone",
        (bf16(at.VARLEN_CORNER),),
        ERROR,
        Edit(
            _SCORES,
            "tl.minimum(s_kv, last_m + shift + right + 1)",
            "tl.minimum(s_kv, last_m + shift + right)",
        ),
    ),
    _flash(
        "first_tile_of_window_dropped",
        (18,),
        "the first tile of a window is taken to begin after its left end",
        (fp16(at.WINDOW_SHIFTED), bf16(at.WINDOW_SHIFTED)),
        (*ERROR, *NAN),
        Edit(
            _SCORES,
            "low = tl.maximum(0, start_m + shift - left) // BLOCK_N",
            "low = tl.cdiv(tl.maximum(0, start_m + shift - left), BLOCK_N)",
        ),
    ),
    _flash(
        "maximum_unguarded",
        (9,),
        "-inf is taken off -inf where the first keys have a bias of -inf",
        (fp16(f"{at.VALUES_150}-bias_inf_first-bias"),),
        NAN,
        Edit(_KERNEL, _USED, "    m_used = m_new\n    if options.NATURAL:"),
    ),
    _flash(
        "exp_before_maximum",
        (43,),
        "nothing is taken off the scores before exp",
        (bf16(f"{at.VALUES}-logits1e4"),),
        (*ERROR, *NAN),
        Edit(_KERNEL, _USED, "    m_used = tl.zeros_like(m_new)\n    if options.NATURAL:"),
    ),
    _flash(
        "accumulator_not_rescaled",
        (44,),
        "the accumulator keeps its old scale when the maximum moves",
        (fp16(f"{at.VALUES_150}-one_hot"), bf16(at.FIVE_TILES)),
        ERROR,
        Edit(_KERNEL, "        acc = acc * alpha[:, None]\n", ""),
    ),
    _flash(
        "sum_not_rescaled",
        (44,),
        "the sum keeps its old scale when the maximum moves",
        (bf16(at.FIVE_TILES),),
        ERROR,
        Edit(_KERNEL, "l_i = l_i * alpha + tl.sum(p, 1)", "l_i = l_i + tl.sum(p, 1)"),
    ),
    _flash(
        "lse_in_base_2",
        (45,),
        "lse is in base 2 where natural is promised",
        (fp16(at.DENSE),),
        ERROR,
        Edit(_KERNEL, "lse = m_used * LN2 + log_l", "lse = m_used + log_l / LN2"),
    ),
    _flash(
        "dead_rows_divided",
        (8, 14),
        "0 / 0 in rows that attend to nothing",
        (bf16(at.DEAD_ROWS), bf16(at.WINDOW)),
        NAN,
        Edit(
            _KERNEL,
            "inverse = tl.where(l_i == 0.0, 0.0, factor / tl.where(l_i == 0.0, 1.0, l_i))",
            "inverse = factor / l_i",
        ),
    ),
    _flash(
        "masked_values_multiplied",
        (10,),
        "keys and values that nobody attends to are read, and a NaN times 0 is a NaN",
        (fp16(f"{at.VALUES}-nan_masked-causal"),),
        NAN,
        Edit(
            _SCORES,
            "end_key = tl.maximum(first_key, tl.minimum(s_kv, s_q + shift + right))",
            "first_key, end_key = first_key * 0, s_kv",
        ),
    ),
    _flash(
        "p_in_half_before_the_sum",
        (43,),
        "P is rounded before it is summed",
        (fp16(at.DENSE), bf16(at.DENSE)),
        ERROR,
        Edit(
            _KERNEL,
            "        p = tl.exp2(x - m_used[:, None])\n",
            "        p = tl.exp2(x - m_used[:, None]).to(tl.float16).to(tl.float32)\n",
        ),
    ),
    _flash(
        "fp32_p_in_half",
        (),
        "a kernel of whole fp32 operands multiplies P in bfloat16",
        (fp32(at.DENSE),),
        ERROR,
        Edit(
            _KERNEL,
            "acc = tl.dot(p.to(v.dtype), v, acc",
            "acc = tl.dot(p.to(tl.bfloat16).to(v.dtype), v, acc",
        ),
        kernel=_FP32,
    ),
    _flash(
        "q_scaled_in_half",
        (42, 43),
        "q is multiplied by the scale in its own type",
        (bf16(at.DENSE), fp16(at.DENSE)),
        ERROR,
        Edit(
            _KERNEL,
            "    scores = HeadScores(",
            "    q = (q.to(tl.float32) * scale).to(q_ptr.dtype.element_ty)\n"
            "    scores = HeadScores(",
        ),
        Edit(_KERNEL, "    x *= options.scale\n", ""),
    ),
    _flash(
        "program_offset_int32",
        (3,),
        "the offset of a batch is computed in 32 bits",
        (bf16(at.FAR_BATCHES) + "-q_batches_far", bf16(at.FAR_BATCHES) + "-k_batches_far"),
        ACCESS,
        Edit(
            _SCORES,
            "base = ptr + (batch * stride_b + head * stride_h) * VECTOR",
            "base = ptr + batch.to(tl.int32) * (stride_b * VECTOR) + head * stride_h * VECTOR",
        ),
    ),
    _flash(
        "key_head_offset_int32",
        (3, 5),
        "the offset of a key head is computed in 32 bits",
        (bf16(at.FAR_HEADS) + "-k_heads_far", bf16(at.FAR_HEADS) + "-v_heads_far"),
        ACCESS,
        Edit(
            _SCORES,
            "base = ptr + (batch * stride_b + head * stride_h) * VECTOR",
            "base = ptr + batch * stride_b * VECTOR + head.to(tl.int32) * (stride_h * VECTOR)",
        ),
    ),
    _flash(
        "bias_offset_int32",
        (3,),
        "the offset of a bias's row is computed in 32 bits",
        (bf16(at.FAR_ROWS) + "-bias_far-bias",),
        ACCESS,
        Edit(_SCORES, "offs_m.to(tl.int64) * options.stride_bm", "offs_m * options.stride_bm"),
    ),
    _flash(
        "key_heads_in_turn",
        (),
        "query heads take key heads in turn, not by groups",
        (bf16(at.GQA),),
        ERROR,
        Edit(
            _KERNEL,
            "kv_head = (head // group).to(tl.int64)",
            "kv_head = (head % (h_q // group)).to(tl.int64)",
        ),
    ),
    _flash(
        "alibi_unshifted",
        (13,),
        "ALiBi's distance forgets s_kv - s_q",
        (fp32(at.ALIBI_CORNER),),
        ERROR,
        Edit(_SCORES, "tl.abs(offs_m + shift - offs_n)", "tl.abs(offs_m - offs_n)"),
        kernel=_FP32,
    ),
    _flash(
        "slopes_without_sign",
        (),
        "a slope's sign is left out: slopes are taken to follow the formula",
        ("b1-h_q8-h_kv8-s_q5-s_kv520-d64-d_v64-bfloat16-contiguous-alibi",),
        ERROR,
        Edit(
            _SCORES,
            "slope = tl.load(options.slopes_ptr + head)",
            "slope = tl.abs(tl.load(options.slopes_ptr + head))",
        ),
    ),
    _flash(
        "bias_bent",
        (),
        "the softcap bends the bias too",
        (bf16(at.BIAS_SOFTCAP),),
        ERROR,
        Edit(
            _SCORES,
            "    t = x\n    if options.SOFTCAP:\n",
            "    if options.bias_ptr is not None:\n"
            "        offs = offs_m.to(tl.int64) * options.stride_bm\n"
            "        offs += offs_n.to(tl.int64) * options.stride_bn\n"
            "        bias_ptrs = options.bias_ptr + scores.bias_offset + offs\n"
            "        x += tl.load(bias_ptrs, mask=mask, other=0.0).to(tl.float32)\n"
            "    t = x\n    if options.SOFTCAP:\n",
        ),
        Edit(
            _SCORES,
            "        x = options.softcap * t\n    if options.bias_ptr is not None:\n",
            "        x = options.softcap * t\n    if False:\n",
        ),
    ),
    _flash(
        "bias_without_other",
        (25,),
        "masked lanes of a bias are what the register held, and aren't masked again",
        (bf16(at.BIAS),),
        UNDEFINED,
        Edit(
            _SCORES,
            "x += tl.load(bias_ptrs, mask=mask, other=0.0)",
            "x += tl.load(bias_ptrs, mask=mask)",
        ),
        Edit(
            _KERNEL,
            'x = tl.where(attends, x, float("-inf"))',
            'x = tl.where(attends | (x != x), x, float("-inf"))',
        ),
    ),
    _flash(
        "sink_in_base_2",
        (45,),
        "a natural sink is taken for one in base 2",
        (bf16(at.SINK),),
        ERROR,
        Edit(_KERNEL, "tl.exp2((sink - m_used) * LOG2E)", "tl.exp2(sink - m_used)"),
    ),
    _flash(
        "dropout_alike_in_all_heads",
        (47,),
        "every batch and head drops the same pairs",
        (bf16(at.DROPOUT), bf16(at.DROPOUT_GQA)),
        ERROR,
        Edit(_SCORES, "zero + scores.batch_head, zero)", "zero, zero)"),
    ),
    _flash(
        "dropout_counter_of_keys",
        (47,),
        "the draws of a tile begin at its first key, not at a quarter of it",
        (bf16(at.DROPOUT),),
        ERROR,
        Edit(_SCORES, "fours = (start_n // 4 +", "fours = (start_n +"),
    ),
    _flash(
        "dropout_renormalised",
        (47,),
        "the sum leaves out the dropped keys",
        (bf16(at.DROPOUT),),
        ERROR,
        Edit(_KERNEL, "    l_i = l_i * alpha + tl.sum(p, 1)\n", ""),
        Edit(
            _KERNEL,
            "start_n, BLOCK_M, BLOCK_N), p, 0.0)\n",
            "start_n, BLOCK_M, BLOCK_N), p, 0.0)\n    l_i = l_i * alpha + tl.sum(p, 1)\n",
        ),
    ),
    _flash(
        "varlen_lengths_of_q",
        (15,),
        "the end of a sequence's keys is taken from the queries' offsets",
        (bf16(at.VARLEN),),
        (*ERROR, *NAN, *ACCESS),
        Edit(_SCORES, "s_kv = tl.load(cu_k + batch + 1)", "s_kv = tl.load(cu_q + batch + 1)"),
    ),
    _flash(
        "varlen_without_keys_skipped",
        (15,),
        "sequences without keys return before they write their rows",
        (bf16(at.VARLEN),),
        UNWRITTEN,
        Edit(_KERNEL, "if start_m >= s_q:", "if (start_m >= s_q) | (s_kv == 0):"),
    ),
    _flash(
        "varlen_batch_twice",
        (15,),
        "a sequence's number moves it once more, as a batch's would: writes past the end",
        (bf16(at.VARLEN),),
        ACCESS,
        Edit(_SCORES, "memory_batch = memory_batch * 0", "memory_batch = memory_batch * 1"),
    ),
    _flash(
        "columns_past_the_head",
        (17,),
        "columns past d_v are stored over the next head's or row's",
        (fp32(at.HEAD_40),),
        ACCESS,
        Edit(
            _KERNEL,
            "    within = there[:, None] & (offs_dv[None, :] < d_v)\n    tl.store(out_ptrs, out.to",
            "    within = there[:, None]\n    tl.store(out_ptrs, out.to",
        ),
        kernel=_FP32,
    ),
)
