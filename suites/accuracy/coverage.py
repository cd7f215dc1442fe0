"""Count the pairs of levels that a run's cases met, among the pairs that a kernel serves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from kernel_workbench.kernels.registry import Kernel
from kernel_workbench.oracles.cases.covering import Coverage
from kernel_workbench.oracles.cases.names import case_named
from kernel_workbench.oracles.op import Case, Op
from kernel_workbench.reports.record import AccuracyRow, CoverageRow
from kernel_workbench.suites.run.user_cases import too_large

# A case of at most this much is judged in about a second: by an interpreter, and on a GPU.
_MOST_FLOPS = {"cpu": 3e7, "cuda": 3e11}
MOST_BYTES_IN_REACH = {"cpu": 2**22, "cuda": 2**30}
_MEMORY = 2**34  # bytes of a case with its strides, which may be far apart
_EXAMPLES = 5


def is_in_reach(op: Op, case: Case, device: str) -> bool:
    """Return True if the device judges the case in about a second.

    Args:
        op: the case's op.
        case: the case.
        device: "cpu" or "cuda".
    """
    return (
        op.flops(case) <= _MOST_FLOPS[device]
        and op.bytes(case) <= MOST_BYTES_IN_REACH[device]
        and too_large(op, case, _MEMORY) is None
    )


def coverage_rows(
    kernel: Kernel, serves: Callable[[Case], bool], rows: Iterable[AccuracyRow]
) -> Iterator[CoverageRow]:
    """Yield a row for each pair of factors.

    Args:
        kernel: the kernel.
        serves: returns True if the kernel serves a case that is also in reach.
        rows: a run's rows, which may be of any kernel.

    Yields:
        The number of possible and of met pairs of levels, with examples of pairs that are missing.
    """
    op = kernel.op
    own = [row for row in rows if (row.case.op, row.kernel) == (op.name, kernel.name)]
    coverage = Coverage(op, serves)
    coverage.search()
    for row in own:
        case = case_named(op, row.case.id)
        if case is not None and row.status != "refused":
            coverage.add(case)
    names = [factor.name for factor in op.allowed.factors]
    of_factor = {
        name: [place for place, (factor, _) in enumerate(coverage.names) if factor == name]
        for name in names
    }
    levels = [level for _, level in coverage.names]
    missing = coverage.missing()
    for place, one in enumerate(names):
        for other in names[place + 1 :]:
            grid = np.ix_(of_factor[one], of_factor[other])
            possible = int(coverage.possible[grid].sum())
            if not possible:
                continue
            lacking = [
                " with ".join((levels[of_factor[one][a]], levels[of_factor[other][b]]))
                for a, b in np.argwhere(missing[grid])[:_EXAMPLES].tolist()
            ]
            yield CoverageRow(
                op=op.name,
                kernel=kernel.name,
                cases=len(own),
                factor=one,
                other=other,
                possible=possible,
                met=possible - int(missing[grid].sum()),
                missing=tuple(lacking),
            )
