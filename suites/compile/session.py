"""One run of `nox -s compile`: what is planned, compiled, held to expectations, and recorded."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import torch

from kernels.expectation import Claim, Expectation
from kernels.registry import Kernel, all_kernels
from reports.record import (
    BrokenExpectation,
    CompileRow,
    PredictionRow,
)
from suites.compile.cache import Cache
from suites.compile.ceiling import bench_cases, predictions
from suites.compile.claims import broken, counting, is_about
from suites.compile.compiler import Measured, tool_versions, unknown_version
from suites.compile.expectations import expectations_of
from suites.compile.plan import plan
from suites.compile.rows import Planned, row_of
from suites.compile.selection import Standing, standing
from suites.compile.workers import Compile, Locate, Workers
from suites.run.descriptions import describe_machine, hashes_of, kernel_info
from suites.run.progress import Progress
from suites.run.record import RunRecord

_BATCH = 6  # kernels whose code is disassembled at one time

_Row = CompileRow | PredictionRow
Tools = Mapping[int, dict[str, str]]  # by sm, the versions of triton and ptxas


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the command line asks for.

    whole: neither kernels nor generations were left out, so that every expectation is about
    something. files: a user's.
    """

    kernels: tuple[Kernel, ...]
    sms: tuple[int, ...]
    everything: bool
    jobs: int
    files: tuple[Path, ...]
    results: Path
    cache: Cache
    command: str
    whole: bool


@dataclass(slots=True)
class Session:
    """A run under way: its launches and their rows, and what is wrong beside them."""

    asked: Asked
    launches: list[Planned] = field(default_factory=list)
    rows: list[CompileRow] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    record: RunRecord[_Row] | None = None
    _expectations: dict[tuple[str, str], tuple[Expectation, ...]] = field(default_factory=dict)
    _met: set[int] = field(default_factory=set)

    def run(self) -> int:
        """Do it all; return the exit status. Raises SelectionError, WorkerError, RecordError."""
        started = time.monotonic()
        tools = {sm: tool_versions(sm) for sm in self.asked.sms}
        for kernel in self.asked.kernels:
            self._expectations[kernel.op.name, kernel.name] = expectations_of(kernel)
        with (
            tempfile.TemporaryDirectory(prefix="kernel-workbench-") as scratch,
            closing(Workers(self.asked.jobs, self.asked.files, Path(scratch))) as workers,
        ):
            planned = plan(
                self._chosen(), self.asked.sms, workers, everything=self.asked.everything
            )
            self.launches, self.silent = planned.launches, planned.silent
            benches = bench_cases(self.asked.kernels, self.asked.sms)
            rows = len(planned.launches) + len(planned.failures)
            rows += sum(len(each.gpus) for each in benches)
            self.record = self._begin(started, rows, tools)
            try:
                for row in chain(planned.failures, self._compiled(workers, tools)):
                    self.record.add(row)
                    self.rows.append(row)
                for prediction in predictions(benches, self.rows):
                    self.record.add(prediction)
                self._judge()
            except KeyboardInterrupt:
                self.record.interrupted = True
            status = int(self.record.interrupted or self._failed())
            self.record.close(status, tuple(self.problems))
        return status

    def notes(self) -> list[str]:
        """What a reader is told beside the report."""
        versions = {row.tools.get("triton", "") for row in self.rows if row.tools}
        told = [text for each in versions if (text := unknown_version(each)) is not None]
        if self.silent:
            told.append(f"launch no Triton kernel, so nothing of theirs: {', '.join(self.silent)}")
        return told

    def _chosen(self) -> list[Standing]:
        asked = self.asked
        chosen: list[Standing] = []
        for kernel in asked.kernels:
            # Whether or not they are asked for: what dispatch gives them isn't this kernel's.
            before = [
                each
                for each in all_kernels()
                if each.op.name == kernel.op.name
                and each.priority > kernel.priority
                and each.origin == kernel.origin
            ]
            chosen += standing(kernel, asked.sms, before=before, everything=asked.everything)
        return chosen

    def _begin(self, started: float, rows: int, tools: Tools) -> RunRecord[_Row]:
        machine = describe_machine(torch.device("cpu"), max(self.asked.sms), strict=None)
        versions = {name: each for of_sm in tools.values() for name, each in of_sm.items()}
        machine = machine.model_copy(
            update={"simulated_sm": None, "packages": machine.packages | versions}
        )
        return RunRecord(
            self.asked.results,
            started,
            suite="compile",
            command=self.asked.command,
            environment=machine,
            kernels=tuple(kernel_info(each, max(self.asked.sms)) for each in self.asked.kernels),
            planned_rows=rows,
            gate_baselines=False,
            files=hashes_of(self.asked.files),
        )

    def _compiled(self, workers: Workers, tools: Tools) -> Iterator[CompileRow]:
        """The rows of all launches: kept ones first, at last those that break an expectation."""
        suspects: list[tuple[CompileRow, Planned]] = []
        for planned, measured in self._measured(workers, tools):
            row = self._held(row_of(planned, measured, tools[planned.sm]))
            if row.broken:
                suspects.append((row, planned))
            else:
                yield row
        yield from self._located(suspects, workers)

    def _measured(self, workers: Workers, tools: Tools) -> Iterator[tuple[Planned, Measured]]:
        cache = self.asked.cache
        missing: dict[tuple[int, str], Planned] = {}
        with Progress("compile") as progress:
            progress.begin(len(self.launches))
            for each in self.launches:
                kept = cache.get(each.noted.key, tools[each.sm])
                if kept is None:
                    missing[each.sm, each.noted.key] = each
                else:
                    yield each, kept
                    progress.advance(each.kernel.name)
            for sm, task, answer in workers.run(_batches(missing.values(), self.asked.jobs)):
                assert isinstance(task, Compile)
                assert isinstance(answer, list)
                for (key, _), measured in zip(task.wanted, answer, strict=True):
                    cache.put(key, tools[sm], measured)
                    yield missing[sm, key], measured
                    progress.advance(missing[sm, key].kernel.name)

    def _held(self, row: CompileRow) -> CompileRow:
        """The row with the expectations that it breaks."""
        known = self._expectations[row.op, row.kernel]
        self._met.update(id(each) for each in known if is_about(each, row))
        about = [each for each in counting(known, row) if row.status == "compiled"]
        failed = tuple(
            BrokenExpectation(says=each.says, reason=reason, sass=None)
            for each in about
            if (reason := broken(each.claim, row)) is not None
        )
        return row.model_copy(update={"expected": len(about), "broken": failed})

    def _located(
        self, suspects: Sequence[tuple[CompileRow, Planned]], workers: Workers
    ) -> Iterator[CompileRow]:
        """The rows that break expectations, each with the instruction that does."""

        def claims(row: CompileRow) -> list[Claim]:
            known = counting(self._expectations[row.op, row.kernel], row)
            return [each.claim for each in known if broken(each.claim, row) is not None]

        tasks: dict[int, list[Locate]] = {}
        for row, planned in suspects:
            tasks.setdefault(row.sm, []).extend(
                Locate(planned.noted.key, planned.call, claim) for claim in claims(row)
            )
        found: dict[tuple[int, str, Claim], object] = {}
        for sm, task, answer in workers.run(tasks):
            assert isinstance(task, Locate)
            found[sm, task.key, task.claim] = answer
        for row, planned in suspects:
            told = tuple(
                each.model_copy(update={"sass": found[row.sm, planned.noted.key, claim]})
                for each, claim in zip(row.broken, claims(row), strict=True)
            )
            yield row.model_copy(update={"broken": told})

    def _judge(self) -> None:
        """What is wrong with the run beside its rows."""
        if not any(row.status == "compiled" for row in self.rows):
            self.problems.append("nothing was compiled")
        if not self.asked.whole:
            return
        unmet = {
            each.says: name
            for (_, name), expectations in self._expectations.items()
            for each in expectations
            if id(each) not in self._met and (each.stands or self.asked.everything)
        }
        self.problems += [
            f"an expectation beside {name} is about nothing that was compiled: {says}"
            for says, name in unmet.items()
        ]

    def _failed(self) -> bool:
        return bool(self.problems) or any(row.status == "failed" or row.broken for row in self.rows)


def _batches(planned: Iterable[Planned], jobs: int) -> dict[int, list[Compile]]:
    """Launches to compile, a few at a time: small batches where there are few for each job."""
    wanted: dict[int, list[Planned]] = {}
    for each in planned:
        wanted.setdefault(each.sm, []).append(each)
    batches = {}
    for sm, group in wanted.items():
        size = max(1, min(_BATCH, -(-len(group) // (2 * jobs))))
        batches[sm] = [
            Compile(tuple((each.noted.key, each.call) for each in group[start : start + size]))
            for start in range(0, len(group), size)
        ]
    return batches
