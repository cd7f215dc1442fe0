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
_two_pass = Family("bwd", ATTENTION_BACKWARD, "two_pass")
_LAYOUTS = {each.name: each for each in (*STRIDES, *FAR_QUERIES)}
_case = partial(attention_case, ATTENTION_BACKWARD.name, tier="ci")
_BF16, _FP16 = torch.bfloat16, torch.float16
_DO = "do_ptr, stride_gb, stride_gm, stride_gh,"

MUTANTS = (
    _two_pass(
        "dropout_of_a_group_in_a_window",
        (47,),
        "in a window that ends to the left a group's heads drop the pairs of its first one",
        (
            (
                "b1-h_q4-h_kv2-s_q33-s_kv35-d40-d_v40-window_left7-float16-contiguous-dropout-gqa-"
                "window"
            ),
        ),
        ERROR,
        Edit(
            _KERNEL,
            "number * h_q + head.to(tl.int32))",
            "number * h_q + tl.where(left < 1073741824, head // group * group, head).to(tl.int32))",
        ),
    ),
    _two_pass(
        "softcap_slope_of_large_scores",
        (),
        "the softcap's slope is 1 / cosh^2 by exponentials, inf / inf where scores are large",
        (_case((1, 1, 1, 37, 41, 64, 64), _FP16, options="softcap", distribution="logits1e4"),),
        NAN,
        Edit(
            _KERNEL,
            "    x *= options.scale\n    if MASKED:\n        distance",
            "    x *= options.scale\n    straight = x\n    if MASKED:\n        distance",
        ),
        Edit(
            _KERNEL,
            "        dx = ds * (1.0 - t * t)\n",
            "        e = tl.exp(2.0 * straight / options.softcap)\n"
            "        dx = ds * (4.0 * e / ((e + 1.0) * (e + 1.0)))\n",
        ),
    ),
    _two_pass(
        "dbias_of_the_first_queries",
        (17,),
        "dbias of a bias that queries share is summed over the first tile of queries",
        (_case((1, 1, 1, 70, 41, 64, 64), _BF16, options="bias bias_over_queries"),),
        ERROR,
        Edit(_OPTIONS, "        high = blocks_m\n", "        high = own_tile + 1\n"),
    ),
    _two_pass(
        "dbias_with_its_own_slope",
        (),
        "dbias of a bias that heads share takes the ALiBi slope of the first of them",
        (_case((1, 2, 2, 37, 41, 64, 64), _BF16, options="bias bias_over_heads alibi"),),
        (*ERROR, *NAN),
        Edit(
            _OPTIONS,
            "        bias_offset, slope = terms_of(options, batch, head)\n",
            "        bias_offset, slope = terms_of(options, batch, head)\n"
            "        if options.slopes_ptr is not None:\n"
            "            slope = tl.load(options.slopes_ptr + own_head)\n",
        ),
    ),
    _two_pass(
        "dbias_drops_by_its_own_heads",
        (47,),
        "dbias of a bias that heads share counts batches by the bias's heads when it drops pairs",
        (_case((2, 2, 2, 37, 41, 64, 64), _FP16, options="bias bias_over_heads dropout"),),
        ERROR,
        Edit(_OPTIONS, "number * h_q + q_number", "number * owned_heads + q_number"),
    ),
    _two_pass(
        "dbias_columns_of_q",
        (20, 23),
        "dbias reads do with q's column stride",
        (
            _case(
                (1, 2, 2, 33, 40, 64, 64), _FP16, options="bias", layout=_LAYOUTS["do_colstride3"]
            ),
        ),
        (*ERROR, *NAN, *ACCESS),
        Edit(
            _OPTIONS,
            f"{_DO} stride_gd, batch, head, 0,",
            f"{_DO} stride_qd, batch, head, 0,",
        ),
    ),
    _two_pass(
        "dbias_rows_int32",
        (3, 5),
        "dbias computes the offset of a row of do in 32 bits",
        (_case((1, 2, 2, 3, 40, 64, 64), _BF16, options="bias", layout=_LAYOUTS["do_far"]),),
        ACCESS,
        Edit(
            _OPTIONS,
            f"{_DO} stride_gd, batch, head, 0, ADJACENT, VECTOR,\n            WIDE,\n",
            f"{_DO} stride_gd, batch, head, 0, ADJACENT, VECTOR,\n            False,\n",
        ),
        Edit(
            _OPTIONS,
            "            rows = offs_m.to(tl.int64)\n",
            "            rows = offs_m\n",
        ),
    ),
    _two_pass(
        "dsink_of_the_first_rows",
        (17,),
        "the sink's gradient is that of the first 1024 queries",
        (_case((1, 1, 1, 1030, 5, 64, 64), _BF16, options="sink"),),
        ERROR,
        Edit(
            _OPTIONS,
            "        for start in range(0, s_q, BLOCK_M):\n",
            "        for start in range(0, 1, BLOCK_M):\n",
        ),
    ),
    _two_pass(
        "sequences_of_packed_do",
        (15, 20),
        "a sequence's first row of do is found as if the rows of all heads were packed",
        (
            _case(
                (5, 2, 2, 37, 41, 64, 64), _BF16, options="varlen", layout=_LAYOUTS["do_rowpad24"]
            ),
        ),
        (*ERROR, *NAN, *ACCESS),
        Edit(
            _KERNEL,
            f"{_DO} stride_gd, batch, head, start_q, ADJACENT,",
            "do_ptr + start_q * (h_q * d_v), stride_gb, stride_gm, stride_gh, stride_gd, batch,\n"
            "            head, 0, ADJACENT,",
        ),
    ),
    _two_pass(
        "wide_dropout_of_key_heads",
        (47,),
        "heads too wide for registers: a group's query heads all drop the pairs of their key head",
        (_case((1, 2, 1, 17, 19, 320, 320), _FP16, options="dropout"),),
        ERROR,
        Edit(_WIDE, "number * h_q + head.to(tl.int32)", "batch_head"),
    ),
    _two_pass(
        "wide_statistics_of_the_first_sequence",
        (15,),
        "heads too wide for registers: a sequence's lse and delta are read from the batch's first",
        (_case((3, 1, 1, 17, 19, 320, 320), _BF16, options="varlen"),),
        (*ERROR, *NAN),
        Edit(
            _WIDE,
            "        statistics = batch * stride_lb + head * stride_lh + start_q\n",
            "        statistics = batch * stride_lb + head * stride_lh\n",
        ),
    ),
)
