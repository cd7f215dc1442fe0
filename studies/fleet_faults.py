"""Does a fault at a random moment of a run by Ray lose a row, double it, or keep a dead attempt's?

`python -m studies.fleet_faults node --moments 20` starts a small Ray cluster on this machine, whose
nodes claim to have an accelerator. A moment is a random number of rows; when the run reaches it,

- node: the running node is removed, as by a power failure; every other time it is the only node;
- suite, worker, raylet: that process of the node is stopped, and continues when the run has moved
  and has a row from its second node, so that the first node's events come late;
- driver: the driver is killed, and another one continues its folder.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from ray.cluster_utils import Cluster

from kernel_workbench.reports.arguments import CommandLine, whole_number
from kernel_workbench.reports.record import read
from kernel_workbench.suites import ROOT

_KIND = "H200"
_SUITE = ("accuracy", "--device", "cpu", "--op", "attention_delta", "--kernel", "delta")
_LONG = ("accuracy", "--device", "cpu", "--op", "layer_norm_backward")
_STOPPED_S = 60.0  # the longest that a process is stopped if the run doesn't move
_WAIT_S = 0.02
_MOVES = b"runs the missing rows"
_STOPPED = ("suite", "worker", "raylet")


class _Tail:
    """The lines of the first new file that matches a pattern."""

    def __init__(self, folder: Path, pattern: str) -> None:
        self._folder, self._pattern = folder, pattern
        self._before = set(folder.glob(pattern))
        self._file: BinaryIO | None = None
        self.lines: list[bytes] = []

    def look(self) -> int:
        """Read new lines, also of a file that was removed, and return the number of all lines."""
        if self._file is None:
            new = sorted(set(self._folder.glob(self._pattern)) - self._before)
            if not new:
                return 0
            self._file = new[0].open("rb")
        start = self._file.tell()
        whole = self._file.read().rpartition(b"\n")
        self._file.seek(start + len(whole[0]) + len(whole[1]))
        self.lines += whole[0].split(b"\n") if whole[1] else []
        return len(self.lines)


class _Run:
    """A run of the fleet with its own folder of records."""

    def __init__(self, cluster: Any, folder: str, suite: Sequence[str]) -> None:  # noqa: ANN401
        self.folder, self._suite = Path(folder), suite
        self.log = self.folder / "log"
        self.nodes: list[_Tail] = []
        self.kept = _Tail(self.folder, f"fleet-*/{_KIND}/*.jsonl")
        self._command = [
            sys.executable,
            "-m",
            "kernel_workbench.suites.fleet",
            "--address",
            cluster.address,
        ]
        self._command += ["--on", _KIND, "--results", folder]
        self.start()

    def start(self, *words: str) -> None:
        """Start a driver."""
        self.follow()
        command = [*self._command, *words, "--", *self._suite, "--in-process"]
        with self.log.open("ab") as log:
            self.driver = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)

    def follow(self) -> _Tail:
        """Read the next record of a node, as it grows."""
        folder = Path(tempfile.gettempdir())
        self.nodes.append(_Tail(folder, "kernel-workbench-fleet-*/results/*.jsonl"))
        return self.nodes[-1]

    def until(self, event: Callable[[], object]) -> float:
        """Wait for an event or the driver's end, and return the seconds waited."""
        began = time.monotonic()
        while self.driver.poll() is None and not event():
            for tail in (*self.nodes, self.kept):
                tail.look()
            time.sleep(_WAIT_S)
        return round(time.monotonic() - began, 2)

    def results(self) -> dict[str, Any]:
        """Return counts of the records' rows, once the driver has ended."""
        records = [read(path) for path in sorted(self.folder.glob("fleet-*/*/*.jsonl"))]
        cases = [(row.kernel, row.case.id) for record in records for row in record.rows]
        return {
            "kept": len(set(cases)),
            "doubled": len(cases) - len(set(cases)),
            "planned": max((record.header.planned_rows for record in records), default=0),
            "status": self.driver.wait(),
            "problem": str(records[-1].problem).partition(": ")[2][:120] if records else "",
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Try moments and print their results; return 1 if a row was lost or doubled."""
    parser = CommandLine(prog="python -m studies.fleet_faults", description=__doc__)
    faults = ("node", *_STOPPED, "driver")
    parser.add_argument("fault", nargs="?", choices=faults, default="node")
    parser.add_argument("--moments", type=whole_number(1, 1000), default=20, metavar="N")
    parser.add_argument("--seed", type=whole_number(0, 2**31 - 1), default=0, metavar="N")
    options = parser.read(arguments)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    draws = random.Random(options.seed)  # noqa: S311 (moments keep no secret)
    cluster: Any = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    planned, bad = 0, 0
    try:
        nodes: list[Any] = []
        for moment in range(options.moments):
            second = options.fault in _STOPPED or (options.fault == "node" and moment % 2 == 0)
            while len(nodes) < 1 + second:
                nodes.append(_added(cluster))
            rows = draws.randrange(planned or 60)
            with tempfile.TemporaryDirectory(prefix="fleet-faults-") as folder:
                run = _Run(cluster, folder, _LONG if options.fault == "raylet" else _SUITE)
                run.until(lambda: run.kept.look() > rows and _running(nodes))  # noqa: B023  (used at once)
                at = run.kept.look() - 1
                results = {"at": at} | _tried(options.fault, cluster, nodes, run)
            planned = max(planned, results["planned"])
            alone = options.fault == "node" and not second
            whole = results["kept"] >= rows if alone else results["kept"] == planned
            wrong = not whole or results["doubled"] or results.get("late")
            bad += bool(wrong or bool(results["status"]) != alone)
            print(f"{moment + 1:3}  {'alone' if alone else options.fault:6}  {results}", flush=True)
    finally:
        cluster.shutdown()
    print(f"{bad} of {options.moments} moments lost or doubled a row")
    return int(bad > 0)


def _added(cluster: Any) -> Any:  # noqa: ANN401  (Ray's, untyped)
    has = {f"accelerator_type:{_KIND}": 1}
    return cluster.add_node(num_cpus=1, resources=has, object_store_memory=80 * 2**20)


def _tried(fault: str, cluster: Any, nodes: list[Any], run: _Run) -> dict[str, Any]:  # noqa: ANN401
    """Apply the fault to the run; return the results when its driver has ended."""
    if fault == "node":
        for running in _running(nodes):
            nodes.remove(running)
            cluster.remove_node(running, allow_graceful=False)
        return {"seconds": run.until(lambda: False)} | run.results()
    if fault == "driver":
        run.driver.kill()
        run.driver.wait()
        began = time.monotonic()
        while _suites():
            time.sleep(_WAIT_S)
        gone = round(time.monotonic() - began, 2)
        (folder,) = run.folder.glob("fleet-*")
        run.start(f"--resume={folder}")
        run.until(lambda: False)
        return {"gone_s": gone} | run.results()
    return _stopped(fault, cluster, nodes, run)


def _stopped(fault: str, cluster: Any, nodes: list[Any], run: _Run) -> dict[str, Any]:  # noqa: ANN401
    """Stop a process of the run's node; continue it when a second node has sent a row."""
    (node,) = _running(nodes)
    ancestors = _ancestors(_suites()[0])
    raylet = ancestors.index(_raylet(node))
    process = {"suite": ancestors[0], "worker": ancestors[raylet - 1], "raylet": ancestors[raylet]}
    first, second = run.nodes[0], run.follow()
    os.kill(process[fault], signal.SIGSTOP)
    until = time.monotonic() + _STOPPED_S
    moved_s = run.until(lambda: _MOVES in run.log.read_bytes() or time.monotonic() > until)
    moved = _MOVES in run.log.read_bytes()
    kept = run.kept.look()
    if moved:
        run.until(lambda: second.look() > 1)
    with suppress(ProcessLookupError):
        os.kill(process[fault], signal.SIGCONT)
    run.until(lambda: False)
    if fault == "raylet":  # the cluster may have dropped the node
        nodes.remove(node)
        cluster.remove_node(node, allow_graceful=False)
    first.look()
    late = _rows(first.lines[kept:]) if moved else set()  # a run that didn't move has one node
    came = {
        "moved_s": moved_s if moved else None,
        "moved_later": not moved and _MOVES in run.log.read_bytes(),
        "came_late": len(late),
        "late": len(late & _rows(run.kept.lines)),
    }
    return came | run.results()


def _rows(lines: Collection[bytes]) -> set[str]:
    """Return the rows of a record; two attempts at a case differ in their durations."""
    rows = [json.loads(line) for line in lines]
    return {json.dumps(row, sort_keys=True) for row in rows if row["kind"] == "accuracy"}


def _processes() -> dict[int, tuple[int, list[bytes]]]:
    """Return the parent and the command's words of each process, by its id."""
    processes = {}
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit():
                parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
                words = (folder / "cmdline").read_bytes().split(b"\0")
                processes[int(folder.name)] = int(parent), words
        except OSError:
            continue
    return processes


def _suites() -> list[int]:
    """Return the ids of this study's suite processes, without their guards."""
    ours = f"--results={tempfile.gettempdir()}/kernel-workbench-fleet-".encode()
    return [
        process
        for process, (_, words) in _processes().items()
        if any(word.startswith(ours) for word in words)
        and b"kernel_workbench.suites.fleet.guard" not in words
    ]


def _ancestors(process: int) -> list[int]:
    """Return the ids of a process, its parent, and so on."""
    parents = {process_id: parent for process_id, (parent, _) in _processes().items()}
    ancestors = []
    while process in parents:
        ancestors.append(process)
        process = parents[process]
    return ancestors


def _raylet(node: Any) -> int:  # noqa: ANN401  (Ray's, untyped)
    process: int = node.all_processes["raylet"][0].process.pid
    return process


def _running(nodes: Sequence[Any]) -> list[Any]:
    """Return the nodes whose raylet is an ancestor of a suite's process."""
    above = {process_id for process in _suites() for process_id in _ancestors(process)}
    return [node for node in nodes if _raylet(node) in above]


if __name__ == "__main__":
    sys.exit(main())
