"""`--ncu`: the GPU's counters of one call of a row, by NVIDIA's Nsight Compute.

After a row was timed, `ncu` runs a separate process that calls the kernel (counted_call.py). It
counts only the launches of one call. It replays each launch as often as its counters need, at the
present clocks, and flushes the cache before each replay if the row is cold. Its whole report is
written beside the record, for `ncu-ui`. NVIDIA's package ncu-report reads it; this module names the
figures that a row keeps.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from kernel_workbench.kernels.registry import Kernel
from kernel_workbench.oracles.op import Case
from kernel_workbench.reports.record import CountedLaunch
from kernel_workbench.root import start_folder
from kernel_workbench.suites.bench.counted_call import FAILED
from kernel_workbench.suites.bench.devices import Cache
from kernel_workbench.suites.sandbox.wire import spelled

_LIMIT_S = 900.0  # of a row: about forty replays of each launch, and their start
_PERMISSION = "ERR_NVGPUCTRPERM"
_FORBIDDEN = (
    f"no permission: this user may not read the GPU's counters ({_PERMISSION}); ask the "
    "administrator to load NVIDIA's module with NVreg_RestrictProfilingToAdminUsers=0, or for a "
    "container with the capability SYS_ADMIN (PERFMON, from driver 565 on)"
)
# The process ends with the judge, and so does its child.
_STARTED = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9, 0, 0, 0); os.execv(sys.argv[1], "
    "sys.argv[1:])"
)

# Counter names of each figure; the first name in a report counts. Shares are in per cent.
_SHARES = {
    "occupancy": ("sm__warps_active.avg.pct_of_peak_sustained_active",),
    "most_occupancy": ("sm__maximum_warps_per_active_cycle_pct",),
    "sm_share": ("sm__throughput.avg.pct_of_peak_sustained_elapsed",),
    "tensor_share": (
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
        "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
        "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active",
    ),
    "dram_share": (
        "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
        "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    ),
    "l2_share": ("lts__throughput.avg.pct_of_peak_sustained_elapsed",),
    "l2_hits": ("lts__t_sector_hit_rate.pct",),
}
_TIME, _WAVES = "gpu__time_duration.sum", "launch__waves_per_multiprocessor"
_REGISTERS = "launch__registers_per_thread"
_MICROSECONDS = {
    **dict.fromkeys(("ns", "nsecond"), 1e-3),
    **dict.fromkeys(("us", "usecond"), 1.0),
    **dict.fromkeys(("ms", "msecond"), 1e3),
    **dict.fromkeys(("s", "second"), 1e6),
}
_STALL = re.compile(r"smsp__average_warps_issue_stalled_(\w+)_per_issue_active\.ratio")
_STALLS = 3  # the largest


class _NothingCountedError(Exception):
    """There are no counters; the message gives the reason."""


@dataclass(slots=True)
class NsightCompute:
    """Counts launches for the rows of a run.

    files    a user's files
    refused  a sentence if no further row can have counters
    """

    program: str
    device: torch.device
    files: tuple[Path, ...]
    cache: Cache
    refused: str | None = None
    _counted: int = field(default=0, init=False)

    def count(self, kernel: Kernel, case: Case, record: Path) -> dict[str, Any]:
        """Return the fields of a row about one call; the report is written beside the record."""
        if self.refused is not None:
            return {"counters_reason": self.refused}
        self._counted += 1
        name = re.sub(r"[^\w.-]+", "-", kernel.name)
        report = record.with_name(f"{record.stem}-{self._counted:03}-{name}.ncu-rep").resolve()
        try:
            self._profile(kernel, case, report)
        except _NothingCountedError as error:
            return {"counters_reason": str(error)}
        launches = launches_of(report)
        if not launches:
            reason = (
                "Nsight Compute's report has no launch that ncu-report could read; one of a newer "
                "Nsight Compute needs a newer ncu-report"
            )
            return {"counters_reason": reason, "counters_file": report.name}
        return {"counters": launches, "counters_file": report.name}

    def _profile(self, kernel: Kernel, case: Case, report: Path) -> None:
        request = {
            "device": self.device.type,
            "op": kernel.op.name,
            "kernel": kernel.name,
            "case": spelled(case),
            "files": [str(file) for file in self.files],
        }
        printed = self._run(
            *("--profile-from-start=off", "--clock-control=none", "--set=full"),
            f"--cache-control={'all' if self.cache == 'cold' else 'none'}",
            *("--target-processes=application-only", "--force-overwrite"),
            *("--export", str(report).replace("%", "%%")),  # ncu expands %p and others in a name
            *(
                sys.executable,
                "-m",
                "kernel_workbench.suites.bench.counted_call",
                json.dumps(request),
            ),
        )
        if not report.is_file():
            raise _NothingCountedError(f"Nsight Compute left no report: {_last_line(printed)}")

    def _run(self, *arguments: str) -> str:
        """Return the printed text. Raises _NothingCountedError if the program fails."""
        with subprocess.Popen(
            [sys.executable, "-c", _STARTED, self.program, *arguments],
            cwd=start_folder(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C reaches the judge, which ends the group
        ) as process:
            try:
                printed, _ = process.communicate(timeout=_LIMIT_S)
            except subprocess.TimeoutExpired as late:
                reason = f"Nsight Compute didn't end within {_LIMIT_S / 60:g} min"
                raise _NothingCountedError(reason) from late
            finally:
                if process.returncode is None:
                    os.killpg(process.pid, signal.SIGKILL)
        if _PERMISSION in printed:
            self.refused = _FORBIDDEN
            raise _NothingCountedError(_FORBIDDEN)
        if process.returncode:
            ended = f"Nsight Compute ended with status {process.returncode}"
            raise _NothingCountedError(f"{ended}: {_last_line(printed)}")
        return printed


def _last_line(printed: str) -> str:
    """Return the kernel's error, else Nsight Compute's last error, else the last line."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("==ERROR==")]
    raised = [line for line in lines if line.startswith(FAILED)]
    return (raised or errors or lines or ["it printed nothing"])[-1][:400]


def launches_of(report: Path) -> tuple[CountedLaunch, ...]:
    """Return the launches of a report, none where the package can't read it."""
    reader = importlib.import_module("ncu_report")
    try:
        return tuple(_launch(action) for part in reader.load_report(report) for action in part)
    except (OSError, RuntimeError):  # it takes most files that it can't read for empty ones
        return ()


def _launch(action: Any) -> CountedLaunch:  # noqa: ANN401  (ncu_report.IAction, which has no types)
    shares = {
        figure: next((share for name in names if (share := _value(action, name)) is not None), None)
        for figure, names in _SHARES.items()
    }
    time, registers = _value(action, _TIME), _value(action, _REGISTERS)
    scale = None if time is None else _MICROSECONDS.get(action.metric_by_name(_TIME).unit())
    stalls = {
        match[1].replace("_", " "): value
        for name in action.metric_names()
        if (match := _STALL.fullmatch(name))
        and not match[1].endswith("not_issued")  # counts the same stall in another way
        and match[1] != "selected"  # not a stall
        and (value := _value(action, name))
    }
    largest = sorted(stalls.items(), key=lambda stall: -stall[1])[:_STALLS]
    return CountedLaunch(
        launch=action.name(action.NameBase_DEMANGLED),
        device_us=None if time is None or scale is None else time * scale,
        registers=None if registers is None else int(registers),
        waves=_value(action, _WAVES),
        stalls=dict(largest),
        **{name: None if share is None else share / 100 for name, share in shares.items()},
    )


def _value(action: Any, name: str) -> float | None:  # noqa: ANN401  (likewise)
    """Return a counter's number; None where the report has none."""
    metric = action.metric_by_name(name)
    value = None if metric is None else metric.value()
    return value if isinstance(value, int | float) and math.isfinite(value) else None
