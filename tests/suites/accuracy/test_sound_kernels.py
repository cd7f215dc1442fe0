"""Sound kernels of many designs pass the accuracy suite: no order of a sum breaks a rule."""

from __future__ import annotations

import pytest
import torch

from kernel_workbench.oracles import OPS
from kernel_workbench.reports.record import AccuracyRow
from studies.sound_kernels import FILES, rows_of, table_of

pytestmark = pytest.mark.long_run

_NEARLY_FLAT = (
    "attention_forward-b3-h_q1-h_kv1-s_q129-s_kv34-d32-d_v32-bfloat16-v_colstride2-near_flat"
    "-bottom_right-causal-scale-sink-seed4"
)
# A case of each op that all of its kernels serve; `python -m studies.sound_kernels` has the rest.
_CASES = (
    "softmax_forward-m12-n77-float32-contiguous-outliers",
    "softmax_backward-m12-n77-float32-contiguous-mean100",
    "cross_entropy_forward-m12-n64-float32-contiguous-mean100",
    "cross_entropy_backward-m12-n264-bfloat16-contiguous-times3",
    "layer_norm_forward-m12-n77-float32-contiguous-mean100",
    "layer_norm_backward-m17-n127-float32-contiguous",
    "rms_norm_forward-m33-n64-float32-contiguous-outliers",
    "rms_norm_backward-m12-n77-float16-contiguous-mean100",
    "swiglu_forward-m12-n264-float32-contiguous-times3",
    "swiglu_backward-m12-n77-float32-contiguous-mean100",
    "geglu_forward-m12-n77-float32-contiguous-uniform",
    "rope_forward-s12-h1-p40-bfloat16-contiguous",
    "rope_backward-s12-h3-p32-float16-contiguous-mean100",
    "matmul_forward-m33-n33-k64-float32-contiguous-mean100",
    "quantise_rows-m12-n77-float32-contiguous-scaled_rows",
    "quantise_blocks-m12-g3-float32-contiguous-scaled_rows",
    "attention_forward-b1-h_q2-h_kv1-s_q37-s_kv70-d16-d_v16-float16-contiguous-causal-gqa",
    # An exponential of a late maximum is cast with twice the error; a sink alone is lse.
    _NEARLY_FLAT,
    "attention_forward-b3-h_q6-h_kv3-s_q5-s_kv0-d111-d_v111-float16-k_rowpad5-nan_v-gqa-sink-seed1",
    "attention_delta-b1-h_q1-s_q33-d_v24-float32-contiguous",
    "attention_backward-b1-h_q2-h_kv1-s_q37-s_kv41-d16-d_v16-float16-contiguous-causal-gqa",
    "attention_gradients-b1-h_q2-h_kv1-s_q37-s_kv41-d16-d_v16-float32-contiguous-causal-gqa",
)
_OF_A_CPU = ("in_cpp",)
_ATTENTIONS, _OTHERS = 20, 31  # designs that are asked for at least


@pytest.fixture(scope="module")
def rows(device: torch.device) -> tuple[AccuracyRow, ...]:
    """The rows of all files on the cases."""
    cases = (f"--case={case}" for case in _CASES)
    files = [file for file in FILES if device.type == "cpu" or file.stem not in _OF_A_CPU]
    status, tried = rows_of(files, [f"--device={device.type}", "--jobs=2", *cases])
    assert status == 0 or any(row.status == "failed" for row in tried), "the suite itself failed"
    return tried


def test_sound_kernels_pass(rows: tuple[AccuracyRow, ...]) -> None:
    """No row fails, and each case is tried by every kernel of its op: none is refused."""
    wrong = [f"{row.kernel}: {row.rule}: {row.reason}" for row in rows if row.status == "failed"]
    assert not wrong, "\n".join(wrong)
    assert {row.status for row in rows} == {"passed"}
    assert {row.case.id for row in rows} == set(_CASES)


def test_sound_kernels_are_many(rows: tuple[AccuracyRow, ...]) -> None:
    """Attention has 20 designs, and the other ops 31; a design of several ops counts once."""
    designs = {(row.kernel, row.case.op.startswith("attention")) for row in rows}
    attentions = sum(is_attention for _, is_attention in designs)
    assert attentions >= _ATTENTIONS
    assert len(designs) - attentions >= _OTHERS
    assert {row.case.op for row in rows} <= OPS.keys()


def test_table_of_sound_kernels_counts_rows(rows: tuple[AccuracyRow, ...]) -> None:
    """It has a line for each kernel of each op and the sums, and counts a row that failed."""
    wrong = rows[0].model_copy(update={"status": "failed"})
    table = table_of([*rows, wrong])
    assert table.row_count == len({(row.case.op, row.kernel) for row in rows}) + 1
    passed, failed = (list(table.columns[place].cells)[-1] for place in (3, 4))
    assert (passed, failed) == (str(len(rows)), "1")
