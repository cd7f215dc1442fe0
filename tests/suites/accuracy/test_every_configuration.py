"""--every-configuration: each way in which a call could be cut is judged, not dispatch's alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from kernel_workbench.kernels.attention.registration import configurations_of_case, need_of_case
from kernel_workbench.kernels.attention.variants import serving
from kernel_workbench.kernels.configurations import configuration, held_to
from kernel_workbench.kernels.registry import all_kernels
from kernel_workbench.oracles import OPS
from kernel_workbench.reports.record import Record, latest, read
from kernel_workbench.reports.views.accuracy import headline
from tests.builders.commands import ACCURACY, run_python

pytestmark = pytest.mark.long_run

# Right by its own choice and by `two`, wrong by `four`; `asks` makes the name that it takes.
_KERNEL = """
import torch
from kernel_workbench import LAYER_NORM_BACKWARD, Domain, configuration, kernel

CUTS = {{"one": 0.0, "two": 0.0, "four": 1.0}}

@kernel(
    LAYER_NORM_BACKWARD,
    Domain(dtypes=(torch.float32,)),
    variant=lambda case, sm: "one",
    configurations=lambda case, sm: {listed},
)
def mine(dy, x, weight, mean, rstd):
    wrong = CUTS[{asks} or "one"]
    h, g = (x - mean[:, None]) * rstd[:, None], dy * weight
    dx = (g - g.mean(1, keepdim=True) - h * (g * h).mean(1, keepdim=True)) * rstd[:, None]
    return dx + wrong, (dy * h).sum(0), dy.sum(0)
"""
_ASKS, _LISTED = "configuration()", "tuple(CUTS)"


def _run(
    folder: Path, *options: str, status: int, asks: str = _ASKS, listed: str = _LISTED
) -> tuple[Record, str]:
    """The record of a run of two cases of the user's kernel, and what was printed."""
    (folder / "mine.py").write_text(_KERNEL.format(asks=asks, listed=listed))
    line = {"op": "layer_norm_backward", "dtype": "float32"}
    sizes = [{"m": 3, "n": n} for n in (16, 32)]
    (folder / "cases.jsonl").write_text(
        "\n".join(json.dumps(line | {"sizes": each}) for each in sizes)
    )
    files = (f"--kernels={folder / 'mine.py'}", f"--cases={folder / 'cases.jsonl'}")
    command = (*ACCURACY, f"--results={folder}")
    done = run_python(*command, *files, *options)
    assert done.returncode == status, done.stdout + done.stderr
    return read(latest(folder, "accuracy")), done.stdout


def _found(record: Record) -> list[tuple[int, str | None, str | None, str]]:
    found = [
        (dict(row.case.sizes)["n"], row.variant, row.configuration, row.status)
        for row in record.rows
    ]
    return sorted(found, key=str)


@pytest.mark.parametrize("jobs", [1, 2])
def test_fault_of_one_configuration_is_found_with_the_option_alone(
    tmp_path: Path, jobs: int
) -> None:
    """A kernel that is wrong by a cut that dispatch doesn't take passes, and then it doesn't."""
    record, _ = _run(tmp_path, f"--jobs={jobs}", status=0)
    assert _found(record) == [(16, "one", None, "passed"), (32, "one", None, "passed")]
    record, printed = _run(tmp_path, "--every-configuration", f"--jobs={jobs}", status=1)
    assert record.problem is None
    each = (("four", "four", "failed"), ("one", None, "passed"), ("two", "two", "passed"))
    assert _found(record) == [(n, *one) for n in (16, 32) for one in each]
    assert "2 configurations besides dispatch's choice" in headline(record).sentence
    failed = next(row for row in record.rows if row.status == "failed")
    assert "-contiguous, four: dx" in " ".join(printed.split())
    told = f"--case {failed.case.id} --signs {failed.signs} --configuration four"
    assert failed.reproduce.endswith(told)
    record, _ = _run(tmp_path, "--configuration=four", "--jobs=1", status=1)
    assert {each[2:] for each in _found(record)} == {("four", "failed")}


def test_run_that_was_cut_off_amid_configurations_is_gone_on_with(tmp_path: Path) -> None:
    """A pair whose rows aren't all there is tried again; one whose are isn't."""
    first, _ = _run(tmp_path, "--every-configuration", "--jobs=1", status=1)
    lines = first.path.read_text().splitlines(keepends=True)
    first.path.write_text("".join(lines[:-2]))  # less a row, and the end
    cut = read(first.path)
    assert len(cut.rows) == len(first.rows) - 1
    options = ("--every-configuration", "--jobs=1", f"--resume={first.path}")
    record, _ = _run(tmp_path, *options, status=1)
    assert record.problem is None
    assert _found(record) == _found(first)


def test_kernel_that_never_asks_is_told(tmp_path: Path) -> None:
    """Rows of configurations that no call took would be claims about nothing."""
    record, _ = _run(tmp_path, "--every-configuration", "--jobs=1", status=1, asks="None")
    reasons = {row.reason for row in record.rows if row.status == "failed"}
    (reason,) = reasons
    assert reason is not None and "never asks kernel_workbench.configuration()" in reason


def test_what_lists_no_names_is_told_in_a_sentence(tmp_path: Path) -> None:
    """A string would be taken letter by letter."""
    record, _ = _run(tmp_path, "--jobs=1", status=1, listed="'one'")
    assert {row.reason for row in record.rows} == {
        "its configurations is the string 'one'; write ('one',)"
    }


def test_unknown_configuration_is_refused(tmp_path: Path) -> None:
    """Nothing runs, and the refusal says why."""
    record, _ = _run(tmp_path, "--configuration=three", "--jobs=1", status=5)
    assert {(row.status, row.reason) for row in record.rows} == {
        ("refused", "has no configuration three for the case")
    }


def test_calls_ask_for_the_innermost_name() -> None:
    """And for none outside."""
    assert configuration() is None
    with held_to("one") as held:
        assert not held.asked
        with held_to("two"):
            assert configuration() == "two"
        assert (configuration(), held.asked) == ("one", True)
    assert configuration() is None


def test_each_variant_that_could_serve_is_in_a_configuration() -> None:
    """Each variant of each pass of a two-pass backward comes at least once."""
    case = next(
        each
        for each in OPS["attention_backward"].cases()
        if not each.options and each.dtype == torch.float16 and each.size("d") == 64
    )
    ways = (("dq", "dkdv"), ("dq", "dk", "dv"))
    found = configurations_of_case(*ways, case=case, sm=90)  # type: ignore[arg-type]
    kernel = next(each for each in all_kernels() if each.name == "two_pass")
    assert kernel.configurations is not None and kernel.variant is not None
    assert kernel.configurations(case, 90) == found
    assert found[0] == kernel.variant(case, 90)
    named = {name for each in found for name in each.split()}
    need = need_of_case(case, 90, tf32=False)
    for kind in ("dq", "dkdv", "dk", "dv"):
        fitting = serving(kind, need)
        assert {each.name for each in fitting} <= named
        assert {each.max_d for each in fitting} >= ({256} if kind in ("dk", "dv") else {64, 512})
        assert {each.aligned for each in fitting} == {True, False}
        assert len({each.sm for each in fitting}) > 1
