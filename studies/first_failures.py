"""`python -m studies.first_failures [NAME ...]`: how soon a run of `ci` fails a wrong kernel.

Each planted defect (tests/mutants) is tried on its op's `ci` cases, in the order of a whole run,
until a row fails. The study prints the rows and seconds that each defect took, and the medians.

--order list: in the order in which the op lists its cases, to compare.
--most N: rows after which a defect counts as not yet found (default 200).
--sample N, --jobs N: as `nox -s mutants` has them.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial

os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

import torch

from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.op import Case
from kernel_workbench.reports.arguments import CommandLine, whole_number
from kernel_workbench.suites import MOST_JOBS
from kernel_workbench.suites.accuracy.order import by_early_death
from tests.mutants import catalogue
from tests.mutants.bench import Bench, Outcome
from tests.mutants.mutant import Mutant, ci_cases
from tests.mutants.processes import outcomes_of

_FEW = 10  # rows that a defect should need at most
Serves = Callable[[Case], bool]


def cases_in_order(order: str, most: int, mutant: Mutant, serves: Serves) -> Iterable[Case]:
    """Return the first served cases of a mutant's op.

    Args:
        order: "suite", as a whole run has them, or "list", as the op lists them.
        most: the number of cases.
        mutant: a planted defect.
        serves: whether its kernel serves a case.
    """
    served = list(filter(serves, ci_cases(mutant.op).values()))
    return (by_early_death(OPS[mutant.op], served) if order == "suite" else served)[:most]


def summary(outcomes: Sequence[Outcome]) -> str:
    """Return the medians over the defects that were found, and how many weren't."""
    failed = [outcome for outcome in outcomes if outcome.rule is not None]
    if not failed:
        return f"none of {len(outcomes)} defects found"
    rows = [outcome.tried for outcome in failed]
    few = sum(tried <= _FEW for tried in rows)
    seconds = statistics.median(outcome.seconds for outcome in failed)
    return (
        f"{len(failed)} of {len(outcomes)} defects found; rows until the first failure: median "
        f"{statistics.median(rows):g}, {few} of {len(failed)} within {_FEW}, at most {max(rows)}; "
        f"seconds: median {seconds:.1f}"
    )


def main() -> int:
    """Print a line for each defect when it is done, and the summary."""
    parser = CommandLine(prog="python -m studies.first_failures", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these mutants")
    parser.add_argument("--order", choices=("suite", "list"), default="suite")
    parser.add_argument("--most", type=whole_number(1, 10_000), default=200, metavar="N")
    parser.add_argument("--sample", type=whole_number(1, 10_000), metavar="N")
    parser.add_argument("--jobs", type=whole_number(1, MOST_JOBS), default=2, metavar="N")
    options = parser.read()
    try:
        mutants = catalogue.chosen(options.names, options.sample)
    except catalogue.UnknownMutantError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    outcomes: list[Outcome] = []
    try:
        order = partial(cases_in_order, options.order, options.most)
        make = partial(Bench, torch.device("cpu"), order, briefly=True)
        for outcome in outcomes_of(mutants, options.jobs, make):
            outcomes.append(outcome)
            rule, name = outcome.rule or "not found", outcome.mutant.name
            line = f"{outcome.tried:4} rows {outcome.seconds:6.1f} s  {name:44} {rule}"
            print(line, outcome.case or "", flush=True)
    finally:
        print(f"in the order of the {options.order}: {summary(outcomes)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
