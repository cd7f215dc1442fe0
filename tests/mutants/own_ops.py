"""Mutants of plain kernels of the ops from references: twelve defects an op, as they shipped.

The right kernels are tests/candidates/own_ops/*.py. A defect is a change of their text, and makes a
mutant of each op whose kernel the text is in.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kernel_workbench.oracles import (
    ADD_RMS_NORM_BACKWARD,
    ADD_RMS_NORM_FORWARD,
    CROSS_ENTROPY_BACKWARD,
    CROSS_ENTROPY_FORWARD,
    GEGLU_BACKWARD,
    GEGLU_FORWARD,
    LAYER_NORM_FORWARD,
    MATMUL_FORWARD,
    QUANTISE_BLOCKS,
    QUANTISE_ROWS,
    RMS_NORM_BACKWARD,
    RMS_NORM_FORWARD,
    ROPE_BACKWARD,
    ROPE_FORWARD,
    SMOOTHED_CROSS_ENTROPY_BACKWARD,
    SMOOTHED_CROSS_ENTROPY_FORWARD,
    SOFTMAX_BACKWARD,
    SOFTMAX_FORWARD,
    SWIGLU_BACKWARD,
    SWIGLU_FORWARD,
)
from kernel_workbench.oracles.cases.distributions import NEEDLES
from kernel_workbench.oracles.op import Op
from kernel_workbench.reports.record import Rule
from tests.mutants.mutant import ACCESS, ERROR, NAN, UNWRITTEN, Edit, Mutant

_FOLDER = Path("tests/candidates/own_ops")
_WRONG: tuple[Rule, ...] = (*ERROR, *NAN)
_LOST: tuple[Rule, ...] = (*UNWRITTEN, *ACCESS, *ERROR, *NAN)
_KERNEL = "rows"  # what the right ones are called


@dataclass(frozen=True, slots=True)
class _Defect:
    """One change: what is wrong, of which ops, the text before and after.

    words: of the ids of the cases that are to show it; rules: by any of which it may be found
    """

    name: str
    why: str
    ops: tuple[Op, ...]
    old: str
    new: str
    words: str = ""
    rules: tuple[Rule, ...] = _WRONG
    times: int = 1


_RMS = (RMS_NORM_FORWARD, RMS_NORM_BACKWARD, ADD_RMS_NORM_FORWARD, ADD_RMS_NORM_BACKWARD)
_RMS_FORWARD = (RMS_NORM_FORWARD, ADD_RMS_NORM_FORWARD)
_RMS_BACKWARD = (RMS_NORM_BACKWARD, ADD_RMS_NORM_BACKWARD)
_LAYER = (LAYER_NORM_FORWARD,)
_NORMS = (*_RMS, *_LAYER)
_X_ROW = "    x = row_of(x_ptr, row, xm, xn, offs, mask)\n"

_OF_NORMS = (
    _Defect(
        "statistics_in_half", "1 / the root is kept in bfloat16", _NORMS,
        "return tl.rsqrt(mean + eps)",
        "return tl.rsqrt(mean + eps).to(tl.bfloat16).to(tl.float32)", "bfloat16",
    ),
    _Defect(
        "squares_in_half", "squares are rounded to float16", _NORMS,
        "squares = x * x", "squares = (x * x).to(tl.float16).to(tl.float32)", "float16",
    ),
    _Defect(
        "column_lost", "the last column isn't in the mean of squares", _NORMS,
        "squares = x * x", "squares = tl.where(offs < n - 1, x * x, 0.0)",
    ),
    _Defect(
        "outer_eps", "eps is added to the root", _NORMS,
        "tl.rsqrt(mean + eps)", "1 / (tl.sqrt(mean) + eps)", "subnormals",
    ),
    _Defect("no_eps", "there is no eps", _NORMS, "mean + eps", "mean", "zeros"),
    _Defect(
        "padded_mean", "the mean of squares is that of the padded row", _NORMS,
        "    mean = tl.sum(squares, 0) / n\n", "    mean = tl.sum(squares, 0) / BLOCK\n",
    ),
    _Defect(
        "degrees_of_freedom", "the mean of squares is divided by n - 1", _NORMS,
        "    mean = tl.sum(squares, 0) / n\n", "    mean = tl.sum(squares, 0) / (n - 1)\n",
    ),
    _Defect(
        "adjacent_columns", "x's column stride is taken for 1", _NORMS,
        _X_ROW, "    x = row_of(x_ptr, row, xm, 1, offs, mask)\n", "x_transposed", _LOST, 3,
    ),
    _Defect(
        "packed_rows", "x's row stride is taken for n", _NORMS,
        _X_ROW, "    x = row_of(x_ptr, row, n, xn, offs, mask)\n", "rowpad3", _LOST, 3,
    ),
    _Defect(
        "rows_past_the_grid", "the grid has 48 programs, and each does one row",
        (RMS_NORM_FORWARD,), "        rms_norm_kernel[(m,)](x, None",
        "        rms_norm_kernel[(min(m, 48),)](x, None", "m65", _LOST,
    ),
    _Defect(
        "adjacent_weight", "the weight's stride is taken for 1", _RMS_FORWARD,
        "weight.contiguous()", "weight", "weight_column", _LOST, 4,
    ),
    _Defect(
        "row_offset_int32", "a row's offset is computed in 32 bits", _NORMS,
        "row = tl.program_id(0).to(tl.int64)", "row = tl.program_id(0)", "x_far", _LOST, 3,
    ),
    _Defect(
        "second_row_without_weight", "the second row isn't weighted", _NORMS,
        "    w = row_of(w_ptr, 0, 0, 1, offs, mask)\n",
        "    w = tl.where(row == 1, 1.0, row_of(w_ptr, 0, 0, 1, offs, mask))\n", times=3,
    ),
    _Defect(
        "row_to_another", "an odd row's result is written to the row before it", _RMS_FORWARD,
        "tl.store(y_ptr + row * n + offs, x_hat", "tl.store(y_ptr + row // 2 * 2 * n + offs, x_hat",
        rules=_LOST,
    ),
    _Defect(
        "cast_before_weight", "what is normalised is cast before its product", _RMS_FORWARD,
        "tl.store(y_ptr + row * n + offs, x_hat * w",
        "tl.store(y_ptr + row * n + offs, x_hat.to(x_ptr.dtype.element_ty).to(tl.float32) * w",
        "bfloat16",
    ),
    _Defect(
        "sum_not_stored", "the sum that is stored is x", (ADD_RMS_NORM_FORWARD,),
        "        x += row_of(r_ptr, row, rm, rn, offs, mask)\n"
        "        tl.store(s_ptr + row * n + offs, x, mask=mask)\n",
        "        tl.store(s_ptr + row * n + offs, x, mask=mask)\n"
        "        x += row_of(r_ptr, row, rm, rn, offs, mask)\n",
    ),
    _Defect(
        "sum_in_half", "the sum is cast before it is normalised", (ADD_RMS_NORM_FORWARD,),
        "        x += row_of(r_ptr, row, rm, rn, offs, mask)\n",
        "        x += row_of(r_ptr, row, rm, rn, offs, mask)\n"
        "        x = x.to(x_ptr.dtype.element_ty).to(tl.float32)\n", "bfloat16",
    ),
    _Defect(
        "no_projection", "what of the gradient is along x stays in dx", _RMS_BACKWARD,
        "dx = rstd * (g - x_hat * along)", "dx = rstd * g",
    ),
    _Defect(
        "projection_not_divided", "the part along x is a sum, not a mean", _RMS_BACKWARD,
        "along = tl.sum(g * x_hat, 0) / n", "along = tl.sum(g * x_hat, 0)",
    ),
    _Defect(
        "dweight_of_x", "dweight is summed of dy x, not normalised", _RMS_BACKWARD,
        "offs, dy * x_hat,", "offs, dy * x,",
    ),
    _Defect(
        "half_partials", "the rows' shares of dweight are rounded to bfloat16", _RMS_BACKWARD,
        "offs, dy * x_hat,", "offs, (dy * x_hat).to(tl.bfloat16).to(tl.float32),", "bfloat16",
    ),
    _Defect(
        "last_row_not_in_dweight", "dweight lacks the last row", _RMS_BACKWARD,
        "part.sum(0)", "part[:-1].sum(0)",
    ),
    _Defect(
        "sums_gradient_lost", "the gradient through the sum is left out",
        (ADD_RMS_NORM_BACKWARD,), "        dx += row_of(ds_ptr", "        row_of(ds_ptr",
    ),
    _Defect(
        "padded_columns_in_variance", "columns past the end count as -mean", _LAYER,
        "tl.where(mask, x - mean, 0.0)", "x - mean", "mean100",
    ),
    _Defect(
        "variance_by_difference", "the variance is E x^2 - mean^2", _LAYER,
        "    rstd = reciprocal_root(centred, n, eps, offs, BLOCK)\n",
        "    rstd = tl.rsqrt(tl.sum(x * x, 0) / n - mean * mean + eps)\n", "mean100",
    ),
    _Defect(
        "mean_in_half", "the mean is kept in bfloat16", _LAYER,
        "    mean = tl.sum(x, 0) / n\n",
        "    mean = (tl.sum(x, 0) / n).to(tl.bfloat16).to(tl.float32)\n", "bfloat16",
    ),
    _Defect(
        "bias_weighted", "the bias is multiplied by the weight", _LAYER,
        "centred * rstd * w + b", "(centred * rstd + b) * w",
    ),
)  # fmt: skip

_LABELLED = (CROSS_ENTROPY_FORWARD, SMOOTHED_CROSS_ENTROPY_FORWARD)
_LABELLED_BACKWARD = (CROSS_ENTROPY_BACKWARD, SMOOTHED_CROSS_ENTROPY_BACKWARD)
_SOFTMAXES = (SOFTMAX_FORWARD, SOFTMAX_BACKWARD)
_EXPONENTIALS = (*_SOFTMAXES, *_LABELLED, *_LABELLED_BACKWARD)
_SMOOTHED = (SMOOTHED_CROSS_ENTROPY_FORWARD,)
_SMOOTHED_BACKWARD = (SMOOTHED_CROSS_ENTROPY_BACKWARD,)

_OF_SOFTMAXES = (
    _Defect(
        "no_maximum", "no maximum is taken off before exp", _EXPONENTIALS,
        '    highest = tl.max(tl.where(mask, x, float("-inf")), 0)\n',
        '    highest = 0.0 * tl.max(tl.where(mask, x, float("-inf")), 0)\n', "near_overflow",
    ),
    _Defect(
        "padding_counts", "columns past the end count as logits of 0", _EXPONENTIALS,
        "tl.where(mask, tl.exp(x - highest), 0.0)", "tl.exp(x - highest)",
    ),
    _Defect(
        "column_lost", "the last column isn't in the sum", _EXPONENTIALS,
        "total = tl.sum(e, 0)", "total = tl.sum(tl.where(offs < n - 1, e, 0.0), 0)",
    ),
    _Defect(
        "total_in_half", "the sum is kept in bfloat16", _EXPONENTIALS,
        "total = tl.sum(e, 0)", "total = tl.sum(e, 0).to(tl.bfloat16).to(tl.float32)", "bfloat16",
    ),
    _Defect(
        "exponentials_in_half", "exponentials are rounded to bfloat16", _EXPONENTIALS,
        "    total = tl.sum(e, 0)\n",
        "    e = e.to(tl.bfloat16).to(tl.float32)\n    total = tl.sum(e, 0)\n", "bfloat16",
    ),
    _Defect(
        "base_of_two", "2^x stands for e^x", _EXPONENTIALS, "tl.exp(x", "tl.exp2(x",
    ),
    _Defect(
        "one_too_many", "1 is added to the sum", _EXPONENTIALS,
        "total = tl.sum(e, 0)", "total = tl.sum(e, 0) + 1",
    ),
    _Defect(
        "adjacent_columns", "x's column stride is taken for 1", _EXPONENTIALS,
        _X_ROW, "    x = row_of(x_ptr, row, xm, 1, offs, mask)\n", "x_transposed", _LOST, 4,
    ),
    _Defect(
        "packed_rows", "x's row stride is taken for n", _EXPONENTIALS,
        _X_ROW, "    x = row_of(x_ptr, row, n, xn, offs, mask)\n", "x_rowpad5", _LOST, 4,
    ),
    _Defect(
        "tail_of_three_lost", "a tail of three columns isn't read", (SOFTMAX_FORWARD,),
        "    x = row_of(x_ptr, row, xm, xn, offs, mask)\n    _highest, e, total = exponentials("
        "x, mask, offs, n, x_ptr.dtype.element_ty)\n    tl.store(y_ptr",
        "    mask = offs < n - 3 * (n % 8 == 3)\n"
        "    x = row_of(x_ptr, row, xm, xn, offs, mask)\n    _highest, e, total = exponentials("
        "x, mask, offs, n, x_ptr.dtype.element_ty)\n    tl.store(y_ptr", "n1027", _LOST,
    ),
    _Defect(
        "adjacent_targets", "the targets' stride is taken for 1", (*_LABELLED, *_LABELLED_BACKWARD),
        "target.contiguous()", "target", "target_column", _LOST, 2,
    ),
    _Defect(
        "adjacent_gradients", "dloss is read as packed where its stride is 0", _LABELLED_BACKWARD,
        "dloss.contiguous()", "dloss", "dloss_expanded_all", _LOST,
    ),
    _Defect(
        "row_offset_int32", "a row's offset is computed in 32 bits", _EXPONENTIALS,
        "row = tl.program_id(0).to(tl.int64)", "row = tl.program_id(0)", "x_far", _LOST, 4,
    ),
    _Defect(
        "row_to_another", "an odd row's result is written to the row before it", (SOFTMAX_FORWARD,),
        "y_ptr + row * n", "y_ptr + row // 2 * 2 * n", rules=_LOST,
    ),
    _Defect(
        "promised_multiple", "n is promised to be a multiple of 16", (SOFTMAX_FORWARD,),
        "y_ptr + row * n", "y_ptr + row * tl.multiple_of(n, 16)", "float32", rules=ACCESS,
    ),
    _Defect(
        "promised_contiguity", "columns are promised to lie side by side", _EXPONENTIALS,
        "offs * stride_n", "tl.max_contiguous(offs * stride_n, 16)", "x_transposed", ACCESS,
    ),
    _Defect(
        "result_through_half", "the result is rounded to bfloat16", (SOFTMAX_FORWARD,),
        "offs, e / total,", "offs, (e / total).to(tl.bfloat16).to(tl.float32),", "float16",
    ),
    _Defect(
        "total_of_equal_logits", "the sum is n", (SOFTMAX_FORWARD,),
        "offs, e / total,", "offs, e / n,",
    ),
    _Defect(
        "no_projection", "sum dy y isn't taken off", (SOFTMAX_BACKWARD,),
        "y * (dy - along)", "y * dy",
    ),
    _Defect(
        "stored_y", "y is rounded to bfloat16 before the gradient", (SOFTMAX_BACKWARD,),
        "    y = e / total\n", "    y = (e / total).to(tl.bfloat16).to(tl.float32)\n", "bfloat16",
    ),
    _Defect(
        "mean_projection", "the mean of dy y is taken off", (SOFTMAX_BACKWARD,),
        "along = tl.sum(dy * y, 0)", "along = tl.sum(dy * y, 0) / n",
    ),
    _Defect(
        "label_off_by_one", "the label is the one after it", (*_LABELLED, *_LABELLED_BACKWARD),
        "tl.where(offs == target", "tl.where(offs == target + 1", times=2,
    ),
    _Defect(
        "label_of_the_first_row", "every row has the first row's label",
        (*_LABELLED, *_LABELLED_BACKWARD),
        "tl.load(target_ptr + row)", "tl.load(target_ptr)", times=2,
    ),
    _Defect(
        "loss_in_half", "the loss is rounded to bfloat16", _LABELLED,
        "tl.store(loss_ptr + row, loss)",
        "tl.store(loss_ptr + row, loss.to(tl.bfloat16).to(tl.float32))",
    ),
    _Defect(
        "maximum_left_out", "the maximum isn't added to the logarithm again", _LABELLED,
        "    lse = highest + tl.log(total)\n    target = tl.load(target_ptr + row)\n    chosen",
        "    lse = tl.log(total)\n    target = tl.load(target_ptr + row)\n    chosen",
    ),
    _Defect(
        "no_label", "the gradient is the softmax", _LABELLED_BACKWARD,
        "    dx -= tl.where(offs == target, 1 - smoothing, 0.0)\n", "",
    ),
    _Defect(
        "mean_of_rows", "the loss's gradient isn't multiplied by", _LABELLED_BACKWARD,
        "dx * dloss", "dx",
    ),
    _Defect(
        "gradient_of_the_first_row", "every row has the first row's dloss", _LABELLED_BACKWARD,
        "tl.load(dloss_ptr + row)", "tl.load(dloss_ptr)",
    ),
    _Defect(
        "ignored_rows_count", "rows without a label have a loss", _SMOOTHED,
        "    loss = tl.where(target == -100, 0.0, loss)\n", "",
    ),
    _Defect(
        "mass_by_n_minus_1", "the smoothed mass is divided by n - 1", _SMOOTHED,
        "tl.sum(x / n, 0)", "tl.sum(x / (n - 1), 0)",
    ),
    _Defect(
        "mass_twice", "the target keeps its mass when it is smoothed", _SMOOTHED,
        "smoothing * (chosen - tl.sum(x / n, 0))", "smoothing * -tl.sum(x / n, 0)",
    ),
    _Defect("z_of_lse", "the z-loss isn't squared", _SMOOTHED, "z * lse * lse", "z * lse"),
    _Defect(
        "ignored_rows_count", "rows without a label have a gradient", _SMOOTHED_BACKWARD,
        "tl.where(target == -100, 0.0, dx * dloss)", "dx * dloss",
    ),
    _Defect(
        "mass_by_n_minus_1", "the smoothed mass is divided by n - 1", _SMOOTHED_BACKWARD,
        "- smoothing / n\n", "- smoothing / (n - 1)\n",
    ),
    _Defect(
        "z_without_its_factor", "the z-loss's gradient lacks its 2", _SMOOTHED_BACKWARD,
        "2 * z * lse", "z * lse",
    ),
    _Defect(
        "whole_target", "the target's whole mass is taken off", _SMOOTHED_BACKWARD,
        "offs == target, 1 - smoothing, 0.0", "offs == target, 1.0, 0.0",
    ),
)  # fmt: skip

_UNITS = (SWIGLU_FORWARD, GEGLU_FORWARD)
_UNITS_BACKWARD = (SWIGLU_BACKWARD, GEGLU_BACKWARD)
_GATED = (*_UNITS, *_UNITS_BACKWARD)
_GELU = (GEGLU_FORWARD, GEGLU_BACKWARD)
_ROPE = (ROPE_FORWARD, ROPE_BACKWARD)
_GATE = "    gate = row_of(gate_ptr, row, am, an, offs, mask)\n"
_UP = "    up = row_of(up_ptr, row, um, un, offs, mask)\n"

_OF_ELEMENTS = (
    _Defect(
        "gate_and_up_swapped", "the activation is of up", _GATED, _GATE + _UP,
        "    up = row_of(gate_ptr, row, am, an, offs, mask)\n"
        "    gate = row_of(up_ptr, row, um, un, offs, mask)\n", times=2,
    ),
    _Defect(
        "value_in_half", "the activation is rounded to bfloat16, undeclared", _GATED,
        "    value = g * s\n", "    value = (g * s).to(tl.bfloat16).to(tl.float32)\n", "bfloat16",
    ),
    _Defect(
        "gate_in_half", "the logistic function is rounded to float16", _GATED,
        "s = tl.sigmoid(u)", "s = tl.sigmoid(u).to(tl.float16).to(tl.float32)", "float16",
    ),
    _Defect(
        "overflowing_form", "the logistic function is e^u / (1 + e^u)", _GATED,
        "s = tl.sigmoid(u)", "s = tl.exp(u) / (1 + tl.exp(u))", "near_overflow",
    ),
    _Defect("sign_of_gate", "the logistic function is of -u", _GATED, "sigmoid(u)", "sigmoid(-u)"),
    _Defect(
        "strides_of_gate", "up is read with the gate's strides", _GATED,
        _UP, "    up = row_of(up_ptr, row, am, an, offs, mask)\n", "up_transposed", _LOST, 2,
    ),
    _Defect(
        "columns_of_gate", "up is read with the gate's column stride", _GATED,
        _UP, "    up = row_of(up_ptr, row, um, an, offs, mask)\n", "gate_columns_of_up", _LOST, 2,
    ),
    _Defect(
        "adjacent_columns", "the gate's column stride is taken for 1", _GATED,
        _GATE, "    gate = row_of(gate_ptr, row, am, 1, offs, mask)\n", "gate_transposed", _LOST, 2,
    ),
    _Defect(
        "second_row_of_the_first", "the second row's gate is the first's", _GATED,
        _GATE, "    gate = row_of(gate_ptr, tl.where(row == 1, 0, row), am, an, offs, mask)\n",
        times=2,
    ),
    _Defect(
        "column_lost", "the last column isn't written", _GATED, "mask = offs < n\n",
        "mask = offs < n - 1\n", rules=_LOST, times=2,
    ),
    _Defect(
        "row_to_another", "an odd row's result is written to the row before it", _UNITS,
        "y_ptr + row * n", "y_ptr + row // 2 * 2 * n", rules=_LOST,
    ),
    _Defect("up_added", "up is added, not multiplied by", _UNITS, "value * up", "value + up"),
    _Defect(
        "up_in_half", "up is rounded to bfloat16", _UNITS,
        "value * up", "value * up.to(tl.bfloat16).to(tl.float32)", "float16",
    ),
    _Defect(
        "up_left_out", "the gate's gradient lacks up", _UNITS_BACKWARD, "dy * up * s", "dy * s",
    ),
    _Defect(
        "slope_of_the_gate_alone", "the slope is that of the logistic function's factor",
        _UNITS_BACKWARD, "    slope = s + ", "    slope = s + 0.0 * ",
    ),
    _Defect(
        "gradients_swapped", "the two gradients are in each other's place", _UNITS_BACKWARD,
        "return dgate, dup", "return dup, dgate",
    ),
    _Defect(
        "approximate_gelu", "gelu is g s(1.702 g)", _GELU,
        "        u = 1.5957691216057308 * (g + 0.044715 * g * g * g)\n"
        "        du = 1.5957691216057308 * (1 + 0.134145 * g * g)\n",
        "        u, du = 1.702 * g, 1.702\n",
    ),
    _Defect("digit_of_a_constant", "0.044715 is 0.0447", _GELU, "0.044715", "0.0447", "uniform"),
    _Defect(
        "sign_of_sin", "sin has the other sign", _ROPE, "* turn\n", "* -turn\n",
    ),
    _Defect(
        "wrong_half", "the halves' parts have each other's sign", _ROPE,
        "low * c - high * s\n    turned_high = high * c + low * s",
        "low * c + high * s\n    turned_high = high * c - low * s",
    ),
    _Defect(
        "sin_for_cos", "sin stands for cos", _ROPE, "row_of(cos_ptr", "row_of(sin_ptr", rules=_LOST,
    ),
    _Defect(
        "neighbours_turned", "pairs are columns beside one another", _ROPE,
        "xh, xn, offs, mask)\n    high = row_of(x_ptr + position * xs, head, xh, xn, offs + p",
        "xh, xn, 2 * offs, mask)\n"
        "    high = row_of(x_ptr + position * xs, head, xh, xn, 2 * offs + 1",
    ),
    _Defect(
        "next_position", "the second position has the first one's cos", _ROPE,
        "row_of(cos_ptr, position,", "row_of(cos_ptr, tl.where(position == 1, 0, position),",
    ),
    _Defect(
        "tables_by_heads", "sin is that of the row's number, of heads too", _ROPE,
        "row_of(sin_ptr, position,", "row_of(sin_ptr, row // tl.maximum(h - 1, 1),", rules=_LOST,
    ),
    _Defect(
        "turned_twice", "the second half is made of the first as it is turned", _ROPE,
        "high * c + low * s", "high * c + turned_low * s",
    ),
    _Defect(
        "products_in_half", "products are rounded to bfloat16, undeclared", _ROPE,
        "low * c - high * s\n", "(low * c).to(tl.bfloat16).to(tl.float32) - high * s\n", "bfloat16",
    ),
    _Defect(
        "tables_in_half", "tables are rounded to bfloat16", _ROPE,
        "mask) * turn", "mask).to(tl.bfloat16).to(tl.float32) * turn", "float16",
    ),
    _Defect(
        "pair_lost", "the last pair isn't written", _ROPE, "mask = offs < p", "mask = offs < p - 1",
        rules=_LOST,
    ),
    _Defect(
        "adjacent_columns", "sin's column stride is taken for 1", _ROPE,
        "sm, sn, offs, mask)", "sm, 1, offs, mask)", "sin_transposed", _LOST,
    ),
    _Defect(
        "fifth_head_lost", "of five heads the last one is the fourth", (ROPE_FORWARD,),
        "position * xs, head,", "position * xs, tl.where(h == 5, tl.minimum(head, 3), head),",
        "h5", times=2,
    ),
    _Defect(
        "packed_heads", "heads are taken to lie one after the other", (ROPE_FORWARD,),
        "x_ptr + position * xs, head, xh,", "x_ptr + position * xs, head, 2 * p * xn,",
        "x_heads_first", _LOST, 2,
    ),
    _Defect(
        "first_head", "every head is the first", _ROPE, "position * xs, head,", "position * xs, 0,",
        times=2,
    ),
)  # fmt: skip

_MATMUL = (MATMUL_FORWARD,)
_OF_PRODUCTS = (
    _Defect(
        "k_past_1024_lost", "of k what is past 1024 is left out", _MATMUL,
        "range(0, k, TILE)", "range(0, tl.minimum(k, 1024), TILE)", "k1027",
    ),
    _Defect(
        "tile_of_k_lost", "the last tile of k is left out", _MATMUL,
        "range(0, k, TILE)", "range(0, k - TILE + 1, TILE)",
    ),
    _Defect(
        "last_of_k_lost", "the last of k is left out", _MATMUL,
        "(inner[None, :] < k)", "(inner[None, :] < k - 1)",
    ),
    _Defect(
        "a_untransposed", "a is read as if its rows were packed", _MATMUL,
        "rows[:, None] * am + inner[None, :] * ak", "rows[:, None] * k + inner[None, :]",
        "a_transposed", _LOST,
    ),
    _Defect(
        "b_untransposed", "b is read as if its rows were packed", _MATMUL,
        "inner[:, None] * bk + columns[None, :] * bn", "inner[:, None] * n + columns[None, :]",
        "b_transposed", _LOST,
    ),
    _Defect(
        "adjacent_columns", "b's column stride is taken for 1", _MATMUL,
        "columns[None, :] * bn", "columns[None, :]", "b_transposed", _LOST,
    ),
    _Defect(
        "sum_in_half", "the sum is rounded to bfloat16 after each tile", _MATMUL,
        '"ieee")\n', '"ieee")\n        acc = acc.to(tl.bfloat16).to(tl.float32)\n', "bfloat16",
    ),
    _Defect("stale_sum", "each tile's product replaces the sum", _MATMUL, "acc += tl", "acc = tl"),
    _Defect(
        "sum_kept", "the first tile is added twice", _MATMUL, "    c_mask =",
        "    acc += tl.sum(tl.where(rows[:, None] < m, 1.0, 0.0), 1)[:, None] / k\n    c_mask =",
    ),
    _Defect(
        "first_tile_of_b", "every tile of a meets the first one of b", _MATMUL,
        "b_ptr + inner[:, None]", "b_ptr + (inner - start)[:, None]",
    ),
    _Defect(
        "operands_in_half", "operands are rounded to bfloat16", _MATMUL,
        "a.to(tl.float32)", "a.to(tl.bfloat16).to(tl.float32)", "float16",
    ),
    _Defect(
        "axes_of_the_grid_swapped", "the grid's axes are in each other's place", _MATMUL,
        "grid = triton.cdiv(m, 32), triton.cdiv(n, 32)",
        "grid = triton.cdiv(n, 32), triton.cdiv(m, 32)", rules=_LOST,
    ),
    _Defect(
        "grid_floored", "programs are as many as whole tiles", _MATMUL,
        "triton.cdiv(m, 32), ", "max(1, m // 32), ", rules=_LOST,
    ),
    _Defect(
        "columns_unmasked", "columns past the end are written to the next row", _MATMUL,
        "c_mask = (rows[:, None] < m) & (columns[None, :] < n)",
        "c_mask = (rows[:, None] < m) & (columns[None, :] < n + 1)", rules=_LOST,
    ),
)  # fmt: skip

_BY_BLOCKS = (QUANTISE_BLOCKS,)
_CODES = (QUANTISE_ROWS, QUANTISE_BLOCKS)
_LARGEST = "    largest = tl.max(tl.abs(x), 0)\n"
_INVERSE = "    inverse = 1.0 / scale\n"
_CODE = "    code = x * inverse\n"
_OF_CODES = (
    _Defect("largest_of_fnuz", "the largest code is 240", _CODES, "(1.0 / 448.0)", "(1.0 / 240.0)"),
    _Defect("largest_of_int8", "the largest code is 127", _CODES, "(1.0 / 448.0)", "(1.0 / 127.0)"),
    _Defect("sign_in_maximum", "negative numbers aren't in the maximum", _CODES, "tl.abs(x)", "x"),
    _Defect(
        "column_lost", "the last column isn't in the maximum", _BY_BLOCKS,
        _LARGEST, "    largest = tl.max(tl.where(offs < width - 1, tl.abs(x), 0.0), 0)\n",
    ),
    _Defect(
        "half_of_the_columns", "the maximum is that of the first half", _CODES,
        _LARGEST, "    largest = tl.max(tl.where(offs < width // 2, tl.abs(x), 0.0), 0)\n",
    ),
    _Defect("no_eps", "there is no eps", _CODES, "tl.maximum(largest, eps)", "largest", "zeros"),
    _Defect(
        "eps_added", "eps is added to the scale", _CODES,
        "tl.maximum(largest, eps) * (1.0 / 448.0)", "largest * (1.0 / 448.0) + eps", "zeros",
    ),
    _Defect(
        "nan_lost", "a NaN isn't in the maximum", _CODES,
        '    scale = tl.where(has_nan, float("nan"), scale)\n', "",
        "nan",
    ),
    _Defect(
        "inverse_in_half", "1 / scale is rounded to bfloat16", _CODES,
        _INVERSE, "    inverse = (1.0 / scale).to(tl.bfloat16).to(tl.float32)\n",
    ),
    _Defect(
        "scale_in_half", "the scale is rounded to bfloat16", _CODES,
        _INVERSE, "    scale = scale.to(tl.bfloat16).to(tl.float32)\n" + _INVERSE,
    ),
    _Defect(
        "power_of_two", "the scale is the next power of two", _CODES,
        _INVERSE, "    scale = tl.exp2(tl.ceil(tl.log2(scale)))\n" + _INVERSE,
    ),
    _Defect("inverse_stored", "1 / scale is stored", _CODES, "+ at, scale)", "+ at, inverse)"),
    _Defect(
        "towards_zero", "codes are rounded towards zero", _CODES, _CODE,
        _CODE + "    code = (code.to(tl.int32, bitcast=True) & -1048576)"
        ".to(tl.float32, bitcast=True)\n",
    ),
    _Defect(
        "rounded_twice", "codes are rounded to bfloat16 first", _CODES,
        _CODE, "    code = (x * inverse).to(tl.bfloat16).to(tl.float32)\n", "float32",
    ),
    _Defect(
        "subnormals_flushed", "codes below 2^-6 are 0", _CODES,
        _CODE, _CODE + "    code = tl.where(tl.abs(code) < 0.015625, 0.0, code)\n",
    ),
    _Defect(
        "saturated_early", "codes end at 240", _CODES,
        _CODE, "    code = tl.minimum(tl.maximum(x * inverse, -240.0), 240.0)\n",
    ),
    _Defect(
        "nan_for_the_largest", "what is no smaller than 448 becomes NaN", _CODES, _CODE,
        _CODE + '    code = tl.where(tl.abs(code) > 447.0, float("nan"), code)\n',
    ),
    _Defect("row_to_another", "an odd row's is written to the row before it", _CODES,
        "at = row * blocks", "at = row // 2 * 2 * blocks", rules=_LOST,
    ),
    _Defect(
        "adjacent_columns", "x's column stride is taken for 1", _CODES,
        "row, xm, xn, offs", "row, xm, 1, offs", "x_transposed", _LOST,
    ),
    _Defect(
        "off_by_one_column", "a block begins a column early for each before it", _BY_BLOCKS,
        "block * width * xn", "block * (width - 1) * xn",
    ),
    _Defect(
        "scale_of_the_first_block", "every block has the first one's scale", _BY_BLOCKS,
        _LARGEST,
        "    largest = tl.max(tl.abs(row_of(x_ptr, row, xm, xn, offs, mask)), 0)\n",
    ),
    _Defect(
        "scales_transposed", "scales are stored block by block", _BY_BLOCKS,
        "scales_ptr + at", "scales_ptr + block * tl.num_programs(0) + row",
    ),
)  # fmt: skip


# Defects in values, numbers and places that plain cases don't have.
_NUMBERS = (
    _Defect(
        "constant_eps", "eps is 1e-6, whatever is given", _RMS, "mean + eps", "mean + 1e-6",
        "eps=0.001",
    ),
    _Defect(
        "constant_eps", "eps is 1e-5, whatever is given", _LAYER, "mean + eps", "mean + 1e-5",
        "eps=0.001",
    ),
    _Defect(
        "weight_of_nan", "where the weight is NaN what is normalised isn't weighted", _RMS_FORWARD,
        "x_hat * w, mask", "x_hat * tl.where(w == w, w, 1.0), mask", "nan_weight",
    ),
    _Defect(
        "weights_below_5", "weights end at 5", _NORMS,
        "    w = row_of(w_ptr, 0, 0, 1, offs, mask)\n",
        "    w = tl.minimum(row_of(w_ptr, 0, 0, 1, offs, mask), 5.0)\n", "far_weights", times=3,
    ),
    _Defect(
        "shifted_by_the_mean_of_squares", "the variance is E x^2 - mean^2", _LAYER,
        "    rstd = reciprocal_root(centred, n, eps, offs, BLOCK)\n",
        "    rstd = tl.rsqrt(tl.sum(x * x, 0) / n - mean * mean + eps)\n", "near_5",
    ),
    _Defect(
        "squares_end_in_half", "squares end at float16's largest number", _RMS,
        "squares = x * x", "squares = tl.minimum(x * x, 65504.0)", "huge_first",
    ),
    _Defect(
        "column_128_lost", "column 128 isn't in the mean of squares", _NORMS,
        "squares = x * x", "squares = tl.where(offs != 128, x * x, 0.0)", NEEDLES,
    ),
)  # fmt: skip
_LOGITS = (
    _Defect(
        "constant_smoothing", "the mass is 0.1, whatever is given", _SMOOTHED,
        "loss += smoothing *", "loss += 0.1 *", "smoothing=0.2",
    ),
    _Defect(
        "constant_z", "z is 1e-4, whatever is given", _SMOOTHED, "z * lse * lse",
        "1e-4 * lse * lse", "z=0.01",
    ),
    _Defect(
        "constant_z", "z is 1e-4, whatever is given", _SMOOTHED_BACKWARD, "2 * z * lse",
        "2e-4 * lse", "z=0.01",
    ),
    _Defect(
        "one_hot_product", "the label's logit is a product with one and zeros, NaN of -inf",
        (CROSS_ENTROPY_FORWARD,), "tl.sum(tl.where(offs == target, x, 0.0), 0)",
        "tl.sum((offs == target).to(tl.float32) * x, 0)", "minus_inf",
    ),
    _Defect(
        "maximum_from_zero", "the maximum begins at 0", _EXPONENTIALS,
        '    highest = tl.max(tl.where(mask, x, float("-inf")), 0)\n',
        '    highest = tl.maximum(tl.max(tl.where(mask, x, float("-inf")), 0), 0.0)\n',
        "minus_mean100",
    ),
    _Defect(
        "label_0_is_none", "a label of 0 is taken for none", _SMOOTHED,
        "tl.where(target == -100, 0.0, loss)", "tl.where(target <= 0, 0.0, loss)", NEEDLES,
    ),
    _Defect(
        "label_0_is_none", "a label of 0 is taken for none", _SMOOTHED_BACKWARD,
        "tl.where(target == -100, 0.0, dx * dloss)", "tl.where(target <= 0, 0.0, dx * dloss)",
        NEEDLES,
    ),
)  # fmt: skip
_UNUSUAL_UNITS = (
    _Defect(
        "nan_of_up_lost", "up ends at fp32's largest number, which makes 0 of NaN", _UNITS,
        "value * up", "value * tl.where(up == up, up, 0.0)", "nan_up",
    ),
    _Defect(
        "clipped_gradient", "dy ends at 10,000", _UNITS_BACKWARD,
        "    dy = row_of(dy_ptr, row, gm, gn, offs, mask)\n",
        "    dy = row_of(dy_ptr, row, gm, gn, offs, mask)\n"
        "    dy = tl.minimum(tl.maximum(dy, -1e4), 1e4)\n", "large_gradients",
    ),
)  # fmt: skip
_UNUSUAL_CODES = (
    _Defect(
        "constant_eps", "eps is 1e-12, whatever is given", _CODES, "tl.maximum(largest, eps)",
        "tl.maximum(largest, 1e-12)", "eps=0.001 zeros",
    ),
    _Defect(
        "column_0_lost", "column 0 isn't in the maximum", _CODES, _LARGEST,
        "    largest = tl.max(tl.where(offs > 0, tl.abs(x), 0.0), 0)\n", NEEDLES,
    ),
    _Defect(
        "infinite_row", "a row with -inf has a scale of 1", _CODES, "    inverse = 1.0 / scale\n",
        '    scale = tl.where(scale == float("inf"), 1.0, scale)\n    inverse = 1.0 / scale\n',
        "minus_inf",
    ),
)  # fmt: skip
# Defects at sizes that no plain case has: rows of whole tiles, and a sum's last half tile.
_TILES_OF_ROWS = (
    _Defect(
        "last_of_whole_tiles_lost", "of 64 rows the last one isn't computed", (SOFTMAX_FORWARD,),
        "        softmax_kernel[(m,)](x, y, n,",
        "        softmax_kernel[(m - (m % 64 == 0),)](x, y, n,", "m64", _LOST,
    ),
    _Defect(
        "strides_of_whole_tiles", "where the rows are whole tiles, x is read by dy's strides",
        (SOFTMAX_BACKWARD,), "*dy.stride(), *x.stride(), BLOCK=block)",
        "*dy.stride(), *(dy if m % 16 == 0 else x).stride(), BLOCK=block)", "m64", _LOST,
    ),
)  # fmt: skip
_HALF_TILES = (
    _Defect(
        "half_tile_of_k_lost", "half a tile at the end of k is left out", _MATMUL,
        "range(0, k, TILE)", "range(0, tl.where(k % TILE == 16, tl.maximum(k - 16, 16), k), TILE)",
        "k528",
    ),
)  # fmt: skip


def _mutants(file: str, defects: tuple[_Defect, ...]) -> tuple[Mutant, ...]:
    path = _FOLDER / file
    return tuple(
        Mutant(
            name=f"own_{op.name}_{each.name}",
            bugs=(),
            op=op.name,
            kernel=_KERNEL,
            cases=(),
            words=tuple(each.words.split()),
            rules=each.rules,
            why=each.why,
            edits=(Edit(str(path), each.old, each.new, each.times),),
            file=path,
            sound=_KERNEL,
        )
        for each in defects
        for op in each.ops
    )


MUTANTS = (
    *_mutants("norms.py", _OF_NORMS),
    *_mutants("softmaxes.py", _OF_SOFTMAXES),
    *_mutants("elements.py", _OF_ELEMENTS),
    *_mutants("products.py", _OF_PRODUCTS),
    *_mutants("codes.py", _OF_CODES),
    *_mutants("norms.py", _NUMBERS),
    *_mutants("softmaxes.py", _LOGITS),
    *_mutants("elements.py", _UNUSUAL_UNITS),
    *_mutants("codes.py", _UNUSUAL_CODES),
    *_mutants("softmaxes.py", _TILES_OF_ROWS),
    *_mutants("products.py", _HALF_TILES),
)
_RIGHT = ("norms.py", "softmaxes.py", "elements.py", "products.py", "codes.py")
RIGHT = tuple(_FOLDER / each for each in _RIGHT)
