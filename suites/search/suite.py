"""`search`: draw cases for kernels, judge them as accuracy does, and shrink failures."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from kernel_workbench.kernels.registry import Kernel
from kernel_workbench.oracles.cases.names import objection
from kernel_workbench.oracles.op import Case, Op, dtype_name
from kernel_workbench.oracles.reference import OpError
from kernel_workbench.reports.commands import this_program
from kernel_workbench.reports.phrases import VALUES_NOT_FINITE, alike_word
from kernel_workbench.reports.record import AccuracyRow, CoverageRow, FindRow, Row
from kernel_workbench.suites.accuracy.suite import FURTHER, Accuracy, VerdictSuite
from kernel_workbench.suites.run import shards
from kernel_workbench.suites.run.commands import path_in_command
from kernel_workbench.suites.run.descriptions import case_info
from kernel_workbench.suites.run.option_table import SearchOptions
from kernel_workbench.suites.run.progress import Progress
from kernel_workbench.suites.run.reproduce import deciding_options
from kernel_workbench.suites.run.selection import alike_together, check_dtypes
from kernel_workbench.suites.run.suite import NoMemoryError, Pair
from kernel_workbench.suites.run.user_cases import user_cases
from kernel_workbench.suites.sandbox.judge_side.workers import SPENT
from kernel_workbench.suites.search.draws import Draws
from kernel_workbench.suites.search.shrinking import Shrunk, changes, shrink

# Seconds to shrink a find, and seconds until no further case is tried for it.
_SHRINK_S, _FIND_S = 40.0, 50.0
_SHRINK_TRIES = 1500
_CONFIRMATIONS = 2
# Rules that compare with chance, which one draw in thousands exceeds: a kernel breaks one only if
# most fresh draws of the case break it too. One draw isn't enough: in a large case, the farthest of
# many elements may be beyond in every third draw.
_BY_CHANCE = frozenset({"emulation", "probabilistic bound"})
_FRESH, _OF_FRESH = 4, 3
_NO_MEMORY = "no memory was left for it"
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# Three measures of one error: a smaller case may break another one first.
_ERROR = frozenset({"deterministic bound", "probabilistic bound", "emulation"})


@dataclass(slots=True)
class _Target:
    """A kernel, the cases drawn for it, and its finds."""

    kernel: Kernel
    draws: Draws
    finds: list[FindRow] = field(default_factory=list)


class Search(VerdictSuite):
    """Runs every kernel on cases drawn for it, until the time is up."""

    name = "search"
    drawn = True

    takes = SearchOptions
    options: SearchOptions

    def __init__(self, options: SearchOptions, device: torch.device) -> None:
        super().__init__(options, device)
        self.started = time.monotonic()
        self._spread = False

    def plan(self) -> Sequence[Pair]:
        """Return no pair: `finish` draws the cases. Raises UsageError."""
        check_dtypes(self.options)
        self.kernels = self.selected()
        self.judge = self.run_of(FURTHER)
        if self.options.shard:
            self.share = frozenset()
        return []

    def begin(self) -> dict[str, Any]:
        """Return the rules, and the command that tries the finds."""
        return super().begin() | {"finds_command": self._finds_command()}

    def _finds_command(self) -> str:
        """Return the command that tries all finds, less the record's path."""
        options = replace(self.options, cases=())
        words = [*deciding_options(options, Accuracy.name, self.device)]
        words += [f"--kernels={shlex.quote(path_in_command(file))}" for file in self._own_files()]
        for name, values in (("--op", options.op), ("--kernel", options.kernel)):
            words += [f"{name} {shlex.quote(value)}" for value in values]
        words += ["--gate-baselines"] * options.gate_baselines
        return " ".join([this_program().prefix(Accuracy.name), *words])

    def _own_files(self) -> list[Path]:
        """Return the files of --kernels."""
        files = [Path(file).expanduser().resolve() for file in self.options.kernels]
        return list(dict.fromkeys(files))

    def jobs(self, kept: Sequence[Pair]) -> tuple[int, bool]:
        """Return the number of processes: --jobs, else the cores. Each draws its own cases."""
        del kept
        count = self.options.jobs or shards.default_jobs(self.device.type, shards.FEWEST_PAIRS)
        if not self.options.jobs and self.device.type == "cuda":
            needed = [self.most_memory()] * count
            count = min(count, shards.fitting_jobs(needed, torch.cuda.mem_get_info()[0]))
        self._spread = count > 1 and not self.options.in_process
        return (count if self._spread else 1), False

    def finish(self, progress: Progress) -> Iterator[AccuracyRow | FindRow]:  # type: ignore[override]
        """Draw, judge and shrink until the time is up, or enough was found."""
        if self._spread:
            return  # the run's processes draw
        shard = self.options.shard or "0/1"
        seed = f"{self.options.seed} {shard}"
        far = self.device.type == "cpu"
        targets = [
            _Target(k, Draws(k.op, self._reaches(k), f"{seed} {k.name}", self._limits(k.op), far))
            for k in alike_together(self.kernels)
        ]
        targets = [target for target in targets if target.draws.coverage.possible.any()]
        first = user_cases(self.options, self.device) or ()
        deadline = time.monotonic() + 60 * self.options.minutes
        count = 0
        for turn, (target, case) in enumerate(self._turns(targets, first)):
            # The user's cases are all judged, and one drawn case: a search of none says nothing.
            late = turn > len(first) and time.monotonic() > deadline
            if late or (self.options.finds and count >= self.options.finds):
                return
            for other in targets:
                if other.kernel.op.name != case.op or self._refuses(other.kernel, case):
                    continue
                row = self._row(other.kernel, case)
                yield row
                progress.advance(f"{count:,} found, {target.kernel.name}")
                other.draws.judged(case, _ratio(row), row.variant)
                if row.status == "failed" and not self._is_known(other, row, case):
                    find = self._find(other, row, case)
                    other.finds.append(find)
                    count += 1
                    yield find

    def _turns(
        self, targets: Sequence[_Target], first: Iterable[Case]
    ) -> Iterator[tuple[_Target, Case]]:
        """Yield the user's cases, then drawn cases, one for each kernel in turn."""
        for case in first:
            yield from ((target, case) for target in targets[:1])
        waiting = list(targets)
        while waiting:
            for target in list(waiting):
                drawn = target.draws.next()
                if drawn is None:
                    waiting.remove(target)
                else:
                    yield target, drawn

    def _refuses(self, kernel: Kernel, case: Case) -> bool:
        """Return True if the case has another dtype, or lies outside the kernel's domain."""
        dtypes = self.options.dtype
        other = bool(dtypes) and dtype_name(case.dtype) not in dtypes
        return other or self.judge.refusal(kernel, case) is not None

    def _reaches(self, kernel: Kernel) -> Callable[[Case], bool]:
        """Return a function that is True for a case that may be drawn, also by its dtype."""
        reaches = super()._reaches(kernel)
        return lambda case: not self._refuses(kernel, case) and reaches(case)

    def _limits(self, op: Op) -> dict[str, int]:
        """Return the largest value of each size in the op's cases: on a CPU only those of `ci`."""
        limits: dict[str, int] = {}
        for case in op.cases():
            if case.tier == "ci" or self.device.type == "cuda":
                for name, value in case.sizes:
                    limits[name] = max(value, limits.get(name, 0))
        return limits

    def _row(self, kernel: Kernel, case: Case) -> AccuracyRow:
        """Judge the case; a rule that compares with chance is confirmed on fresh values."""
        row = self._judged(kernel, case)
        if row.rule not in _BY_CHANCE:
            return row
        broken = kept = 0
        while broken < _OF_FRESH and kept <= _FRESH - _OF_FRESH:
            fresh = replace(case, seed=case.seed + broken + kept + 1)
            failed = self._judged(kernel, fresh).status == "failed"
            broken, kept = broken + failed, kept + (not failed)
        if broken == _OF_FRESH:
            return row
        of = f"{broken} of {broken + kept} fresh draws"
        note = f"{row.rule}: {row.reason}; beyond on {of} of the case: chance"
        passed = {"status": "passed", "rule": None, "reason": None, "notes": (*row.notes, note)}
        return row.model_copy(update=passed)

    def _judged(self, kernel: Kernel, case: Case) -> AccuracyRow:
        try:
            row = self.judge.try_pair(kernel, case)
        except (NoMemoryError, OpError) as error:
            return self.judge.refused(kernel, case, str(error))
        if row.status != "failed" or not any(message in (row.reason or "") for message in SPENT):
            return row
        # The search's other processes use the rest of the memory: the kernel isn't at fault.
        reason = f"{_NO_MEMORY}: {row.reason}"
        return row.model_copy(update={"status": "refused", "rule": None, "reason": reason})

    def _is_known(self, target: _Target, row: AccuracyRow, case: Case) -> bool:
        """Return True if an earlier find explains the row: the same rule, and its needs are met.

        An error that fresh values don't repeat lies near its bound and has no cause in the case;
        only an error twice as large is another find.
        """
        words, ratio = set(map(alike_word, _words(case))), _worst(row) or 0.0
        dtype = dtype_name(case.dtype)
        return any(
            (_alike(row, find) or _are_not_finite(words, row, find))
            and (
                (set(map(alike_word, find.essence)) <= words and dtype in find.dtypes)
                or (not find.confirmed and ratio <= 2 * (find.worst_ratio or 0.0))
            )
            for find in target.finds
        )

    def _find(self, target: _Target, row: AccuracyRow, case: Case) -> FindRow:
        """Shrink a failed case, and test whether fresh values fail too."""
        kernel, started = target.kernel, time.monotonic()

        def fails(candidate: Case) -> bool:
            if objection(kernel.op, candidate) or self._refuses(kernel, candidate):
                return False
            tried = self._row(kernel, candidate)
            return tried.status == "failed" and _same(tried, row)

        def more(tried: int) -> bool:
            return tried < _SHRINK_TRIES and time.monotonic() - started < _SHRINK_S

        def fails_in_time(candidate: Case) -> bool:
            return time.monotonic() - started < _FIND_S and fails(candidate)

        shrunk = shrink(kernel.op, case, fails, more)
        last = self._row(kernel, shrunk.case)
        shown = last if last.status == "failed" else row
        confirmed = sum(
            fails(replace(shrunk.case, seed=shrunk.case.seed + number + 1))
            for number in range(_CONFIRMATIONS)
        )
        fails_too = self._fails_too(shrunk, fails_in_time)
        dtypes = [dtype_name(dtype) for dtype in _DTYPES]
        return FindRow(
            op=case.op,
            kernel=kernel.name,
            rule=shown.rule or "raised",
            output=_output(shown),
            reason=shown.reason or "",
            case=case_info(shrunk.case),
            first_case=case.id(),
            needs=shrunk.needs,
            fails_too=fails_too,
            essence=_essence(kernel.op, shrunk),
            dtypes=(
                dtype_name(shrunk.case.dtype),
                *(word for word in fails_too if word in dtypes),
            ),
            worst_ratio=_worst(row),
            confirmed=confirmed,
            confirmations=_CONFIRMATIONS,
            tried=shrunk.tried,
            whole=shrunk.whole and time.monotonic() - started < _FIND_S,
            gates=shown.gates,
            reproduce=shown.reproduce,
            duration_s=time.monotonic() - started,
        )

    def _fails_too(self, shrunk: Shrunk, fails: Callable[[Case], bool]) -> tuple[str, ...]:
        """Return other properties with which the shrunk case still breaks the rule."""
        case, properties = shrunk.case, []
        for dtype in _DTYPES:
            weight = dtype if case.weight_dtype == case.dtype else case.weight_dtype
            if dtype != case.dtype and fails(replace(case, dtype=dtype, weight_dtype=weight)):
                properties.append(dtype_name(dtype))
        for name, value in case.sizes:
            sizes = tuple((other, size + (other == name)) for other, size in case.sizes)
            if fails(replace(case, sizes=sizes)):
                properties.append(f"{name} of {value + 1:,}")
        return tuple(properties)

    def summary(self, rows: Sequence[Row]) -> Iterator[CoverageRow]:
        """Yield rows on the pairs of levels that the run's cases covered."""
        return iter(()) if self.options.shard else self._coverage(rows)

    def fails(self, *_: object) -> bool:
        """Return False: a kernel that served no case has no row, which fails the run already."""
        return False


def _ratio(row: AccuracyRow) -> float:
    """Return the largest error over bound of a row that passed, else 0."""
    return (_worst(row) or 0.0) if row.status == "passed" else 0.0


def _worst(row: AccuracyRow) -> float | None:
    """Return the largest error over bound; None if no error was measured."""
    ratios = [
        ratio
        for out in row.outputs
        for ratio in (out.worst_deterministic, out.worst_probabilistic, out.worst_emulation)
        if ratio is not None and math.isfinite(ratio)
    ]
    return max(ratios, default=None)


def _output(row: AccuracyRow) -> str | None:
    """Return the output that broke the rule, if the reason names one, else None."""
    start = (row.reason or "").partition("[")[0]
    return next((output.output for output in row.outputs if start == output.output), None)


def _same(row: AccuracyRow, other: AccuracyRow) -> bool:
    return _kind(row.rule) == _kind(other.rule) and _output(row) == _output(other)


def _alike(row: AccuracyRow, find: FindRow) -> bool:
    return _kind(row.rule) == _kind(find.rule) and _output(row) == find.output


def _are_not_finite(words: set[str], row: AccuracyRow, find: FindRow) -> bool:
    """Return True if both break one rule because numbers aren't finite, in whichever output."""
    wild = VALUES_NOT_FINITE in words and VALUES_NOT_FINITE in map(alike_word, find.essence)
    return wild and _kind(row.rule) == _kind(find.rule)


def _kind(rule: str | None) -> str | None:
    return "error" if rule in _ERROR else rule


def _words(case: Case) -> Iterator[str]:
    """Yield a case's properties other than sizes, for example "layout padded"."""
    yield from case.options
    yield f"values {case.distribution}"
    yield from (f"layout {part}" for part in case.layout.name.split("+"))
    if case.weight_dtype != case.dtype:
        yield f"weights in {dtype_name(case.weight_dtype)}"


def _essence(op: Op, shrunk: Shrunk) -> tuple[str, ...]:
    """Return the properties of a shrunk case that any other case of the same fault also has."""
    plain = {"values normal", "layout contiguous"}
    needed = {change.what for change in changes(op, shrunk.case)}
    return tuple(word for word in _words(shrunk.case) if word not in plain and word in needed)
