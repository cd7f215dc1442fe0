"""Kernels whose launches are made to do nothing, or read other numbers, must be wrong."""

from __future__ import annotations

import pytest
import torch

from kernel_workbench.kernels.registry import all_kernels
from kernel_workbench.oracles import (
    CROSS_ENTROPY_BACKWARD,
    LAYER_NORM_BACKWARD,
    OPS,
    SOFTMAX_FORWARD,
)
from kernel_workbench.oracles.cases.names import case_named
from kernel_workbench.oracles.op import Case
from kernel_workbench.suites.accuracy.run import Run
from kernel_workbench.suites.accuracy.trial import Trial
from kernel_workbench.suites.sandbox.judge_side.workers import Workers
from tests import ROOT

pytestmark = pytest.mark.long_run

_CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "case", "is_asked"),
    [
        pytest.param(
            "column_owning",
            "layer_norm_backward-m66-n256-bfloat16_float32weight-expanded_all-dy_subnormal"
            "-accumulate-no_bias",
            False,
            id="next-to-nothing-is-added",
        ),
        pytest.param(
            "two_pass",
            "attention_backward-b1-h_q1-h_kv1-s_q64-s_kv64-d80-d_v80-float16-k_transposed-inf_k"
            "-bias-bias_over_batch",
            False,
            id="outputs-are-nan",
        ),
        pytest.param(
            "flash",
            "attention_forward-b1-h_q1-h_kv1-s_q41-s_kv37-d16-d_v64-window_left5-window_right3"
            "-float16-v_transposed-nan_k-bias-bias_over_queries-unequal_d-window",
            False,
            id="what-is-finite-is-not-judged",
        ),
    ],
)
def test_right_kernel_is_not_called_stubbed(name: str, case: str, *, is_asked: bool) -> None:
    """Where outputs would be right by chance: found by a search on an H200, and by a covering.

    A launch stores what it read there, and what memory held is NaN.
    """
    kernel = next(each for each in all_kernels() if each.name == name)
    chosen = case_named(kernel.op, case)
    assert chosen is not None
    workers = Workers(_CPU, 90)
    try:
        run = Run(_CPU, 90, workers=workers)
        row = run.try_pair(kernel, chosen)
    finally:
        workers.close()
    asked = any(isinstance(each, tuple) and each[0] == "stubbed" for each in run.asked_before)
    assert asked == is_asked
    assert row.launches
    assert (row.status, row.rule) == ("passed", None)


def test_launch_in_gluon_is_counted_and_stubbed() -> None:
    """As Triton's own: the outputs of this one are computed elsewhere, and it isn't timed."""
    file = ROOT / "tests/candidates/cheats/decoy_launch_in_gluon.py"
    case = case_named(LAYER_NORM_BACKWARD, "layer_norm_backward-m37-n760-float32-contiguous")
    assert case is not None
    workers = Workers(_CPU, 90, files=(file,))
    try:
        kernel = next(each for each in workers.kernels() if each.name == file.stem)
        row = Run(_CPU, 90, workers=workers).try_pair(kernel, case)
    finally:
        workers.close()
    assert row.launches == 1
    assert (row.status, row.rule) == ("failed", "stubbed")


def test_signs_that_change_no_output_tell_nothing() -> None:
    """Softmax of numbers near 0 is the same whatever their signs are: no kernel is at fault."""
    file = ROOT / "tests/candidates/own_ops/softmaxes.py"
    case = case_named(SOFTMAX_FORWARD, "softmax_forward-m33-n64-float32-contiguous-subnormals")
    assert case is not None
    workers = Workers(_CPU, 90, files=(file,))
    try:
        rows = [each for each in workers.kernels() if each.name == "rows"]
        kernel = next(each for each in rows if each.op == SOFTMAX_FORWARD)
        row = Run(_CPU, 90, workers=workers).try_pair(kernel, case)
    finally:
        workers.close()
    assert (row.status, row.rule) == ("passed", None)


_FEW_SIGNS = "cross_entropy_backward-m1-n77-bfloat16-x_colstride2-zeros"


@pytest.mark.parametrize("told", [False, True])
def test_draw_of_few_signs_that_leaves_all_right_fails_no_right_kernel(
    monkeypatch: pytest.MonkeyPatch,
    *,
    told: bool,
) -> None:
    """The gradient of one row of zeros has one sign, which half of all draws leave as it is.

    told: the case is taken to tell, though it doesn't: then several draws are needed.
    """
    file = ROOT / "tests/candidates/own_ops/softmaxes.py"
    case = case_named(CROSS_ENTROPY_BACKWARD, _FEW_SIGNS)
    assert case is not None
    if told:
        monkeypatch.setattr(Trial, "_tells_signs", lambda *_: True)
    workers = Workers(_CPU, 90, files=(file,))
    try:
        rows = [each for each in workers.kernels() if each.name == "rows"]
        kernel = next(each for each in rows if each.op == CROSS_ENTROPY_BACKWARD)
        runs = [Run(_CPU, 90, workers=workers) for _ in range(6)]
        made = [each.try_pair(kernel, case) for each in runs]
    finally:
        workers.close()
    assert {(each.status, each.rule) for each in made} == {("passed", None)}
    asked = {each[0] for run in runs for each in run.asked_before if isinstance(each, tuple)}
    assert ("scrambled" in asked) == told


@pytest.mark.parametrize(
    ("name", "op", "sizes"),
    [
        ("cast_by_a_launch", "softmax_forward", {"m": 12, "n": 77}),
        ("parts_summed_by_torch", "matmul_forward", {"m": 33, "n": 20, "k": 64}),
        ("parts_summed_and_cast", "matmul_forward", {"m": 33, "n": 20, "k": 64}),
        ("sum_by_torch", "add_rms_norm_forward", {"m": 12, "n": 77}),
        ("sums_by_torch", "layer_norm_backward", {"m": 12, "n": 77}),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_kernel_that_has_a_part_from_the_library_passes(
    name: str, op: str, sizes: dict[str, int], dtype: torch.dtype
) -> None:
    """Or that copies what another launch computed: its launches compute something."""
    file = ROOT / "tests/candidates/own_ops/library_parts.py"
    case = Case(op=op, sizes=tuple(sizes.items()), dtype=dtype, weight_dtype=dtype)
    workers = Workers(_CPU, 90, files=(file,))
    try:
        (kernel,) = (each for each in workers.kernels() if each.name == name)
        run = Run(_CPU, 90, workers=workers)
        if run.refusal(kernel, case) is not None:
            pytest.skip("it is for other dtypes")
        row = run.try_pair(kernel, case)
    finally:
        workers.close()
    assert OPS[op] == kernel.op
    assert (row.status, row.rule) == ("passed", None)
    assert any(isinstance(each, tuple) and each[0] == "handed" for each in run.asked_before)


def test_sum_that_is_within_its_bound_of_zero_is_not_called_stubbed() -> None:
    """Launches that add nothing to a buffer of zeros leave it right: this case can't tell."""
    name = "matmul_forward-m1-n1-k33-bfloat16-contiguous-subnormals-seed2"
    case = case_named(OPS["matmul_forward"], name)
    assert case is not None
    workers = Workers(_CPU, 90, files=(ROOT / "tests/candidates/sound/products.py",))
    try:
        kernel = next(each for each in workers.kernels() if each.name == "split_k_with_atomics")
        run = Run(_CPU, 90, workers=workers, signs=198960128)
        row = run.try_pair(kernel, case)
    finally:
        workers.close()
    assert (row.status, row.rule) == ("passed", None)
    assert not any(isinstance(kind, tuple) and kind[0] == "stubbed" for kind in run.asked_before)
