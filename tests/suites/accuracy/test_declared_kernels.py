"""Sound kernels that cast on their way pass as declared; without their declaration they fail."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import torch

from kernel_workbench.kernels.registry import Kernel
from kernel_workbench.oracles.layer_norm.cases import layer_norm_case
from kernel_workbench.oracles.op import Case, Numerics
from kernel_workbench.reports.record import AccuracyRow
from kernel_workbench.suites.accuracy.run import Run
from kernel_workbench.suites.run.option_table import DEFAULT_SM
from kernel_workbench.suites.sandbox.judge_side.workers import Workers
from tests import ROOT
from tests.mutants.bench import Bench
from tests.mutants.declared import MUTANTS
from tests.mutants.mutant import Mutant

pytestmark = pytest.mark.long_run

_FOLDER = ROOT / "tests" / "candidates" / "declared_kernels"
_FILES = tuple(
    _FOLDER / f"{name}.py" for name in ("locked_partials", "half_products", "mixed_types")
)
_SINGLE, _FP16, _BF16 = torch.float32, torch.float16, torch.bfloat16


@dataclass(frozen=True)
class _Trial:
    """The three files' kernels in workers, and what judges them."""

    run: Run
    kernels: dict[str, Kernel]

    def row(self, name: str, case: Case, *, declared: bool) -> AccuracyRow:
        """The row of a kernel, with its declaration or without."""
        kernel = self.kernels[name]
        if not declared:
            repeats = kernel.numerics.bitwise_repeatable
            kernel = replace(kernel, numerics=Numerics(bitwise_repeatable=repeats))
        return self.run.try_pair(kernel, case)


@pytest.fixture(scope="module")
def trial(device: torch.device) -> Iterator[_Trial]:
    """The three files, loaded as `--kernels` loads them."""
    if device.type == "cuda":
        pytest.skip("there they are run by `nox -s accuracy -- --kernels=`")
    workers = Workers(device, DEFAULT_SM, files=_FILES)
    run = Run(device, DEFAULT_SM)
    run.workers = workers
    yield _Trial(run, {each.name: each for each in workers.kernels()})
    workers.close()


@pytest.fixture(scope="module")
def bench(device: torch.device) -> Iterator[Bench]:
    """Yield the bench on which the kernels worse than declared are tried."""
    if device.type == "cuda":
        pytest.skip("mutants are tried under the interpreter")
    made = Bench(device)
    yield made
    made.close()


def _case(
    m: int,
    n: int,
    dtype: torch.dtype,
    weight_dtype: torch.dtype,
    distribution: str = "normal",
    *options: str,
) -> Case:
    return layer_norm_case(
        m, n, (dtype, weight_dtype), distribution=distribution, options=frozenset(options)
    )


_RMS = ("rms_norm", "no_bias")
# By kernel: whether it is found without its declaration, and the case.
_CASES = {
    "locked_partials_256": (
        (True, _case(37, 760, _BF16, _BF16)),
        (True, _case(37, 760, _FP16, _SINGLE)),
        (False, _case(37, 760, _SINGLE, _SINGLE)),
        (False, _case(37, 64, _BF16, _BF16, "integers")),  # each row has a sum of its own: exact
    ),
    "locked_partials_128": ((True, _case(9, 1025, _BF16, _SINGLE)),),
    "locked_partials_64": (
        (True, _case(7, 5000, _BF16, _SINGLE)),
        (True, _case(5, 8193, _FP16, _SINGLE)),
        (True, _case(150, 8193, _FP16, _FP16)),  # three rows to a sum
        (True, _case(150, 8193, _BF16, _SINGLE, "uniform")),
    ),
    "half_products": (
        (True, _case(37, 760, _BF16, _BF16, "normal", *_RMS)),
        (True, _case(37, 760, _BF16, _SINGLE, "mean100", *_RMS)),
        (True, _case(37, 760, _FP16, _FP16, "uniform")),
        (True, _case(13, 256, _FP16, _FP16, "coarse")),
        (False, _case(37, 760, _SINGLE, _SINGLE, "normal", *_RMS)),
        (False, _case(17, 129, _BF16, _BF16, "integers")),
    ),
    "mixed_types": (
        (True, _case(37, 760, _SINGLE, _BF16)),
        (True, _case(37, 760, _SINGLE, _FP16, "mean100")),
        (True, _case(37, 760, _BF16, _FP16, "scaled_rows")),
        (False, _case(37, 760, _SINGLE, _SINGLE)),
        (False, _case(37, 760, _BF16, _SINGLE)),
    ),
}
_PAIRS = [(name, found, case) for name, cases in _CASES.items() for found, case in cases]


@pytest.mark.parametrize(
    ("name", "found", "case"), _PAIRS, ids=[f"{name}-{case.id()}" for name, _, case in _PAIRS]
)
def test_declared_casts_are_allowed_to_those_who_declare_them(
    name: str, case: Case, trial: _Trial, *, found: bool
) -> None:
    """It passes as declared; as a plain kernel it fails wherever it casts anything."""
    row = trial.row(name, case, declared=True)
    assert (row.status, row.reason) == ("passed", None)
    assert all(each.holds for each in row.relations)
    assert (trial.row(name, case, declared=False).status == "failed") is found


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.kernel)
def test_worse_than_declared_is_found(mutant: Mutant, bench: Bench) -> None:
    """On a case of its own, which a sound kernel passes."""
    outcome = bench(mutant)
    assert outcome.wrong is None
    assert outcome.case in mutant.case_ids
