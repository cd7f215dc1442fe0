"""Mutants of our layer norms that are wrong where two or three things meet."""

from __future__ import annotations

import torch

from kernel_workbench.oracles import LAYER_NORM_BACKWARD
from kernel_workbench.oracles.cases.layouts import FAR_STRIDE, alike, apart
from kernel_workbench.oracles.layer_norm.cases import OFFSETS, STRIDES, layer_norm_case
from kernel_workbench.oracles.op import CONTIGUOUS, Case, Layout, TensorLayout
from tests.mutants.mutant import ACCESS, ERROR, NAN, Edit, Family

_ROWS, _CALL = "layer_norm/row_persistent.py", "layer_norm/call.py"
_COLUMNS, _SHARES = "layer_norm/column_owning.py", "layer_norm/row_sharing.py"
_FINALIZE = "layer_norm/finalize.py"
_mutant = Family("ln", LAYER_NORM_BACKWARD, "row_persistent", _ROWS)
_LAYOUTS = {each.name: each for each in (*OFFSETS, *STRIDES)}
_BATCHES = alike("", ("dy", "x", "dresidual"), TensorLayout(batch_padding=8)).tensors
_FP32, _FP16, _BF16 = torch.float32, torch.float16, torch.bfloat16


def _case(
    sizes: tuple[int, int],
    dtype: torch.dtype,
    options: str = "",
    layout: Layout = CONTIGUOUS,
    distribution: str = "normal",
) -> Case:
    return layer_norm_case(
        *sizes,
        (dtype, dtype),
        options=frozenset(options.split()),
        layout=layout,
        distribution=distribution,
    )


MUTANTS = (
    _mutant(
        "columns_normalised_after_the_product",
        "x^ is x rstd - mean rstd where x's columns aren't adjacent: it cancels for a large mean",
        (_case((13, 229), _FP32, layout=_LAYOUTS["x_colstride2"], distribution="mean1e4"),),
        "mean, rstd, inverse_n",
        "mean, rstd, inverse_n, ADJACENT",
        Edit(
            _ROWS,
            "        x_hat = (x.to(tl.float32) - mean) * rstd\n",
            "        x_hat = (x.to(tl.float32) - mean) * rstd\n"
            "        if not ADJACENT:\n"
            "            x_hat = x.to(tl.float32) * rstd - mean * rstd\n",
        ),
        bugs=(39,),
        times=3,
    ),
    _mutant(
        "residual_strides_of_x",
        "the residual's gradient is read with x's row stride",
        (_case((11, 264), _BF16, "residual", _LAYOUTS["x_rowpad5"]),),
        '"stride_rm": 0 if residual is None else residual.row // vector,',
        '"stride_rm": 0 if residual is None else x_rows.row // vector,',
        bugs=(23,),
        rules=(*ERROR, *NAN, *ACCESS),
        file=_CALL,
    ),
    _mutant(
        "residual_batches_taken_for_rows",
        "a residual of rank 3 is seen as rows one stride apart, whatever lies between its batches",
        (_case((12, 264), _FP32, "residual", Layout("rank3_pad8", _BATCHES, batches=3)),),
        "residual = None if dresidual is None else as_matrix(dresidual)",
        "residual = None\n"
        "        if dresidual is not None:\n"
        "            rows = dresidual.as_strided(x_rows.data.shape, dresidual.stride()[-2:])\n"
        "            residual = as_matrix(rows)",
        bugs=(23, 36),
        rules=(*ERROR, *NAN, *ACCESS),
        file=_CALL,
        kernel="row_sharing",
    ),
    _mutant(
        "residual_offset_int32",
        "the offset of a row of the residual's gradient is computed in 32 bits",
        (
            _case(
                (3, 264),
                _BF16,
                "residual",
                apart("dresidual_far", dresidual=TensorLayout(row_stride=FAR_STRIDE)),
            ),
        ),
        "r_offs = offsets(row, offs_n, stride_rm, stride_rn, ADJACENT, VECTOR)",
        "row = row.to(tl.int32)\n"
        "        r_offs = offsets(row, offs_n, stride_rm, stride_rn, ADJACENT, VECTOR)",
        bugs=(1, 3),
        rules=ACCESS,
    ),
    _mutant(
        "residual_of_plain_rms_left_out",
        "RMS norm without a weight leaves the residual's gradient out",
        (_case((11, 264), _BF16, "rms_norm no_weight residual"),),
        "            if dresidual_ptr is not None:\n                dx += _tile(",
        "            if dresidual_ptr is not None and (\n"
        "                weight_ptr is not None or mean_ptr is not None\n"
        "            ):\n                dx += _tile(",
        file=_SHARES,
        kernel="row_sharing",
    ),
    _mutant(
        "residual_of_saturated_rows",
        "dx is held in float16's range before the residual's gradient is added, and not after",
        (_case((13, 229), _FP16, "residual", distribution="near_overflow"),),
        "            dx += tl.load(dresidual_ptr + r_offs,",
        "            dx = tl.minimum(tl.maximum(dx, -65504.0), 65504.0)\n"
        "            dx += tl.load(dresidual_ptr + r_offs,",
        rules=(*ERROR, *NAN),
        file=_COLUMNS,
        kernel="column_owning",
    ),
    _mutant(
        "rms_sums_of_the_last_tile",
        "RMS norm keeps the sum of a program's last tile of columns, not of all of them",
        (_case((33, 2056), _FP32, "rms_norm no_bias"),),
        "        if mean_ptr is None:\n"
        "            x_hat = x * rstd\n"
        "        else:\n"
        "            x_hat = (x - mean) * rstd\n"
        "        sum_g += g\n"
        "        sum_gx += g * x_hat\n",
        "        if mean_ptr is None:\n"
        "            sum_gx = g * (x * rstd)\n"
        "        else:\n"
        "            sum_g += g\n"
        "            sum_gx += g * ((x - mean) * rstd)\n",
        bugs=(17,),
        file=_COLUMNS,
        kernel="column_owning",
    ),
    _mutant(
        "rms_strides_of_dy",
        "RMS norm reads x with dy's strides",
        (_case((11, 264), _BF16, "rms_norm", _LAYOUTS["dy_rowpad24"]),),
        "    step = tl.num_programs(0) * BLOCK_M\n",
        "    step = tl.num_programs(0) * BLOCK_M\n"
        "    if mean_ptr is None:\n"
        "        stride_xm = stride_dym\n"
        "        stride_xn = stride_dyn\n",
        bugs=(23,),
        rules=(*ERROR, *NAN, *ACCESS),
        kernel="row_persistent_aligned",
    ),
    _mutant(
        "owned_columns_without_a_stride",
        "a program's first column of x is found without the column stride",
        (_case((5, 1500), _FP32, layout=_LAYOUTS["x_colstride2"]),),
        "        x_offs = offsets(row, offs_n, stride_xm, stride_xn, ADJACENT, VECTOR)\n"
        "        dy = tl.load(",
        "        first = tl.program_id(0) * BLOCK_N\n"
        "        own_n = offs_n - first\n"
        "        x_offs = first + offsets(row, own_n, stride_xm, stride_xn, ADJACENT, VECTOR)\n"
        "        dy = tl.load(",
        bugs=(23,),
        rules=(*ERROR, *NAN, *ACCESS),
        file=_COLUMNS,
        kernel="column_owning",
    ),
    _mutant(
        "dbias_added_to_the_first_columns",
        "every program of the last step adds the first columns of an existing dbias",
        (_case((5, 1500), _FP32, "accumulate"),),
        "total += tl.load(dbias_ptr + offs_n,",
        "total += tl.load(dbias_ptr + tl.arange(0, BLOCK_N),",
        bugs=(50,),
        rules=(*ACCESS, *ERROR),
        file=_FINALIZE,
    ),
    _mutant(
        "existing_gradient_copied",
        "an existing gradient that isn't 16-byte aligned is copied, and the copy is added to",
        (_case((7, 264), _FP32, "accumulate", _LAYOUTS["offset1"]),),
        "    return existing\n",
        "    return existing if existing.data_ptr() % 16 == 0 else existing.clone()\n",
        bugs=(26,),
        rules=("wrong outputs", *ERROR),
        file=_CALL,
    ),
    _mutant(
        "parts_past_128_dropped",
        "the last step folds 128 partials at most, and a fixed number of programs leaves more",
        (_case((4130, 8), _FP32, "device_independent"),),
        "for start in tl.range(0, parts, BLOCK_P):",
        "for start in tl.range(0, tl.minimum(parts, 128), BLOCK_P):",
        bugs=(33, 34),
        file=_FINALIZE,
    ),
)
