"""`python -m studies.assert_close [NAME ...]`: which planted defects does a plain test find?

A plain test calls a kernel once on ordinary inputs, and compares the outputs. The study calls each
mutant of tests/mutants so, and compares the same outputs in three ways:

    eager   `torch.testing.assert_close` with its defaults, expected: PyTorch in the inputs' dtype
    truth   the same, expected: the float64 truth, rounded to the output's dtype
    bounds  `kernel_workbench.testing.assert_matches`, with the numerics that the kernel declares

The inputs are three cases of `cases(op, the kernel's domain)` without options, the smallest, the
middle and the largest on a CPU, and one case of each option; all have normal values, sizes above 1
and packed tensors, and run in float32 and bfloat16 where the kernel serves both. New memory holds
zeros, and Triton's interpreter checks no access.

A comparison finds a defect if it fails the mutant on a case on which it passes the kernel that the
mutant was made of, or if the call raises or ends its process there. A failure of the unchanged
kernel is a false alarm.

--write FILE   the page docs/plain-tests.md
--sample N     so many mutants, always the same
--jobs N       processes (default 1)
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

import torch
from torch import Tensor

from kernel_workbench.kernels.registry import Kernel, all_kernels
from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.cases.names import case_named, objection
from kernel_workbench.oracles.op import CONTIGUOUS, Case, Inputs
from kernel_workbench.reports.arguments import CommandLine, whole_number
from kernel_workbench.reports.output import refuse_to_overwrite
from kernel_workbench.reports.record import RecordError
from kernel_workbench.suites import MOST_JOBS
from kernel_workbench.suites.interpreter import repairs
from kernel_workbench.suites.run.option_table import DEFAULT_SM
from kernel_workbench.suites.sandbox.worker_side.allocations import fresh_memory
from kernel_workbench.testing import assert_matches, cases
from tests.mutants import catalogue
from tests.mutants.children import Results, mutant_results, sound_files, sound_results
from tests.mutants.detection import ENDING, decoded
from tests.mutants.low_precision import low_precision
from tests.mutants.mutant import Mutant

COMPARISONS = ("eager", "truth", "bounds")
_ENDED, _REFUSED = "ended", "refused"
_CPU = torch.device("cpu")
_DTYPES = (torch.float32, torch.bfloat16)
_LIMIT_S = 30  # for a call and its three comparisons, which take a second at most


@dataclass(frozen=True, slots=True)
class PlainOutcome:
    """The comparisons that find a mutant.

    finders     names of comparisons
    not_called  why the mutant wasn't called, in a few words; None where it was
    """

    finders: frozenset[str]
    not_called: str | None = None


def ordinary_cases(kernel: Kernel) -> list[Case]:
    """Return the cases of a plain test of a kernel."""
    op, domain = OPS[kernel.op.name], kernel.domain
    listed = [param.values[0] for param in cases(op, domain, device="cpu", sm=DEFAULT_SM)]
    normal = [
        case
        for case in sorted(listed, key=op.flops)
        if case.distribution == "normal"
        and case.layout == CONTIGUOUS
        and min(size for _, size in case.sizes) > 1
    ]
    plain = list({case.sizes: case for case in normal if not case.options}.values())
    chosen = plain[:1] + plain[len(plain) // 2 :][:1] + plain[-1:]
    for option in sorted({option for case in normal for option in case.options}):
        having = [case for case in normal if option in case.options]
        chosen.append(min(having, key=lambda case: len(case.options)))
    in_dtypes = (
        replace(case, dtype=dtype, weight_dtype=dtype, seed=0)
        for case in chosen
        for dtype in _DTYPES
    )
    served = (
        case
        for case in in_dtypes
        if objection(op, case) is None and domain.reject(case, DEFAULT_SM, "cpu") is None
    )
    return list({case.id(): case for case in served}.values())


def _packed(inputs: Inputs) -> Inputs:
    return {
        name: value.clone(memory_format=torch.contiguous_format)
        if isinstance(value, Tensor)
        else value
        for name, value in inputs.items()
    }


@lru_cache(maxsize=256)
def _expected(case: Case) -> tuple[Inputs, dict[str, Mapping[str, Tensor]]]:
    """Return the inputs, and the expected outputs of both ways of `assert_close`."""
    op = OPS[case.op]
    inputs, forms = _packed(op.inputs(case, _CPU)), op.forms(case)
    truth = {name: value for name, value in op.oracle(case, inputs).items() if value is not None}
    both = {"eager": low_precision(case.op, inputs), "truth": truth}
    return inputs, {
        way: decoded(
            op,
            case,
            {name: value.to(forms[name].dtype) for name, value in by_name.items() if name in forms},
        )
        for way, by_name in both.items()
    }


def _are_close(got: Mapping[str, object], expected: Mapping[str, Tensor]) -> bool:
    try:
        for name, value in expected.items():
            torch.testing.assert_close(got[name], value, equal_nan=True)
    except AssertionError:
        return False
    return True


def failed_by(kernel: Kernel, case: Case) -> list[str]:
    """Return the comparisons that fail a kernel on a case."""
    op = OPS[case.op]
    if kernel.domain.reject(case, DEFAULT_SM, "cpu") is not None:
        return [_REFUSED]
    inputs, expected = _expected(case)
    try:
        with fresh_memory(0.0, _CPU):
            outputs: Any = kernel.function(**_packed(inputs))
    except Exception:  # noqa: BLE001  (a test would stop, whatever a mutant raises)
        return [_ENDED]
    listed = (outputs,) if isinstance(outputs, Tensor) else outputs
    by_name = dict(zip(op.outputs, listed, strict=True))
    tensors = {name: value for name, value in by_name.items() if isinstance(value, Tensor)}
    got = decoded(op, case, tensors)
    failed = [way for way, values in expected.items() if not _are_close(got, values)]
    arguments: dict[str, Any] = {"numerics": kernel.numerics, **inputs}
    try:
        assert_matches(outputs, op, **arguments)
    except AssertionError:
        failed.append("bounds")
    return failed


@dataclass(slots=True)
class PlainTests:
    """Tries mutants in one process. sound: results of unchanged kernels, by file, op and name."""

    sound: dict[tuple[str, ...], Results]

    def __call__(self, mutant: Mutant) -> PlainOutcome:
        """Return the comparisons that find a mutant."""
        if set(mutant.rules) <= ENDING:
            return _not_called("it ends or stops the process")
        alarms = self.alarms(mutant)
        tried = [case_named(OPS[mutant.op], name) for name in alarms]
        listed = [case for case in tried if case is not None]
        if not listed:
            return _not_called("its kernel serves no ordinary case")
        for case in listed:
            _expected(case)  # here, so that every child has it
        results = mutant_results(mutant, listed, failed_by, _LIMIT_S)
        if all(result == [_REFUSED] for result in results.values()) and results:
            return _not_called("it refuses every ordinary case")
        finders: set[str] = set()
        for name, alarm in alarms.items():
            failed = results.get(name, [_ENDED])
            finders |= set(COMPARISONS if _ENDED in failed else failed) - set(alarm) - {_REFUSED}
        return PlainOutcome(frozenset(finders))

    def alarms(self, mutant: Mutant) -> Results:
        """Return the comparisons that fail the kernel that a mutant was made of, by case."""
        kernel = mutant.sound or mutant.kernel
        key = *map(str, sound_files(mutant)), mutant.op, kernel
        if key not in self.sound:
            results = sound_results(mutant, ordinary_cases, failed_by, _LIMIT_S)
            self.sound[key] = {
                name: failed for name, failed in results.items() if set(failed) <= {*COMPARISONS}
            }
        return self.sound[key]


def _not_called(why: str) -> PlainOutcome:
    return PlainOutcome(frozenset(), why)


def outcomes_of(
    mutants: Sequence[Mutant], jobs: int
) -> Iterator[tuple[Mutant, PlainOutcome, Results]]:
    """Yield the outcome of each mutant, and the false alarms of the kernel that it was made of."""
    ordered = sorted(mutants, key=lambda mutant: (mutant.op, mutant.sound))
    with multiprocessing.get_context("spawn").Pool(jobs, _begin) as pool:
        for mutant, (outcome, alarms) in zip(ordered, pool.imap(_try, ordered), strict=True):
            yield mutant, outcome, alarms


_tests = PlainTests({})  # of this process


def _begin() -> None:
    torch.set_num_threads(1)
    repairs.install()
    all_kernels()  # for children that load a file beside them


def _try(mutant: Mutant) -> tuple[PlainOutcome, Results]:
    outcome = _tests(mutant)
    return outcome, {} if outcome.not_called else _tests.alarms(mutant)


@dataclass(slots=True)
class Totals:
    """Sums of an op, or of several; pairs and alarms are of an unchanged kernel and a case."""

    defects: int = 0
    called: int = 0
    finds: Counter[str] = field(default_factory=Counter)
    both: int = 0
    bounds_alone: int = 0
    close_alone: int = 0
    neither: int = 0
    pairs: set[tuple[str, str]] = field(default_factory=set)
    alarms: dict[str, set[tuple[str, str]]] = field(
        default_factory=lambda: {way: set() for way in COMPARISONS}
    )

    def add(self, outcome: PlainOutcome, kernel: str, alarms: Results) -> None:
        """Count a mutant, and the false alarms of its kernel unless they were counted."""
        self.defects += 1
        if outcome.not_called is not None:
            return
        self.called += 1
        self.finds.update(outcome.finders)
        by_bounds, by_close = "bounds" in outcome.finders, bool(outcome.finders - {"bounds"})
        self.both += by_bounds and by_close
        self.bounds_alone += by_bounds and not by_close
        self.close_alone += by_close and not by_bounds
        self.neither += not outcome.finders
        for case, failed in alarms.items():
            self.pairs.add((kernel, case))
            for way in failed:
                self.alarms[way].add((kernel, case))

    def cells(self) -> list[object]:
        """Return the cells of a row of the page."""
        finds = [self.finds[way] for way in ("bounds", "truth", "eager")]
        sums = [self.both, self.bounds_alone, self.close_alone, self.neither]
        alarms = ", ".join(str(len(self.alarms[way])) for way in ("bounds", "truth", "eager"))
        return [self.defects, self.called, *finds, *sums, f"{alarms} of {len(self.pairs)}"]


_HEAD = (
    *("op", "defects", "called", "`assert_matches`", "against truth", "against eager"),
    *("both", "`assert_matches` alone", "`assert_close` alone", "neither", "false alarms"),
)
_INTRODUCTION = """\
# Planted defects in a plain test

Made by `python -m studies.assert_close --write docs/plain-tests.md`, on a CPU. The defects are
those of [detection.md](detection.md). A plain test calls the kernel once on ordinary inputs: three
cases without options, the smallest, the middle and the largest that a CPU gets through, and a case
of each option, in float32 and in bfloat16 where the kernel serves both. Values are normal with a
fixed seed, sizes above 1, tensors packed; new memory holds zeros. Three comparisons look at the
same outputs:

- `kernel_workbench.testing.assert_matches`, with the numerics that the kernel declares;
- **against truth**: `torch.testing.assert_close` with its defaults, and the float64 truth rounded
  to the output's dtype;
- **against eager**: the same, and PyTorch's own result, computed in the dtype of the inputs.

A comparison finds a defect if it fails the wrong kernel on a case on which it passes the unchanged
one, or if the call raises or ends its process. "Both" and "`assert_close` alone" count either way
of `assert_close`. False alarms are pairs of an unchanged kernel and a case that a comparison fails:
`assert_matches`, against truth, against eager, of all pairs. A mutant called `cheat_` deceives a
harness; most of these return right values to a plain call."""


def page(totals: Mapping[str, Totals], reasons: Mapping[str, int]) -> str:
    """Return the page.

    Args:
        totals: by op, and the sums, in the order of the rows.
        reasons: why mutants weren't called, and how many.
    """
    listed = "; ".join(f"{reason} ({count})" for reason, count in reasons.items())
    lines = [
        _INTRODUCTION,
        "",
        _row(_HEAD),
        _row(["---"] * len(_HEAD)),
        *(_row([name, *sums.cells()]) for name, sums in totals.items()),
        "",
        f"Not called: {listed}." if reasons else "Every defect was called.",
    ]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[object]) -> str:
    return f"|{'|'.join(map(str, cells))}|"


def main() -> int:
    """Try the mutants and print or write the page; the exit status."""
    parser = CommandLine(prog="python -m studies.assert_close", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these mutants")
    parser.add_argument("--sample", type=whole_number(1, 10_000), metavar="N", help="so many")
    parser.add_argument("--jobs", type=whole_number(1, MOST_JOBS), default=1, metavar="N")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page")
    options = parser.read()
    try:
        if options.write is not None:
            refuse_to_overwrite({"--write": (options.write, "Markdown")})
        mutants = catalogue.chosen(options.names, options.sample)
    except (catalogue.UnknownMutantError, RecordError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    totals: dict[str, Totals] = {op: Totals() for op in OPS}
    whole, honest, reasons = Totals(), Totals(), Counter[str]()
    for mutant, outcome, alarms in outcomes_of(mutants, options.jobs):
        print(f"{mutant.name:44} {' '.join(sorted(outcome.finders)) or '-'}", file=sys.stderr)
        kernel = f"{mutant.op} {mutant.sound or mutant.kernel}"
        for sums in (totals[mutant.op], whole, *[honest] * (not mutant.name.startswith("cheat_"))):
            sums.add(outcome, kernel, alarms)
        if outcome.not_called is not None:
            reasons[outcome.not_called] += 1
    rows = {op: sums for op, sums in totals.items() if sums.defects}
    rows |= {"all but `cheat_`": honest, "all": whole}
    text = page(rows, reasons)
    if options.write is None:
        print(text, end="")
    else:
        options.write.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
