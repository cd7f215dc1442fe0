"""Measure how soon a warm judge answers when a file is edited, and what memory it takes.

    python -m studies.warm_judge --edits 100

The study starts a server, edits README's kernel, and asks for a verdict with `--quick` after each
edit. Every other edit is wrong: a verdict that isn't that of the file as it lies there ends the
study. On a machine that others use, seconds say little; the table has processor time beside them:
the client's, and the judge's with all its processes. The table also has the seconds of all rows,
and of the kernel's calls in these rows. The first calls compile.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
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
    file, seconds, processor = folder / "mine.py", [], []
    in_rows, in_calls = [], []
    command = [*_PROGRAM, "accuracy", str(file), f"--device={device}", "--quick", "--json"]
    command += [f"--results={folder / 'results'}"]
    time.sleep(10)  # spares get ready
    before = _memory(server.pid)
    for number in range(edits):
        changed = text if number % 2 == 0 else text.replace(_RIGHT, _WRONG)
        file.write_text(f"# edit {number}\n{changed}")
        clients = _clients()
        tree = _tree(server.pid)
        spent, begin = sum(tree.values()), time.perf_counter()
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        seconds.append(time.perf_counter() - begin)
        processor.append(_of_run(server.pid, tree) - spent + _clients() - clients)
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
    after = _memory(server.pid)
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
        "processor seconds": processor,
    }
    for name, values in figures.items():
        ordered = sorted(values)
        late = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
        print(f"{name:<24} median {statistics.median(values):.2f}  95th percentile {late:.2f}")
    print(f"{'memory of the server':<24} before {before:.0f} MiB  after {after:.0f} MiB")
    return status


def _clients() -> float:
    """Return the processor seconds of the clients that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _tree(root: int) -> dict[int, float]:
    """Return the processor seconds of a process and its descendants, with those they waited for."""
    parents, times = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            parents[int(path.parent.name)] = int(fields[1])
            times[int(path.parent.name)] = sum(map(int, fields[11:15])) / _TICKS
    tree = {root: times[root]}
    while True:
        more = {pid for pid, parent in parents.items() if parent in tree and pid not in tree}
        if not more:
            return tree
        tree |= {pid: times[pid] for pid in more}


def _of_run(server: int, before: Mapping[int, float]) -> float:
    """Return the processor seconds of the processes that were there before a run.

    A spare that was forked during the run, and what that spare started, don't count.
    """
    after = _tree(server)
    children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    new = [int(child) for child in children if int(child) not in before]
    return sum(after.values()) - sum(sum(_tree(child).values()) for child in new if child in after)


def _memory(server: int) -> float:
    """Return the resident memory of the server in MiB."""
    pages = int(Path(f"/proc/{server}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    sys.exit(main())
