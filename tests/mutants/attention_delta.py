"""Mutants of our delta = rowsum(out do): columns, rows, offsets and strides."""

from __future__ import annotations

from kernel_workbench.oracles import ATTENTION_DELTA
from tests.mutants.mutant import ACCESS, ERROR, NAN, Edit, Family
from tests.mutants.named_cases import bf16, fp16, fp32

_KERNEL = "attention/backward_kernels.py"
_delta = Family("delta", ATTENTION_DELTA, "delta", _KERNEL)

MUTANTS = (
    _delta(
        "first_columns",
        "delta of heads past 256 columns is that of the last ones",
        (fp32("b1-h_q1-s_q33-d_v512-{}-contiguous"),),
        "delta += tl.sum(out * do, 1)",
        "delta = tl.sum(out * do, 1)",
        bugs=(17,),
    ),
    _delta(
        "row_offset_int32",
        "a row's offset is computed in 32 bits",
        (bf16("b1-h_q2-s_q3-d_v64-{}-do_far"), bf16("b1-h_q2-s_q3-d_v64-{}-out_far")),
        "wide_rows = rows.to(tl.int64)\n",
        "wide_rows = rows\n",
        Edit("attention/delta.py", "WIDE=is_wide(out, do)", "WIDE=False"),
        bugs=(2, 3),
        rules=ACCESS,
    ),
    _delta(
        "rows_unmasked",
        "rows past a head's end are stored over the next head's",
        (bf16("b2-h_q2-s_q65-d_v64-{}-contiguous"),),
        "tl.store(delta_ptr + batch_head.to(tl.int64) * s + rows, delta, mask=there)",
        "tl.store(delta_ptr + batch_head.to(tl.int64) * s + rows, delta)",
        bugs=(12, 17),
        rules=ACCESS,
    ),
    _delta(
        "do_strides_of_out",
        "do is read with out's row stride",
        (bf16("b1-h_q2-s_q33-d_v64-{}-do_rowpad24"), bf16("b1-h_q2-s_q33-d_v64-{}-do_bhsd")),
        "do = load_rows(do_head, wide_rows, offs, mask)",
        "do_offs = wide_rows[:, None] * out_head.stride_m + offs[None, :] * do_head.stride_d\n"
        "        do = tl.load(do_head.base + do_offs, mask=mask, other=0.0)",
        bugs=(20,),
        rules=(*ERROR, *NAN, *ACCESS),
    ),
    _delta(
        "vector_of_out_alone",
        "the width of delta's loads is asked of out and not of do",
        (fp16("b1-h_q2-s_q33-d_v64-{}-do_transposed"),),
        "vector = vector_elements(out, do)",
        "vector = vector_elements(out)",
        bugs=(20, 26),
        rules=(*ERROR, *NAN, *ACCESS),
        file="attention/delta.py",
    ),
)
