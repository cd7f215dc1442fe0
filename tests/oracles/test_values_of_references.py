# ruff: noqa: F722, F821, UP037  # sizes
"""Inputs on which references are tried: other numbers, deciding places, ties, non-finite values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor

from kernel_workbench.oracles import (
    ADD_RMS_NORM_BACKWARD,
    CROSS_ENTROPY_FORWARD,
    MATMUL_FORWARD,
    OPS,
    QUANTISE_BLOCKS,
    QUANTISE_ROWS,
    RMS_NORM_FORWARD,
    SMOOTHED_CROSS_ENTROPY_FORWARD,
    SOFTMAX_FORWARD,
)
from kernel_workbench.oracles.cases.distributions import NEEDLES, deciding_columns
from kernel_workbench.oracles.cases.names import case_named, objection
from kernel_workbench.oracles.cases.sizes import COLUMNS, ROWS, Sizes
from kernel_workbench.oracles.op import Bound, Case, Inputs, Numerics, Outputs, required
from kernel_workbench.oracles.reference import OpError, ReferenceOp, op, values_of_number
from kernel_workbench.oracles.reference.cases import _TELLING, _few_sizes, case_of

_CPU, _SINGLE = torch.device("cpu"), (torch.float32, torch.float32)
_REFERENCES = tuple(item for item in OPS.values() if isinstance(item, ReferenceOp))


def _case(item: ReferenceOp, distribution: str, m: int = 12, n: int = 24) -> Case:
    return case_of(item.name, {"m": m, "n": n}, _SINGLE, "ci", distribution)


def _judged(item: ReferenceOp, case: Case) -> tuple[Inputs, Outputs, Mapping[str, Bound]]:
    inputs = item.inputs(case, _CPU)
    truth = item.oracle(case, inputs)
    return inputs, truth, item.bound(case, inputs, truth, Numerics())


@pytest.mark.parametrize("item", _REFERENCES, ids=lambda item: item.name)
def test_each_argument_holds_what_is_not_finite(item: ReferenceOp) -> None:
    """Some case of `ci` puts NaN into each argument, and needles, ties and zeros meet."""
    cases = [case for case in item.cases() if case.tier == "ci"]
    fed = {case.distribution for case in cases}
    real = [array.name for array in item.reference.signature.real if array.axes]
    there = {name for name in fed if name.startswith("nan") and name != "nan_unread"}
    assert len(there) == len(real)
    assert {NEEDLES, "ties", "zeros", "near_5", "huge_first", "minus_mean100"} <= fed


@pytest.mark.parametrize("item", _REFERENCES, ids=lambda item: item.name)
def test_each_value_of_a_number_reaches_kernels(item: ReferenceOp) -> None:
    """A case's option says it, its id is read back, and the arguments hold it."""
    cases = [case for case in item.cases() if case.tier == "ci"]
    for name, values in item.reference.numbers.items():
        met = {item.inputs(case, _CPU)[name] for case in cases if case.size("m") == 12}
        assert {*values, item.reference.signature.numbers[name]} <= met
    for case in cases:
        assert case_named(item, case.id()) == replace(case, tier="ci", why="")


def test_number_has_one_value() -> None:
    """Two options that set the same number are refused in a sentence."""
    case = _case(RMS_NORM_FORWARD, "normal")
    twice = replace(case, options=frozenset({"eps=1em12", "eps=0.001"}))
    told = objection(RMS_NORM_FORWARD, twice)
    assert told is not None and told.startswith("eps has one value")


def test_other_values_of_a_number_follow_from_its_default() -> None:
    """Whole numbers and truth values, which may be sizes, stay as they are."""
    assert values_of_number("eps", 1e-6) == (1e-12, 1e-3)
    assert values_of_number("smoothing", 0.1) == (0.0, 0.2)
    assert values_of_number("softmax_scale", 0.125) == (-0.125, 0.0)
    assert values_of_number("softcap", 50.0) == (100.0,)
    assert values_of_number("groups", 8) == values_of_number("is_causal", True) == ()  # noqa: FBT003


def test_numbers_of_an_op_are_named() -> None:
    """A name that the function hasn't is refused, with those that it has."""
    with pytest.raises(OpError, match="numbers names 'epsilon', and there are eps"):

        @op(sizes={"m": ROWS, "n": COLUMNS}, numbers={"epsilon": (1e-3,)})
        def scaled(x: Float[Tensor, "m n"], eps: float = 1e-6) -> Float[Tensor, "m n"]:
            return x * eps


@op(sizes={"m": ROWS, "n": COLUMNS})
def _signs(p: Float[Tensor, "m n"], q: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
    return torch.sign(p - q)


def test_sign_of_a_tie_is_exact() -> None:
    """The bound is 0 where two arguments are equal, and the row has power."""
    inputs, truth, bounds = _judged(_signs, _case(_signs, "ties"))
    equal = required(inputs, "p") == required(inputs, "q")
    assert bool(equal.any())
    assert not bool(required(truth, "y")[equal].any())
    assert float(bounds["y"].deterministic[equal].max()) == 0
    assert bounds["y"].powerless is None


@op(sizes={"m": ROWS, "n": COLUMNS})
def _guarded(x: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
    most = x.amax(-1, keepdim=True)
    most = torch.where(torch.isneginf(most), 0.0, most)
    e = torch.exp(x - most)
    total = e.sum(-1, keepdim=True)
    return e / torch.where(total == 0, 1.0, total)


def test_row_of_minus_infinities_is_exact_where_it_is_guarded() -> None:
    """Its sum of zeros is 0 in every kernel, so that the guard takes the same branch."""
    inputs, truth, bounds = _judged(_guarded, _case(_guarded, "minus_inf"))
    empty = required(inputs, "x").isneginf().all(-1)
    assert bool(empty.any())
    assert not bool(required(truth, "y")[empty].any())
    assert float(bounds["y"].deterministic[empty].max()) < 1e-30


@op(sizes={"m": ROWS, "n": COLUMNS})
def _masked(x: Float[Tensor, "m n"], v: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
    first = torch.arange(x.shape[1], device=x.device) < x.shape[1] // 2
    return x * torch.where(first, 1.0, 0.0) * v


def test_nan_that_an_output_does_not_depend_on_may_be_left_out() -> None:
    """0 times NaN is NaN by the formula; 0 is right as well, and in no other place."""
    case = _case(_masked, "nan_v")
    inputs, truth, bounds = _judged(_masked, case)
    place = required(inputs, "v").isnan()
    free = bounds["y"].or_nan
    assert free is not None and bool((free == place).all())
    assert not bool(required(truth, "y")[place].any())


def test_formula_without_a_value_promises_nothing() -> None:
    """An infinity less itself is judged in no kernel; the rest of the case is."""
    _, truth, bounds = _judged(_guarded, _case(_guarded, "inf"))
    unknown = required(truth, "y").isnan()
    assert bool(unknown.any()) and not bool(unknown.all())
    assert bool((bounds["y"].deterministic.isinf() == unknown).all())


@pytest.mark.parametrize("columns", [1, 2, 5, 77, 264, 3001])
def test_deciding_columns_are_those_where_rows_are_cut(columns: int) -> None:
    """Ends, the middle, and both sides of tiles' edges, each once, in an order by the seed."""
    places = deciding_columns(columns, 0)
    assert {0, columns - 1} <= set(places) <= set(range(columns))
    assert len(places) == len(set(places))
    assert columns <= 129 or {127, 128} <= set(places)
    assert sorted(deciding_columns(columns, 3)) == sorted(places)


def test_needles_decide_rows_and_labels() -> None:
    """A row's largest number stands at such a column, and labels name such columns."""
    case = _case(QUANTISE_ROWS, NEEDLES, n=264)
    x = required(QUANTISE_ROWS.inputs(case, _CPU), "x")
    assert set(x.abs().argmax(-1).tolist()) <= set(deciding_columns(264, 0))
    for item in (CROSS_ENTROPY_FORWARD, SMOOTHED_CROSS_ENTROPY_FORWARD):
        target = required(item.inputs(_case(item, NEEDLES, m=33, n=264), _CPU), "target")
        assert {0, 263} <= set(target.tolist())
    # Eight of 12 rows name such columns.
    few = _case(CROSS_ENTROPY_FORWARD, NEEDLES, n=264)
    target = required(CROSS_ENTROPY_FORWARD.inputs(few, _CPU), "target")
    assert len({*deciding_columns(264, 0)} & {*target.tolist()}) >= 8


def test_huge_squares_stay_below_the_largest_number() -> None:
    """Their sum is a sixteenth of fp32's largest at most, and near it."""
    x = required(RMS_NORM_FORWARD.inputs(_case(RMS_NORM_FORWARD, "large_squares"), _CPU), "x")
    sums = x.double().square().sum(-1)
    most = torch.finfo(torch.float32).max
    assert most / 1000 < float(sums.max()) <= most / 16
    assert math.isfinite(float(sums.sum()))


@op(sizes={"m": ROWS})
def _three(
    x: Float[Tensor, "m m"], a: Float[Tensor, "m"], b: Float[Tensor, "m"], c: Float[Tensor, "m"]
) -> Float[Tensor, "m m"]:
    return x + torch.maximum(torch.maximum(a, b), c)


def test_minus_infinity_is_in_each_of_several_vectors_alone() -> None:
    """And in all of them together: a defect may need it in the third one alone."""
    case = case_of(_three.name, {"m": 12}, _SINGLE, "ci", "minus_inf_rows")
    inputs = _three.inputs(case, _CPU)
    infinite = torch.stack([required(inputs, name).isneginf() for name in ("a", "b", "c")])
    assert bool(infinite.all(0).any())
    for place in range(3):
        assert bool((infinite[place] & (infinite.sum(0) == 1)).any())


@op(
    sizes={
        "m": Sizes("chosen", {"many": (12,), "few": (3, 5)}, lambda m: "few" if m < 9 else "many"),
        "n": Sizes("all", {"few": (6, 8), "many": (20,)}, lambda n: "few" if n < 9 else "many"),
    },
    labels={"i": "n"},
    distinct={"i": "m"},
)
def _chosen(x: Float[Tensor, "n"], i: Int[Tensor, "m"]) -> Float[Tensor, "m"]:
    return x[i] * 2


def test_cases_of_an_op_whose_plainest_sizes_it_has_not_are_its_own() -> None:
    """12 distinct numbers below 6 can't be; NaN and an infinity meet fp32 at sizes that can."""
    cases = _chosen.cases()
    assert not [case.id() for case in cases if objection(_chosen, case) is not None]
    assert {"nan", "inf"} <= {case.distribution for case in cases if case.dtype == torch.float32}


@pytest.mark.parametrize("of", [MATMUL_FORWARD, ADD_RMS_NORM_BACKWARD], ids=lambda of: of.name)
def test_each_size_is_met_beside_numbers_that_count(of: ReferenceOp) -> None:
    """A sum of zeros, or of NaN, hides that its end is lost: k of 528 had no other numbers."""
    assert of.allowed is not None
    telling = [case for case in of.cases() if case.tier == "ci" and case.distribution in _TELLING]
    met = {size for case in telling if min(dict(case.sizes).values()) > 1 for size in case.sizes}
    few = (parts for factor in of.allowed.factors for parts in _few_sizes(factor).levels.values())
    sizes = {size for parts in few for part in parts for size in part.sizes.items()}
    assert {size for size in sizes if size[1] > 1} <= met


def test_rows_of_whole_tiles_are_tried() -> None:
    """Kernels take a way without masks where the rows are a multiple of their tile."""
    for of in (SOFTMAX_FORWARD, QUANTISE_BLOCKS, ADD_RMS_NORM_BACKWARD):
        cases = [case for case in of.cases() if case.tier == "ci" and case.size("m")]
        assert any(case.size("m") % 64 == 0 for case in cases), of.name
