"""`bench --against --changed`: rows that run the same compiled code on both sides aren't timed."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernel_workbench.kernels.registry import all_kernels
from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.op import Case
from kernel_workbench.suites.bench.changed_code import leave_out_same_code, same_code
from kernel_workbench.suites.bench.rounds import BenchSide
from kernel_workbench.suites.run.attempt import known_pairs
from kernel_workbench.suites.run.suite import Pair
from tests import ROOT

OP = OPS["softmax_forward"]

HEAD = """
    import torch, triton, triton.language as tl
    from kernel_workbench import SOFTMAX_FORWARD, Domain, kernel

    DOMAIN = Domain(dtypes=(torch.float32,), strides="contiguous")
"""
KERNEL = """
    @triton.jit
    def _{name}(x, y, n, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        row = tl.load(x + tl.program_id(0) * n + at, at < n, other=float("-inf"))
        power = tl.exp(row - tl.max(row))
        tl.store(y + tl.program_id(0) * n + at, power / tl.sum(power), at < n)

    @kernel(SOFTMAX_FORWARD, DOMAIN, name={name!r})
    def {name}(x):
        y = torch.empty_like(x)
        _{name}[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y
"""
_AUTOTUNE = """
    print("a line that the file prints where it is imported")

    @triton.autotune([triton.Config({{}}, num_warps=warps) for warps in {warps}], key=["n"])
    @triton.jit"""
TUNED = KERNEL.replace("\n    @triton.jit", _AUTOTUNE).replace(
    "        _{name}[", "        for _ in range(2): _{name}["
)
# The part of the kernel that changes, and the change in its text.
SAME = {
    "unchanged": ("", ""),
    "comment": ("power = ", "# the largest power is 1\n        power = "),
    "name": ("row", "entries"),
    "host": ("y = torch.empty_like(x)", "kept = None\n        y = torch.empty_like(x)"),
}
OTHER = {
    "arithmetic": ("row - tl.max(row)", "row - tl.max(row) * 1.5"),
    "grid": ("(x.shape[0],)]", "(x.shape[0], 2)]"),
    "warps": ("x.shape[1]))", "x.shape[1]), num_warps=8)"),
    "number": ("x, y, x.shape[1],", "x, y, x.shape[1] + 1,"),
    "pytorch": ("return y", "return y.clone()"),
    "launch": ("return y", "_launch[(1,)](x, y, 1, BLOCK=2)\n        return y"),
}
# It isn't known what these run.
UNTOLD = {
    "no launch": "y = torch.softmax(x, 1)",
    "no call": "raise RuntimeError",
}


def _file(path: Path, *, changed: bool) -> str:
    text = textwrap.dedent(HEAD)
    for name, change in (SAME | OTHER).items():
        kernel = KERNEL.format(name=name)
        text += textwrap.dedent(kernel.replace(*change) if changed and change[0] else kernel)
    for name, warps in (("same_tuning", (4,)), ("other_tuning", (4, 8)[: 1 + changed])):
        text += textwrap.dedent(TUNED.format(name=name, warps=warps))
    for name, body in UNTOLD.items():
        function = name.replace(" ", "_")
        text += (
            f"\n@kernel(SOFTMAX_FORWARD, DOMAIN, name={name!r})\n"
            f"def {function}(x):\n    {body}\n    return y\n"
        )
    path.write_text(text)
    return str(path)


def _case() -> Case:
    return next(
        case
        for case in OP.cases()
        if case.dtype == torch.float32 and case.size("m") > 1 and case.size("n") > 1
        if case.layout.name == "contiguous" and not case.options
    )


def _pairs(*names: str) -> list[Pair]:
    kernel = next(one for one in all_kernels() if one.op.name == OP.name)
    return [(replace(kernel, name=name), _case()) for name in names]


@pytest.mark.long_run
def test_same_machine_code_is_told_from_other_code(tmp_path: Path) -> None:
    """A comment changes nothing; other arithmetic, grids, numbers and operations do."""
    old, new = (_file(tmp_path / f"{word}.py", changed=word == "new") for word in ("old", "new"))
    sides = (
        BenchSide("A", "old.py", ROOT, ("--kernels", old)),
        BenchSide("B", "new.py", ROOT, (f"--kernels={new}",)),
    )
    pairs = _pairs(*SAME, *OTHER, "same_tuning", "other_tuning", *UNTOLD, "not there")
    same = [kernel.name for kernel, _ in same_code(sides, pairs, 90)]
    assert same == [*SAME, "same_tuning"]


def _sides() -> tuple[BenchSide, BenchSide]:
    return BenchSide("A", "a", ROOT, ("suite",)), BenchSide("B", "b", ROOT, ("suite",))


def test_sides_skip_the_rows_of_the_same_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A run skips what is in the file of --done, and the user reads how many rows these are."""
    pairs = _pairs("one", "other", "third")
    monkeypatch.setattr(
        "kernel_workbench.suites.bench.changed_code.same_code", lambda *_: pairs[:2]
    )
    sides = leave_out_same_code(_sides(), pairs, 90, tmp_path)
    assert sides is not None
    for side in sides:
        first, option, file = side.arguments
        assert (first, option) == ("suite", "--done")
        assert known_pairs(file).done == {(name, _case().id()) for name in ("one", "other")}
    assert "2 of 3 rows run the same compiled code on both sides" in capfd.readouterr().err


def test_nothing_is_timed_where_all_rows_have_the_same_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No side is left to time."""
    pairs = _pairs("one")
    monkeypatch.setattr("kernel_workbench.suites.bench.changed_code.same_code", lambda *_: pairs)
    assert leave_out_same_code(_sides(), pairs, 90, tmp_path) is None


def test_tree_that_cant_tell_shares_nothing(tmp_path: Path) -> None:
    """A commit that is older than the option has no program that hashes."""
    package = tmp_path / "kernel_workbench"
    package.mkdir()
    (package / "__init__.py").touch()
    sides = (BenchSide("A", "older", tmp_path, ()), BenchSide("B", "newer", tmp_path, ()))
    assert same_code(sides, _pairs("one"), 90) == []
