"""A node that dies at a random moment of a run by Ray: is a row lost, or doubled?

`python -m studies.fleet_faults --moments 20` starts a small Ray cluster on this machine, of nodes
that say they have an accelerator. A moment is a number of rows, drawn at random; when it is reached
the node that runs is removed, as from a power failure. Every other time there is no second node.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ray.cluster_utils import Cluster

from reports.arguments import CommandLine, whole_number
from reports.record import read
from suites import ROOT

_KIND = "H200"
_SUITE = ("accuracy", "--device", "cpu", "--op", "attention_delta", "--kernel", "delta")
_WAIT_S = 0.02


def main(arguments: Sequence[str] | None = None) -> int:
    """Try so many moments and print what came of each; 1 where a row was lost or doubled."""
    parser = CommandLine(prog="python -m studies.fleet_faults", description=__doc__)
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
        nodes = [_added(cluster)]
        for moment in range(options.moments):
            second = moment % 2 == 0
            while len(nodes) < 1 + second:
                nodes.append(_added(cluster))
            rows = draws.randrange(planned or 60)
            told = _try(cluster, nodes, rows)
            planned = max(planned, told["planned"])
            whole = told["kept"] == planned if second else told["kept"] >= rows
            wrong = not whole or told["doubled"] or bool(told["status"]) == second
            bad += bool(wrong)
            print(f"{moment + 1:3}  {'moves' if second else 'alone'}  {told}", flush=True)
    finally:
        cluster.shutdown()
    print(f"{bad} of {options.moments} moments lost or doubled a row")
    return int(bad > 0)


def _added(cluster: Any) -> Any:  # noqa: ANN401  (Ray's, untyped)
    has = {f"accelerator_type:{_KIND}": 1}
    return cluster.add_node(num_cpus=1, resources=has, object_store_memory=80 * 2**20)


def _try(cluster: Any, nodes: list[Any], rows: int) -> dict[str, Any]:  # noqa: ANN401
    """Run, remove the node that runs when so many rows are there; it is taken out of `nodes`."""
    with tempfile.TemporaryDirectory(prefix="fleet-faults-") as folder:
        command = [sys.executable, "-m", "suites.fleet", "--address", cluster.address]
        command += ["--on", _KIND, "--results", folder, "--", *_SUITE, "--in-process"]
        began = time.monotonic()
        with (Path(folder) / "said").open("wb") as said:
            driver = subprocess.Popen(command, cwd=ROOT, stdout=said, stderr=said)
            while driver.poll() is None and (_lines(folder) < rows + 1 or not _running(nodes)):
                time.sleep(_WAIT_S)
            at = _lines(folder) - 1
            for each in _running(nodes):
                nodes.remove(each)
                cluster.remove_node(each, allow_graceful=False)
            status = driver.wait()
        records = [read(path) for path in sorted(Path(folder).glob("fleet-*/*/*.jsonl"))]
        cases = [row.case.id for record in records for row in record.rows]
        return {
            "at": at,
            "kept": len(set(cases)),
            "doubled": len(cases) - len(set(cases)),
            "planned": max((each.header.planned_rows for each in records), default=0),
            "status": status,
            "seconds": round(time.monotonic() - began, 1),
            "problem": str(records[-1].problem).partition(": ")[2][:120] if records else "",
        }


def _lines(folder: str) -> int:
    paths = Path(folder).glob("fleet-*/*/*.jsonl")
    return sum(path.read_bytes().count(b"\n") for path in paths)


def _running(nodes: Sequence[Any]) -> list[Any]:
    """Nodes whose raylet is an ancestor of a suite's process."""
    parents: dict[int, int] = {}
    suites = []
    for each in Path("/proc").iterdir():
        try:
            if each.name.isdigit():
                stat = (each / "stat").read_text().rpartition(")")[2].split()
                parents[int(each.name)] = int(stat[1])
                if b"-fleet-" in (each / "cmdline").read_bytes():
                    suites.append(int(each.name))
        except OSError:
            continue
    above = set()
    for process in suites:
        while process in parents:
            above.add(process)
            process = parents[process]
    raylets = [(node.all_processes["raylet"][0].process.pid, node) for node in nodes]
    return [node for process, node in raylets if process in above]


if __name__ == "__main__":
    sys.exit(main())
