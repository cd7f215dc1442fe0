"""Mutants of our attention backwards that are wrong where two or three things meet."""

from __future__ import annotations

from functools import partial

import torch

from kernel_workbench.oracles import ATTENTION_BACKWARD
from kernel_workbench.oracles.attention.cases import attention_case
from kernel_workbench.oracles.attention.layouts import FAR_QUERIES, STRIDES
from tests.mutants.mutant import ACCESS, ERROR, NAN, Edit, Family

_KERNEL, _WIDE = "attention/backward_kernels.py", "attention/wide_kernels.py"
_OPTIONS = "attention/option_gradients.py"
_two_pass = Family("bwd", ATTENTION_BACKWARD, "two_pass", _KERNEL)
_LAYOUTS = {each.name: each for each in (*STRIDES, *FAR_QUERIES)}
_case = partial(attention_case, ATTENTION_BACKWARD.name, tier="ci")
_BF16, _FP16 = torch.bfloat16, torch.float16
_DO = "do_ptr, stride_gb, stride_gm, stride_gh,"

MUTANTS = (
    _two_pass(
        "dropout_of_a_group_in_a_window",
        "in a window that ends to the left a group's heads drop the pairs of its first one",
        (
            (
                "b1-h_q4-h_kv2-s_q33-s_kv35-d40-d_v40-window_left7-float16-contiguous-dropout-gqa-"
                "window"
            ),
        ),
        "number * h_q + head.to(tl.int32))",
        "number * h_q + tl.where(left < 1073741824, head // group * group, head).to(tl.int32))",
        bugs=(47,),
    ),
    _two_pass(
        "softcap_slope_of_large_scores",
        "the softcap's slope is 1 / cosh^2 by exponentials, inf / inf where scores are large",
        (_case((1, 1, 1, 37, 41, 64, 64), _FP16, options="softcap", distribution="logits1e4"),),
        "    x *= options.scale\n    if MASKED:\n        distance",
        "    x *= options.scale\n    straight = x\n    if MASKED:\n        distance",
        Edit(
            _KERNEL,
            "        dx = ds * (1.0 - t * t)\n",
            "        e = tl.exp(2.0 * straight / options.softcap)\n"
            "        dx = ds * (4.0 * e / ((e + 1.0) * (e + 1.0)))\n",
        ),
        rules=NAN,
    ),
    _two_pass(
        "dbias_of_the_first_queries",
        "dbias of a bias that queries share is summed over the first tile of queries",
        (_case((1, 1, 1, 70, 41, 64, 64), _BF16, options="bias bias_over_queries"),),
        "        high = blocks_m\n",
        "        high = own_tile + 1\n",
        bugs=(17,),
        file=_OPTIONS,
    ),
    _two_pass(
        "dbias_with_its_own_slope",
        "dbias of a bias that heads share takes the ALiBi slope of the first of them",
        (_case((1, 2, 2, 37, 41, 64, 64), _BF16, options="bias bias_over_heads alibi"),),
        "        bias_offset, slope = terms_of(options, batch, head)\n",
        "        bias_offset, slope = terms_of(options, batch, head)\n"
        "        if options.slopes_ptr is not None:\n"
        "            slope = tl.load(options.slopes_ptr + own_head)\n",
        rules=(*ERROR, *NAN),
        file=_OPTIONS,
    ),
    _two_pass(
        "dbias_drops_by_its_own_heads",
        "dbias of a bias that heads share counts batches by the bias's heads when it drops pairs",
        (_case((2, 2, 2, 37, 41, 64, 64), _FP16, options="bias bias_over_heads dropout"),),
        "number * h_q + q_number",
        "number * owned_heads + q_number",
        bugs=(47,),
        file=_OPTIONS,
    ),
    _two_pass(
        "dbias_columns_of_q",
        "dbias reads do with q's column stride",
        (
            _case(
                (1, 2, 2, 33, 40, 64, 64), _FP16, options="bias", layout=_LAYOUTS["do_colstride3"]
            ),
        ),
        f"{_DO} stride_gd, batch, head, 0,",
        f"{_DO} stride_qd, batch, head, 0,",
        bugs=(20, 23),
        rules=(*ERROR, *NAN, *ACCESS),
        file=_OPTIONS,
    ),
    _two_pass(
        "dbias_rows_int32",
        "dbias computes the offset of a row of do in 32 bits",
        (_case((1, 2, 2, 3, 40, 64, 64), _BF16, options="bias", layout=_LAYOUTS["do_far"]),),
        f"{_DO} stride_gd, batch, head, 0, ADJACENT, VECTOR,\n            WIDE,\n",
        f"{_DO} stride_gd, batch, head, 0, ADJACENT, VECTOR,\n            False,\n",
        Edit(_OPTIONS, "            rows = offs_m.to(tl.int64)\n", "            rows = offs_m\n"),
        bugs=(3, 5),
        rules=ACCESS,
        file=_OPTIONS,
    ),
    _two_pass(
        "dsink_of_the_first_rows",
        "the sink's gradient is that of the first 1024 queries",
        (_case((1, 1, 1, 1030, 5, 64, 64), _BF16, options="sink"),),
        "        for start in range(0, s_q, BLOCK_M):\n",
        "        for start in range(0, 1, BLOCK_M):\n",
        bugs=(17,),
        file=_OPTIONS,
    ),
    _two_pass(
        "sequences_of_packed_do",
        "a sequence's first row of do is found as if the rows of all heads were packed",
        (
            _case(
                (5, 2, 2, 37, 41, 64, 64), _BF16, options="varlen", layout=_LAYOUTS["do_rowpad24"]
            ),
        ),
        f"{_DO} stride_gd, batch, head, start_q, ADJACENT,",
        "do_ptr + start_q * (h_q * d_v), stride_gb, stride_gm, stride_gh, stride_gd, batch,\n"
        "            head, 0, ADJACENT,",
        bugs=(15, 20),
        rules=(*ERROR, *NAN, *ACCESS),
    ),
    _two_pass(
        "wide_dropout_of_key_heads",
        "heads too wide for registers: a group's query heads all drop the pairs of their key head",
        (_case((1, 2, 1, 17, 19, 320, 320), _FP16, options="dropout"),),
        "number * h_q + head.to(tl.int32)",
        "batch_head",
        bugs=(47,),
        file=_WIDE,
    ),
    _two_pass(
        "wide_statistics_of_the_first_sequence",
        "heads too wide for registers: a sequence's lse and delta are read from the batch's first",
        (_case((3, 1, 1, 17, 19, 320, 320), _BF16, options="varlen"),),
        "        statistics = batch * stride_lb + head * stride_lh + start_q\n",
        "        statistics = batch * stride_lb + head * stride_lh\n",
        bugs=(15,),
        rules=(*ERROR, *NAN),
        file=_WIDE,
    ),
)
