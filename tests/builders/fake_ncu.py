"""Stand-ins for Nsight Compute: `ncu`, which runs a program and leaves a report, and ncu_report.

The report is JSON, which only the stand-in of NVIDIA's package ncu_report reads. The output of
`ncu` follows NVIDIA's manual of the command line; no figure in it was measured.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

PERMISSION = (
    "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU "
    "Performance Counters on the target device 0."
)
_STALLED = "smsp__average_warps_issue_stalled"
# Names, units, and the values of two launches.
_METRICS: tuple[tuple[str, str, float | None, float | None], ...] = (
    ("gpu__time_duration.sum", "ns", 1234500.0, 2048.0),
    ("launch__registers_per_thread", "register/thread", 168.0, 32.0),
    ("launch__waves_per_multiprocessor", "", 3.5, None),
    ("sm__warps_active.avg.pct_of_peak_sustained_active", "%", 41.2, 12.5),
    ("sm__maximum_warps_per_active_cycle_pct", "%", 50.0, 100.0),
    ("sm__throughput.avg.pct_of_peak_sustained_elapsed", "%", 63.5, 2.0),
    ("sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active", "%", 55.0, 0.0),
    ("gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", "%", 87.1, float("nan")),
    ("lts__throughput.avg.pct_of_peak_sustained_elapsed", "%", 44.0, 3.0),
    ("lts__t_sector_hit_rate.pct", "%", 33.3, 90.0),
    (f"{_STALLED}_barrier_per_issue_active.ratio", "inst", 0.75, 0.0),
    (f"{_STALLED}_long_scoreboard_per_issue_active.ratio", "inst", 12.5, 4.0),
    (f"{_STALLED}_long_scoreboard_not_issued_per_issue_active.ratio", "inst", 12.4, 4.0),
    (f"{_STALLED}_selected_per_issue_active.ratio", "inst", 1.0, 1.0),
    (f"{_STALLED}_wait_per_issue_active.ratio", "inst", 1.25, float("nan")),
    (f"{_STALLED}_math_pipe_throttle_per_issue_active.ratio", "inst", 2.5, 0.0),
)
_LAUNCHES = ("rows_kernel(float *, int)", "reduce_kernel")


def report_text(unit_of_time: str = "ns") -> str:
    """Return a report of two launches."""
    return json.dumps(
        [
            {
                "name": name,
                "metrics": {
                    metric: (values[place], unit_of_time if unit == "ns" else unit)
                    for metric, unit, *values in _METRICS
                },
            }
            for place, name in enumerate(_LAUNCHES)
        ]
    )


# The package's functions that the workbench calls, as its docstrings describe them.
_READER = """
import json
from pathlib import Path

class Metric:
    def __init__(self, value, unit):
        self.value, self.unit = lambda: value, lambda: unit

class Action:
    NameBase_DEMANGLED = 1

    def __init__(self, launch):
        self.launch = launch

    def name(self, base):
        return self.launch["name"] if base == self.NameBase_DEMANGLED else "_Zmangled"

    def metric_names(self):
        return tuple(self.launch["metrics"])

    def metric_by_name(self, name):
        return Metric(*self.launch["metrics"][name]) if name in self.launch["metrics"] else None

def load_report(path):
    try:
        launches = json.loads(Path(path).read_text())
    except ValueError:
        return []
    return [[Action(launch) for launch in launches]]
"""

_PROGRAM = f"""#!{sys.executable}
import json, os, pathlib, subprocess, sys, time

arguments = sys.argv[1:]
with open(os.environ["FAKE_NCU_LOG"], "a") as log:
    log.write(json.dumps(arguments) + "\\n")
how = os.environ.get("FAKE_NCU", "counts")
print("==PROF== Connected to process 4711", flush=True)
if how == "hangs":
    pathlib.Path(os.environ["FAKE_NCU_LOG"] + ".pid").write_text(str(os.getpid()))
    time.sleep(600)
if how == "forbidden":
    print({PERMISSION!r}, flush=True)
program = arguments[arguments.index("--export") + 2 :]
status = subprocess.run(program).returncode if how == "counts" else 0
if how in ("counts", "skips") and status == 0:
    report = pathlib.Path(arguments[arguments.index("--export") + 1].replace("%%", "%"))
    report.write_text({report_text()!r})
    print(f"==PROF== Report: {{report}}")
elif how == "broken":
    print("==ERROR== Failed to load the injection library", "it gave up", sep="\\n")
else:
    print("==WARNING== No kernels were profiled.")
sys.exit({{"forbidden": 1, "broken": 9}}.get(how, status))
"""


def write_ncu(folder: Path) -> Path:
    """Write the program, and ncu_report.py beside it.

    The program appends its arguments to the file that FAKE_NCU_LOG names.

    FAKE_NCU: counts (the default), skips (doesn't run the program, but reports), or a failure:
    forbidden, broken, empty, hangs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "ncu"
    program.write_text(_PROGRAM)
    (folder / "ncu_report.py").write_text(_READER)
    program.chmod(0o755)
    return program
