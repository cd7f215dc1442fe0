"""Ops of a user's file, beside the kernels in it: from the command line to the record."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel_workbench.reports.exit_status import ExitStatus
from kernel_workbench.reports.record import AccuracyRow, latest, read
from kernel_workbench.suites.run.exit_status import in_pytest
from tests import ROOT
from tests.builders.commands import run_python
from tests.builders.definitions import ADD_RMS_NORM, workload, written

pytestmark = pytest.mark.long_run

_FILE = ROOT / "tests/candidates/own_ops/root_norm.py"
_OP = "root_norm_forward"
# The defects, and for each a case that it shows in.
_SHOWS_IN = {
    "outer_eps": "m12-n77-float32-contiguous",
    "last_column": "m12-n77-float32-contiguous",
    "half_statistics": "m12-n264-float16-contiguous",
    "padded_mean": "m12-n264-float16-contiguous",
    "no_weight": "m12-n264-float16-contiguous",
}


def _ran(tmp_path: Path, *options: str, status: int = 0) -> str:
    """Return what a run prints."""
    done = run_python(
        *(
            "-m",
            "pytest",
            "kernel_workbench/suites/accuracy",
            f"--results={tmp_path}",
            "--device=cpu",
            "--jobs=1",
        ),
        *("--no-header", "--no-summary", "--tb=short", "-qq", *options),
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def _rows(tmp_path: Path) -> list[AccuracyRow]:
    return list(read(latest(tmp_path)).rows)


def test_op_and_kernels_in_one_file_are_judged(tmp_path: Path) -> None:
    """The right kernel passes each case, and each defect fails the case that it shows in."""
    cases = (f"--case={_OP}-{each}" for each in dict.fromkeys(_SHOWS_IN.values()))
    _ran(tmp_path, f"--kernels={_FILE}", *cases, status=1)
    found = {(row.kernel, row.case.id): row for row in _rows(tmp_path)}
    for defect, case in _SHOWS_IN.items():
        assert found["right", f"{_OP}-{case}"].status == "passed"
        assert found[defect, f"{_OP}-{case}"].status == "failed", defect
        assert "own_ops/root_norm.py" in found[defect, f"{_OP}-{case}"].reproduce


def test_op_of_one_file_has_kernels_in_another(tmp_path: Path) -> None:
    """`--ops` names the first one, whose name the reproducing command has too."""
    ops, kernels = tmp_path / "ops.py", tmp_path / "kernels.py"
    text = _FILE.read_text()
    start = text.index("@triton.jit")
    ops.write_text(text[:start])
    head = text[:start].split("@op(")[0]
    kernels.write_text(
        f'{head}\nfrom kernel_workbench import OPS\nroot_norm = OPS["{_OP}"]\n\n{text[start:]}'
    )
    options = (f"--kernels={kernels}", f"--ops={ops}", "--kernel=last_column")
    _ran(tmp_path, *options, f"--case={_OP}-m12-n77-float32-contiguous", status=1)
    (row,) = _rows(tmp_path)
    assert row.status == "failed"
    assert f"--ops={ops}" in row.reproduce


def test_kernel_of_gradients_of_an_op_of_another_file_is_judged(tmp_path: Path) -> None:
    """The call without the suites imports the op's file first, as the worker does."""
    kernels = tmp_path / "kernels.py"
    kernels.write_text(
        "import torch\nfrom kernel_workbench import OPS, Domain, kernel\n\n"
        f"gradients = OPS[{_OP!r}].backward(of=('weight',))\n\n"
        "@kernel(gradients, Domain(dtypes=(torch.float32,), strides='contiguous'))\n"
        "def mine(dy, x, weight, *, eps):\n"
        "    root = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)\n"
        "    return (dy * x * root).sum(0)\n"
    )
    options = (f"--kernels={kernels}", f"--ops={_FILE}", "--kernel=mine")
    _ran(tmp_path, *options, "--case=root_norm_backward-m12-n77-float32-contiguous")
    assert [row.status for row in _rows(tmp_path)] == ["passed"]


def test_how_to_is_right(tmp_path: Path) -> None:
    """The file of the page passes on rows that it serves, of each dtype."""
    page = (ROOT / "docs/how-to/own-op.md").read_text()
    file = tmp_path / "mine.py"
    file.write_text(page.split("```python\n")[1].split("```")[0])
    names = ("m12-n77-float32-contiguous", "m12-n264-float16-contiguous-outliers")
    cases = (f"--case=unit_rows_forward-{each}" for each in names)
    _ran(tmp_path, f"--kernels={file}", *cases)
    assert [row.status for row in _rows(tmp_path)] == ["passed", "passed"]


_OF_A_DEFINITION = """
import torch
from kernel_workbench import Domain, kernel
from kernel_workbench import OPS

_SERVED = Domain(dtypes=(torch.bfloat16,), weight_dtypes=(torch.float32,))

def register(name, wrong):
    @kernel(OPS["fused_add_rmsnorm_h64"], _SERVED, name=name)
    def call(x, residual, weight, *, eps):
        total = x.float() + residual.float()
        scale = torch.rsqrt(total.square().mean(-1, keepdim=True) + (0 if wrong else eps))
        return (total * scale * weight).to(x.dtype), total.to(x.dtype)

register("right", False)
register("no_eps", True)
"""


def test_kernels_of_a_definition_are_judged_on_its_workloads(tmp_path: Path) -> None:
    """Its scalar reaches the kernels, and the reproducing command names its files."""
    given = {"x": None, "residual": None, "weight": None, "eps": 0.5}
    line = workload("fused_add_rmsnorm_h64", {"m": 3}, **given)
    file, (workloads,) = written(tmp_path, ADD_RMS_NORM, [line])
    kernels = tmp_path / "mine.py"
    kernels.write_text(_OF_A_DEFINITION)
    named = (f"--definition={file}", f"--workloads={workloads}")
    case = "fused_add_rmsnorm_h64-m3-bfloat16_float32weight-contiguous"
    _ran(tmp_path / "results", *named, f"--kernels={kernels}", f"--case={case}", status=1)
    found = {row.kernel: row for row in _rows(tmp_path / "results")}
    assert {name: row.status for name, row in found.items()} == {
        "right": "passed",
        "no_eps": "failed",
    }
    assert " ".join(named) in found["no_eps"].reproduce


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--definition={0}",), "it has no kernel"),
        (("--definition={0}", "--kernels={1}"), "inputs.eps: nothing gives it a value"),
        (("--definition={1}", "--kernels={1}"), "its name must end in .json"),
        (("--workloads={0}", "--kernels={1}"), "add --definition=FILE"),
        (("--kernels={0}",), "give a JSON definition with --definition"),
    ],
)
def test_definition_that_cant_be_run_is_refused(
    options: tuple[str, ...], told: str, tmp_path: Path
) -> None:
    """In one sentence, before anything is run."""
    file, kernels = written(tmp_path, ADD_RMS_NORM)[0], tmp_path / "mine.py"
    kernels.write_text(_OF_A_DEFINITION)
    assert told in _ran(tmp_path, *(each.format(file, kernels) for each in options), status=4)


@pytest.mark.parametrize(
    ("change", "option", "told"),
    [
        ("", "--ops={0}", "no kernel to run"),
        ("x = 1\n", "--ops={0}", "it defines no op"),
        ("import nothing_at_all\n", "--ops={0}", "importing it raised ModuleNotFoundError"),
    ],
)
def test_wrong_file_of_ops_is_refused(change: str, option: str, told: str, tmp_path: Path) -> None:
    """In one sentence, before anything is run."""
    file = tmp_path / "mine.py"
    file.write_text(change or _FILE.read_text().split("@triton.jit")[0])
    output = _ran(tmp_path, option.format(file), f"--op={_OP}", status=4)
    assert told in output


def test_file_with_an_op_and_a_kernel_of_another_is_refused(tmp_path: Path) -> None:
    """The judge imports what defines an op: code that it judges otherwise stays out of it."""
    file = tmp_path / "mine.py"
    text = _FILE.read_text()
    file.write_text(
        f"{text}\nfrom kernel_workbench import RMS_NORM_FORWARD as root_norm\n_register('x', '')"
    )
    assert "give those a file of their own" in _ran(tmp_path, f"--kernels={file}", status=4)


_PLACES = ROOT / "tests/candidates/own_ops/places.py"
_OPS_OF_PLACES = (
    *("masked_forward", "table_backward", "largest_backward", "added_forward"),
    *("averaged_forward", "causal_forward", "segments_forward"),
)


def test_kernels_that_pick_and_scatter_are_told_right_from_wrong(tmp_path: Path) -> None:
    """The right kernels of seven ops in a file pass each case, and the wrong ones fail each."""
    of_case = ("m12-n16-float32-contiguous", "m33-n33-float32-contiguous-seed3")
    cases = [f"--case={op}-{each}" for op in _OPS_OF_PLACES for each in of_case]
    _ran(tmp_path, f"--kernels={_PLACES}", *cases, status=1)
    found = {(row.kernel, row.case.id): row for row in _rows(tmp_path)}
    assert len(found) == 2 * len(cases)
    for (name, case), row in found.items():
        assert row.status == ("passed" if name == "right" else "failed"), (name, case, row.reason)


_TWO = """
import torch
from jaxtyping import Float
from torch import Tensor
from kernel_workbench import Domain, kernel
from kernel_workbench import COLUMNS, Sizes
from kernel_workbench import op

LENGTH = Sizes("length", {"some": (4, 6, 9)}, lambda _: "some")

@op(sizes={"m": LENGTH, "n": COLUMNS})
def first(x: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
    SPOILT
    return x + 1

@op(sizes={"k": LENGTH})
def second(x: Float[Tensor, "k"]) -> Float[Tensor, "k"]:
    return x + 1

@kernel(first, Domain(dtypes=(torch.float32,)))
def mine(x):
    return x + 1

@kernel(second, Domain(dtypes=(torch.float32,)))
def other(x):
    return x + 1
"""


@pytest.mark.parametrize("jobs", [1, 2])
def test_function_that_fails_on_a_case_leaves_the_other_op_its_verdict(
    jobs: int, tmp_path: Path
) -> None:
    """The run ends as wrong usage, with the user's line in one sentence, and no traceback."""
    file = tmp_path / "mine.py"
    file.write_text(_TWO.replace("SPOILT", "assert x.is_meta or len(x) != 9, 'no nine'"))
    cases = [f"--case=first_forward-m{m}-n64-float32-contiguous" for m in (9, 4)]
    cases.append("--case=second_forward-k9-float32-contiguous")
    status = in_pytest(ExitStatus.USAGE)
    text = _ran(tmp_path, f"--kernels={file}", *cases, f"--jobs={jobs}", status=status)
    found = {row.case.id.split("-float32")[0]: row.status for row in _rows(tmp_path)}
    assert found == {"first_forward-m4-n64": "passed", "second_forward-k9": "passed"}
    assert f"{file}:13:first_forward:" in "".join(text.split()), text  # wrapped at 120 columns
    assert "Traceback" not in text
    assert "INTERNALERROR" not in text
    assert "The suite itself failed" not in text
    end = read(latest(tmp_path)).end
    assert end is not None
    assert end.exit_status == ExitStatus.USAGE
    (problem,) = end.problems
    assert "no nine (on first_forward-m9-n64-float32-contiguous)" in problem


@pytest.mark.parametrize(
    "spoilt",
    [
        "x = x + torch.special.bessel_j0(x)",
        "x = x * x.sum().item()",
        "assert len(x) != 9, 'no nine'",
    ],
)
def test_function_that_is_no_op_ends_a_run_before_it_begins(spoilt: str, tmp_path: Path) -> None:
    """As a mistake of usage, in one sentence."""
    file = tmp_path / "mine.py"
    file.write_text(_TWO.replace("SPOILT", spoilt))
    text = _ran(tmp_path, f"--kernels={file}", status=4)
    assert text.startswith("ERROR: "), text
    assert f"{file}:13: " in text
    assert len(text.strip().splitlines()) == 1
