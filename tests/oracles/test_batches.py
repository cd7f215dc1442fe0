"""The axis of a reference's rows: found where a part of them has the outputs that it has alone."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor

from kernel_workbench.oracles import (
    MATMUL_FORWARD,
    QUANTISE_ROWS,
    RMS_NORM_BACKWARD,
    ROPE_FORWARD,
    SOFTMAX_FORWARD,
)
from kernel_workbench.oracles.cases.sizes import ROWS, WIDTHS
from kernel_workbench.oracles.op import Relation, required
from kernel_workbench.oracles.reference import ReferenceOp, op
from kernel_workbench.oracles.reference.batches import _sizes, rows_axis
from kernel_workbench.oracles.reference.cases import case_of

_BOTH = {"m": ROWS, "n": WIDTHS}


@op(sizes=_BOTH)
def _rows(x: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
    return x.softmax(-1)


@op(sizes=_BOTH)
def _columns(x: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
    return x.softmax(0)


@op(sizes=_BOTH)
def _all_of_it(x: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
    return x / x.abs().amax()


@op(sizes=_BOTH)
def _row_before(x: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
    return x + x.roll(1, 0)


@op(sizes=_BOTH)
def _down_to_one(x: Float[Tensor, "m n"]) -> Float[Tensor, "n"]:
    return x.sum(0)


@op(sizes={"m": ROWS, "n": WIDTHS, "k": WIDTHS})
def _turned(a: Float[Tensor, "k m"], b: Float[Tensor, "k n"]) -> Float[Tensor, "m n"]:
    return a.T @ b


@op(sizes=_BOTH, labels={"place": "m"})
def _picked(x: Float[Tensor, "m n"], place: Int[Tensor, "m"]) -> Float[Tensor, "m n"]:
    return x[place]


@pytest.mark.parametrize(
    ("of", "axis"),
    [
        (_rows, "m"),
        (_columns, None),
        (_all_of_it, None),
        (_row_before, None),
        (_turned, None),  # the rows aren't the first axis of an argument
        (_picked, None),  # numbers name them
        (SOFTMAX_FORWARD, "m"),
        (RMS_NORM_BACKWARD, "m"),
        (MATMUL_FORWARD, "m"),
        (ROPE_FORWARD, "s"),
    ],
    ids=lambda each: each.name if isinstance(each, ReferenceOp) else str(each),
)
def test_axis_of_rows_is_found_by_the_reference(of: ReferenceOp, axis: str | None) -> None:
    """Whatever its annotations look like: the values tell."""
    assert rows_axis(of.reference) == axis
    assert of.has_batches() == (axis is not None)


def test_part_without_rows_has_no_batches() -> None:
    """The gradient of a weight is a sum over all rows, and says nothing of one."""
    assert RMS_NORM_BACKWARD.part(("dx",)).has_batches()
    assert not RMS_NORM_BACKWARD.part(("dweight",)).has_batches()
    assert rows_axis(_down_to_one.reference) is None


def test_sizes_that_are_tried_have_no_coincidence() -> None:
    """No two are equal, and each is another one in the second set."""
    first, second = list(_sizes(MATMUL_FORWARD.reference, "m"))[:2]
    assert len(set(first.values())) == len(set(second.values())) == 3
    assert all(first[name] != second[name] for name in first)


def test_relations_say_what_some_rows_and_more_rows_have() -> None:
    """The truth fulfils them: rows alone, a part, all in reverse order, beside over 256 copies."""
    single = torch.float32, torch.float32
    case = case_of(SOFTMAX_FORWARD.name, {"m": 12, "n": 264}, single, "ci")
    inputs = SOFTMAX_FORWARD.inputs(case, torch.device("cpu"))
    truth = SOFTMAX_FORWARD.oracle(case, inputs)
    assert SOFTMAX_FORWARD.relations is not None
    related = SOFTMAX_FORWARD.relations(case)
    rows = []
    for each in related:
        assert isinstance(each, Relation)
        assert each.of == "batch-invariant"
        changed = each.change(inputs)
        rows.append(each.case.size("m"))
        assert required(changed, "x").shape == (rows[-1], 264)
        expected = each.carry({"y": required(truth, "y")})
        made = SOFTMAX_FORWARD.oracle(each.case, changed)
        torch.testing.assert_close(made["y"], expected["y"], rtol=1e-12, atol=0)
    assert rows == [*[1] * 12, 10, 12, 264]


def test_relations_reverse_a_column_of_fp8_codes() -> None:
    """PyTorch's flip refuses such a vector on a CPU, and ended the run."""
    single = torch.float32, torch.float32
    case = case_of(QUANTISE_ROWS.name, {"m": 12, "n": 1}, single, "ci")
    codes = torch.arange(12.0).unsqueeze(1)
    outputs = {"codes": codes.to(torch.float8_e4m3fn), "scales": codes.flatten()}
    assert QUANTISE_ROWS.relations is not None
    (reverse,) = (
        each for each in QUANTISE_ROWS.relations(case) if each.name.endswith("reverse order")
    )
    assert isinstance(reverse, Relation)
    carried = reverse.carry(outputs)
    assert torch.equal(carried["codes"].float(), codes.flip(0))
    assert torch.equal(carried["scales"], codes.flatten().flip(0))
