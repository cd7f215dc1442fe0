"""Records of 5,000 rows, as in a full tier, and the cost of a report about them."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.builders.accuracy_records import example_rows, write_example
from tests.builders.bench_records import NORM_KERNELS, many_bench_rows, norm_case, write_bench
from tests.builders.commands import run_python
from tests.builders.compared_records import bench_row, case, header, write
from tests.builders.compiled_records import SMS
from tests.builders.compiled_records import record_of as write_compiled
from tests.builders.compiled_records import row as compiled_row
from tests.builders.profile_records import profile_row, write_profile

ROWS = 5000
SUITES = ("accuracy", "bench", "profile", "compile")

# Its own peak: the system's peak of a child begins with this process's peak, as in a fork.
_WATCHED = """
import runpy, sys
from pathlib import Path
try:
    runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
finally:
    print(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0], file=sys.stderr)
"""


def watched(module: str, *arguments: str | Path) -> tuple[subprocess.CompletedProcess[str], float]:
    """Run `python -m MODULE ARGUMENTS`; return its result and its peak memory in MiB."""
    done = run_python("-c", _WATCHED, module, *arguments, started=True)
    return done, float(done.stderr.split()[-1]) / 1024


def large(suite: str, path: Path) -> Path:
    """Return a record of 5,000 rows."""
    if suite == "accuracy":
        return _grown(write_example(path, example_rows(failing=False)), "n760")
    if suite == "bench":
        return _grown(write_bench(path, many_bench_rows(4, samples=40)), "n1024")
    if suite == "compile":
        write_compiled(path, [compiled_row(sm=sm) for sm in SMS])
        return _grown(path, "bfloat16 d128")
    rows = [profile_row(kernel, norm_case(1, 1024), 38.0, capped=0.4) for kernel in NORM_KERNELS]
    return _grown(write_profile(path, rows), "n1024")


def five_alike(folder: Path) -> list[Path]:
    """Return five records of bench of 5,000 rows, with 100 samples at ten places in each."""
    rows = []
    for number in range(ROWS):
        row = bench_row(
            seed=number, kernel=f"kernel{number % 5}", case=case(m=number // 5), of_processes=1
        )
        (timed,) = row.processes
        more = timed.model_copy(
            update={
                "times_us": (timed.times_us * 3)[:100],
                "clocks_mhz": (timed.clocks_mhz * 3)[:100],
                "placements": (10,) * 10,
            }
        )
        rows.append(row.model_copy(update={"processes": (more,)}))
    first = write(folder / "0.jsonl", header(), rows)
    others = [folder / f"{number}.jsonl" for number in range(1, 5)]
    for each in others:
        each.write_bytes(first.read_bytes())
    return [first, *others]


def _grown(path: Path, name: str) -> Path:
    """Return the record with its rows repeated until there are 5,000, and `name` numbered.

    This is faster than to write as many rows.
    """
    head, *lines, end = path.read_text().splitlines()
    count = len(lines)
    rows = [lines[at % count].replace(name, f"{name}{at // count}") for at in range(ROWS)]
    head = head.replace(f'"planned_rows":{count}', f'"planned_rows":{ROWS}')
    end = end.replace(f'"rows":{count}', f'"rows":{ROWS}')
    path.write_text("\n".join((head, *rows, end, "")))
    return path
