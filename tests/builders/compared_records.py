"""Invented records of bench, profile and accuracy, for tests; no figure was measured."""

from __future__ import annotations

import io
import random
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any

from rich.console import Console

from kernel_workbench.reports.comparison.report import Comparison, compare
from kernel_workbench.reports.comparison.side import RecordSide, read_sides
from kernel_workbench.reports.document.terminal import print_document
from kernel_workbench.reports.record import (
    BENCH_PROTOCOL,
    PROTOCOL,
    AccuracyRow,
    BenchRow,
    CaseInfo,
    Environment,
    OutputError,
    ProfileRow,
    RecordWriter,
    Row,
    RunEnd,
    RunHeader,
    TimedProcess,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

H200: dict[str, Any] = {
    "device": "cuda",
    "device_name": "NVIDIA H200",
    "sm": 90,
    "multiprocessors": 132,
    "gpu_uuid": "GPU-1111",
    "power_limit_w": 700.0,
}
H100 = H200 | {"device_name": "NVIDIA H100 80GB HBM3", "gpu_uuid": "GPU-2222"}
A100 = H200 | {
    "device_name": "NVIDIA A100-SXM4-80GB",
    "sm": 80,
    "multiprocessors": 108,
    "gpu_uuid": "GPU-3333",
    "power_limit_w": 400.0,
}


def header(suite: str = "bench", machine: dict[str, Any] = H200, **changes: object) -> RunHeader:
    """Return the header of a run on an invented machine with this GPU."""
    software: dict[str, Any] = {
        "hostname": "example",
        "platform": "Linux-6.1-x86_64",
        "cpu": "Example CPU",
        "cpu_count": 16,
        "python": "3.12.0",
        "packages": {"torch": "2.13.0", "triton": "3.7.1"},
        "git_commit": "0123456789abcdef",
        "git_dirty": False,
    }
    known: dict[str, Any] = {
        "suite": suite,
        "protocol": BENCH_PROTOCOL if suite == "bench" else PROTOCOL,
        "started_at": "2026-11-21T04:15:00Z",
        "command": f"nox -s {suite}",
        "environment": Environment(**software | machine),
        "kernels": (),
        "planned_rows": 1,
        "gate_baselines": False,
    }
    return RunHeader(**known | changes)


def case(m: int = 8192, n: int = 8192, **changes: object) -> CaseInfo:
    """Return a case of layer-norm backward."""
    known: dict[str, Any] = {
        "id": f"layer_norm_backward-m{m}-n{n}-bfloat16-contiguous",
        "op": "layer_norm_backward",
        "sizes": {"m": m, "n": n},
        "dtype": "bfloat16",
        "layout": "contiguous",
        "distribution": "normal",
        "options": (),
        "seed": 0,
        "tier": "full",
        "why": "",
    }
    return CaseInfo(**known | changes)


def samples(
    centre_us: float, noise: float = 0.002, *, seed: int = 0, rounds: int = 40, mhz: float = 1800
) -> TimedProcess:
    """Return the times of one process: normal noise at a steady clock."""
    draw = random.Random(seed)
    return TimedProcess(
        times_us=tuple(centre_us * (1 + draw.gauss(0, noise)) for _ in range(rounds)),
        clocks_mhz=(mhz,) * rounds if mhz else (),
        stopped="steady",
    )


def bench_row(
    centre_us: float = 100.0,
    *,
    seed: int = 0,
    kernel: str = "row_persistent",
    noise: float = 0.002,
    mhz: float = 1800,
    of_processes: int = 4,
    **changes: object,
) -> BenchRow:
    """Return a passed row, timed in enough processes to distinguish 2 %."""
    where = changes.get("case") or case()
    assert isinstance(where, CaseInfo)
    known: dict[str, Any] = {
        "op": where.op,
        "kernel": kernel,
        "case": where,
        "status": "timed",
        "accuracy": "passed",
        "worst_ratio": 0.5,
        "processes": tuple(
            samples(centre_us, noise, seed=seed + 1000 * each, mhz=mhz)
            for each in range(of_processes)
        ),
        "median_us": centre_us,
        "flops": 9 * 8192 * 8192,
        "bytes": 6 * 8192 * 8192,
        "share_of_peak": 0.7,
        "share_of_ceiling": 0.8,
        "share_of_clocked_peak": 0.75,
    }
    return BenchRow(**known | changes)


def profile_row(joules: float = 0.05, **changes: object) -> ProfileRow:
    """Return a row whose energy has an error of 1 %."""
    where = changes.get("case") or case()
    assert isinstance(where, CaseInfo)
    known: dict[str, Any] = {
        "op": where.op,
        "kernel": "row_persistent",
        "case": where,
        "distribution": "normal",
        "status": "measured",
        "accuracy": "passed",
        "energy_j": joules,
        "energy_error_j": 0.01 * joules,
        "power_w": 480.0,
        "flops": 9 * 8192 * 8192,
        "joules_per_tflop": 80.0,
    }
    return ProfileRow(**known | changes)


def accuracy_row(ratio: float = 0.5, rmse: float = 1e-4, **changes: object) -> AccuracyRow:
    """Return a row that passed."""
    known: dict[str, Any] = {
        "kernel": "row_persistent",
        "case": case(),
        "status": "passed",
        "outputs": (
            OutputError(
                output="dx",
                worst_deterministic=ratio,
                worst_probabilistic=None,
                worst_index=(0, 0),
                got=1.0,
                expected=1.0,
                bound=1.0,
                rmse=rmse,
                max_ulp=1.0,
            ),
        ),
        "gates": True,
        "reproduce": "nox -s accuracy",
        "duration_s": 0.1,
    }
    return AccuracyRow(**known | changes)


def write(path: Path, head: RunHeader, rows: Sequence[Row], status: int = 0) -> Path:
    """Write a whole record."""
    head = head.model_copy(update={"planned_rows": len(rows)})
    with RecordWriter(path, head) as writer:
        for row in rows:
            writer.write(row)
        writer.close(
            RunEnd(
                finished_at="2026-11-21T04:19:00Z",
                duration_s=240.0,
                rows=len(rows),
                interrupted=False,
                exit_status=status,
            )
        )
    return path


def sides_of(folder: Path, *records: tuple[RunHeader, Sequence[Row]]) -> list[RecordSide]:
    """Write the records, and read their sides of a comparison."""
    folder.mkdir(exist_ok=True)
    sides = []
    for letter, (head, rows) in zip(ascii_uppercase, records, strict=False):
        (side,) = read_sides(write(folder / f"{letter}.jsonl", head, rows))
        side.letter = letter
        sides.append(side)
    return sides


def compared(folder: Path, *records: tuple[RunHeader, Sequence[Row]]) -> Comparison:
    """Write the records and compare them."""
    return compare(sides_of(folder, *records))


def text_of(found: Comparison, width: int = 200) -> str:
    """Return the comparison as a terminal shows it."""
    console = Console(width=width, file=io.StringIO(), record=True)
    print_document(found.document, console, details=True)
    return console.export_text()
