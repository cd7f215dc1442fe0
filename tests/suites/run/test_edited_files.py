"""A record knows the files it was made with: rows of before an edit aren't taken for later ones."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from kernel_workbench.profiles.environment import tree_hash
from kernel_workbench.reports.record import RunHeader, latest, read
from kernel_workbench.suites.run.earlier_run import done_rows
from tests.builders.accuracy_records import example_header, example_row, write_example
from tests.builders.commands import ACCURACY, run_python
from tests.builders.compared_records import bench_row, header, write

pytestmark = pytest.mark.long_run

_OLD, _NEW = "0" * 64, "1" * 64
_EDITS_ITSELF = """
import pathlib
import torch
from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel

@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def mine(dy, x, weight, mean, rstd):
    if "edited" not in (text := pathlib.Path(__file__).read_text()).splitlines()[-1]:
        pathlib.Path(__file__).write_text(text + "# edited")
    h, g = (x - mean[:, None]) * rstd[:, None], dy * weight
    dx = (g - g.mean(1, keepdim=True) - h * (g * h).mean(1, keepdim=True)) * rstd[:, None]
    return dx, (dy * h).sum(0), dy.sum(0)
"""


def _header(tree: str | None, **files: str) -> RunHeader:
    made = example_header(1)
    machine = made.environment.model_copy(update={"tree": tree})
    files = {f"{name}.py": told for name, told in files.items()}
    return made.model_copy(update={"environment": machine, "files": files})


def _record(path: Path, head: RunHeader) -> str:
    write_example(path, [example_row()])
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([head.model_dump_json() + "\n", *lines[1:]]))
    return str(path)


@pytest.mark.parametrize(
    ("then", "now", "edited"),
    [
        (_header(_OLD, mine=_OLD), _header(_OLD, mine=_OLD), None),
        (_header(_OLD, mine=_OLD), _header(_OLD, mine=_NEW), "mine.py"),
        (_header(_OLD, mine=_OLD), _header(_NEW, mine=_OLD), "the checkout"),
        (_header(_OLD, mine=_OLD), _header(_OLD, mine=_OLD, other=_NEW), None),
        (_header(None), _header(_NEW, mine=_NEW), None),
    ],
)
def test_run_isnt_gone_on_with_after_an_edit(
    tmp_path: Path, then: RunHeader, now: RunHeader, edited: str | None
) -> None:
    """A file or the checkout was edited; another file may come, and an old record has no hashes."""
    path = _record(tmp_path / "run.jsonl", then)
    if edited is None:
        assert len(done_rows(path, now, [], whole=False)) == 1
        return
    with pytest.raises(pytest.UsageError) as refusal:
        done_rows(path, now, [], whole=False)
    sentence = f"--resume {path}: {edited} has changed since; run all of it again"
    assert str(refusal.value) == sentence


def _run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Two cases on the user's kernel."""
    cases = folder / "cases.jsonl"
    line = {"op": "layer_norm_backward", "sizes": {"m": 3, "n": 64}, "dtype": "float32"}
    cases.write_text("".join(json.dumps(line | {"seed": seed}) + "\n" for seed in (1, 2)))
    asked = (f"--kernels={folder / 'mine.py'}", f"--cases={cases}", f"--results={folder}/results")
    return run_python(*ACCURACY, *asked, *options)


def test_file_that_is_edited_while_its_run_goes_on_fails_it(tmp_path: Path) -> None:
    """Whichever worker imports it next has the other kernel; nor is it gone on with."""
    file = tmp_path / "mine.py"
    file.write_text(_EDITS_ITSELF)
    ran = _run(tmp_path)
    assert ran.returncode == pytest.ExitCode.INTERNAL_ERROR
    assert f"{file} changed during the run" in " ".join(ran.stdout.split())
    record = latest(tmp_path / "results")
    kept = record.read_bytes()
    assert read(record).header.files.keys() == {str(file), str(tmp_path / "cases.jsonl")}
    again = _run(tmp_path, f"--resume={record}")
    assert again.returncode == 4
    assert f"{file} has changed since; run all of it again" in again.stderr
    assert record.read_bytes() == kept
    assert _run(tmp_path).returncode == 0


def test_hash_of_the_tree_is_of_what_makes_a_run(tmp_path: Path) -> None:
    """A file of a room, new, changed or renamed; neither the README nor what Python compiled."""
    for name in ("kernels/a.py", "suites/b.py", "pyproject.toml", "README.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "kernel_workbench").mkdir()
    for room in ("kernels", "suites"):
        (tmp_path / "kernel_workbench" / room).symlink_to(f"../{room}")
    hashes = [tree_hash(tmp_path)]
    (tmp_path / "README.md").write_text("another word")
    (tmp_path / "kernels/__pycache__").mkdir()
    (tmp_path / "kernels/__pycache__/a.pyc").write_text("compiled")
    (tmp_path / "kernel_workbench/__pycache__").mkdir()
    (tmp_path / "kernel_workbench/__pycache__/b.pyc").write_text("compiled")
    assert tree_hash(tmp_path) == hashes[0]
    (tmp_path / "kernels/untracked.py").write_text("")
    hashes.append(tree_hash(tmp_path))
    (tmp_path / "suites/b.py").write_text("changed")
    hashes.append(tree_hash(tmp_path))
    (tmp_path / "suites/b.py").rename(tmp_path / "suites/c.py")
    hashes.append(tree_hash(tmp_path))
    assert len(set(hashes)) == 4
    (tmp_path / "pyproject.toml").write_text("another torch")  # a record names the versions
    assert tree_hash(tmp_path) == hashes[-1]


def test_comparison_says_that_sides_ran_different_files(tmp_path: Path) -> None:
    """The checkout's, and a user's; alike ones, and records without hashes, aren't spoken of."""
    trees = {"a": (_OLD, _OLD), "b": (_NEW, _NEW), "c": (_OLD, _OLD), "d": (None, None)}
    paths = {}
    for name, (tree, told) in trees.items():
        head = header()
        machine = head.environment.model_copy(update={"tree": tree})
        files = {} if told is None else {"mine.py": told}
        head = head.model_copy(update={"environment": machine, "files": files})
        paths[name] = write(tmp_path / f"{name}.jsonl", head, [bench_row()])
    different = (
        "A and B ran different trees of the checkout",
        "A and B ran different versions of mine.py",
    )
    for other in "bcd":
        done = run_python("-m", "kernel_workbench.reports.comparison", paths["a"], paths[other])
        assert done.returncode == 0, done.stderr
        assert [each in done.stdout for each in different] == [other == "b"] * 2
