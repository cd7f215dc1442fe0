"""Mutants of our attention backwards: delta, scale, masks, groups, dropout and shares."""

from __future__ import annotations

from kernel_workbench.oracles import ATTENTION_BACKWARD
from tests.mutants import named_cases as at
from tests.mutants.mutant import ACCESS, ERROR, NAN, UNWRITTEN, Edit, Family
from tests.mutants.named_cases import bf16, fp16, fp32

_KERNEL, _SCORES = "attention/backward_kernels.py", "attention/scores.py"
_FP32 = "two_pass_fp32"
_OPTIONS, _WIDE = "attention/option_gradients.py", "attention/wide_kernels.py"
_two_pass = Family("bwd", ATTENTION_BACKWARD, "two_pass")

MUTANTS = (
    _two_pass(
        "delta_forgotten",
        (41,),
        "dS = P dP",
        (bf16(at.DENSE),),
        ERROR,
        Edit(_KERNEL, "ds = p * (dp - delta)", "ds = p * dp"),
    ),
    _two_pass(
        "delta_in_half",
        (41,),
        "delta is rounded to the half",
        (fp16(at.CAUSAL), bf16(at.CAUSAL)),
        ERROR,
        Edit(
            _KERNEL,
            "delta = tl.sum(out.to(tl.float32) * do.to(tl.float32), 1)",
            "delta = tl.sum(out.to(tl.float32) * do.to(tl.float32), 1)\n"
            "    delta = delta.to(out_ptr.dtype.element_ty).to(tl.float32)",
        ),
    ),
    _two_pass(
        "delta_off_by_2_to_the_minus_12",
        (41,),
        "delta is 2^-12 too large",
        (fp32(f"{at.VALUES}-v_plus8"), fp32(at.DENSE)),
        ERROR,
        Edit(_KERNEL, "ds = p * (dp - delta)", "ds = p * (dp - delta * 1.000244140625)"),
        kernel=_FP32,
    ),
    _two_pass(
        "scale_not_in_dk",
        (42,),
        "dq has the scale and dk hasn't",
        (bf16(at.DENSE), fp32(at.SCALE)),
        ERROR,
        Edit(
            _KERNEL,
            "_leave(head, dk * dk_scale,",
            "_leave(head, dk,",
        ),
    ),
    _two_pass(
        "dq_scale_in_base_2",
        (42, 45),
        "dq is multiplied by scale log2(e)",
        (bf16(at.DENSE),),
        ERROR,
        Edit(
            _KERNEL,
            "        lse *= LOG2E\n        dq_scale = scale * (1.0 / LOG2E)",
            "        lse *= LOG2E\n        dq_scale = scale",
        ),
    ),
    _two_pass(
        "lse_taken_for_base_2",
        (45,),
        "the pass over keys takes the natural lse for one in base 2",
        (bf16(at.DENSE),),
        (*ERROR, *NAN),
        Edit(
            _KERNEL,
            "        if not scores.options.NATURAL:\n            lse *= LOG2E\n"
            "        x = tl.dot(k,",
            "        x = tl.dot(k,",
        ),
    ),
    _two_pass(
        "dead_rows_infinite",
        (8, 14),
        "P is exp(S + inf) in rows that attend to nothing",
        (bf16(at.BIAS_INF_ROWS),),
        NAN,
        Edit(
            _KERNEL,
            'return tl.where(lse == float("-inf"), float("inf"), lse), delta',
            "return lse, delta",
        ),
    ),
    _two_pass(
        "masked_keys_multiplied",
        (10,),
        "dP of masked keys isn't masked again: 0 times a NaN is a NaN",
        (bf16(f"{at.VALUES}-nan_masked-causal"), fp32(f"{at.VALUES}-nan_masked-causal")),
        NAN,
        Edit(_KERNEL, "        ds = tl.where(attends, ds, 0.0)\n", "        ds = ds\n"),
        Edit(
            _SCORES,
            "end_key = tl.maximum(first_key, tl.minimum(s_kv, s_q + shift + right))",
            "first_key, end_key = first_key * 0, s_kv",
        ),
    ),
    _two_pass(
        "window_unshifted",
        (13, 18),
        "the backward's window forgets s_kv - s_q",
        (bf16(at.WINDOW_SHIFTED), bf16(at.CORNER)),
        (*ERROR, *NAN),
        Edit(_SCORES, "shift = (s_kv - s_q) * bottom_right", "shift = 0 * bottom_right"),
    ),
    _two_pass(
        "query_tile_dropped",
        (11, 17),
        "the walk over queries leaves out the last partial tile",
        (bf16(at.TAIL_OF_HEADS),),
        ERROR,
        Edit(
            _SCORES,
            "high = tl.cdiv(tl.maximum(0, tl.minimum(s_q, last_n - shift + left + 1)), BLOCK_M)",
            "high = tl.maximum(0, tl.minimum(s_q, last_n - shift + left + 1)) // BLOCK_M",
        ),
    ),
    _two_pass(
        "tail_of_later_heads",
        (12,),
        "the queries' tail counts for the first head alone",
        (bf16(at.TAIL_OF_HEADS),),
        ERROR,
        Edit(
            _KERNEL,
            "            walked = tiles_walked(tiles, masked)\n",
            "            walked = tiles_walked(tiles, masked)\n"
            "            if masked:\n"
            "                before = tiles.full_low - tiles.low\n"
            "                walked = tl.where(kv_head > 0, before, walked).to(tl.int32)\n",
        ),
    ),
    _two_pass(
        "last_head_of_a_group",
        (),
        "dk and dv are those of a group's last head",
        (bf16(at.GQA), bf16(at.MQA)),
        ERROR,
        Edit(
            _KERNEL,
            "for member in range(first_member, last_member):",
            "for member in range(last_member - 1, last_member):",
        ),
    ),
    _two_pass(
        "group_summed_in_half",
        (37,),
        "dk of a group is rounded after each of its heads",
        (bf16(at.MQA_OF_16), fp16(at.MQA_OF_16)),
        ERROR,
        Edit(
            _KERNEL,
            "number * h_q + head.to(tl.int32))\n",
            "number * h_q + head.to(tl.int32))\n"
            "        if DK:\n"
            "            dk = dk.to(dk_ptr.dtype.element_ty).to(tl.float32)\n",
        ),
    ),
    _two_pass(
        "factors_in_half",
        (37,),
        "P and dP - delta are rounded before their product, which isn't declared",
        (bf16(at.BIAS), bf16(at.DENSE)),
        ERROR,
        Edit(
            _KERNEL,
            "ds = p * (dp - delta)",
            "ds = p.to(tl.bfloat16).to(tl.float32) * (dp - delta).to(tl.bfloat16).to(tl.float32)",
        ),
    ),
    _two_pass(
        "dropout_of_another_head",
        (47,),
        "the pass over keys draws the mask of another head",
        (fp32(at.DROPOUT_GQA),),
        ERROR,
        Edit(
            _KERNEL,
            "number * h_q + head.to(tl.int32)",
            "number * h_kv + head.to(tl.int32) // group",
        ),
        kernel=_FP32,
    ),
    _two_pass(
        "dropout_scale_not_in_dp",
        (47,),
        "dP of kept keys isn't scaled",
        (bf16(at.DROPOUT),),
        ERROR,
        Edit(
            _KERNEL,
            "dp = tl.where(keep, dp * options.keep_scale, 0.0)",
            "dp = tl.where(keep, dp, 0.0)",
        ),
    ),
    _two_pass(
        "softcap_straight",
        (),
        "dS goes through the softcap as if it were straight",
        (bf16(at.SOFTCAP),),
        ERROR,
        Edit(_KERNEL, "dx = ds * (1.0 - t * t)", "dx = ds"),
    ),
    _two_pass(
        "dbias_of_bent_scores",
        (),
        "dbias is taken after the softcap, where it is added",
        (fp32(at.BIAS_SOFTCAP),),
        ERROR,
        Edit(_OPTIONS, "_, ds, _ = gradient_tile(", "_, _, ds = gradient_tile("),
        kernel=_FP32,
    ),
    _two_pass(
        "dbias_in_half",
        (37,),
        "dS is rounded before it is summed over what the bias was broadcast over",
        (bf16(at.BIAS_OVER_QUERIES), bf16(at.BIAS_OVER_HEADS)),
        ERROR,
        Edit(
            _OPTIONS,
            "            acc += ds\n",
            "            acc = (acc + ds).to(dbias_ptr.dtype.element_ty).to(tl.float32)\n",
        ),
    ),
    _two_pass(
        "dbias_of_one_batch",
        (50,),
        "dbias of a bias that batches share is that of the last batch",
        (bf16(at.BIAS_OVER_BATCH),),
        ERROR,
        Edit(_OPTIONS, "            acc += ds\n", "            acc = ds\n"),
    ),
    _two_pass(
        "dbias_where_attended",
        (8, 15),
        "dbias isn't written where no query attends",
        (bf16(at.BIAS_CAUSAL),),
        UNWRITTEN,
        Edit(
            _OPTIONS,
            "within = (rows[:, None] < s_q) & (keys[None, :] < s_kv)",
            "within = (rows[:, None] < s_q) & (keys[None, :] < mask.end_key)",
        ),
    ),
    _two_pass(
        "sink_of_one_batch",
        (50,),
        "the sink's gradient is that of the first batch",
        (fp32(at.EVERY_OPTION),),
        ERROR,
        Edit(_OPTIONS, "for batch in range(b):", "for batch in range(1):"),
        kernel=_FP32,
    ),
    _two_pass(
        "unattended_keys_unwritten",
        (8, 15),
        "dk and dv of keys that nobody attends to are left as they were",
        (bf16(at.CAUSAL),),
        UNWRITTEN,
        Edit(_KERNEL, "stored = offs_n < s_kv", "stored = there"),
    ),
    _two_pass(
        "statistics_of_the_first_sequence",
        (15,),
        "a sequence's lse and delta are read from where the batch begins",
        (bf16(at.VARLEN),),
        (*ERROR, *NAN),
        Edit(
            _KERNEL,
            "        statistics = batch * stride_lb + head * stride_lh + start_q",
            "        statistics = batch * stride_lb + head * stride_lh",
        ),
    ),
    _two_pass(
        "key_offset_int32",
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
    _two_pass(
        "wide_scale_not_in_dk",
        (42,),
        "heads too wide for registers: dk without the scale",
        (fp16(at.HEAD_320),),
        ERROR,
        Edit(_WIDE, "tl.trans(dx) * scale, ones", "tl.trans(dx), ones"),
    ),
    _two_pass(
        "wide_chunk_unmasked",
        (16, 17),
        "heads too wide for registers: columns past the head count in its products",
        (fp32(at.HEAD_257),),
        (*ACCESS, *ERROR, *NAN),
        Edit(
            _WIDE,
            "mask=a_there[:, None] & within[None, :], other=0.0)",
            "mask=a_there[:, None], other=0.0)",
        ),
        Edit(
            _WIDE,
            "mask=b_there[None, :] & within[:, None], other=0.0)",
            "mask=b_there[None, :], other=0.0)",
        ),
        kernel=_FP32,
    ),
    _two_pass(
        "shares_stored",
        (27, 29, 30),
        "programs that share a block of keys store their shares where they were to add them",
        (bf16(at.MQA), fp16(at.MQA_OF_8)),
        ACCESS,
        Edit(
            _KERNEL,
            'tl.atomic_add(ptrs, gradient, mask=mask, sem="relaxed")',
            "tl.store(ptrs, gradient, mask=mask)",
        ),
        kernel="split_queries",
    ),
    _two_pass(
        "share_of_tiles_floored",
        (17, 34),
        "a program's share of the query tiles is rounded down, and the tail is left out",
        (fp32(at.LAST_QUERY_ALONE),),
        ERROR,
        Edit(
            _KERNEL,
            "share = tl.cdiv(count, splits)",
            "share = count // splits",
        ),
        kernel="split_queries_fp32",
    ),
)
