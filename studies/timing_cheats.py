"""Do kernels that only look fast lose their figures on the device at hand, and honest ones not?

    python -m studies.timing_cheats [--device cpu|cuda] [--only NAME ...]

The study runs `bench` on each file in tests/candidates/timing_cheats and on honest kernels, and
prints a row for each: the time by its own process, the time by the judge's clock, and the status of
the figure. The exit status is 1 if a cheat keeps a figure that is too small, or an honest kernel
has none.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from kernel_workbench.kernels.registry import Kernel, all_kernels
from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.op import Case
from kernel_workbench.reports.record import BenchRow
from kernel_workbench.suites.accuracy.run import Run
from kernel_workbench.suites.bench.judged_pass import TASK
from kernel_workbench.suites.bench.rows import Bench
from kernel_workbench.suites.bench.survey import survey
from kernel_workbench.suites.run.descriptions import describe_machine
from kernel_workbench.suites.sandbox.judge_side.workers import Workers

CHEATS = Path(__file__).parents[1] / "tests" / "candidates" / "timing_cheats"
_INTERPRETER = "TRITON_INTERPRET"
_SIZES = {"cpu": (48, 96), "cuda": (4096, 4096)}
# These files cheat in vain: their work takes as long as their figures say.
_EARNED = ("by_content", "replaces_the_clock")


@dataclass(frozen=True, slots=True)
class Outcome:
    """A row, and True if its kernel is a cheat."""

    row: BenchRow
    is_cheat: bool

    @property
    def is_right(self) -> bool:
        """True if a cheat has no figure and an honest kernel has one."""
        return (self.row.status == "timed") != self.is_cheat

    def line(self) -> str:
        """Describe the row in a line of a table."""
        row = self.row
        figures = (row.median_us, row.judged_us, row.judged_slack_us)
        numbers = " ".join("       -" if x is None else f"{x:8.1f}" for x in figures)
        kind = "cheat " if self.is_cheat else "honest"
        mark = "as it should be" if self.is_right else "NOT AS IT SHOULD BE"
        why = row.reason or row.unconfirmed or ""
        return f"{kind} {row.kernel:24} {row.status:7} {numbers}  {mark}  {why[:150]}"


def _case(op: str, device: str) -> Case:
    m, n = _SIZES[device]
    return Case(op=op, sizes=(("m", m), ("n", n)), dtype=torch.float32, weight_dtype=torch.float32)


def _rows(device: torch.device, files: list[Path], honest: list[Kernel]) -> list[Outcome]:
    """Bench each file's kernels in their own workers, and then the honest kernels."""
    sm = 10 * torch.cuda.get_device_capability()[0] if device.type == "cuda" else 90
    machine = describe_machine(device, sm, strict=False)
    print("measuring the device", file=sys.stderr, flush=True)
    ground = survey(device, machine)
    outcomes = []
    for file in [*files, None]:
        workers = Workers(device, sm, strict=False, files=(file,) if file else (), tasks=(TASK,))
        run = Run(device, sm, workers=workers, two_calls_alone=True)
        clock_mhz = ground.default_clock_mhz
        bench = Bench(run, workers, ground.roofs, "cold", 0.5, clock_mhz, 120.0, ground.flush_us)
        try:
            for kernel in workers.kernels() if file else honest:
                started = time.perf_counter()
                case = _case(kernel.op.name, device.type)
                if run.refusal(kernel, case) is not None:
                    continue
                is_cheat = file is not None and kernel.name not in _EARNED
                outcome = Outcome(bench.row(kernel, case), is_cheat)
                outcomes.append(outcome)
                print(f"{outcome.line()} ({time.perf_counter() - started:.1f} s)", flush=True)
        finally:
            workers.close()
    return outcomes


def main() -> int:
    """Print the table; return 1 if a row isn't as it should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=("cpu", "cuda"), default=default)
    parser.add_argument("--only", nargs="*", default=(), help="names of files of cheats")
    options = parser.parse_args()
    if options.device == "cpu" and os.environ.get(_INTERPRETER) != "1":  # before Triton is imported
        command = [sys.executable, "-m", "studies.timing_cheats", *sys.argv[1:]]
        return subprocess.run(command, env=os.environ | {_INTERPRETER: "1"}, check=False).returncode
    files = sorted(
        file for file in CHEATS.glob("*.py") if not options.only or file.stem in options.only
    )
    ops = (OPS["layer_norm_backward"], OPS["softmax_forward"])
    honest = [
        kernel
        for kernel in all_kernels()
        if kernel.op in ops and (options.device == "cuda" or kernel.origin == "baseline")
    ]
    outcomes = _rows(torch.device(options.device), files, honest)
    wrong = [outcome.row.kernel for outcome in outcomes if not outcome.is_right]
    print(f"{len(outcomes)} kernels, {len(wrong)} not as they should be: {' '.join(wrong) or '-'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
