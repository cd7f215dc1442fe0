"""Casts that a layer norm declares: what it may be off by, what shows all the same.

Sound arithmetic is tests/builders/emulated_layer_norm.py, with casts as known kernels have them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, lru_cache

import pytest
import torch
from torch import Tensor

from kernel_workbench.oracles import LAYER_NORM_BACKWARD, LayerNormNumerics
from kernel_workbench.oracles.cases.distributions import INTEGERS
from kernel_workbench.oracles.layer_norm.cases import OPTION_SETS, layer_norm_case
from kernel_workbench.oracles.layer_norm.values import DISTRIBUTIONS
from kernel_workbench.oracles.op import Bound, Case, Inputs, Numerics, Outputs, dtype_name
from kernel_workbench.suites.accuracy.verdict import Verdict, judge
from kernel_workbench.suites.sandbox.call import Call
from tests.builders.by_hand import kernel_of
from tests.builders.changed_inputs import OnCase
from tests.builders.emulated_layer_norm import (
    PLAIN,
    Arithmetic,
    Early,
    backwards,
    early_ways,
    emulate,
    pairwise,
    sequential,
)

CPU = torch.device("cpu")
SINGLE, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16
Dtypes = tuple[torch.dtype, torch.dtype]
# x's type and the weight's; the last three are of a user's cases alone.
DTYPES = (
    (SINGLE, SINGLE), (FP16, FP16), (BF16, BF16), (FP16, SINGLE), (BF16, SINGLE),
    (SINGLE, FP16), (SINGLE, BF16), (BF16, FP16),
)  # fmt: skip
SHAPES = ((20, 300), (5, 1025), (300, 7), (3, 400))
FINITE = tuple(each for each in DISTRIBUTIONS if not each.startswith(("nan", "inf")))
LLAMA = Early(weighted=True, normalised=True, products=True)


def _label(dtypes: Dtypes) -> str:
    return "_".join(dtype_name(each) for each in dtypes)


def _case(shape: tuple[int, int], dtypes: Dtypes, family: str = "normal", *options: str) -> Case:
    named = frozenset(options)
    return layer_norm_case(*shape, dtypes, distribution=family, options=named)


@cache
def _given(case: Case) -> tuple[Inputs, Outputs]:
    inputs = LAYER_NORM_BACKWARD.inputs(case, CPU)
    return inputs, LAYER_NORM_BACKWARD.oracle(case, inputs)


@lru_cache(maxsize=16)
def _expected(case: Case, numerics: Numerics) -> tuple[dict[str, Bound], Outputs]:
    """The bounds of a kernel that declares this, and its emulation."""
    assert LAYER_NORM_BACKWARD.emulate is not None
    inputs, truth = _given(case)
    bounds = LAYER_NORM_BACKWARD.bound(case, inputs, truth, numerics)
    return bounds, LAYER_NORM_BACKWARD.emulate(case, inputs, numerics)


def _verdict(case: Case, outputs: dict[str, Tensor], numerics: Numerics) -> Verdict:
    bounds, other = _expected(case, numerics)
    call = Call(outputs, 0.0)
    return judge(call, call, _given(case)[1], bounds, numerics, emulation=other)


def _made(case: Case, early: Early, order: object = sequential) -> dict[str, Tensor]:
    how = Arithmetic(order, order, early=early)  # type: ignore[arg-type]
    return emulate(case, _given(case)[0], how)


def _ratio(verdict: Verdict, *names: str) -> float:
    found = {each.output: each.worst_deterministic for each in verdict.outputs}
    return max(found[name] or 0.0 for name in names)


@pytest.mark.parametrize("distribution", FINITE)
def test_sound_kernels_that_declare_their_casts_never_alarm(distribution: str) -> None:
    """None fails, on the shapes and in the dtypes whose turn it is."""
    turn = FINITE.index(distribution)
    for index, shape in [*enumerate(SHAPES)][turn % 2 :: 2]:
        dtypes = DTYPES[(3 * turn + index) % len(DTYPES)]
        if distribution == "near_overflow":
            dtypes = (FP16, (FP16, SINGLE, BF16)[index % 3])
        case = _case(shape, dtypes, distribution)
        for how in early_ways():
            made = emulate(case, _given(case)[0], how)
            verdict = _verdict(case, made, how.early.declared)
            assert verdict.rule is None, (shape, _label(dtypes), how.early, verdict.reason)


@pytest.mark.parametrize("options", OPTION_SETS, ids=lambda each: "+".join(sorted(each)))
def test_sound_kernels_that_declare_their_casts_never_alarm_with_options(
    options: frozenset[str],
) -> None:
    """Each option goes with every cast, in the dtypes whose turn it is."""
    dtypes = (DTYPES[2], DTYPES[3], DTYPES[5])[OPTION_SETS.index(options) % 3]
    case = _case(SHAPES[0], dtypes, "mean100", *options)
    for how in early_ways():
        made = emulate(case, _given(case)[0], how)
        verdict = _verdict(case, made, how.early.declared)
        assert verdict.rule is None, (_label(dtypes), how.early, verdict.reason)


@pytest.mark.parametrize(
    ("early", "dtypes", "output"),
    [
        (Early(accumulators=64), (FP16, SINGLE), "dweight"),
        (Early(partials=1), (BF16, SINGLE), "dbias"),
        (LLAMA, (FP16, FP16), "dx"),
        (LLAMA, (BF16, BF16), "dweight"),
        (Early(gradient=True), (SINGLE, BF16), "dbias"),
        (Early(gradient=True), (SINGLE, FP16), "dx"),
    ],
)
def test_bounds_of_declared_casts_are_reached(early: Early, dtypes: Dtypes, output: str) -> None:
    """Sound arithmetic comes to a third of them somewhere: they aren't vacuous."""
    worst = 0.0
    for family in ("normal", "uniform", "outliers"):
        for shape in ((2, 600), *SHAPES):
            case = _case(shape, dtypes, family)
            verdict = _verdict(case, _made(case, early), early.declared)
            worst = max(worst, _ratio(verdict, output))
    assert 1 / 3 < worst <= 1


# Casts of a kernel, and the dtypes in which they show as casts that the kernel hasn't declared.
_UNDECLARED = (
    (Early(accumulators=64), DTYPES[1:5]),
    (Early(partials=1), DTYPES[3:5]),  # cast to the output's own type as well, it is one cast
    (Early(partials=7), DTYPES[1:5]),
    (Early(weighted=True), DTYPES[1:5]),
    (Early(normalised=True), DTYPES[1:5]),
    (Early(products=True), DTYPES[1:5]),
    (Early(gradient=True), DTYPES[5:7]),
)


@pytest.mark.parametrize(
    ("early", "dtypes"),
    [(early, each) for early, every in _UNDECLARED for each in every],
    ids=lambda each: _label(each) if isinstance(each, tuple) else None,
)
def test_casts_that_nobody_declared_are_found(early: Early, dtypes: Dtypes) -> None:
    """One alone is enough, and declared it passes."""
    case = _case((40, 300), dtypes)
    assert _verdict(case, _made(case, early), PLAIN).rule is not None
    assert _verdict(case, _made(case, early), early.declared).rule is None


_WORSE = {
    "one accumulator of 64": (Early(accumulators=64), Early(accumulators=1)),
    "accumulated, and not cast once": (Early(partials=7), Early(accumulators=4)),
    "cast for each row as well": (Early(gradient=True), Early(products=True)),
    "g, beside x^": (Early(normalised=True, products=True), LLAMA),
    "dy x^, beside g": (Early(weighted=True), LLAMA),
    "and added in the half": (LLAMA, replace(LLAMA, accumulators=1)),
}


@pytest.mark.parametrize("dtypes", DTYPES[1:5], ids=_label)
@pytest.mark.parametrize("name", _WORSE)
def test_more_casts_than_declared_are_found(name: str, dtypes: Dtypes) -> None:
    """A declaration widens the bounds of no other cast so far that the other cast passes."""
    declared, done = _WORSE[name]
    case = _case((64, 300), dtypes)
    assert _verdict(case, _made(case, done), declared.declared).rule is not None
    assert _verdict(case, _made(case, declared), declared.declared).rule is None


@pytest.mark.parametrize("dtypes", DTYPES[1:5], ids=_label)
@pytest.mark.parametrize("early", [Early(accumulators=64), LLAMA], ids=["accumulators", "products"])
@pytest.mark.parametrize("defect", ["rstd of the next row", "weight left out", "last row left out"])
def test_defects_are_found_of_kernels_that_cast(defect: str, early: Early, dtypes: Dtypes) -> None:
    """A declaration of casts is no licence for anything else."""
    case = _case((40, 300), dtypes)
    inputs = dict(_given(case)[0])
    rstd, dy = inputs["rstd"], inputs["dy"]
    assert isinstance(rstd, Tensor) and isinstance(dy, Tensor)
    if defect == "rstd of the next row":
        inputs["rstd"] = rstd.roll(1)
    elif defect == "weight left out":
        inputs["weight"] = torch.ones(300)
    else:
        inputs["dy"] = torch.cat([dy[:-1], torch.zeros_like(dy[-1:])])
    made = emulate(case, inputs, Arithmetic(early=early))
    assert _verdict(case, made, early.declared).rule is not None


@pytest.mark.parametrize("dtypes", DTYPES, ids=_label)
def test_bounds_only_widen_with_declared_casts(dtypes: Dtypes) -> None:
    """They narrow no bound; and where the type is fp32 already they change none."""
    case = _case((40, 300), dtypes)
    inputs, truth = _given(case)
    plain = LAYER_NORM_BACKWARD.bound(case, inputs, truth, PLAIN)
    for how in early_ways():
        wide = LAYER_NORM_BACKWARD.bound(case, inputs, truth, how.early.declared)
        for name, bound in plain.items():
            assert bool((wide[name].deterministic >= bound.deterministic).all())
            to_x, to_weight = dtypes[0] != SINGLE, dtypes[1] not in {SINGLE, dtypes[0]}
            if not to_x and not (how.early.gradient and to_weight):
                assert torch.equal(wide[name].deterministic, bound.deterministic)
                assert wide[name].powerless is None


def test_casts_of_dweight_leave_dx_its_bound() -> None:
    """Partials, x^ and dy x^ are on the way to dweight alone."""
    case = _case((40, 300), DTYPES[2])
    inputs, truth = _given(case)
    plain = LAYER_NORM_BACKWARD.bound(case, inputs, truth, PLAIN)
    for early in (Early(accumulators=4), Early(partials=2), Early(normalised=True, products=True)):
        wide = LAYER_NORM_BACKWARD.bound(case, inputs, truth, early.declared)
        assert torch.equal(wide["dx"].deterministic, plain["dx"].deterministic)
        assert bool((wide["dweight"].deterministic > plain["dweight"].deterministic).all())


@pytest.mark.parametrize("dtype", [FP16, BF16], ids=dtype_name)
def test_many_roundings_of_a_partial_sum_leave_no_power(dtype: torch.dtype) -> None:
    """A dweight of zeros, which such a bound lets through, isn't passed; of few roundings it fails.

    With 4,000 rows to one sum, 4,000 u is 15 in bf16 and 2 in fp16.
    """
    case = _case((4000, 300), (dtype, dtype))
    made = _made(case, Early(), pairwise)
    made["dweight"] = torch.zeros_like(made["dweight"])
    assert _verdict(case, made, Early(accumulators=1).declared).status == "no power"
    assert _verdict(case, made, Early(partials=1).declared).status == "failed"


@pytest.mark.parametrize(
    ("distribution", "shape"),
    [
        ("zero_dy", (40, 300)),
        ("constant_rows", (13, 229)),
        ("mean1e4", (13, 229)),
    ],
)
def test_truths_of_zero_have_power_with_any_casts(
    distribution: str, shape: tuple[int, int]
) -> None:
    """No dy, or an x^ of 0: the bound is that of underflow, and says nearly all."""
    case = _case(shape, DTYPES[2], distribution)
    for early in (Early(accumulators=1), LLAMA):
        assert _verdict(case, _made(case, early), early.declared).status == "passed"


def test_a_row_of_one_number_has_power_unless_what_cancels_is_cast() -> None:
    """x^ is 0, and so is dx = g - mean g, whose two g are cast alike: no bound can know that."""
    case = _case((17, 1), DTYPES[2])
    for early, status in ((Early(accumulators=1), "passed"), (LLAMA, "no power")):
        assert _verdict(case, _made(case, early), early.declared).status == status


def test_casts_that_may_overflow_are_promised_nothing_where_they_may() -> None:
    """fp16's g past 65504 takes its whole row; a weight's type that holds all of it takes none."""
    case = _case((40, 300), (FP16, FP16), "near_overflow")
    inputs, truth = _given(case)
    for early, names in (
        (Early(weighted=True), {"dx"}),
        (Early(products=True), {"dweight"}),
        (Early(gradient=True), set[str]()),
    ):
        bounds = LAYER_NORM_BACKWARD.bound(case, inputs, truth, early.declared)
        infinite = {name for name, each in bounds.items() if each.deterministic.isinf().any()}
        assert infinite == names


@pytest.mark.parametrize("dtypes", DTYPES[1:5], ids=_label)
def test_exact_probes_stay_exact_where_partial_sums_hold_them(dtypes: Dtypes) -> None:
    """Few rows to a sum: equality is asked. Many: sound sums in the half pass, others don't."""
    few, many = _case((33, 40), dtypes, INTEGERS), _case((6000, 40), dtypes, INTEGERS)
    early = Early(accumulators=64)
    inputs, truth = _given(few)
    exact = LAYER_NORM_BACKWARD.bound(few, inputs, truth, PLAIN)
    declared = LAYER_NORM_BACKWARD.bound(few, inputs, truth, early.declared)
    for name in exact:
        assert torch.equal(declared[name].deterministic, exact[name].deterministic)
    one = Early(accumulators=1)
    for order in (sequential, backwards):
        assert _verdict(many, _made(many, one, order), one.declared).rule is None
    if dtypes[0] == BF16:
        assert _verdict(many, _made(many, one), PLAIN).rule is not None
    short = _made(many, one)
    inputs, _ = _given(many)
    dy = inputs["dy"]
    assert isinstance(dy, Tensor)
    short["dx"] = short["dx"] * 1.5
    assert _verdict(many, short, one.declared).rule is not None


@pytest.mark.parametrize("dtype", [FP16, BF16], ids=dtype_name)
def test_scaling_by_8_is_asked_within_bounds_of_a_kernel_that_casts_to_fp16(
    dtype: torch.dtype, device: torch.device
) -> None:
    """A small dy x^ is subnormal there and 8 times it isn't; of bf16 the bits are asked."""
    known = (each for each in LAYER_NORM_BACKWARD.cases() if each.distribution == "coarse")
    sizes = (("m", 150), ("n", 1024))
    case = replace(next(known), sizes=sizes, dtype=dtype, weight_dtype=SINGLE, options=frozenset())

    def products_in_half(
        dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor
    ) -> tuple[Tensor, ...]:
        given: Inputs = {"dy": dy, "x": x, "weight": weight, "mean": mean, "rstd": rstd}
        here = replace(case, sizes=(("m", x.shape[0]), ("n", x.shape[1])))
        on_host: Inputs = {
            name: each.cpu() if isinstance(each, Tensor) else each for name, each in given.items()
        }
        made = emulate(here, on_host, Arithmetic(early=Early(products=True)))
        return tuple(each.to(x.device) for each in made.values())

    name = "8 dy scales every gradient"
    for declares in (True, False):
        numerics = Numerics(casts="products" if declares else "")
        on = OnCase(kernel_of(products_in_half, numerics=numerics), case, device)
        holds = {each.name: each.holds for each in on.related()}
        assert holds[name] is (declares or dtype == BF16)


def test_emulation_leaves_out_sums_that_have_no_power() -> None:
    """Nothing is compared there, and thousands of roundings needn't be made."""
    case = _case((4000, 300), (BF16, BF16))
    assert LAYER_NORM_BACKWARD.emulate is not None
    for count, names in ((1, {"dx"}), (64, {"dx", "dweight", "dbias"})):
        numerics = Early(accumulators=count).declared
        assert LAYER_NORM_BACKWARD.emulate(case, _given(case)[0], numerics).keys() == names


def test_accumulators_are_a_number_of_them() -> None:
    """Fewer than none can't be declared."""
    with pytest.raises(ValueError, match="half_accumulators must be 0 or more, got -1"):
        LayerNormNumerics(half_accumulators=-1)
