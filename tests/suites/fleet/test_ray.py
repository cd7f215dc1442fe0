"""A fleet on a small Ray cluster, whose nodes say that they have accelerators, on this CPU.

One cluster for all: each node has a type of its own, and all have the type SHARED.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from ray.cluster_utils import Cluster

from kernel_workbench.profiles.environment import tree_hash
from kernel_workbench.profiles.processor_time import host_time
from kernel_workbench.reports.exit_status import ExitStatus
from kernel_workbench.reports.record import Record, read
from tests import ROOT
from tests.builders.commands import Running, run_python, wait_for

_KINDS = ("H200", "A100", "L40S")
_ROOMS = (
    "kernel_workbench",
    "oracles",
    "kernels",
    "profiles",
    "reports",
    "suites",
    "noxfile.py",
    "pyproject.toml",
)
_BENCH = ("--device", "cpu", "--op", "layer_norm_backward", "--kernel", "torch_eager")
# Warm: with three runs on two cores the probe of the flush may fail, and the run with it.
_FOUR = (*_BENCH, "--row-time", "0.1", "--cache", "warm")
# Rows of accuracy are the same wherever they are made, their durations aside.
_ACCURACY = ("--device", "cpu", "--op", "attention_delta", "--dtype", "float32")
_WAITING = (*_ACCURACY, "--kernel", "waiting", "--in-process", "-k", "s_q37")
_WAITS = "--kernels=tests/candidates/waiting_kernel.py"
_DRAWN = (*_ACCURACY, "--kernel", "delta", "--signs", "7", "-k", "s_q37")
_BURNS = "while True: pass"
_BURNERS = -(-(os.cpu_count() or 1) // 4)  # of a tenth of the cores on a row is marked
_TIMES = {"duration_s", "call_s"}

pytestmark = [
    pytest.mark.long_run,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning"),
]


class Nodes:
    """The cluster, and those of its nodes that live, by their own type.

    temporary  the folder where runs on its nodes have their files
    """

    def __init__(self, temporary: Path) -> None:
        self.temporary = temporary
        self.cluster: Any = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
        )
        self.alive: dict[str, Any] = {}
        for kind in _KINDS:
            has = {f"accelerator_type:{kind}": 1, "accelerator_type:SHARED": 1}
            memory = 80 * 2**20
            # A node that unpacks a checkout first removes what is there, and all share a host.
            added = self.cluster.add_node(
                num_cpus=1,
                resources=has,
                object_store_memory=memory,
                runtime_env_dir_name=f"runtime_resources_{kind}",
            )
            self.alive[kind] = added

    def remove(self, kind: str) -> None:
        """As from a power failure."""
        self.cluster.remove_node(self.alive.pop(kind), allow_graceful=False)

    def busy(self) -> list[str]:
        """The type of node of each run that has a process now: twice, where two runs share one."""
        runs = {}
        for process, run in self.benches().items():
            with suppress(OSError):  # it has ended meanwhile
                runs[run] = self.kind_of(process)
        return sorted(filter(None, runs.values()))

    def benches(self) -> dict[int, bytes]:
        """Processes of suites that were started on its nodes; a guard isn't one."""
        ours = f"--results={self.temporary}".encode()
        return {
            process: word
            for process, words in _processes().items()
            if b"kernel_workbench.suites.fleet.guard" not in words
            for word in words
            if word.startswith(ours)
        }

    def kind_of(self, process: int) -> str | None:
        """The node that a process belongs to: its raylet is an ancestor; None: it is of none."""
        ancestors = set()
        while process > 1:
            ancestors.add(process)
            process = int(_status(process)[1])
        for kind, node in self.alive.items():
            (raylet,) = node.all_processes["raylet"]
            if raylet.process.pid in ancestors:
                return kind
        return None


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """A head and three nodes."""
    temporary = tmp_path_factory.mktemp("nodes")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_TMPDIR", tempfile.gettempdir())  # its sockets' paths have to be short
        patch.setenv("TMPDIR", str(temporary))
        started = Nodes(temporary)
        yield started
        started.cluster.shutdown()


@pytest.fixture
def known_ground(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes are told what they would measure of their device first."""
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p tests.builders.known_ground")


def _status(process: int) -> list[str]:
    """The fields of /proc's stat after the name: state, parent, ..."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()


def _processes() -> dict[int, list[bytes]]:
    """The command line of each."""
    found = {}
    for each in Path("/proc").iterdir():
        with suppress(OSError):  # it has ended
            if each.name.isdigit():
                found[int(each.name)] = (each / "cmdline").read_bytes().split(b"\0")
    return found


def _fleet(nodes: Nodes, results: Path, *words: str, folder: Path = ROOT) -> Running:
    """A driver that goes on, as nox starts it."""
    address = ("--address", nodes.cluster.address, "--results", str(results))
    command = (sys.executable, "-m", "kernel_workbench.suites.fleet", *address, *words)
    return Running(*command, folder=folder, started=True)


def _records(results: Path) -> dict[str, list[Record]]:
    """By the type of node."""
    found: dict[str, list[Record]] = {}
    for path in sorted(results.glob("fleet-*/*/*.jsonl")):
        found.setdefault(path.parent.name, []).append(read(path))
    return found


def _has_rows(results: Path, count: int) -> bool:
    """Return True if at least `count` rows are in the fleet's records."""
    lines = [line for path in results.glob("fleet-*/*/*.jsonl") for line in path.open("rb")]
    return sum(b'"kind":"bench"' in line for line in lines) >= count


def _git(folder: Path, *words: str) -> None:
    named = ("-c", "user.name=n", "-c", "user.email=e@example.com")
    git = shutil.which("git")
    assert git is not None
    subprocess.run([git, "-C", folder, *named, *words], check=True, capture_output=True)


@pytest.fixture
def edited(tmp_path: Path) -> Path:
    """A checkout of which one file was edited since its only commit."""
    copy = tmp_path / "checkout"
    copy.mkdir()
    for each in _ROOMS:
        source = ROOT / each
        if source.is_dir():
            shutil.copytree(
                source, copy / each, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(source, copy / each)
    _git(copy, "init", "--quiet")
    _git(copy, "add", ".")
    _git(copy, "commit", "--quiet", "--message", "one")
    file = copy / "reports" / "record" / "run.py"
    text = file.read_text(encoding="utf-8")
    assert "ACCURACY_PROTOCOL = " in text
    file.write_text(
        text.replace("ACCURACY_PROTOCOL = ", "ACCURACY_PROTOCOL = 100 + "), encoding="utf-8"
    )
    return copy


def test_three_types_make_the_records_of_one_machine(
    nodes: Nodes, tmp_path: Path, edited: Path
) -> None:
    """Same header and rows as where nothing is shipped; an edit takes effect and shows."""
    alone = tmp_path / "alone"
    command = ("-m", "pytest", "kernel_workbench/suites/accuracy", *_DRAWN, f"--results={alone}")
    ran = run_python(*command, started=True)  # what it would be forked from takes 300 MB
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (expected,) = (read(each) for each in alone.glob("*.jsonl"))
    results = tmp_path / "fleet"
    on = [word for kind in _KINDS for word in ("--on", kind)]
    ended = _fleet(nodes, results, *on, "--", "accuracy", *_DRAWN, folder=edited).ended()
    assert ended.returncode == 0, ended.stderr
    records = _records(results)
    assert sorted(records) == sorted(_KINDS)
    tree = tree_hash(edited)
    assert tree != tree_hash()
    for (record,) in records.values():
        assert record.problem is None
        made = record.header
        assert made.protocol == 100 + expected.header.protocol
        assert (made.environment.git_dirty, made.environment.tree) == (True, tree)
        assert made.environment.git_commit is not None
        assert made.command.endswith(f"kernel-workbench accuracy {' '.join(_DRAWN)}")
        same = {"kernels", "planned_rows", "gate_baselines", "default_numerics", "absent"}
        assert made.model_dump(include=same) == expected.header.model_dump(include=same)
        assert len(record.rows) > 1
        rows = [row.model_dump(exclude=_TIMES) for row in record.rows]
        assert rows == [row.model_dump(exclude=_TIMES) for row in expected.rows]


def test_node_that_lacks_a_package_is_not_taken(nodes: Nodes, tmp_path: Path, edited: Path) -> None:
    """It is named, and where no other node has the type that is all."""
    file = edited / "pyproject.toml"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace('    "jaxtyping",', '    "no-such-package",'), encoding="utf-8")
    words = ("--on", "SHARED", "--", "bench", *_FOUR)
    ended = _fleet(nodes, tmp_path / "fleet", *words, folder=edited).ended()
    assert ended.returncode == 2, ended.stderr
    *lacks, last = ended.stderr.splitlines()
    assert len(lacks) == len(nodes.alive)
    sentence = "its Python lacks no-such-package; install"
    assert [each for each in lacks if sentence not in each] == []
    assert last == "SHARED: no node can run the suite; see above"


def test_runs_never_share_a_node(nodes: Nodes, tmp_path: Path) -> None:
    """Two at once on a type of several nodes take one each; on one of these a third one waits."""
    words = ("--", "accuracy", *_WAITING, _WAITS)
    first = _fleet(nodes, tmp_path / "1", "--on", "SHARED", *words)
    wait_for(nodes.busy, first)
    (kind,) = nodes.busy()
    third = _fleet(nodes, tmp_path / "3", "--on", kind, *words)
    wait_for(lambda: "has other work; the run waits until it has none" in third.printed[1], third)
    second = _fleet(nodes, tmp_path / "2", "--on", "SHARED", *words)
    wait_for(lambda: len(nodes.busy()) > 1, second)
    looks = [nodes.busy()]
    assert kind in looks[0]
    (nodes.temporary / "go").touch()

    def watched() -> bool:
        looks.append(nodes.busy())
        return third.process.poll() is not None

    wait_for(watched)
    assert all(len(look) == len(set(look)) <= 2 for look in looks), looks
    for folder, running in (("1", first), ("2", second), ("3", third)):
        ended = running.ended()
        assert ended.returncode == 0, ended.stderr
        ((record,),) = _records(tmp_path / folder).values()
        assert record.problem is None


# A task that asks Ray for no core, and takes one in four.
_TASK = f"""
import subprocess, sys
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

def burn(mark):
    command = [sys.executable, "-c", "{_BURNS}", mark]
    for each in [subprocess.Popen(command) for _ in range({_BURNERS})]:
        each.wait()

address, node, mark = sys.argv[1:]
ray.init(address, log_to_driver=False)
on = NodeAffinitySchedulingStrategy(node, soft=False)
ray.get(ray.remote(num_cpus=0)(burn).options(scheduling_strategy=on).remote(mark))
"""


@pytest.mark.usefixtures("known_ground")
def test_run_moves_from_nodes_that_fall_silent_or_die(nodes: Nodes, tmp_path: Path) -> None:
    """Every row comes once: none is lost, and none is made twice."""
    running = _fleet(nodes, tmp_path, "--on", "SHARED", "--", "bench", *_FOUR)
    wait_for(lambda: _has_rows(tmp_path, 1), running)
    (stopped,) = nodes.benches()
    first = nodes.kind_of(stopped)
    os.kill(stopped, signal.SIGSTOP)
    others: list[int] = []

    def moved() -> bool:
        others[:] = [each for each in nodes.benches() if each != stopped]
        return bool(others)

    wait_for(moved, running)
    second = nodes.kind_of(others[0])
    assert second is not None and second != first
    wait_for(lambda: _has_rows(tmp_path, 2), running)
    nodes.remove(second)
    ended = running.ended()
    (records,) = _records(tmp_path).values()
    rows = [row for record in records for row in record.benches]
    # On a busy machine a time may not be believed, which fails its row and the run.
    assert ended.returncode == int(any(row.status == "failed" for row in rows)), ended.stderr
    cases = [row.case.id for row in rows]
    assert len(cases) == len(set(cases)) == 4
    assert records[-1].problem is None
    assert "it sent nothing for 15 s" in ended.stderr
    wait_for(lambda: not nodes.benches())


@pytest.mark.usefixtures("known_ground")
def test_killed_driver_leaves_no_process_and_a_record_to_go_on_with(
    nodes: Nodes, tmp_path: Path
) -> None:
    """The second driver makes what is missing; when its only node dies, the record says so.

    The first row was timed beside a task, which Ray lets in since it asks for no core, and is
    marked.
    """
    (kind, node), mark = next(iter(nodes.alive.items())), f"mark of {tmp_path}"
    beside = Running(
        sys.executable, "-c", _TASK, nodes.cluster.address, node.node_id, mark, started=True
    )

    def burning() -> list[int]:
        return [each for each, words in _processes().items() if words[3:4] == [mark.encode()]]

    try:
        wait_for(burning, beside)
        assert nodes.kind_of(burning()[0]) == kind
        running = _fleet(nodes, tmp_path, "--on", kind, "--", "bench", *_FOUR)
        wait_for(lambda: _has_rows(tmp_path, 1), running)
        assert burning()
        assert running.process.poll() is None, running.printed
        running.ended(by=signal.SIGKILL)
    finally:
        beside.ended(by=signal.SIGKILL)
    wait_for(lambda: not nodes.benches() and not burning())
    (folder,) = tmp_path.glob("fleet-*")
    words = ("--on", kind, f"--resume={folder}", "--", "bench", *_FOUR)
    running = _fleet(nodes, tmp_path, *words)
    wait_for(lambda: _has_rows(tmp_path, 2), running)
    nodes.remove(kind)
    ended = running.ended()
    assert ended.returncode == ExitStatus.INCOMPLETE, ended.stderr
    ((record,),) = _records(tmp_path).values()
    cases = [row.case.id for row in record.benches]
    assert len(cases) == len(set(cases)) >= 2
    if host_time() is not None:
        assert "busy host" in record.benches[0].codes
    assert f"there is no other node that has {kind}" in str(record.problem)


def test_type_that_no_node_has_is_told_in_one_sentence(nodes: Nodes, tmp_path: Path) -> None:
    """At once, and no folder is made for records."""
    ended = _fleet(nodes, tmp_path, "--on", "B200", "--", "bench").ended()
    assert ended.returncode == 2
    assert ended.stderr.startswith("--on B200: no node of this cluster has it; there is ")
    assert ended.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())
