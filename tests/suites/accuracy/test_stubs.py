"""Kernels whose launches are made to do nothing, or read other numbers, must be wrong."""

from __future__ import annotations

import torch

from kernels.registry import all_kernels
from oracles import LAYER_NORM_BACKWARD
from oracles.cases.named import case_named
from suites.accuracy.run import Run
from suites.sandbox.judge_side.workers import Workers

_CPU = torch.device("cpu")


def test_gradient_that_hardly_adds_is_no_sign_of_a_cheat() -> None:
    """Beside what was there nothing is added that shows: the launch stores what it read.

    Found by a search on an H200, in three kernels that are right.
    """
    case = case_named(
        LAYER_NORM_BACKWARD,
        "layer_norm_backward-m66-n256-bfloat16_float32weight-expanded_all-dy_subnormal"
        "-accumulate-no_bias",
    )
    assert case is not None
    kernel = next(each for each in all_kernels() if each.name == "column_owning")
    workers = Workers(_CPU, 90)
    try:
        run = Run(_CPU, 90, workers=workers)
        row = run.try_pair(kernel, case)
        assert ("stubbed", "layer_norm_backward", "column_owning") in {
            each[:3] for each in run.asked if isinstance(each, tuple)
        }
    finally:
        workers.close()
    assert row.launches
    assert (row.status, row.rule) == ("passed", None)
