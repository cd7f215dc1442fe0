"""Progress of a run: small tiles first, and a line where one launch takes minutes."""

from __future__ import annotations

import pytest

from kernel_workbench.kernels.registry import all_kernels
from kernel_workbench.suites.compile.plan import Planned
from kernel_workbench.suites.compile.session import _BATCH, _batches
from kernel_workbench.suites.compile.workers import Compile, NamedCall, Noted
from kernel_workbench.suites.run.progress import Progress

_KERNEL = next(each for each in all_kernels() if each.name == "column_owning")
_CASE = next(iter(_KERNEL.op.cases()))


def _planned(extent: int, sm: int = 90) -> Planned:
    noted = Noted(f"{extent} {sm}", "function", {"BLOCK": extent, "num_stages": 1}, None)
    return Planned(_KERNEL, "label", _CASE, sm, "function", noted)


def _extents(batch: Compile) -> list[int]:
    return [int(key.partition(" ")[0]) for key, _ in batch.wanted]


def test_launches_of_large_tiles_come_last_and_alone() -> None:
    """A batch is answered as a whole: small ones in it would wait for minutes."""
    large = [2**18, 2**17]
    small = [2 ** (number % 10) for number in range(40)]
    batches = _batches([_planned(each) for each in (*large, *small)], 1)[90]
    assert [_extents(each) for each in batches[-2:]] == [[2**17], [2**18]]
    order = [each for batch in batches[:-2] for each in _extents(batch)]
    assert order == sorted(small)
    assert max(len(each.wanted) for each in batches) == _BATCH


def test_task_that_takes_long_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line every fifteen seconds, though nothing is done: README's kernel had none in 280 s."""
    shown = Progress("compile")
    shown.begin(13)
    clock = iter(range(0, 1000, 10))
    begun = shown._shown
    monkeypatch.setattr(
        "kernel_workbench.suites.run.progress.time.monotonic", lambda: begun + next(clock)
    )
    task = Compile((("key", NamedCall(_KERNEL.op.name, _KERNEL.name, _CASE)),) * 3)
    for _ in range(6):
        shown.wait(f"at {task.name}")
    lines = capsys.readouterr().err.splitlines()
    assert 2 <= len(lines) <= 4
    name = f"column_owning on {_CASE.id()} and 2 more"
    assert set(lines) == {f"compile: 0 of 13, at {name}"}
