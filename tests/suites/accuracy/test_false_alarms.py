"""Sound kernels that a rule once failed, and beside each a wrong one that must not pass."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from kernel_workbench.oracles import SOFTMAX_FORWARD
from kernel_workbench.oracles.cases.names import case_named
from kernel_workbench.oracles.reference.cases import case_of
from kernel_workbench.suites.accuracy.run import Run
from kernel_workbench.suites.accuracy.truth import CaseValues
from kernel_workbench.suites.sandbox.judge_side.workers import Workers
from kernel_workbench.suites.sandbox.originals import Originals
from tests import ROOT

pytestmark = pytest.mark.long_run

_CPU = torch.device("cpu")
_FOLDER = ROOT / "tests/candidates/own_ops"
# Right kernels, wrong kernels, and cases that show the difference, by file.
_FILES = {
    "additions": (
        ("pairs", "backwards", "signs"),
        ("rounded",),
        ("m12-n264-float32-contiguous", "m12-n264-float32-contiguous-mean100"),
    ),
    "group_norm": (
        ("right",),
        ("mean_of_magnitudes",),
        ("b12-c16-s64-float32-contiguous", "b3-c40-s24-bfloat16-contiguous"),
    ),
    "epilogues": (
        ("product_by_torch",),
        ("bias_of_rows",),
        ("m12-k64-n24-float32-contiguous", "m12-k24-n64-bfloat16-contiguous"),
    ),
    "tails": (("right",), ("squares",), ("m12-n264-float32-contiguous",)),
    "distances": (
        ("right",),
        ("half_at_ties",),
        ("m12-n264-float32-contiguous-ties", "m3-n24-bfloat16-contiguous-ties"),
    ),
    "states": (
        ("right",),
        ("nan_of_empty",),
        ("m12-n264-float32-contiguous-minus_inf_rows", "m3-n24-bfloat16-contiguous"),
    ),
    "slots": (
        ("right",),
        ("multiplies_unread",),
        ("b3-n64-l21-d24-float32-contiguous-nan_unread",),
    ),
    "cache_write": (
        ("right",),
        ("writes_padding",),
        ("m12-n16-d64-float32-contiguous", "m12-n256-d24-bfloat16-contiguous"),
    ),
}


@pytest.fixture(params=_FILES)
def file(request: pytest.FixtureRequest) -> Iterator[tuple[str, Workers]]:
    """A file of an op and its kernels, and what runs them."""
    workers = Workers(_CPU, 90, files=(_FOLDER / f"{request.param}.py",))
    yield request.param, workers
    workers.close()


def test_sound_kernel_passes_and_the_wrong_one_beside_it_fails(file: tuple[str, Workers]) -> None:
    """On each of the cases, with the signs of several secrets."""
    (name, workers), statuses = file, set()
    right, wrong, ids = _FILES[name]
    kernels = {each.name: each for each in workers.kernels() if name in each.path}
    for secret in range(3):
        for each in ids:
            for kernel in (*right, *wrong):
                op = kernels[kernel].op
                case = case_named(op, f"{op.name}-{each}")
                assert case is not None, each
                run = Run(_CPU, 90, workers=workers, signs=secret)
                row = run.try_pair(kernels[kernel], case)
                statuses.add((kernel, row.status))
                if kernel in right:
                    assert row.status == "passed", (kernel, each, secret, row.reason)
    assert all((kernel, "failed") in statuses for kernel in wrong)


def test_signs_that_short_rows_alone_have_are_left_out() -> None:
    """The truth of the changed inputs of a long row isn't that of the inputs."""
    workers = Workers(_CPU, 90, files=(_FOLDER / "tails.py",))
    try:
        kernel = next(each for each in workers.kernels() if each.name == "squares")
    finally:
        workers.close()
    for n, holds in ((24, True), (264, False)):
        case = case_of(kernel.op.name, {"m": 3, "n": n}, (torch.float32,) * 2, "ci")
        values = CaseValues.of(kernel.op, case, Originals(kernel.op, case, _CPU), 5)
        assert values.flips.of_inputs
        assert values.keep_true_signs(values.bounds_of(kernel)) == holds
        assert bool(values.flips.of_inputs) == holds


def test_sum_that_meets_its_largest_number_first_passes() -> None:
    """Later numbers are lost below half an ulp of it, which is an order like any other."""
    workers = Workers(_CPU, 90, files=(ROOT / "tests/candidates/sound/in_cpp.py",))
    try:
        kernels = [each for each in workers.kernels() if each.name == "backwards_by_fma"]
        kernel = next(each for each in kernels if each.op == SOFTMAX_FORWARD)
        case = case_named(SOFTMAX_FORWARD, "softmax_forward-m12-n8193-float32-contiguous-outliers")
        assert case is not None
        row = Run(_CPU, 90, workers=workers).try_pair(kernel, case)
    finally:
        workers.close()
    assert row.status == "passed", row.reason
