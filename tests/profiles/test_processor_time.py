"""Processor time of the host and of a tree of processes, of a made-up /proc and of this one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernel_workbench.profiles.processor_time import HostTime, host_time, tree_time
from tests.builders.commands import wait_for

_BURNS = "import sys\nsys.stdin.close()\nwhile True:\n    pass\n"


def _add(root: Path, process: int, parent: int, *ticks: int) -> None:
    """A process; its name has what a reader might split at."""
    folder = root / str(process)
    folder.mkdir()
    before = f"S {parent} 1 1 0 -1 4194560 10 0 0 0"
    (folder / "stat").write_text(f"{process} (a) R 7 (b) {before} {' '.join(map(str, ticks))} 20 0")


def test_host_is_busy_but_for_its_idle_time_and_counts_no_guest_twice(tmp_path: Path) -> None:
    """User, nice, system, interrupts and what a hypervisor took; a guest's is a user's already."""
    (tmp_path / "stat").write_text("cpu  100 20 30 4000 500 6 7 8 90 9\ncpu0 1 1 1 1 1 1 1 1 0 0\n")
    assert host_time(tmp_path) == HostTime(busy=171, whole=4671)


@pytest.mark.parametrize("text", [None, "", "cpu  0 0 0 0 0 0 0 0 0 0\n", "intr 5\n", "cpu x\n"])
def test_host_that_tells_no_time_has_none(tmp_path: Path, text: str | None) -> None:
    """A sandbox has zeros there, another system no file."""
    if text is not None:
        (tmp_path / "stat").write_text(text)
    assert host_time(tmp_path) is None


def test_tree_has_all_below_its_top_and_the_time_of_those_that_ended(tmp_path: Path) -> None:
    """Children of children, and the time that a parent keeps of children it has waited for."""
    _add(tmp_path, 10, 1, 1, 2, 3, 4)
    _add(tmp_path, 11, 10, 10, 0, 0, 0)
    _add(tmp_path, 12, 11, 100, 0, 0, 0)
    _add(tmp_path, 13, 1, 1000, 0, 0, 0)
    (tmp_path / "14").mkdir()  # it has ended meanwhile
    (tmp_path / "self").mkdir()
    tree = tree_time(10, tmp_path)
    assert (tree.processes, tree.ticks) == (frozenset({10, 11, 12}), 120)


def test_burning_process_is_in_its_trees_time_and_in_its_hosts() -> None:
    """A child's ticks are in this process's tree, and in all that the host was busy with."""
    before, host = tree_time(os.getpid()), host_time()
    if host is None:
        pytest.skip("this system tells no processor time of the host")
    burning = subprocess.Popen([sys.executable, "-c", _BURNS], stdin=subprocess.DEVNULL)
    try:
        wait_for(lambda: tree_time(burning.pid).ticks >= 30)
        after, now = tree_time(os.getpid()), host_time()
    finally:
        burning.kill()
        burning.wait()
    assert burning.pid in after.processes - before.processes
    assert after.ticks - before.ticks >= 30
    assert now is not None
    assert now.busy - host.busy > 0
    assert now.whole >= host.whole
