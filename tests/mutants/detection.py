"""Compare this suite's verdicts with other projects' rules: docs/detection.md and detection.csv.

The rules of other projects look at outputs, so a mutant is run as their tests would run it: once,
in Triton's interpreter with its bfloat16 made right but no access checked, fresh memory zero. A
rule sees a mutant on a case where the rule fails the mutant and passes the kernel that the mutant
was made of; a rule that fails both shows nothing. Every test sees a call that raises or ends its
process.

The rows file has one line for each mutant, with the columns of COLUMNS; the page has the totals.
"""

from __future__ import annotations

import csv
import io
import multiprocessing
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from kernel_workbench.kernels.registry import Kernel
from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.op import Case, Inputs, Op
from kernel_workbench.reports.record import RecordError, Rule
from kernel_workbench.suites.interpreter import repairs
from kernel_workbench.suites.run.option_table import DEFAULT_SM
from kernel_workbench.suites.sandbox.worker_side.allocations import fresh_memory
from tests.mutants.bench import Outcome
from tests.mutants.catalogue import cases_of
from tests.mutants.children import mutant_results, sound_results
from tests.mutants.low_precision import low_precision
from tests.mutants.mutant import Mutant
from tests.mutants.rivals import RIVALS, Comparison

_CPU = torch.device("cpu")
_TIME_LIMIT_S = 120
_ENDED = "ended"
_ON_ERRORS: tuple[Rule, ...] = ("deterministic bound", "probabilistic bound", "emulation")
# A mutant that these rules find ends or stops its process or the parent, and isn't run once more.
ENDING: frozenset[Rule] = frozenset({"process ended", "time limit"})

# By case: the names of the rules that fail the outputs; or _ENDED, for all of them.
Failed = dict[str, list[str]]

# The rows file has the mutant, its op, the bugs and cheats that it stands for, what is wrong with
# it, this suite's rule that failed it ("no": none), and how each other project's rule sees it.
COLUMNS = ("mutant", "op", "bugs", "defect", "rule", *(rival.name for rival in RIVALS))
Finding = dict[str, str]  # by column


@lru_cache(maxsize=64)
def _expected(case: Case) -> tuple[dict[str, Tensor], Mapping[str, Tensor]]:
    """The truth, and what PyTorch makes of the case."""
    op = OPS[case.op]
    inputs = op.inputs(case, _CPU)
    truth = op.oracle(case, inputs)
    low = low_precision(case.op, inputs)
    return {name: each for name, each in truth.items() if each is not None}, low


def _inputs(op: Op, inputs: Inputs) -> Iterator[tuple[str, Tensor]]:
    """Yield the inputs that a kernel must not change."""
    for name, each in inputs.items():
        if isinstance(each, Tensor) and name not in op.updates:
            yield name, each


def _same(now: Tensor, before: Tensor) -> bool:
    return bool(((now == before) | (now.isnan() & before.isnan())).all())


def decoded(op: Op, case: Case, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Codes as what they stand for, of the truth too: torch doesn't compare fp8."""
    codes = {name: form.dtype for name, form in op.forms(case).items() if form.dtype.itemsize == 1}
    return {
        name: each.to(codes[name]).float() if name in codes else each
        for name, each in values.items()
    }


def _failed_by(case: Case, function: object) -> list[str]:
    """The rules that fail what `function` makes of a case."""
    op = OPS[case.op]
    truth, low = _expected(case)
    assert callable(function)
    inputs = op.inputs(case, _CPU)
    before = {name: each.clone() for name, each in _inputs(op, inputs)}
    try:
        with fresh_memory(0.0, _CPU):
            returned = function(**inputs)
        listed = (returned,) if isinstance(returned, Tensor) else returned
        named = zip(op.outputs, listed, strict=True)
        got = {name: each.detach().clone() for name, each in named if name in truth}
    except Exception:  # noqa: BLE001 (whatever it raises, a test would have stopped)
        return [_ENDED]
    if any(not _same(each, before[name]) for name, each in _inputs(op, inputs)):
        made = op.oracle(case, inputs)
        truth = {name: each for name, each in made.items() if each is not None}
    if any(type(each) is not Tensor for each in got.values()):
        return []  # lazy ones compute when they are compared: whatever a rule asks, it gets
    seen = Comparison(case, *(decoded(op, case, each) for each in (got, truth, low)))
    return [each.name for each in RIVALS if not each.passes(seen)]


def _judged(kernel: Kernel, case: Case) -> list[str]:
    """The rules that fail a kernel on a case; none where it doesn't serve the case."""
    served = kernel.domain.reject(case, DEFAULT_SM, "cpu") is None
    return _failed_by(case, kernel.function) if served else []


def _compared(work: tuple[Mutant, tuple[str, ...]]) -> tuple[str, Failed, Failed]:
    """A mutant's name, by which rules it fails on each of these cases, and its sound kernel."""
    mutant, ids = work
    if set(mutant.rules) <= ENDING:
        return mutant.name, {each: [_ENDED] for each in ids}, {each: [] for each in ids}
    torch.set_num_threads(1)
    repairs.install()
    cases = [cases_of(mutant)[each] for each in ids]
    for case in cases:
        _expected(case)  # here, so that both children have it
    sound, failed = (
        {each: found.get(each, [_ENDED]) for each in ids}
        for found in (
            sound_results(mutant, cases, _judged, _TIME_LIMIT_S),
            mutant_results(mutant, cases, _judged, _TIME_LIMIT_S),
        )
    )
    return mutant.name, failed, sound


def _cell(rule: str, outcome: Outcome, failed: Failed, sound: Failed) -> str:
    """Return where a rule sees a mutant: on the case that killed it, on another case, or not."""

    def sees(case: str) -> bool:
        fails = rule in failed[case] or _ENDED in failed[case]
        return fails and rule not in sound[case] and _ENDED not in sound[case]

    if outcome.case is not None and sees(outcome.case):
        return "ends" if _ENDED in failed[outcome.case] else "yes"
    return "elsewhere" if any(map(sees, failed)) else "no"


def rows_path(page: Path) -> Path:
    """Return the path of the rows file, which lies beside the page."""
    return page.with_suffix(".csv")


def check_rows_path(page: Path) -> None:
    """Raise RecordError where the rows file can't be written or would replace another file."""
    rows = rows_path(page)
    if rows == page:
        message = f"--detection {page}: the rows are written there; name the page, as page.md"
        raise RecordError(message)
    if rows.exists() and not (rows.is_file() and rows.read_bytes().startswith(_HEADER)):
        message = (
            f"--detection {page}: the rows are written to {rows}, which isn't such a file; name "
            "another page"
        )
        raise RecordError(message)


def write(path: Path, outcomes: Sequence[Outcome], jobs: int) -> None:
    """Run every mutant once more without checks, and write the page and the rows file."""
    work = [
        (each.mutant, tuple(dict.fromkeys(filter(None, (each.case, *each.mutant.case_ids)))))
        for each in outcomes
    ]
    work.sort(key=lambda each: (each[0].op, each[1]))
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        compared = {name: (failed, sound) for name, failed, sound in pool.imap(_compared, work)}
    findings = [_finding(outcome, *compared[outcome.mutant.name]) for outcome in outcomes]
    alone: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        alone.setdefault(outcome.mutant.op, Counter()).update(outcome.beyond)
    rows_path(path).write_text(rows_text(findings), encoding="utf-8")
    page = page_text(findings, alone, *_alarms(outcomes, compared))
    path.write_text(page, encoding="utf-8")


def _finding(outcome: Outcome, failed: Failed, sound: Failed) -> Finding:
    mutant = outcome.mutant
    cells = (_cell(rival.name, outcome, failed, sound) for rival in RIVALS)
    values = (mutant.name, mutant.op, mutant.numbers, mutant.why, outcome.rule or "no", *cells)
    return dict(zip(COLUMNS, values, strict=True))


def _alarms(
    outcomes: Sequence[Outcome], compared: Mapping[str, tuple[Failed, Failed]]
) -> tuple[Counter[str], int]:
    """Count the pairs of sound kernel and case that each rule fails, and all such pairs."""
    alarms: set[tuple[str, str, str]] = set()
    pairs: set[tuple[str, str]] = set()
    for outcome in outcomes:
        mutant = outcome.mutant
        kernel = mutant.sound or mutant.kernel
        for case, rules in compared[mutant.name][1].items():
            if _ENDED in rules:
                continue  # by what the mutant before it did to the memory of their process
            pairs.add((kernel, case))
            alarms.update((rule, kernel, case) for rule in rules)
    return Counter(rule for rule, _, _ in alarms), len(pairs)


def rows_text(findings: Sequence[Finding]) -> str:
    """Return the rows file: CSV with a header line."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(findings)
    return text.getvalue()


_HEADER = rows_text([]).encode()


def read_rows(path: Path) -> list[Finding]:
    """Return the findings of a rows file."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _row(*cells: object) -> str:
    return f"|{'|'.join(map(str, cells))}|"


def _seen(findings: Sequence[Finding], column: str, *answers: str) -> int:
    return sum(finding[column] in answers for finding in findings)


def totals(findings: Sequence[Finding]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return how many mutants this suite and each rival see: on the killing case, and on any."""
    killed = len(findings) - _seen(findings, "rule", "no")
    names = [rival.name for rival in RIVALS]
    there = (_seen(findings, name, "yes", "ends") for name in names)
    anywhere = (_seen(findings, name, "yes", "ends", "elsewhere") for name in names)
    return (killed, *there), (killed, *anywhere)


def page_text(
    findings: Sequence[Finding],
    alone: Mapping[str, Mapping[str, int]],
    alarms: Mapping[str, int],
    pairs: int,
) -> str:
    """Return the page with the totals.

    Args:
        findings: the rows.
        alone: by op and rule on errors, the mutants that the rule would fail if it stood alone.
        alarms: by rival, the pairs of sound kernel and case that the rival fails.
        pairs: the number of all such pairs.
    """
    names = [rival.name for rival in RIVALS]
    killing, anywhere = totals(findings)
    rules = Counter(finding["rule"] for finding in findings)
    ops = dict.fromkeys(finding["op"] for finding in findings)
    by_op = {op: [finding for finding in findings if finding["op"] == op] for op in ops}
    lines = [
        "# Which rules see which wrong kernel",
        "",
        "Made by `python -m tests.mutants --detection docs/detection.md` in one run, on a CPU.",
        "The row of each mutant is in [detection.csv](detection.csv): mutant, op, bugs, defect,",
        "the rule of this suite that failed it, and how rules of three other projects see it. A",
        "mutant is one of our kernels with one small change in its source, or a kernel in plain",
        "torch (`plain_`), or one that deceives harnesses (`cheat_`), or one that casts more than",
        "it declares (`declared_`), or a plain kernel of an op from a reference with such a change",
        "(`own_`). Bugs have the numbers of [bugs-covered.md](bugs-covered.md), cheats the numbers",
        "of tests/mutants/cheats.py. Each mutant is tried on the cases that it names until the",
        "suite kills it.",
        "",
        "- **yes**: the rule fails the mutant on the case where the suite does, and passes the",
        "  kernel that the mutant was made of.",
        "- **elsewhere**: the rule does so on another of the mutant's cases.",
        "- **ends**: the process died, hung or raised there, which any test notices.",
        "- **no**: the rule does so on none of its cases.",
        "",
        "The other rules see the outputs of one call alone, as Triton's interpreter leaves them",
        "without a check of any access, in fresh memory that holds zeros. They see this suite's",
        "inputs, whose shapes, layouts and values show the defect, with NaN in every gap and",
        "behind every tensor; the tests of those projects have neither. Truth is computed after",
        "the call, from the inputs as the call left them.",
        "[plain-tests.md](plain-tests.md) counts what a plain test finds on ordinary inputs.",
        "",
        *(f"- **{rival.name}**: {rival.rule}. {rival.source}." for rival in RIVALS),
        "",
        _row(f"{len(findings)} mutants", "this suite", *names),
        _row(*["---"] * (2 + len(names))),
        _row("seen on the killing case", *killing),
        _row("seen on any of its cases", *anywhere),
        _row(
            f"false alarms: sound kernels failed, of {pairs} pairs of kernel and case",
            *(0, *(alarms.get(name, 0) for name in names)),
        ),
        "",
        "Mutants by the rule of this suite that failed them first: "
        + ", ".join(f"{rule} {count}" for rule, count in rules.most_common())
        + ".",
        "",
        "By op, the mutants that each of the rules on errors would fail on the killing case if it",
        "stood alone, and the mutants that each other rule sees there:",
        "",
        _row("op", "mutants", *_ON_ERRORS, *names),
        _row(*["---"] * (2 + len(_ON_ERRORS) + len(names))),
        *(
            _row(
                op,
                len(rows),
                *(alone.get(op, {}).get(rule, 0) for rule in _ON_ERRORS),
                *(_seen(rows, name, "yes", "ends") for name in names),
            )
            for op, rows in by_op.items()
        ),
    ]
    return "\n".join(lines) + "\n"
