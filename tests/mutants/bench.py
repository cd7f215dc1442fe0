"""One process's share of the mutants: each is tried until it is killed, by the suite as it is.

A mutant runs in a worker of the accuracy suite, which has a changed copy of `kernels/` in place of
the checkout's; what judges it is `suites.accuracy.run.Run`, as on any kernel. Its own cases come
first, then the rest of the op's `ci` cases. Truth and bounds are kept from one mutant to the next
where the case is the same. The kernel it was made of must pass the case that kills it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from kernel_workbench.kernels.registry import Kernel, all_kernels
from kernel_workbench.oracles.op import Case
from kernel_workbench.reports.record import AccuracyRow, Rule
from kernel_workbench.suites.accuracy.run import Run
from kernel_workbench.suites.run.option_table import DEFAULT_SM
from kernel_workbench.suites.sandbox.judge_side.worker_process import ForkServer
from kernel_workbench.suites.sandbox.judge_side.workers import Workers
from tests.mutants import own_ops
from tests.mutants.catalogue import cases_of
from tests.mutants.mutant import EditError, Mutant

PLAIN = Path(__file__).with_name("plain_kernels.py")
_TIME_LIMIT_S, _CHEATS_LIMIT_S = 60.0, 10.0  # for one call


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a mutant's run.

    rule, case, reason  of the row that killed it; None where none did
    beyond     the rules on errors that the row breaks, each asked alone
    tried      how many cases ran
    sound      how the kernel that it was made of did on that case: passed, failed or refused; -
    wrong      what is wrong with this, of the suite or of the mutant, in a sentence; None: nothing
    """

    mutant: Mutant
    rule: Rule | None
    case: str | None
    reason: str | None
    tried: int
    sound: str
    seconds: float
    wrong: str | None
    beyond: tuple[Rule, ...] = ()


def own_cases_first(mutant: Mutant, serves: Callable[[Case], bool]) -> Iterable[Case]:
    """Return the cases that the mutant names, then the rest of its op's; not those it refuses."""
    cases = cases_of(mutant)
    own = [cases[case_id] for case_id in mutant.case_ids]
    return filter(serves, (*own, *(case for case in cases.values() if case not in own)))


@dataclass(slots=True)
class Bench:
    """A judge, and the workers that it takes for one mutant after the other; `close` ends them.

    order: (mutant, whether it serves a case) -> the cases to try, until one fails.
    briefly: generated cases are called once, as in a run of `ci`.
    """

    device: torch.device
    order: Callable[[Mutant, Callable[[Case], bool]], Iterable[Case]] = own_cases_first
    briefly: bool = False
    run: Run = field(init=False)
    server: ForkServer | None = None
    _plain: Workers = field(init=False)
    _sound: dict[tuple[str, str, str], AccuracyRow] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.run = Run(self.device, DEFAULT_SM, briefly=self.briefly)
        self._plain = self._workers((PLAIN, *own_ops.RIGHT), None, _TIME_LIMIT_S)
        self._plain.kernels()
        self.server = self._plain.server

    def close(self) -> None:
        """End all workers."""
        self._plain.close()

    def __call__(self, mutant: Mutant) -> Outcome:
        """Try a mutant until it is killed, and the sound kernel on the case that killed it."""
        started = time.perf_counter()
        if mutant.file == PLAIN:
            return self._outcome(mutant, self._plain, started)
        if mutant.file is not None and not mutant.edits:
            return self._shared(mutant, started, files=(mutant.file,), time_limit_s=_CHEATS_LIMIT_S)
        with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
            try:
                if mutant.file is not None:
                    files = (mutant.write_file(Path(folder)),)
                    return self._shared(mutant, started, files=files, time_limit_s=_TIME_LIMIT_S)
                mutant.write_overlay(Path(folder))
            except EditError as error:
                return Outcome(mutant, None, None, None, 0, "-", 0.0, str(error))
            return self._shared(mutant, started, overlay=Path(folder))

    def _shared(
        self,
        mutant: Mutant,
        started: float,
        *,
        files: tuple[Path, ...] = (),
        overlay: Path | None = None,
        time_limit_s: float = _TIME_LIMIT_S,
    ) -> Outcome:
        """The outcome in workers of its own, from the server that all share."""
        workers = self._workers(files, overlay, time_limit_s)
        if mutant.alone:
            workers.server = None
        try:
            return self._outcome(mutant, workers, started)
        finally:
            if workers.server is self.server:
                workers.server = None  # it stays
            workers.close()

    def _workers(
        self, files: tuple[Path, ...], overlay: Path | None, time_limit_s: float
    ) -> Workers:
        return Workers(
            self.device,
            DEFAULT_SM,
            files=files,
            overlay=overlay,
            time_limit_s=time_limit_s,
            server=self.server,
        )

    def _outcome(self, mutant: Mutant, workers: Workers, started: float) -> Outcome:
        tried, killed = 0, None
        for row in self._rows(mutant, workers):
            tried += 1
            if row.status == "failed":
                killed = row
                break
        if killed is None:
            wrong = f"it passes all {tried} cases that it was tried on"
            return Outcome(mutant, None, None, None, tried, "-", _since(started), wrong)
        beside = self._beside(mutant, cases_of(mutant)[killed.case.id])
        problem = None
        if killed.rule not in mutant.rules:
            problem = f"killed by {killed.rule}, not by {' or '.join(mutant.rules)}"
        elif beside.status == "failed":
            problem = f"the sound kernel fails as well: {beside.reason}"
        return Outcome(
            mutant,
            killed.rule,
            killed.case.id,
            killed.reason,
            tried,
            beside.status,
            _since(started),
            problem,
            _rules_beyond(killed),
        )

    def _rows(self, mutant: Mutant, workers: Workers) -> Iterator[AccuracyRow]:
        """Yield the mutant's rows on its cases."""
        kernel = _called(workers.kernels(), mutant.op, mutant.kernel)
        self.run.workers = workers
        for case in self.order(mutant, lambda case: self.run.refusal(kernel, case) is None):
            self.run.workers = workers  # which the sound kernel's row may have changed
            yield self.run.try_pair(kernel, case)

    def _beside(self, mutant: Mutant, case: Case) -> AccuracyRow:
        """How the kernel that the mutant was made of does on a case."""
        name = mutant.sound or mutant.kernel
        key = mutant.op, name, case.id()
        if key not in self._sound:
            self.run.workers = self._plain  # which has the checkout's kernels too
            known = self._plain.kernels() if mutant.sound else all_kernels()
            kernel = _called(known, mutant.op, name)
            refusal = self.run.refusal(kernel, case)
            self._sound[key] = (
                self.run.try_pair(kernel, case)
                if refusal is None
                else self.run.refused(kernel, case, refusal)
            )
        return self._sound[key]


def _rules_beyond(row: AccuracyRow) -> tuple[Rule, ...]:
    """The rules on errors that some output breaks, each asked alone."""
    ratios: dict[Rule, list[float | None]] = {
        "deterministic bound": [each.worst_deterministic for each in row.outputs],
        "probabilistic bound": [each.worst_probabilistic for each in row.outputs],
        "emulation": [each.worst_emulation for each in row.outputs],
    }
    return tuple(
        rule
        for rule, found in ratios.items()
        if any(each is not None and not each <= 1 for each in found)
    )


def _called(kernels: tuple[Kernel, ...], op: str, name: str) -> Kernel:
    return next(each for each in kernels if (each.op.name, each.name) == (op, name))


def _since(started: float) -> float:
    return time.perf_counter() - started
