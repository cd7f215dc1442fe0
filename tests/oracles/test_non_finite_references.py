"""Rows that hold NaN or an infinity: what ops of references say is right there."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # as everywhere
from torch import Tensor

from kernel_workbench.oracles import (
    OPS,
    SMOOTHED_CROSS_ENTROPY_BACKWARD,
    SMOOTHED_CROSS_ENTROPY_FORWARD,
)
from kernel_workbench.oracles.op import Bound, Case, Inputs, Numerics, Outputs, required
from kernel_workbench.oracles.reference.cases import case_of
from kernel_workbench.suites.accuracy.verdict import judge
from kernel_workbench.suites.sandbox.call import Call

CPU = torch.device("cpu")
_NORMS = [
    (op, distribution)
    for op in ("rms_norm_forward", "rms_norm_backward", "add_rms_norm_forward")
    for distribution in ("inf", "nan")
]


def _case(op: str, distribution: str, seed: int = 0) -> Case:
    made = case_of(op, {"m": 12, "n": 64}, (torch.float32,) * 2, "ci", distribution)
    return replace(made, seed=seed)


def _made(case: Case) -> tuple[Inputs, Outputs, dict[str, Bound]]:
    op = OPS[case.op]
    inputs = op.inputs(case, CPU)
    truth = op.oracle(case, inputs)
    return inputs, truth, op.bound(case, inputs, truth, Numerics())


def _rule(
    truth: Outputs, bounds: dict[str, Bound], change: Callable[[Tensor], object]
) -> str | None:
    """By which rule the truth fails whose first output is changed."""
    outputs = {name: required(truth, name).float() for name in truth}
    change(outputs[next(iter(outputs))])
    call = Call(outputs, 0.0)
    return judge(call, call, truth, bounds, Numerics()).rule


@pytest.mark.parametrize(("op", "distribution"), _NORMS)
def test_row_with_an_infinity_may_be_all_nan(op: str, distribution: str) -> None:
    """The formula's values are right, too; no other row may be NaN, nor any number stand there."""
    case = _case(op, distribution)
    inputs, truth, bounds = _made(case)
    given = [each for each in inputs.values() if isinstance(each, Tensor) and each.dim() > 1]
    (row,) = {int(each) for x in given for each in (~x.isfinite()).any(1).nonzero()}
    assert _rule(truth, bounds, lambda _: None) is None
    assert _rule(truth, bounds, lambda y: y[row].fill_(math.nan)) is None
    wrong = "non-finite values"
    assert _rule(truth, bounds, lambda y: y[row - 1].fill_(math.nan)) == wrong
    assert _rule(truth, bounds, lambda y: y[row].fill_(1.0)) is not None


def _row_of_nan(op: str, *, has_label: bool) -> tuple[Case, int]:
    """A case with a row of NaN, and that row."""
    for seed in range(64):
        case = _case(op, "nan", seed)
        inputs = OPS[op].inputs(case, CPU)
        row = int(required(inputs, "x").isnan().any(1).nonzero()[0])
        if (int(required(inputs, "target")[row]) >= 0) == has_label:
            return case, row
    raise AssertionError("one row of four has no label")


def test_gradient_of_an_ignored_row_of_nan_is_0_or_nan() -> None:
    """Liger writes 0, PyTorch multiplies by 0; a row with a label is NaN, and nothing else."""
    case, row = _row_of_nan(SMOOTHED_CROSS_ENTROPY_BACKWARD.name, has_label=False)
    inputs, truth, bounds = _made(case)
    assert not bool(required(truth, "dx")[row].any())
    assert _rule(truth, bounds, lambda _: None) is None
    assert _rule(truth, bounds, lambda dx: dx[row].fill_(math.nan)) is None
    assert _rule(truth, bounds, lambda dx: dx[row].fill_(1.0)) is not None

    x, target = required(inputs, "x").requires_grad_(), required(inputs, "target")
    loss = F.cross_entropy(x, target, label_smoothing=0.1, reduction="none")
    (dx,) = torch.autograd.grad(loss, x, required(inputs, "dloss"))
    assert bool(dx[row].isnan().all())

    case, row = _row_of_nan(SMOOTHED_CROSS_ENTROPY_BACKWARD.name, has_label=True)
    _, truth, bounds = _made(case)
    assert _rule(truth, bounds, lambda dx: dx[row].fill_(0.0)) == "non-finite values"


def test_loss_of_an_ignored_row_of_nan_is_0() -> None:
    """In PyTorch and in Liger alike."""
    case, row = _row_of_nan(SMOOTHED_CROSS_ENTROPY_FORWARD.name, has_label=False)
    _, truth, bounds = _made(case)
    assert float(required(truth, "loss")[row]) == 0
    rule = _rule(truth, bounds, lambda loss: loss[row].fill_(math.nan))
    assert rule == "non-finite values"
