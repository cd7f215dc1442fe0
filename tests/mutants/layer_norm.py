"""Mutants of `row_persistent` and its aligned twin: masks, offsets, partials, precision."""

from __future__ import annotations

from kernel_workbench.oracles import LAYER_NORM_BACKWARD
from tests.mutants.mutant import ACCESS, ERROR, NAN, UNDEFINED, UNWRITTEN, Edit, Family
from tests.mutants.named_cases import DISTRIBUTED, ODD, ROWS, WEIGHED, bf16, fp16, fp32

_ROWS, _CALL = "layer_norm/row_persistent.py", "layer_norm/call.py"
_TILES = "layer_norm/tiles.py"
_mutant = Family("ln", LAYER_NORM_BACKWARD, "row_persistent")

MUTANTS = (
    _mutant(
        "row_offset_int32",
        (1, 2),
        "a row's offset is computed in 32 bits",
        (bf16("m3-n264-{}-x_far"),),
        ACCESS,
        Edit(_ROWS, "row = rows.to(tl.int64)[:, None]", "row = rows[:, None]"),
    ),
    _mutant(
        "padded_columns_counted",
        (16,),
        "columns past the row's end count as ones in its means",
        (fp32(ODD), bf16("m9-n1025-{}-contiguous")),
        ERROR,
        Edit(
            _ROWS,
            "dy = tl.load(dys, mask=mask, other=0.0",
            "dy = tl.load(dys, mask=mask, other=1.0",
        ),
        Edit(_TILES, "mask=offs_n < n, other=0.0)", "mask=offs_n < n, other=1.0)"),
    ),
    _mutant(
        "x_without_other",
        (16,),
        "masked lanes of x are what the register held",
        (fp32(ODD),),
        UNDEFINED,
        Edit(
            _ROWS,
            "x = tl.load(xs, mask=mask, other=0.0,",
            "x = tl.load(xs, mask=mask,",
        ),
    ),
    _mutant(
        "last_row_tile_dropped",
        (17,),
        "the rows of the last partial tile are left out",
        (fp32("m37-n64-{}-contiguous"), bf16(ODD)),
        UNWRITTEN,
        Edit(
            _ROWS,
            "tl.range(tl.program_id(0) * BLOCK_M, m, step",
            "tl.range(tl.program_id(0) * BLOCK_M, m - BLOCK_M + 1, step",
        ),
    ),
    _mutant(
        "one_row_too_many",
        (17,),
        "the mask of rows lets one past the end through",
        (fp32("m37-n64-{}-contiguous"),),
        ACCESS,
        Edit(_ROWS, "mask_m = rows < m", "mask_m = rows <= m"),
    ),
    _mutant(
        "more_partials_than_programs",
        (33,),
        "partials are made for a full device, and those of programs that never ran are summed",
        (fp32("m1-n768-{}-contiguous"),),
        (*ACCESS, *NAN),
        Edit(
            _ROWS,
            "call.sum_in(programs)",
            "call.sum_in(cores * cut.programs_per_sm)",
        ),
    ),
    _mutant(
        "floor_sized_partials",
        (34,),
        "partials are as many as whole tiles, programs as tiles begun",
        (fp16("m9-n1024-{}-contiguous"),),
        ACCESS,
        Edit(
            _ROWS,
            "call.sum_in(programs)",
            "call.sum_in(max(1, call.m // cut.block_m))",
        ),
        kernel="row_persistent_aligned",
    ),
    _mutant(
        "rank_2_taken_for_granted",
        (35, 36),
        "the number of rows is the second last size",
        (fp32("m12-n264-{}-rank3"),),
        UNWRITTEN,
        Edit(_CALL, "self.m, self.n = x_rows.data.shape", "self.m, self.n = x.shape[-2:]"),
    ),
    _mutant(
        "partials_in_half",
        (37,),
        "partials of dweight and dbias are stored in the input's type",
        (bf16("m131-n8-{}-contiguous"), bf16(ROWS)),
        ERROR,
        Edit(_CALL, "(parts, self.n), dtype=torch.float32", "(parts, self.n), dtype=self.x.dtype"),
    ),
    _mutant(
        "mean_in_half",
        (38,),
        "the mean is kept in the input's type",
        (fp16(f"{DISTRIBUTED}-mean100"),),
        ERROR,
        Edit(
            _CALL,
            "packed_vector(mean),",
            "packed_vector(None if mean is None else mean.to(x.dtype)),",
        ),
    ),
    _mutant(
        "rstd_in_half",
        (38,),
        "rstd is kept in the input's type",
        (fp16(f"{DISTRIBUTED}-uniform"),),
        (*ERROR, *NAN),
        Edit(_CALL, "packed_vector(rstd),", "packed_vector(rstd.to(x.dtype)),"),
    ),
    _mutant(
        "x_hat_in_half",
        (37,),
        "x^ is rounded to the input's type before dweight's product",
        (bf16(ROWS), fp16(ROWS)),
        ERROR,
        Edit(
            _ROWS,
            "dweight += dy * x_hat",
            "dweight += dy * x_hat.to(dx_ptr.dtype.element_ty).to(tl.float32)",
        ),
    ),
    _mutant(
        "normalised_after_the_product",
        (39,),
        "x^ is x rstd - mean rstd, which cancels where the mean is large",
        (fp32("m5-n2056-{}-contiguous-mean1e4"),),
        ERROR,
        Edit(
            _ROWS,
            "x_hat = (x.to(tl.float32) - mean) * rstd",
            "x_hat = x.to(tl.float32) * rstd - mean * rstd",
        ),
    ),
    _mutant(
        "zero_centred_forgotten",
        (46,),
        "1 + weight in the forward and weight in the backward",
        (bf16(f"{WEIGHED}-zero_centred"),),
        ERROR,
        Edit(_TILES, "weight += 1.0", "weight += 0.0"),
    ),
    _mutant(
        "residual_normalised",
        (),
        "the residual's gradient is multiplied by rstd",
        (bf16(f"{WEIGHED}-residual"),),
        ERROR,
        Edit(
            _ROWS,
            "dx += tl.load(residuals, mask=mask, other=0.0).to(tl.float32)",
            "dx += rstd * tl.load(residuals, mask=mask, other=0.0).to(tl.float32)",
        ),
    ),
    _mutant(
        "rms_subtracts_a_mean",
        (),
        "RMS norm's dx has the mean of g taken off, as layer norm's has",
        (fp32(f"{WEIGHED}-no_bias-rms_norm"),),
        ERROR,
        Edit(
            _ROWS,
            "dx = (g - x_hat * c2) * rstd",
            "dx = (g - x_hat * c2 - c1) * rstd",
        ),
    ),
    _mutant(
        "second_block_left_out",
        (17,),
        "a row's means are those of its first block alone",
        (bf16("m3-n5000-{}-contiguous"),),
        ERROR,
        Edit(_ROWS, "            c2 += rest_c2\n", ""),
        kernel="row_persistent_aligned",
    ),
    _mutant(
        "means_over_the_block",
        (16,),
        "means are divided by the block's width, not by the row's",
        (fp32(ODD),),
        ERROR,
        Edit(_CALL, "1.0 / self.n,", "1.0 / (1 << max(4, (self.n - 1).bit_length())),"),
    ),
    _mutant(
        "columns_taken_for_adjacent",
        (23,),
        "column strides are taken for 1",
        (bf16("m11-n264-{}-dy_colstride3"), fp32("m11-n264-{}-x_transposed")),
        (*ERROR, *NAN, *ACCESS),
        Edit(
            _CALL,
            '"ADJACENT": adjacent,',
            '"ADJACENT": True,',
        ),
    ),
    _mutant(
        "dy_strides_of_x",
        (23,),
        "dy is read with x's strides",
        (fp32("m11-n264-{}-dy_rowpad3"), bf16("m11-n264-{}-expanded_rows")),
        (*ERROR, *NAN, *ACCESS),
        Edit(
            _CALL,
            'dy_rows.row // vector,\n            "stride_dyn": dy_rows.column,',
            'x_rows.row // vector,\n            "stride_dyn": x_rows.column,',
        ),
    ),
    _mutant(
        "unaligned_rows_served",
        (26,),
        "the kernel of 16-byte loads lets rows through that aren't a multiple of 16 bytes",
        (bf16(ODD), fp32("m17-n127-{}-contiguous")),
        (*ACCESS, *UNWRITTEN),
        Edit(
            _ROWS,
            "    domain(16, WIDEST),",
            "    domain(1, WIDEST),",
        ),
        kernel="row_persistent_aligned",
    ),
    _mutant(
        "programs_overlap",
        (29, 30),
        "each program goes on to the rows of the next",
        (fp32("m37-n64-{}-contiguous"), fp32(ROWS)),
        ACCESS,
        Edit(_ROWS, "step = tl.num_programs(0) * BLOCK_M", "step = BLOCK_M"),
    ),
    _mutant(
        "tile_of_the_call",
        (48,),
        "each call takes another tile, so that two calls differ in their bits",
        (fp32(ROWS), fp32("m131-n8-{}-contiguous")),
        ("not repeatable",),
        Edit(_ROWS, "WIDEST = 8192", "WIDEST = 8192\n_calls = []"),
        Edit(
            _ROWS,
            "    kinds = ",
            "    _calls.append(1)\n"
            "    return (RowTile(1 + 3 * (len(_calls) % 2), 4, 1, 1),)\n"
            "    kinds = ",
        ),
    ),
    _mutant(
        "device_dependent",
        (),
        "as many programs as the device has room for, where a fixed number is asked for",
        (fp32(f"{WEIGHED}-device_independent"),),
        ("invariance",),
        Edit(_ROWS, "device_independent=device_independent)", "device_independent=False)"),
    ),
)
