"""Builds of a kernel: once for each version of its file, under a lock, with one sentence."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import shutil
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType

import pytest

from kernel_workbench.kernels import builds
from kernel_workbench.kernels.builds import BuildError, built, is_built, old_locks

_FILE = """
import subprocess
from pathlib import Path

def table(folder):
    count = Path(__file__).with_name("count")
    with count.open("a") as file:
        file.write("x")
    (folder / "table").write_text("7")
    return folder / "table"

def refused(folder):
    (folder / "a.cpp").write_text("int main() { return nothing; }")
    subprocess.run(["g++", "a.cpp"], cwd=folder, check=True)

def without_compiler(folder):
    subprocess.run(["/nowhere/g++", "a.cpp"], cwd=folder, check=True)

def ends(folder):
    raise SystemExit(3)

def returns_a_function(folder):
    return lambda: 7
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A kernel's file with several builds, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "mine.py").write_text(_FILE)
    return _imported(tmp_path / "mine.py")


def _imported(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("mine", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _in_another_process(build: Callable[[Path], Path]) -> None:
    process = get_context("fork").Process(target=built, args=(build,))
    process.start()
    process.join()
    assert process.exitcode == 0


def test_result_is_built_once_for_all_processes(mine: ModuleType, tmp_path: Path) -> None:
    """A second call and other processes take it from the cache."""
    assert not is_built(mine.table)
    _in_another_process(mine.table)
    assert is_built(mine.table)
    _in_another_process(mine.table)
    assert [built(mine.table).read_text() for _ in range(2)] == ["7", "7"]
    assert (tmp_path / "count").read_text() == "x"


@pytest.mark.parametrize("changed", ["mine.py", "mine.cu", "mine.h"])
def test_result_of_an_edited_file_is_built_anew(
    mine: ModuleType, changed: str, tmp_path: Path
) -> None:
    """An edit of the kernel's file or of a source beside it leads to a new build."""
    built(mine.table)
    with (tmp_path / changed).open("a") as file:
        file.write("\n")
    again = _imported(tmp_path / "mine.py")
    assert not is_built(again.table)
    built(again.table)
    assert (tmp_path / "count").read_text() == "xx"


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++ here")
def test_failed_build_is_said_by_the_compilers_line(mine: ModuleType) -> None:
    """The line about the error, not the count of errors or the exit status, and the log's path."""
    with pytest.raises(BuildError) as raised:
        built(mine.refused)
    sentence = str(raised.value)
    assert re.match(r"refused raised CalledProcessError: a\.cpp:1:21: error: .*nothing", sentence)
    log = Path(sentence.partition("all of its output: ")[2].rstrip(")"))
    assert "a.cpp:1:21" in log.read_text()
    assert not is_built(mine.refused)


def test_build_without_a_compiler_names_it(mine: ModuleType) -> None:
    """By the table of causes."""
    with pytest.raises(BuildError, match=r"a compiler is missing: g\+\+; install it"):
        built(mine.without_compiler)


@pytest.mark.parametrize(
    ("name", "words"),
    [("ends", "ends raised SystemExit: 3"), ("returns_a_function", "returned a function, which")],
)
def test_build_that_returns_nothing_to_keep_is_refused(
    mine: ModuleType, name: str, words: str
) -> None:
    """It ends its process, as setuptools does, or returns what no other process can read."""
    with pytest.raises(BuildError, match=re.escape(words)):
        built(getattr(mine, name))


def test_method_is_no_build() -> None:
    """A function of a file has a text that the cache can go by; a partial has none."""
    with pytest.raises(BuildError, match="write a function of the kernel's file"):
        built(Path("x").with_name)  # type: ignore[arg-type]


def test_rest_of_an_interrupted_build_is_cleared(mine: ModuleType, tmp_path: Path) -> None:
    """Files, a lock of torch's and a lock file that a killed process left don't stop a build."""
    folder = builds._folder_of(mine.table)
    folder.mkdir(parents=True)
    (folder / "lock").touch()
    (folder / "result.pickle.unfinished").write_bytes(b"half")
    folder.with_suffix(".lock").write_text("4711")
    assert built(mine.table, wait_s=0.0).read_text() == "7"
    assert not (folder / "lock").exists()
    assert (tmp_path / "count").read_text() == "x"


def test_lock_of_a_running_build_is_named(mine: ModuleType) -> None:
    """With the process that holds it, after the time that the caller would wait."""
    lock = builds._folder_of(mine.table).with_suffix(".lock")
    lock.parent.mkdir(parents=True)
    holder = os.open(lock, os.O_RDWR | os.O_CREAT)
    fcntl.flock(holder, fcntl.LOCK_EX)
    os.write(holder, b"4711")
    with pytest.raises(BuildError, match="process 4711 has built the same for over 0 s"):
        built(mine.table, wait_s=0.0)
    os.close(holder)
    assert built(mine.table, wait_s=0.0).read_text() == "7"


def test_old_locks_are_those_of_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that torch's load_inline waits for, and not one of a build that began later."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    old, new = tmp_path / "py311_cpu" / "old" / "lock", tmp_path / "new" / "lock"
    for lock in (old, new):
        lock.parent.mkdir(parents=True)
        lock.touch()
    os.utime(old, (1000, 1000))
    assert old_locks(2000.0) == (old,)
