"""Who else was there: others on a GPU by a made-up NVML, and on the host by processes that burn."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from kernel_workbench.profiles.nvml import NvmlGpu, open_gpu
from kernel_workbench.profiles.processor_time import HostTime, TreeTime, host_time, tree_time
from kernel_workbench.reports.record import read
from kernel_workbench.suites.bench.neighbours import Neighbours
from tests.builders.commands import run_python, wait_for
from tests.builders.fake_nvml import Board, install

_UUID = "GPU-11111111-1111-1111-1111-111111111111"
_OWN = TreeTime(frozenset({os.getpid(), 101}), 0)
_LISTED = "nvmlDeviceGetComputeRunningProcesses"
_BURNS = "while True:\n    pass\n"
# However many cores this machine has, what one process burns is too much.
_SLIGHT = """
import sys
import pytest
from kernel_workbench.suites.bench import neighbours

neighbours.MOST_LOAD = 0.001
sys.exit(pytest.main(sys.argv[1:]))
"""
_BENCH = [
    *(
        "kernel_workbench/suites/bench",
        "-qq",
        "-p",
        "no:cacheprovider",
        "-p",
        "tests.builders.known_ground",
    ),
    *("--device=cpu", "--row-time=0.5"),
    "--case=layer_norm_backward-m64-n256-float32-contiguous",
    "--kernel=torch_eager",
]


def _told(
    monkeypatch: pytest.MonkeyPatch, *looks: Iterable[int], **board: object
) -> dict[str, Any]:
    """Return what a row says of a GPU on which NVML lists these processes, look after look."""
    made = Board(_UUID, **board)  # type: ignore[arg-type]
    install(monkeypatch, made)
    gpu = open_gpu(_UUID)
    assert isinstance(gpu, NvmlGpu)
    neighbours = Neighbours(gpu, host=lambda: None, tree=lambda _: _OWN)
    made.answers[_LISTED] = [SimpleNamespace(pid=each) for each in looks[0]]
    before = neighbours.look()
    made.answers[_LISTED] = [SimpleNamespace(pid=each) for each in looks[-1]]
    return neighbours.since(before)


@pytest.mark.parametrize(
    ("before", "after", "others"),
    [
        ([101], [101], 0),
        ([101, 555], [101, 555], 1),
        ([101], [101, 555, 556], 2),
        ([101, 555], [101, 556], 2),  # one went, and another came
    ],
)
def test_gpu_that_others_have_is_marked(
    before: list[int], after: list[int], others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever was there at either look, and not this run's own workers."""
    told = _told(monkeypatch, before, after)
    assert told["gpu_processes"] == others
    assert told["codes"] == (("shared GPU",) if others else ())
    assert told["gpu_processes_reason"] is None


def test_gpu_whose_processes_have_other_numbers_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container: what came is still counted, and else it isn't known; never none."""
    for listed in ([], [7, 8]):
        told = _told(monkeypatch, listed, listed)
        assert told["codes"] == ()
        assert told["gpu_processes"] is None
        assert "as in a container" in told["gpu_processes_reason"]
    came = _told(monkeypatch, [7, 8], [7, 8, 9])
    assert (came["codes"], came["gpu_processes"]) == (("shared GPU",), 1)


def test_gpu_that_tells_no_processes_has_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """No permission, and a board whose instances are others' own."""
    refused = _told(monkeypatch, [], statuses={_LISTED: pynvml.NVML_ERROR_NO_PERMISSION})
    assert refused["gpu_processes_reason"] == "no permission: this user may not read it"
    divided = _told(monkeypatch, [101, 555], answers={"nvmlDeviceGetMigMode": [1, 1]})
    assert divided["gpu_processes_reason"].startswith("mig: ")
    for told in (refused, divided):
        assert (told["codes"], told["gpu_processes"]) == ((), None)


@pytest.mark.parametrize(
    ("busy", "own", "load", "codes"),
    [
        (400, 400, 0.0, ()),
        (400, 395, 0.0125, ()),
        (400, 396, 0.0, ()),  # so few ticks are how they are counted
        (400, 410, 0.0, ()),
        (400, 360, 0.1, ("busy host",)),
        (400, 0, 1.0, ("busy host",)),
    ],
)
def test_load_is_what_others_took_of_all_cores(
    busy: int, own: int, load: float, codes: tuple[str, ...]
) -> None:
    """The load is a share of the 400 ticks between two looks, without this run's own ticks."""
    hosts = iter([HostTime(1000, 8000), HostTime(1000 + busy, 8400)])
    trees = iter([TreeTime(frozenset({1}), 50), TreeTime(frozenset({1, 2}), 50 + own)])
    neighbours = Neighbours(host=lambda: next(hosts), tree=lambda _: next(trees))
    told = neighbours.since(neighbours.look())
    assert (told["host_load"], told["codes"]) == (pytest.approx(load), codes)
    assert told["gpu_processes"] is None and told["gpu_processes_reason"] is None


def test_load_that_is_not_told_is_missing() -> None:
    """A host without /proc/stat, and one whose time stands still."""
    for now in (None, HostTime(5, 9)):
        neighbours = Neighbours(host=lambda now=now: now)  # type: ignore[misc]
        assert neighbours.since(neighbours.look())["host_load"] is None


@pytest.fixture
def intruder() -> Iterator[int]:
    """A process that burns a core."""
    burning = subprocess.Popen([sys.executable, "-c", _BURNS])
    try:
        yield burning.pid
    finally:
        burning.kill()
        burning.wait()


def test_process_outside_of_the_run_is_others_time_and_one_inside_is_not(intruder: int) -> None:
    """Loads of the same looks differ by the intruder's time, with it in the run and without."""
    if host_time() is None:
        pytest.skip("this system tells no processor time of the host")

    def alone(top: int) -> TreeTime:
        whole = tree_time(top)
        return replace(whole, ticks=whole.ticks - tree_time(intruder).ticks)

    outside, inside = Neighbours(tree=alone), Neighbours()
    before = outside.look(), inside.look()
    begun = tree_time(intruder).ticks
    wait_for(lambda: tree_time(intruder).ticks - begun >= 100)
    loads = [
        each.since(look)["host_load"] for each, look in zip((outside, inside), before, strict=True)
    ]
    host = host_time()
    assert host is not None and before[0].host is not None
    took = 100 / (host.whole - before[0].host.whole)
    assert loads[0] - loads[1] >= took / 2  # ticks of hosts and of processes differ a little


def test_row_that_was_timed_beside_an_intruder_is_marked(tmp_path: Path, intruder: int) -> None:
    """In the record and in the report, end to end; the row keeps its time."""
    if host_time() is None:
        pytest.skip("this system tells no processor time of the host")
    assert intruder
    done = run_python("-c", _SLIGHT, *_BENCH, f"--results={tmp_path}")
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = tmp_path.glob("*.jsonl")
    (row,) = read(path).benches
    assert "busy host" in row.codes
    assert row.host_load is not None and 0 < row.host_load <= 1
    assert row.status == "timed" and row.median_us is not None
    assert "1 row timed while others took" in " ".join(done.stdout.split())
