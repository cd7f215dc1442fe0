"""An `ncu` in Python: it takes Nsight Compute's options, runs a program, and leaves a report.

What it prints follows NVIDIA's manual of the command line; no figure in it was measured.
"""

from __future__ import annotations

import sys
from pathlib import Path

PERMISSION = (
    "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU "
    "Performance Counters on the target device 0."
)
_STALLED = "smsp__average_warps_issue_stalled"
# Names, units, and the values of two launches: `--page raw --csv --print-units base`.
_COLUMNS = (
    ("ID", "", "0", "1"),
    ("Process ID", "", "4711", "4711"),
    ("Kernel Name", "", "rows_kernel(float *, int)", "reduce_kernel"),
    ("Block Size", "", "(128, 1, 1)", "(64, 1, 1)"),
    ("gpu__time_duration.sum", "ns", "1,234,500", "2,048"),
    ("launch__registers_per_thread", "register/thread", "168", "32"),
    ("launch__waves_per_multiprocessor", "", "3.50", "n/a"),
    ("sm__warps_active.avg.pct_of_peak_sustained_active", "%", "41.20", "12.5"),
    ("sm__maximum_warps_per_active_cycle_pct", "%", "50", "100"),
    ("sm__throughput.avg.pct_of_peak_sustained_elapsed", "%", "63.5", "2"),
    ("sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active", "%", "55", "0"),
    ("gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", "%", "87.1", "(!) n/a"),
    ("lts__throughput.avg.pct_of_peak_sustained_elapsed", "%", "44.0", "3"),
    ("lts__t_sector_hit_rate.pct", "%", "33.3", "90"),
    (f"{_STALLED}_barrier_per_issue_active.ratio", "inst", "0.75", "0"),
    (f"{_STALLED}_long_scoreboard_per_issue_active.ratio", "inst", "12.5", "4"),
    (f"{_STALLED}_long_scoreboard_not_issued_per_issue_active.ratio", "inst", "12.4", "4"),
    (f"{_STALLED}_selected_per_issue_active.ratio", "inst", "1.00", "1"),
    (f"{_STALLED}_wait_per_issue_active.ratio", "inst", "1.25", "nan"),
    (f"{_STALLED}_math_pipe_throttle_per_issue_active.ratio", "inst", "2.5", "0"),
)


def _line(values: tuple[str, ...]) -> str:
    return ",".join(f'"{each}"' for each in values)


TABLE = "\n".join(["==PROF== a report of two launches", *map(_line, zip(*_COLUMNS, strict=True))])

_PROGRAM = f"""#!{sys.executable}
import json, os, pathlib, subprocess, sys, time

arguments = sys.argv[1:]
with open(os.environ["FAKE_NCU_LOG"], "a") as log:
    log.write(json.dumps(arguments) + "\\n")
if "--import" in arguments:
    print(pathlib.Path(arguments[arguments.index("--import") + 1]).read_text())
    sys.exit(0)
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
    report.write_text({TABLE!r})
    print(f"==PROF== Report: {{report}}")
elif how == "broken":
    print("==ERROR== Failed to load the injection library", "it gave up", sep="\\n")
else:
    print("==WARNING== No kernels were profiled.")
sys.exit({{"forbidden": 1, "broken": 9}}.get(how, status))
"""


def write_ncu(folder: Path) -> Path:
    """Write the program; it appends its arguments to the file that FAKE_NCU_LOG names.

    FAKE_NCU: counts (by default), skips the program that it is to count and reports all the same,
    or what goes wrong: forbidden, broken, empty, hangs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "ncu"
    program.write_text(_PROGRAM)
    program.chmod(0o755)
    return program
