"""Invariance is measured on any kernel, and a kernel that declares what isn't so is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from kernel_workbench.kernels.device import FIXED_MULTIPROCESSORS, multiprocessors
from kernel_workbench.kernels.registry import Kernel, KernelError, all_kernels
from kernel_workbench.oracles import (
    LAYER_NORM_BACKWARD,
    MATMUL_FORWARD,
    OPS,
    RMS_NORM_FORWARD,
    SOFTMAX_FORWARD,
)
from kernel_workbench.oracles.attention.geometry import BACKWARD, DELTA, FORWARD, GRADIENTS
from kernel_workbench.oracles.cases.distributions import COARSE
from kernel_workbench.oracles.op import Case, Numerics
from kernel_workbench.oracles.reference import ReferenceOp
from kernel_workbench.oracles.reference.cases import case_of
from kernel_workbench.suites.accuracy.invariance import OTHER_MULTIPROCESSORS, Invariance
from kernel_workbench.suites.accuracy.run import Run
from kernel_workbench.suites.run.option_table import DEFAULT_SM
from kernel_workbench.suites.sandbox.judge_side.workers import Workers
from kernel_workbench.suites.sandbox.worker_side.candidate import replaced_multiprocessors
from tests import ROOT
from tests.builders.by_hand import kernel_of
from tests.builders.changed_inputs import OnCase
from tests.builders.plain_attention import Attention, Part
from tests.builders.wrong_layer_norms import Outputs, closed_form

CPU = torch.device("cpu")
CARRIERS = [
    case
    for op in OPS.values()
    if not isinstance(op, ReferenceOp)  # theirs are plain ones, and are searched for
    for case in op.cases()
    if case.tier == "ci" and case.distribution == COARSE
]
PLAIN = next(case for case in CARRIERS if case.op == LAYER_NORM_BACKWARD.name)
ROWS = replace(
    PLAIN, sizes=(("m", 13), ("n", 256)), dtype=torch.float32, weight_dtype=torch.float32
)

# Rows alone begin elsewhere past 16 bytes, and `row_persistent` then adds in another order.
ODD = replace(ROWS, sizes=(("m", 13), ("n", 1027)))


def _on(
    case: Case,
    function: Callable[..., object],
    device: torch.device,
    numerics: Numerics | None = None,
) -> OnCase:
    op = OPS[case.op]
    kernel = kernel_of(function, op=op, features=op.options, numerics=numerics)
    return OnCase(kernel, case, device)


def _measured(found: Invariance) -> dict[str, bool]:
    return {each.name: each.holds for each in found.tried}


def _row_by_row(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor) -> Outputs:
    """Each row on its own, in a sequential order that no other row can change."""
    dx, dweight, dbias = closed_form(dy, x, weight, mean, rstd)
    for row in range(x.shape[0]):
        only = slice(row, row + 1)
        dx[row] = closed_form(dy[only], x[only], weight, mean[only], rstd[only])[0][0]
    return dx, dweight, dbias


def _by_the_batch(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor) -> Outputs:
    """The row's sums are split over as many parts as there are rows to share them with."""
    _, dweight, dbias = closed_form(dy, x, weight, mean, rstd)
    x_hat = (x.float() - mean[:, None]) * rstd[:, None]
    g = dy.float() * weight.float()
    parts = max(1, x.shape[0] // 4)
    c1, c2 = (
        sum(part.sum(1, keepdim=True) for part in each.chunk(parts, 1)) / x.shape[1]
        for each in (g, g * x_hat)
    )
    return ((g - c1 - x_hat * c2) * rstd[:, None]).to(x.dtype), dweight, dbias


def _by_the_device(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor) -> Outputs:
    """dweight has a partial for each SM."""
    dx, dweight, dbias = closed_form(dy, x, weight, mean, rstd)
    products = (x.float() - mean[:, None]) * rstd[:, None] * dy.float()
    parts = [part.sum(0) for part in products.chunk(multiprocessors(x.device))]
    total = torch.zeros_like(parts[0])
    for part in parts:
        total = total + part
    return dx, total.to(dweight.dtype), dbias


def test_kernel_that_declares_nothing_is_measured(device: torch.device) -> None:
    """Yes and no, the element that shows it, and nothing of what couldn't be tried."""
    found = _on(ROWS, _row_by_row, device).invariance()
    assert (_measured(found), found.broken) == ({"batch-invariant": True}, None)
    found = _on(ROWS, _by_the_batch, device).invariance()
    assert (_measured(found), found.broken) == ({"batch-invariant": False}, None)
    assert "alone: dx[" in str(found.tried[0].reason)
    found = _on(ROWS, _by_the_device, device).invariance()
    assert (_measured(found)["device-independent"], found.broken) == (False, None)
    (reason,) = (each.reason for each in found.tried if each.name == "device-independent")
    assert str(reason).startswith("with 5 SMs: dweight[")


@pytest.mark.parametrize(
    ("function", "numerics", "sentence"),
    [
        (_by_the_batch, Numerics(batch_invariant=True), "it declares batch_invariant=True"),
        (_by_the_device, Numerics(device_independent=True), "it declares device_independent=True"),
    ],
)
def test_kernel_that_declares_what_is_not_so_is_told(
    function: Callable[..., Outputs], numerics: Numerics, sentence: str, device: torch.device
) -> None:
    """With what it declares, what shows it, and no error of itself."""
    found = _on(ROWS, function, device, numerics).invariance()
    assert found.broken is not None
    assert found.broken.startswith(f"{sentence}, and isn't: ")


def test_kernel_that_denies_a_property_may_have_it(device: torch.device) -> None:
    """A declaration of no promises nothing."""
    declared = Numerics(batch_invariant=False, device_independent=False)
    assert _on(ROWS, _row_by_row, device, declared).invariance().broken is None
    assert _on(ROWS, _by_the_device, device, declared).invariance().broken is None


def test_kernel_that_does_not_repeat_is_not_asked(device: torch.device) -> None:
    """Bits that differ from call to call say nothing; unless it declares that they mean much."""
    declared = Numerics(bitwise_repeatable=False)
    on = _on(ROWS, _by_the_device, device, declared)
    assert on.invariance().tried == ()
    assert on.called == []
    declared = Numerics(bitwise_repeatable=False, device_independent=True)
    assert _on(ROWS, _by_the_device, device, declared).invariance().broken is not None


def test_option_that_asks_for_independence_is_held_to_it(device: torch.device) -> None:
    """A kernel that serves the option and depends on the device fails, whatever it declares."""

    def deaf(
        dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, **_: object
    ) -> Outputs:
        return _by_the_device(dy, x, weight, mean, rstd)

    plain = {"distribution": "normal", "options": frozenset({"device_independent"})}
    found = _on(replace(ROWS, **plain), deaf, device).invariance()  # type: ignore[arg-type]
    assert found.broken is not None
    assert found.broken.startswith("device_independent=True asks for bits")


@dataclass(frozen=True)
class _Rows:
    """RMS norms of rows, in a file that is loaded as `--kernels` loads it."""

    run: Run
    kernels: dict[str, Kernel]


@pytest.fixture(scope="module")
def rows(device: torch.device) -> Iterator[_Rows]:
    """The file's kernels, in workers."""
    if device.type == "cuda":
        pytest.skip("there they are run by `nox -s accuracy -- --kernels=`")
    file = ROOT / "tests/candidates/declared_kernels/rows_together.py"
    workers = Workers(device, DEFAULT_SM, files=(file,))
    kernels = {each.name: each for each in workers.kernels()}
    yield _Rows(Run(device, DEFAULT_SM, workers=workers), kernels)
    workers.close()


_OF_RMS_NORM = RMS_NORM_FORWARD.name, {"m": 66, "n": 264}


@pytest.mark.parametrize(
    ("name", "op", "sizes", "reason"),
    [
        ("rows_apart", *_OF_RMS_NORM, None),
        ("block_of_many_rows", *_OF_RMS_NORM, "the rows beside copies of themselves: y["),
        ("block_of_one_row", *_OF_RMS_NORM, "row "),
        ("other_block_past_64_rows", SOFTMAX_FORWARD.name, {"m": 66, "n": 264}, "row "),
        ("split_by_rows", MATMUL_FORWARD.name, {"m": 33, "n": 2, "k": 60}, "row 32 alone: c["),
    ],
)
def test_declared_invariance_is_tried_of_an_op_from_a_reference(
    name: str, op: str, sizes: dict[str, int], reason: str | None, rows: _Rows
) -> None:
    """A kernel that goes by the number of rows, or by a row's place, is found."""
    case = case_of(op, sizes, (torch.float32, torch.float32), "ci")
    row = rows.run.try_pair(rows.kernels[name], case)
    expected = ("passed", None) if reason is None else ("failed", "invariance")
    assert (row.status, row.rule) == expected
    assert reason is None or f"and isn't: {reason}" in str(row.reason)
    assert "batch-invariant" in {tried.name for tried in row.invariance}


_OF_COLUMNS = """
import torch
from jaxtyping import Float
from torch import Tensor
from kernel_workbench import Domain, Numerics, kernel
from kernel_workbench import ROWS, WIDTHS
from kernel_workbench import op


@op(sizes={"m": ROWS, "n": WIDTHS})
def softmax_of_columns(x: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
    return x.softmax(0)


DECLARED = Numerics(batch_invariant=True)


@kernel(softmax_of_columns, Domain(dtypes=(torch.float32,)), numerics=DECLARED)
def plain(x):
    return x.softmax(0)
"""


def test_invariance_that_nothing_can_try_is_refused(tmp_path: Path, device: torch.device) -> None:
    """In one sentence, where the file is loaded: of this op no rows are independent."""
    file = tmp_path / "columns.py"
    file.write_text(_OF_COLUMNS)
    workers = Workers(device, DEFAULT_SM, files=(file,))
    try:
        with pytest.raises(KernelError) as raised:
            workers.kernels()
    finally:
        workers.close()
    assert str(raised.value) == (
        f"kernel plain in {file}: it declares batch_invariant=True, and no output of "
        "softmax_of_columns_forward has rows, as its first axis, that are the same alone; leave it "
        "out"
    )


class _HeadsTogether(Attention):
    """out and dv are scaled on the way, by a sum over all batches and heads."""

    def dv(self, weights: Tensor, do: Tensor) -> Tensor:
        size = do.abs().sum() + 1
        return super().dv(weights, do / size) * size

    def closed(
        self, part: Part, out: Tensor, total: Tensor, largest: Tensor
    ) -> tuple[Tensor, Tensor]:
        size = out.abs().sum() + 1
        rows, lse = super().closed(part, out / size, total, largest)
        return rows * size, lse


@pytest.mark.parametrize("op", [FORWARD, BACKWARD, GRADIENTS])
def test_attention_that_mixes_heads_is_not_batch_invariant(op: str, device: torch.device) -> None:
    """Seen where a batch or a key head is alone; the sound one's bits stay."""
    seen = 0
    for case in CARRIERS:
        if case.op != op or "varlen" in case.options:
            continue
        if case.size("b") * case.size("h_kv") == 1:
            continue
        made = []
        for attention in (Attention(), _HeadsTogether()):
            function = {
                FORWARD: attention.forward,
                BACKWARD: attention.backward,
                GRADIENTS: attention.gradients,
            }[op]
            on = _on(replace(case, dtype=torch.float32), function, device)  # type: ignore[arg-type]
            made.append(_measured(on.invariance()).get("batch-invariant"))
        assert made[1] is False, case.id()
        seen += made[0] is True
    assert seen


def _of_ours() -> list[Kernel]:
    return [each for each in all_kernels() if each.origin == "ours"]


@pytest.mark.parametrize(
    "kernel", [pytest.param(each, id=f"{each.op.name}-{each.name}") for each in _of_ours()]
)
def test_kernels_of_ours_are_what_they_declare(kernel: Kernel, device: torch.device) -> None:
    """No case of `ci` says otherwise; what layer norm's deny, some case shows on a CPU.

    The many SMs of a GPU share a small case alike, whatever its number of rows.
    """

    def serves(case: Case) -> bool:
        return kernel.domain.reject(case, 90, device.type) is None

    cases = [case for case in (*CARRIERS, ODD) if case.op == kernel.op.name and serves(case)]
    is_layer_norm = kernel.op.name == LAYER_NORM_BACKWARD.name
    said = set()
    for case in cases if is_layer_norm else cases[:2]:
        on = OnCase(kernel, case, device)
        on.serves = serves
        found = on.invariance()
        assert found.broken is None, case.id()
        said |= set(_measured(found).items())
    if not kernel.numerics.bitwise_repeatable:
        assert said == set()
        return
    assert ("batch-invariant", True) in said
    denied, seen = kernel.numerics.batch_invariant is False, ("batch-invariant", False) in said
    assert denied or not seen
    assert seen == denied or device.type != "cpu"
    assert (("device-independent", False) in said) == is_layer_norm


def test_told_number_reaches_a_kernel_that_asks_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By kernels.device, by torch, and under the option that fixes the number; then it is gone."""
    known = SimpleNamespace(multi_processor_count=132, name="a GPU")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: known)
    before = multiprocessors(CPU)
    with replaced_multiprocessors(OTHER_MULTIPROCESSORS) as answer:
        assert not answer.asked
        assert torch.cuda.get_device_properties(0).name == "a GPU"
        assert not answer.asked
        assert torch.cuda.get_device_properties(0).multi_processor_count == OTHER_MULTIPROCESSORS
        assert answer.asked
    with replaced_multiprocessors(OTHER_MULTIPROCESSORS) as answer:
        assert multiprocessors(CPU) == OTHER_MULTIPROCESSORS
        assert answer.asked
        assert multiprocessors(CPU, device_independent=True) == FIXED_MULTIPROCESSORS
    assert multiprocessors(CPU) == before
    assert torch.cuda.get_device_properties(0).multi_processor_count == 132


def test_delta_is_tried_alone() -> None:
    """The ops whose rows are independent have parts that can be called alone."""
    (case,) = (each for each in CARRIERS if each.op == DELTA)
    relations = OPS[DELTA].relations
    assert relations is not None
    names = {each.name for each in relations(case)}
    assert {"a batch alone", "a key head alone"} <= names
