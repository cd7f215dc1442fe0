"""Which mutants the comparisons of other projects would have seen: docs/detection.md, in one run.

Those rules look at outputs, so a mutant is run as their tests would run it: once, in Triton's
interpreter with its bfloat16 made right but no access checked, fresh memory zero. It is seen on a
case where the rule fails it and passes the kernel that it was made of; a rule that fails both
tells nothing. What ends the process, or raises, everybody sees.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from kernel_workbench import use_overlay
from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.op import Case, Inputs, Op
from kernel_workbench.reports.record import Rule
from kernel_workbench.suites.interpreter import repairs
from kernel_workbench.suites.run.option_table import DEFAULT_SM
from kernel_workbench.suites.sandbox.worker_side.allocations import fresh_memory
from tests.mutants.bench import PLAIN, Outcome
from tests.mutants.catalogue import cases_of
from tests.mutants.low_precision import low_precision
from tests.mutants.mutant import Mutant
from tests.mutants.rivals import RIVALS, Comparison

_CPU = torch.device("cpu")
_TIME_LIMIT_S = 120
_ENDED = "ended"
# What these find ends or stops the process that it runs in, or its parent: it isn't run once more.
_ON_ERRORS: tuple[Rule, ...] = ("deterministic bound", "probabilistic bound", "emulation")
_ENDING: frozenset[Rule] = frozenset({"process ended", "time limit"})

# By case: the names of the rules that fail the outputs; or _ENDED, for all of them.
Failed = dict[str, list[str]]


@lru_cache(maxsize=64)
def _expected(case: Case) -> tuple[dict[str, Tensor], Mapping[str, Tensor]]:
    """The truth, and what PyTorch makes of the case."""
    op = OPS[case.op]
    inputs = op.inputs(case, _CPU)
    truth = op.oracle(case, inputs)
    low = low_precision(case.op, inputs)
    return {name: each for name, each in truth.items() if each is not None}, low


def _inputs(op: Op, inputs: Inputs) -> Iterator[tuple[str, Tensor]]:
    """What a kernel has no business to change."""
    for name, each in inputs.items():
        if isinstance(each, Tensor) and name not in op.updates:
            yield name, each


def _same(now: Tensor, before: Tensor) -> bool:
    return bool(((now == before) | (now.isnan() & before.isnan())).all())


def _decoded(op: Op, case: Case, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
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
    seen = Comparison(case, *(_decoded(op, case, each) for each in (got, truth, low)))
    return [each.name for each in RIVALS if not each.passes(seen)]


def _in_child(
    op: str, kernel: str, cases: Sequence[Case], overlay: Path | None, file: Path | None
) -> Failed:
    """What a kernel of the checkout, of a changed copy or of a file comes to, in a child."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(ours)
            signal.alarm(_TIME_LIMIT_S)
            if overlay is not None:
                use_overlay(str(overlay))
            registry = importlib.import_module("kernel_workbench.kernels.registry")
            registry.all_kernels()
            if file is not None:
                registry.load_file(file)
            found = {(each.op.name, each.name): each for each in registry.all_kernels()}
            tried = found[op, kernel]
            for case in cases:
                served = tried.domain.reject(case, DEFAULT_SM, "cpu") is None
                failed_by = _failed_by(case, tried.function) if served else []
                line = json.dumps({case.id(): failed_by})
                os.write(theirs, line.encode() + b"\n")
            status = 0
        finally:
            os._exit(status)
    os.close(theirs)
    with os.fdopen(ours) as lines:
        failed: Failed = {}
        for line in lines:
            failed |= json.loads(line)
    os.waitpid(child, 0)
    return {case.id(): failed.get(case.id(), [_ENDED]) for case in cases}


def _compared(work: tuple[Mutant, tuple[str, ...]]) -> tuple[str, Failed, Failed]:
    """A mutant's name, by which rules it fails on each of these cases, and its sound kernel."""
    mutant, ids = work
    if set(mutant.rules) <= _ENDING:
        return mutant.name, {each: [_ENDED] for each in ids}, {each: [] for each in ids}
    torch.set_num_threads(1)
    repairs.install()
    cases = [cases_of(mutant)[each] for each in ids]
    for case in cases:
        _expected(case)  # here, so that both children have it
    known = (mutant.file if mutant.edits else PLAIN) if mutant.sound else None
    sound = _in_child(mutant.op, mutant.sound or mutant.kernel, cases, None, known)
    if mutant.file is not None and not mutant.edits:
        return mutant.name, _in_child(mutant.op, mutant.kernel, cases, None, mutant.file), sound
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        if mutant.file is not None:
            file = mutant.write_file(Path(folder))
            failed = _in_child(mutant.op, mutant.kernel, cases, None, file)
            return mutant.name, failed, sound
        mutant.write_overlay(Path(folder))
        failed = _in_child(mutant.op, mutant.kernel, cases, Path(folder), None)
        return mutant.name, failed, sound


def _cell(rule: str, outcome: Outcome, failed: Failed, sound: Failed) -> str:
    """Whether a rule sees a mutant: on the case that killed it, on another of its own, or not."""

    def sees(case: str) -> bool:
        fails = rule in failed[case] or _ENDED in failed[case]
        return fails and rule not in sound[case] and _ENDED not in sound[case]

    if outcome.case is not None and sees(outcome.case):
        return "ends" if _ENDED in failed[outcome.case] else "yes"
    return "elsewhere" if any(map(sees, failed)) else "no"


def write(path: Path, outcomes: Sequence[Outcome], jobs: int) -> None:
    """Run every mutant once more without checks, and write the table as Markdown."""
    work = [
        (each.mutant, tuple(dict.fromkeys(filter(None, (each.case, *each.mutant.case_ids)))))
        for each in outcomes
    ]
    work.sort(key=lambda each: (each[0].op, each[1]))
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        compared = {name: (failed, sound) for name, failed, sound in pool.imap(_compared, work)}
    path.write_text(_markdown(outcomes, compared))


def _op_row(op: str, counts: Counter[str]) -> str:
    rivals = [each.name for each in RIVALS]
    others = {*rivals, *map(_alone, _ON_ERRORS), "all"}
    rules = [each for each in counts.most_common() if each[0] not in others]
    told = ", ".join(f"{rule} {count}" for rule, count in rules)
    cells = " | ".join(str(counts[each]) for each in (*map(_alone, _ON_ERRORS), *rivals))
    return f"| `{op}` | {counts['all']} | {told} | {cells} |"


def _alone(rule: Rule) -> str:
    """Under which a rule is counted that is asked alone."""
    return f"{rule} alone"


def _markdown(outcomes: Sequence[Outcome], compared: Mapping[str, tuple[Failed, Failed]]) -> str:
    rows, seen = [], dict.fromkeys((each.name for each in RIVALS), 0)
    by_op: dict[str, Counter[str]] = {}
    anywhere = dict(seen)
    alarms: dict[str, set[tuple[str, str]]] = {each.name: set() for each in RIVALS}
    tried: set[tuple[str, str]] = set()
    for outcome in outcomes:
        mutant = outcome.mutant
        failed, sound = compared[mutant.name]
        cells = []
        for rival in RIVALS:
            cell = _cell(rival.name, outcome, failed, sound)
            by_op.setdefault(mutant.op, Counter())[rival.name] += cell in ("yes", "ends")
            seen[rival.name] += cell in ("yes", "ends")
            anywhere[rival.name] += cell != "no"
            cells.append(cell)
        for case, rules in sound.items():
            if _ENDED in rules:
                continue  # by what the mutant before it did to the memory of their process
            key = mutant.sound or mutant.kernel, case
            tried.add(key)
            for rule in rules:
                alarms[rule].add(key)
        verdict = outcome.rule or "no"
        by_op[mutant.op].update(["all", verdict, *map(_alone, outcome.beyond)])
        rows.append(
            f"| {mutant.name} | {mutant.numbers} | {mutant.why} | {verdict} | {' | '.join(cells)} |"
        )
    names = " | ".join(each.name for each in RIVALS)
    alone = " | ".join(map(_alone, _ON_ERRORS))
    count = len(outcomes)
    killed = sum(each.rule is not None for each in outcomes)
    lines = [
        "# Which rules see which wrong kernel",
        "",
        "Made by `python -m tests.mutants --detection docs/detection.md` in one run, on a CPU.",
        "A mutant is one of our kernels with one small change in its source, or one in plain",
        "torch (`plain_`), or one that deceives harnesses (`cheat_`), or one that casts more",
        "than it declares (`declared_`), or a plain kernel of an op from a reference with such a",
        "change (`own_`). Bugs are numbered as in",
        "[bugs-covered.md](bugs-covered.md), cheats as in tests/mutants/cheats.py. Each is tried",
        "on the cases that it names until the suite kills it.",
        "",
        "**yes**: the rule fails the mutant on the case where the suite does, and passes the",
        "kernel that the mutant was made of. **elsewhere**: only on another of its cases.",
        "**ends**: the process died, hung or raised there, which any test notices. **no**: not on",
        "any of them. The rules see outputs alone, of one call, as Triton's interpreter leaves",
        "them without a check of any access, in fresh memory that holds zeros; and on this",
        "suite's inputs, whose shapes, layouts and values are those that show the defect, with",
        "NaN in every gap and behind every tensor. Their own tests have neither. Truth is",
        "computed after the call, from the inputs as the call left them.",
        "",
        *(f"- **{each.name}**: {each.rule}. {each.source}." for each in RIVALS),
        "",
        f"| of {count} mutants | this suite | {names} |",
        "| --- | --- " + "| --- " * len(RIVALS) + "|",
        f"| seen on the killing case | {killed} | "
        + " | ".join(str(seen[each.name]) for each in RIVALS)
        + " |",
        f"| seen on any of its cases | {killed} | "
        + " | ".join(str(anywhere[each.name]) for each in RIVALS)
        + " |",
        f"| false alarms: sound kernels failed, of {len(tried)} pairs of kernel and case | 0 | "
        + " | ".join(str(len(alarms[each.name])) for each in RIVALS)
        + " |",
        "",
        "By op, the rules of this suite by how many of its mutants each was the first to fail, and",
        "how many each of the rules on errors would fail on the same cases if it stood alone:",
        "",
        f"| of the op | mutants | this suite, by rule | {alone} | {names} |",
        "| --- | --- | --- " + "| --- " * (len(_ON_ERRORS) + len(RIVALS)) + "|",
        *(_op_row(*each) for each in by_op.items()),
        "",
        f"| mutant | bugs | what is wrong | this suite, by rule | {names} |",
        "| --- | --- | --- | --- " + "| --- " * len(RIVALS) + "|",
        *rows,
    ]
    return "\n".join(lines) + "\n"
