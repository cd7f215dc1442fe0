"""Mutants of layer norms of wide rows, of the last step of all and of how tensors are seen."""

from __future__ import annotations

from kernel_workbench.oracles import LAYER_NORM_BACKWARD
from tests.mutants.mutant import ACCESS, ERROR, NAN, UNWRITTEN, Edit, Family
from tests.mutants.named_cases import ODD, ROWS, WEIGHED, bf16, fp16, fp32

_COLUMNS = "layer_norm/column_owning.py"
_SHARES = "layer_norm/row_sharing.py"
_FINALIZE, _CALL = "layer_norm/finalize.py", "layer_norm/call.py"
_ROW_KERNEL = "row_persistent"
_mutant = Family("ln", LAYER_NORM_BACKWARD, "column_owning")

MUTANTS = (
    _mutant(
        "stores_that_agree",
        (29,),
        "two programs of the last step write the same values to the same columns",
        (fp32(ROWS),),
        ACCESS,
        Edit(
            _FINALIZE,
            "offs_n = tl.program_id(0) * BLOCK_N",
            "offs_n = tl.minimum(tl.program_id(0), tl.num_programs(0) - 2) * BLOCK_N",
        ),
        Edit(_FINALIZE, "(cdiv(n, block_n),)", "(cdiv(n, block_n) + 1,)"),
        kernel=_ROW_KERNEL,
    ),
    _mutant(
        "tuned_in_place",
        (48,),
        "tuning runs the last step twice, which adds to existing gradients twice",
        (fp32(f"{WEIGHED}-accumulate"),),
        ERROR,
        Edit(
            _CALL,
            "            launched = finalize(parts, bias_parts, ",
            "            for _ in range(2): launched = finalize(parts, bias_parts, ",
        ),
        kernel=_ROW_KERNEL,
    ),
    _mutant(
        "dbias_overwritten",
        (50,),
        "dbias replaces what was to be added to",
        (fp32(f"{WEIGHED}-accumulate"),),
        ERROR,
        Edit(
            _FINALIZE,
            "        if ACCUMULATE:\n            total += tl.load(dbias_ptr",
            "        if False:\n            total += tl.load(dbias_ptr",
        ),
        kernel=_ROW_KERNEL,
    ),
    _mutant(
        "added_in_half",
        (37,),
        "the new gradient is rounded before it is added to the existing one",
        (bf16(f"{WEIGHED}-accumulate"), fp16("m6-n77-{}-contiguous-accumulate")),
        ERROR,
        Edit(
            _FINALIZE,
            "        total += tl.load(dweight_ptr + offs_n",
            "        total = total.to(dweight_ptr.dtype.element_ty).to(tl.float32)\n"
            "        total += tl.load(dweight_ptr + offs_n",
        ),
        kernel=_ROW_KERNEL,
    ),
    _mutant(
        "parts_past_the_end",
        (33,),
        "the last step reads more partials than there are",
        (fp32(ROWS),),
        ACCESS,
        Edit(_FINALIZE, "mask = (part < parts) & mask_n", "mask = (part < parts + 1) & mask_n"),
        kernel=_ROW_KERNEL,
    ),
    _mutant(
        "no_rows_no_gradients",
        (15,),
        "without rows dweight and dbias are left as they were",
        (fp32("m0-n17-{}-contiguous"),),
        UNWRITTEN,
        Edit(
            _FINALIZE,
            "    parts, n = dweight_parts.shape\n",
            "    parts, n = dweight_parts.shape\n    if not parts:\n        return\n",
        ),
        kernel=_ROW_KERNEL,
    ),
    _mutant(
        "batches_taken_for_rows",
        (23, 36),
        "a tensor of rank 3 is seen as rows one stride apart, whatever lies between its batches",
        (fp32("m12-n264-{}-rank3_pad8"),),
        (*ERROR, *NAN, *ACCESS),
        Edit(
            _CALL,
            "tensor.reshape(-1, n)",
            "tensor.as_strided((tensor.numel() // n, n), tensor.stride()[-2:])",
        ),
        kernel=_ROW_KERNEL,
    ),
    _mutant(
        "columns_first_row_unguarded",
        (17,),
        "walking backwards, the last tile reads and writes rows before the first",
        (fp32("m37-n64-{}-contiguous"), fp32(ODD)),
        ACCESS,
        Edit(_COLUMNS, "mask_m = rows >= 0", "mask_m = rows < m"),
    ),
    _mutant(
        "columns_last_chunk_dropped",
        (17,),
        "the columns are cut into whole tiles, and the rest is left out of the row's sums",
        (bf16("m9-n1025-{}-contiguous"), bf16("m5-n2056-{}-contiguous-outliers")),
        (*ERROR, *NAN),
        Edit(
            _COLUMNS,
            "column_tiles = cdiv(n, cut.sums_n)",
            "column_tiles = max(1, n // cut.sums_n)",
        ),
    ),
    _mutant(
        "columns_share_a_partial",
        (27, 30),
        "all programs of a column leave their partial in one place",
        (fp32(ROWS),),
        ACCESS,
        Edit(
            _COLUMNS,
            "dweight, dbias, tl.program_id(1), offs_n, n)",
            "dweight, dbias, tl.program_id(1) * 0, offs_n, n)",
        ),
    ),
    _mutant(
        "columns_row_offset_int32",
        (1, 2),
        "a row's offset is computed in 32 bits in the second pass",
        (bf16("m3-n264-{}-dy_far"),),
        ACCESS,
        Edit(
            _COLUMNS,
            "        row = rows.to(tl.int64)[:, None]\n        mask =",
            "        row = rows[:, None]\n        mask =",
        ),
    ),
    _mutant(
        "shares_last_owner_dropped",
        (17,),
        "rows are cut into whole blocks of columns, and nobody owns the rest",
        (bf16("m9-n1025-{}-contiguous"), fp32("m37-n760-{}-contiguous")),
        (*UNWRITTEN, *ACCESS),
        Edit(_SHARES, "owners = cdiv(n, block_n)", "owners = max(1, n // block_n)"),
        kernel="row_sharing",
    ),
    _mutant(
        "shares_of_another_row",
        (44,),
        "a row is finished with the sums of the row after it",
        (fp32("m37-n760-{}-contiguous"), fp32(ROWS)),
        (*ERROR, *NAN, *ACCESS),
        Edit(
            _SHARES,
            "parts_rows = before * BLOCK_M + offs_m",
            "parts_rows = tl.minimum(before * BLOCK_M + offs_m + 1, m - 1)",
        ),
        kernel="row_sharing",
    ),
    _mutant(
        "shares_finish_the_block_ahead",
        (28,),
        "the registers that hold a block are filled with the next one before it is finished",
        (fp32("m37-n760-{}-contiguous"), fp32(ROWS)),
        ERROR,
        Edit(_SHARES, "        x_before = x\n", "        x_before = x_next\n"),
        kernel="row_sharing",
    ),
    _mutant(
        "shares_in_one_partial",
        (27, 30),
        "all groups leave their partial in one place",
        (fp32("m37-n64-{}-contiguous"),),
        ACCESS,
        Edit(
            _SHARES,
            "dweight, dbias, group, offs_n, n)",
            "dweight, dbias, group * 0, offs_n, n)",
        ),
        kernel="row_sharing",
    ),
    _mutant(
        "shares_row_offset_int32",
        (1, 2),
        "a row's offset is computed in 32 bits",
        (bf16("m3-n264-{}-dy_far"),),
        ACCESS,
        Edit(_SHARES, "    row = rows.to(tl.int64)[:, None]\n", "    row = rows[:, None]\n"),
        kernel="row_sharing",
    ),
)
