"""Measure how soon a warm judge answers when a file is edited.

    python -m studies.warm_judge --edits 100

The study starts a server, edits README's kernel, and asks for a verdict with `--quick` after each
edit. Every other edit is wrong: a verdict that isn't that of the file as it lies there ends the
study. The table also has the seconds of all rows, and of the kernel's calls in these rows. The
first calls compile.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kernel_workbench.reports.record import read
from kernel_workbench.root import ROOT
from kernel_workbench.serve.client import SOCKET_VARIABLE

_PROGRAM = [sys.executable, "-m", "kernel_workbench"]
_TICKS = os.sysconf("SC_CLK_TCK")
_RIGHT, _WRONG = "out = g - tl.sum(g) / n", "out = g - tl.sum(g) / (n + 1)"


def main() -> int:
    """Serve, edit, ask, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m studies.warm_judge", description=__doc__)
    parser.add_argument("--edits", type=int, default=100, help="how often the file is edited")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="as of serve")
    parser.add_argument(
        "--pause", type=float, default=2.0, help="seconds between two edits, for a spare"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="warm-judge-") as folder:
        os.environ[SOCKET_VARIABLE] = str(Path(folder) / "own" / "judge.sock")
        server = subprocess.Popen(
            [*_PROGRAM, "serve", f"--device={options.device}"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            return _measure(server, Path(folder), options.edits, options.device, options.pause)
        finally:
            server.terminate()
            server.wait(60)


def _measure(
    server: subprocess.Popen[str], folder: Path, edits: int, device: str, pause: float
) -> int:
    assert server.stdout is not None
    print(server.stdout.readline().strip(), flush=True)
    text = (ROOT / "README.md").read_text().split("```python\n")[1].split("```")[0]
    assert text.count(_RIGHT) == 1
    file, seconds = folder / "mine.py", []
    in_rows, in_calls = [], []
    command = [*_PROGRAM, "accuracy", str(file), f"--device={device}", "--quick", "--json"]
    command += [f"--results={folder / 'results'}"]
    time.sleep(10)  # spares get ready
    for number in range(edits):
        changed = text if number % 2 == 0 else text.replace(_RIGHT, _WRONG)
        file.write_text(f"# edit {number}\n{changed}")
        begin = time.perf_counter()
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        seconds.append(time.perf_counter() - begin)
        print(f"edit {number}: {seconds[-1]:.2f} s", flush=True)
        if server.poll() is not None:
            print(f"edit {number}: the server has ended with status {server.returncode}")
            return 1
        report = json.loads(done.stdout)
        if report["passed"] != (number % 2 == 0) or "without the warm judge" in done.stderr:
            sentences = [failure["sentence"] for failure in report["failures"]]
            print(f"edit {number}: {report['verdict']}: {report['error'] or sentences}")
            print(done.stderr)
            return 1
        rows = read(Path(report["record"])).rows
        in_rows.append(sum(row.duration_s or 0.0 for row in rows))
        in_calls.append(sum(row.call_s or 0.0 for row in rows))
        time.sleep(pause)  # the next spare gets ready
    load = os.getloadavg()[0]
    server.send_signal(signal.SIGTERM)
    status = server.wait(60)
    print(
        f"{edits} edits on {os.cpu_count()} cores, load {load:.1f}; the server ended with {status}"
    )
    figures = {
        "seconds to a verdict": seconds,
        "seconds of rows": in_rows,
        "seconds of calls": in_calls,
    }
    for name, values in figures.items():
        ordered = sorted(values)
        late = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
        print(f"{name:<24} median {statistics.median(values):.2f}  95th percentile {late:.2f}")
    return status


if __name__ == "__main__":
    sys.exit(main())
