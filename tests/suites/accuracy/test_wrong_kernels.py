"""Wrong kernels fail for the right reason, and sound ones pass: the suite's own verdict on both."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from kernel_workbench.oracles import LAYER_NORM_BACKWARD
from kernel_workbench.oracles.op import CONTIGUOUS, Case, Numerics
from kernel_workbench.reports.record import AccuracyRow
from kernel_workbench.suites.accuracy.run import Run
from tests.builders.by_hand import DTYPES, kernel_of, run_on
from tests.builders.wrong_layer_norms import WRONG, Wrong, closed_form


def _cases(dtype: torch.dtype) -> list[Case]:
    """The `ci` cases of `dtype` that a kernel with no options serves.

    The odder ones come first: most of what is wrong shows there, and some of it there alone.
    """
    cases = [
        case
        for case in LAYER_NORM_BACKWARD.cases()
        if case.tier == "ci" and case.dtype == dtype and not case.options
    ]
    return sorted(
        cases, key=lambda each: (each.distribution == "normal", each.layout == CONTIGUOUS)
    )


def _rows(function: Callable[..., object], cases: list[Case], run: Run) -> Iterator[AccuracyRow]:
    kernel = kernel_of(function)
    return (run.try_pair(kernel, case) for case in cases if run.refusal(kernel, case) is None)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sound_kernel_passes(dtype: torch.dtype, device: torch.device) -> None:
    """The kernel that the wrong ones are made from has no failure of its own."""
    rows = list(_rows(closed_form, _cases(dtype)[::3], run_on(device)))
    assert len(rows) > 15  # of about 80 in each dtype, of which the wrong ones meet the first
    assert [(row.case.id, row.reason) for row in rows if row.status != "passed"] == []


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", WRONG)
def test_wrong_kernel_fails_for_the_right_reason(
    name: str, dtype: torch.dtype, device: torch.device
) -> None:
    """Each defect is found in each dtype, by a rule that fits it, with a reason that names it."""
    wrong: Wrong = WRONG[name]
    others = []
    for row in _rows(wrong.function, _cases(dtype), run_on(device)):
        if row.rule in wrong.rules and row.reason and wrong.word in row.reason:
            return
        if row.status == "failed":
            others.append((row.rule, row.reason))
    pytest.fail(f"{name} passes, or fails for another reason: {others[:3]}")


def test_kernel_that_declares_its_order_open_may_differ_between_calls(
    device: torch.device,
) -> None:
    """Bits that differ within the bound are right where the kernel says that they may."""
    run, case = run_on(device), _cases(torch.float32)[20]
    function, declared = WRONG["not_repeatable"].function, Numerics(bitwise_repeatable=False)
    assert run.try_pair(kernel_of(function, numerics=declared), case).status == "passed"
