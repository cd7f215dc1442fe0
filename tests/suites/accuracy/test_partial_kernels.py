"""Kernels that compute a part of their op: what they return is judged as ever, and nothing else."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import Tensor

from kernel_workbench.kernels import registry
from kernel_workbench.kernels.registry import (
    Domain,
    Kernel,
    NoKernelError,
    all_kernels,
    choose,
    kernel,
)
from kernel_workbench.oracles import ATTENTION_FORWARD, LAYER_NORM_BACKWARD
from kernel_workbench.oracles.op import Case, Op
from kernel_workbench.reports.document.html import render_html
from kernel_workbench.reports.document.model import Document
from kernel_workbench.reports.record import latest, read
from kernel_workbench.reports.report import print_report
from kernel_workbench.reports.views.accuracy import accuracy_part
from kernel_workbench.suites.run.descriptions import kernel_info
from tests import ROOT
from tests.builders.by_hand import run_on
from tests.builders.commands import run_python
from tests.builders.compared_records import header, write
from tests.builders.documents import markdown_of

F32 = torch.float32
CASE = "m37-n64-float32-contiguous"
SUMMED = "m13-n256-float32-contiguous-coarse"

Function = Callable[..., object]


def closed_form(
    dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, **_: object
) -> tuple[Tensor, Tensor, Tensor]:
    """All three gradients of two-dimensional inputs."""
    x_hat = (x - mean[:, None]) * rstd[:, None]
    g = dy * weight
    c1, c2 = g.mean(1, keepdim=True), (g * x_hat).mean(1, keepdim=True)
    return (g - c1 - x_hat * c2) * rstd[:, None], (dy * x_hat).sum(0), dy.sum(0)


def dx_alone(**given: Tensor) -> Tensor:
    """dx, as it is."""
    return closed_form(**given)[0]


def dx_in_a_tuple(**given: Tensor) -> tuple[Tensor]:
    """dx, in a tuple of one."""
    return (closed_form(**given)[0],)


def wrong_dx(**given: Tensor) -> Tensor:
    """dx without its last term in one element."""
    dx = closed_form(**given)[0]
    dx[-1, -1] *= 1.001
    return dx


def all_three(**given: Tensor) -> tuple[Tensor, ...]:
    """Return all three outputs, the ones to leave out too."""
    return closed_form(**given)


def dbias_alone(**given: Tensor) -> Tensor:
    """dbias, which isn't a row's."""
    return given["dy"].sum(0)


def adds_to_dweight(**given: Tensor) -> Tensor:
    """dx, and a change of dweight that nobody asked for."""
    dx, dweight, _ = closed_form(**given)
    if isinstance(given.get("dweight"), Tensor):
        given["dweight"] += dweight
    return dx


@pytest.fixture(autouse=True)
def _registry_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    all_kernels()
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))


def _registered(
    function: Function,
    returns: tuple[str, ...] | None,
    op: Op = LAYER_NORM_BACKWARD,
    features: tuple[str, ...] = (),
) -> Kernel:
    domain = Domain(dtypes=(F32,), features=frozenset(features))
    kernel(op, domain, returns=returns, priority=99)(function)
    name = function.__name__
    return next(entry for entry in all_kernels() if (entry.op.name, entry.name) == (op.name, name))


def _case(end: str, op: Op = LAYER_NORM_BACKWARD) -> Case:
    return next(each for each in op.cases() if each.id() == f"{op.name}-{end}")


@pytest.mark.parametrize("function", [dx_alone, dx_in_a_tuple])
def test_partial_kernel_is_judged_by_what_it_returns(
    function: Function, device: torch.device
) -> None:
    """One output, in a tuple or as it is: the row has its errors, and those of no other."""
    row = run_on(device).try_pair(_registered(function, ("dx",)), _case(CASE))
    assert (row.status, [each.output for each in row.outputs]) == ("passed", ["dx"])


def test_partial_kernel_whose_output_is_wrong_fails(device: torch.device) -> None:
    """By the bounds that the output has in the whole op."""
    row = run_on(device).try_pair(_registered(wrong_dx, ("dx",)), _case(CASE))
    assert (row.status, row.rule) == ("failed", "deterministic bound")
    assert (row.reason or "").startswith("dx[36, 63]: got ")


def test_partial_kernel_that_returns_more_than_it_says_fails(device: torch.device) -> None:
    """A partial kernel has to return the form that it declares."""
    row = run_on(device).try_pair(_registered(all_three, ("dx",)), _case(CASE))
    assert (row.rule, row.reason) == ("wrong outputs", "it returned 3 outputs, not 1: dx")


def test_whole_kernel_that_returns_a_part_fails(device: torch.device) -> None:
    """An output that isn't declared to be left out isn't left out."""
    row = run_on(device).try_pair(_registered(dx_in_a_tuple, None), _case(CASE))
    assert row.reason == "it returned 1 outputs, not 3: dx, dweight, dbias"


def test_partial_kernel_mustnt_update_what_it_doesnt_return(device: torch.device) -> None:
    """A gradient to add to is an input like others where the kernel computes none of it."""
    run = run_on(device)
    case = next(
        each
        for each in LAYER_NORM_BACKWARD.cases()
        if each.options == {"accumulate"} and each.dtype == each.weight_dtype == F32
    )
    made = _registered(adds_to_dweight, ("dx",), features=("accumulate",))
    row = run.try_pair(made, case)
    assert row.reason == "it wrote to memory in or around input dweight"
    # On the same inputs: those of one case are made once for all kernels.
    sound = _registered(dx_alone, ("dx",), features=("accumulate",))
    assert run.try_pair(sound, case).status == "passed"
    whole = choose(LAYER_NORM_BACKWARD, case, 90)
    assert run.try_pair(whole, case).status == "passed"


def test_partial_kernel_refuses_cases_without_its_outputs(device: torch.device) -> None:
    """Nothing of them could be judged, and they would pass."""
    made = _registered(dbias_alone, ("dbias",), features=("no_bias",))
    case = next(
        each
        for each in LAYER_NORM_BACKWARD.cases()
        if each.options == {"no_bias"} and each.dtype == each.weight_dtype == F32
    )
    assert run_on(device).refusal(made, case) == "computes dbias alone, which the case hasn't"
    assert run_on(device).refusal(made, _case(CASE)) is None


def test_partial_kernel_is_asked_the_relations_of_its_outputs_alone(device: torch.device) -> None:
    """Sums of dx are asked of what returns dx; a row alone says nothing of what rows share."""
    names = {}
    for function, output in ((dx_alone, "dx"), (dbias_alone, "dbias")):
        row = run_on(device).try_pair(_registered(function, (output,)), _case(SUMMED))
        assert row.status == "passed"
        names[output] = {each.name for each in (*row.relations, *row.invariance)}
    assert "rows in another order" in names["dbias"]
    assert names["dx"] - names["dbias"] == {
        "the sum of dx along a row is known",
        "the sum of dx x^ along a row is known",
        "batch-invariant",
    }


def test_partial_kernel_is_never_dispatched() -> None:
    """However high its priority: a call of the op would lack what it leaves out."""
    made = _registered(dx_alone, ("dx",))
    assert made in all_kernels()
    assert choose(LAYER_NORM_BACKWARD, _case(CASE), 90).name.startswith("row_persistent")
    with pytest.raises(NoKernelError, match="dx_alone: leaves dweight and dbias out"):
        choose(LAYER_NORM_BACKWARD, _case(CASE), 90, among=(made,))


def test_kernel_that_returns_all_is_a_whole_one() -> None:
    """To name every output says nothing more than to name none."""
    made = _registered(all_three, LAYER_NORM_BACKWARD.outputs)
    assert made.op is LAYER_NORM_BACKWARD
    assert kernel_info(made, 90).left_out == ()


def test_part_of_an_op_counts_what_it_makes() -> None:
    """Bytes are without what isn't written; flops are told where an output takes all of them."""
    out, dx = ATTENTION_FORWARD.part(("out",)), LAYER_NORM_BACKWARD.part(("dx",))
    case = _case("b2-h_q2-h_kv2-s_q37-s_kv41-d64-d_v64-float32-contiguous", ATTENTION_FORWARD)
    assert (out.has_figures, dx.has_figures) == (True, False)
    assert not ATTENTION_FORWARD.part(("lse",)).has_figures
    assert out.flops(case) == ATTENTION_FORWARD.flops(case)
    assert ATTENTION_FORWARD.bytes(case) - out.bytes(case) == 4 * 2 * 2 * 37
    assert [*out.forms(case)] == ["out"]
    assert (out.left_out, dx.left_out) == (("lse",), ("dweight", "dbias"))


def _readmes_kernel(folder: Path, *, wrong: bool) -> Path:
    """The README's example, made to compute dx alone; wrong: but for a term of it."""
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found is not None
    code = found[1].replace('strides="contiguous"))', 'strides="contiguous"), returns=("dx",))')
    code = re.sub(r"    dweight = .*\n    return dx, .*", "    return dx", code)
    assert "dweight" not in code
    code = code.replace("tl.sum(g) / n", "tl.sum(g) / (n + 1)") if wrong else code
    file = folder / ("wrong.py" if wrong else "mine.py")
    file.write_text(code)
    return file


@pytest.mark.parametrize("wrong", [False, True])
def test_command_line_judges_a_partial_kernel_and_says_so(tmp_path: Path, *, wrong: bool) -> None:
    """Through workers: the verdict, beside it what it is of, and every form of the report."""
    file = _readmes_kernel(tmp_path, wrong=wrong)
    command = [
        "-m",
        "pytest",
        "kernel_workbench/suites/accuracy",
        "--device=cpu",
        "--jobs=1",
        "-qq",
    ]
    command += [f"--results={tmp_path}", f"--kernels={file}"]
    ends = (CASE, SUMMED, "m2-n3-bfloat16-contiguous", "m3-n229-float16-contiguous")
    command += [f"--case=layer_norm_backward-{each}" for each in ends]
    quiet = "--no-header --no-summary --tb=short -p no:cacheprovider"
    variables = os.environ | {"PYTEST_ADDOPTS": quiet, "COLUMNS": "80"}
    ran = run_python(*command, variables=variables)
    printed = " ".join(ran.stdout.split())
    record = read(latest(tmp_path))
    outcome = "0 passed, 3 failed" if wrong else "3 passed, 0 failed"
    assert ran.returncode == int(wrong)
    assert printed.startswith("FAILED" if wrong else "PASSED")
    assert f"{outcome}, 1 refused" in printed
    assert "1 kernel judged in part" in printed
    assert "mine computes dx alone; dweight and dbias aren't judged" in printed
    assert {each.output for row in record.rows for each in row.outputs} == {"dx"}
    (info,) = record.header.kernels
    assert (info.returns, info.left_out) == (("dx",), ("dweight", "dbias"))
    for text in (
        markdown_of(record),
        render_html(Document("a part", [accuracy_part(record)])),
    ):
        assert "1 kernel judged in part" in text
        assert "mine computes dx alone" in text


@pytest.mark.parametrize("width", [80, 200])
def test_report_says_what_was_judged_beside_the_kernel(
    tmp_path: Path, device: torch.device, width: int
) -> None:
    """In the table of kernels, at any width: a kernel that passed passed in that."""
    made = (_registered(dx_alone, ("dx",)), _registered(all_three, None))
    head = header("accuracy", kernels=tuple(kernel_info(each, 90) for each in made))
    rows = [run_on(device).try_pair(each, _case(CASE)) for each in made]
    text = io.StringIO()
    print_report(
        read(write(tmp_path / "run.jsonl", head, rows)),
        Console(file=text, width=width),
        details=True,
    )
    table = text.getvalue().partition("\nKernels,")[2].partition("\n\n")[0]
    titles = next(each for each in table.splitlines() if each.startswith("kernel"))
    assert titles.split()[:3] == ["kernel", "judged", "float32"]
    told = {words[0]: words[1:] for each in table.splitlines() if (words := each.split())}
    assert told["dx_alone"][:2] == ["dx", "alone"]
    assert told["all_three"][0] == "all"


def test_record_that_names_no_outputs_is_told_all_the_same(tmp_path: Path) -> None:
    """A damaged record has a report, and no traceback."""
    made = kernel_info(_registered(dx_alone, ("dx",)), 90).model_copy(update={"returns": ()})
    row = run_on(torch.device("cpu")).try_pair(_registered(all_three, None), _case(CASE))
    rows = [row.model_copy(update={"kernel": made.name})]
    text = io.StringIO()
    record = read(write(tmp_path / "run.jsonl", header("accuracy", kernels=(made,)), rows))
    print_report(record, Console(file=text, width=200), details=True)
    assert "dweight and dbias aren't judged" in text.getvalue()
