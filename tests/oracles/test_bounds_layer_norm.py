"""The bounds of layer-norm backward: correct arithmetic stays within them, planted defects don't.

Correct arithmetic is the closed form in float32, with its sums in several orders, x^ in each of
its forms and dx combined in several ways; defects are one of these parts, or an argument, changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from torch import Tensor

from kernel_workbench.oracles import LAYER_NORM_BACKWARD
from kernel_workbench.oracles.cases.distributions import INTEGERS
from kernel_workbench.oracles.layer_norm import reference
from kernel_workbench.oracles.layer_norm.cases import OPTION_SETS, layer_norm_case
from kernel_workbench.oracles.layer_norm.values import DISTRIBUTIONS
from kernel_workbench.oracles.op import Bound, Case, Inputs, Numerics, Outputs, dtype_name
from tests.builders.emulated_layer_norm import (
    DISTRIBUTED,
    PLAIN,
    SOUND,
    Arithmetic,
    Combine,
    emulate,
    in_the,
    sequential,
    sound_ways,
    without_last,
)

CPU = torch.device("cpu")
Dtypes = tuple[torch.dtype, torch.dtype]
SINGLE, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16
DTYPES = ((SINGLE, SINGLE), (FP16, FP16), (BF16, BF16), (FP16, SINGLE), (BF16, SINGLE))
# More rows than columns and the reverse, no power of two, and one column over a block.
SHAPES = ((64, 33), (5, 1025), (300, 7))
# Non-finite values have no bound, the verdict judges them by its own rules; a probe's bound is 0.
NO_BOUND = ("nan", "inf", INTEGERS)
FINITE = tuple(name for name in DISTRIBUTIONS if not name.startswith(NO_BOUND))


def _label(dtypes: Dtypes) -> str:
    return "_".join(dtype_name(each) for each in dtypes)


@dataclass(frozen=True)
class Trial:
    """A case with its inputs and truth, and what a kernel's outputs come to."""

    case: Case
    inputs: Inputs
    truth: Outputs

    @classmethod
    def of(
        cls, shape: tuple[int, int], dtypes: Dtypes, family: str = "normal", *options: str
    ) -> Trial:
        """The trial of one case."""
        named = frozenset(options)
        case = layer_norm_case(*shape, dtypes, distribution=family, options=named)
        inputs = LAYER_NORM_BACKWARD.inputs(case, CPU)
        return cls(case, inputs, LAYER_NORM_BACKWARD.oracle(case, inputs))

    def bound(self, numerics: Numerics) -> dict[str, Bound]:
        """The bounds of each output."""
        return LAYER_NORM_BACKWARD.bound(self.case, self.inputs, self.truth, numerics)

    def ratio(self, outputs: dict[str, Tensor], limits: dict[str, Tensor]) -> float:
        """The largest error / limit over all outputs; an overflow where one is allowed counts 0."""
        worst = 0.0
        for name, output in outputs.items():
            got, exact, limit = output.double(), self.truth[name], limits[name]
            assert exact is not None
            largest = torch.finfo(output.dtype).max
            overflows = got.isinf() & (exact.abs() + limit >= largest) & (got * exact > 0)
            # The bound of zeros is 0, and they are right; a NaN is infinitely wrong.
            ratio = torch.where(overflows | (got == exact), 0.0, (got - exact).abs() / limit)
            worst = max(worst, float(ratio.nan_to_num(nan=math.inf).max()))
        return worst

    def ratios(self, outputs: dict[str, Tensor], limits: dict[str, Bound]) -> tuple[float, float]:
        """The ratios to the deterministic and to the probabilistic bound (0 where it is None)."""
        sure = {name: limit.deterministic for name, limit in limits.items()}
        maybe = {name: limit.probabilistic for name, limit in limits.items()}
        likely = {name: limit for name, limit in maybe.items() if limit is not None}
        return self.ratio(outputs, sure), self.ratio(outputs, likely) if likely else 0.0


@cache
def _worst(distribution: str, dtypes: Dtypes) -> tuple[float, float]:
    """The largest ratios of all correct ways on all shapes: deterministic and probabilistic."""
    worst = (0.0, 0.0)
    for shape in SHAPES:
        trial = Trial.of(shape, dtypes, distribution)
        limits: dict[Numerics, dict[str, Bound]] = {
            each: trial.bound(each) for each in (PLAIN, DISTRIBUTED)
        }
        for how, declared in sound_ways():
            outputs = emulate(trial.case, trial.inputs, how)
            fresh = trial.ratios(outputs, limits[declared])
            worst = max(worst[0], fresh[0]), max(worst[1], fresh[1])
    return worst


def _dtypes_of(distribution: str) -> tuple[Dtypes, ...]:
    """near_overflow is near fp16's largest number, and is a case in fp16 alone."""
    return DTYPES[1:2] if distribution == "near_overflow" else DTYPES


@pytest.mark.parametrize("distribution", FINITE)
def test_correct_arithmetic_never_exceeds_its_bounds(distribution: str) -> None:
    """No order of summation, form of x^ or way to combine dx raises a false alarm."""
    for dtypes in _dtypes_of(distribution):
        assert max(_worst(distribution, dtypes)) <= 1, _label(dtypes)


@pytest.mark.parametrize("options", OPTION_SETS, ids=lambda each: "+".join(sorted(each)))
def test_correct_arithmetic_stays_within_its_bounds_with_options(options: frozenset[str]) -> None:
    """Each set of options widens the bound by the roundings that it adds."""
    for dtypes in DTYPES:
        trial = Trial.of((64, 33), dtypes, "mean1e4", *options)
        limits: dict[Numerics, dict[str, Bound]] = {
            each: trial.bound(each) for each in (PLAIN, DISTRIBUTED)
        }
        for how, declared in sound_ways():
            outputs = emulate(trial.case, trial.inputs, how)
            assert max(trial.ratios(outputs, limits[declared])) <= 1, how


@pytest.mark.parametrize("dtypes", DTYPES, ids=_label)
def test_bounds_are_reached_by_correct_arithmetic(dtypes: Dtypes) -> None:
    """The bounds aren't vacuous: correct arithmetic comes near them somewhere.

    In the halves the last rounding takes most of the bound: 0.99 of it is reached. In fp32, 0.79.
    """
    worst = max(_worst(each, dtypes)[0] for each in FINITE if dtypes in _dtypes_of(each))
    assert worst > (0.5 if dtypes[0] == SINGLE else 0.9)


def test_no_probabilistic_bound_is_claimed_for_equal_addends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """16384 equal terms in sequence round alike: sqrt(n) of their roundings isn't enough.

    The analysis sees that by itself, too: its probable form is the deterministic one then.
    """
    trial = Trial.of((8, 16384), DTYPES[0], "constant_both", "no_weight")
    outputs = emulate(trial.case, trial.inputs, Arithmetic(sequential, sequential))
    limits = trial.bound(PLAIN)
    assert all(limit.probabilistic is None for limit in limits.values())
    assert trial.ratios(outputs, limits)[0] <= 1
    monkeypatch.setattr(reference, "addends_vary", lambda _case: True)
    derived = trial.bound(PLAIN)["dx"]
    assert derived.probabilistic is not None
    assert torch.equal(derived.probabilistic, derived.deterministic)


@pytest.mark.parametrize("dtypes", [DTYPES[0], DTYPES[2]], ids=_label)
def test_flushed_subnormals_need_the_wider_bound(dtypes: Dtypes) -> None:
    """Arithmetic that flushes subnormals is within its bound, and not within gradual underflow's.

    In fp16 the output's own subnormals are coarser than anything that is flushed.
    """
    for shape in SHAPES:
        trial = Trial.of(shape, dtypes, "subnormals")
        if not torch.set_flush_denormal(True):
            pytest.skip("this CPU has no mode that flushes subnormals")
        try:
            outputs = emulate(trial.case, trial.inputs, SOUND)
        finally:
            torch.set_flush_denormal(False)
        assert max(trial.ratios(outputs, trial.bound(Numerics()))) <= 1
        assert trial.ratios(outputs, trial.bound(PLAIN))[0] > 1


def _changed(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[Inputs], Inputs]:
    def apply(inputs: Inputs) -> Inputs:
        value = inputs[name]
        assert isinstance(value, Tensor)
        return {**inputs, name: change(value)}

    return apply


def _with_small_rows_off(rstd: Tensor) -> Tensor:
    return torch.where(torch.arange(len(rstd)) % 4 == 3, 1.01 * rstd, rstd)


# By name: the distribution that it shows on, the arithmetic, and what becomes of the arguments.
DEFECTS: dict[str, tuple[str, Arithmetic, Callable[[Inputs], Inputs]]] = {
    "mean in bf16": ("mean100", SOUND, _changed("mean", lambda each: each.bfloat16())),
    "rstd in bf16": ("normal", SOUND, _changed("rstd", lambda each: each.bfloat16())),
    "rstd of the next row": ("normal", SOUND, _changed("rstd", lambda each: each.roll(1))),
    "weight offset by one": ("normal", SOUND, _changed("weight", lambda each: each.roll(1))),
    "weight left out": ("normal", SOUND, lambda inputs: {**inputs, "weight": None}),
    "mean left out": ("normal", SOUND, lambda inputs: {**inputs, "mean": None}),
    "last column not in means": ("normal", replace(SOUND, row_sum=without_last), dict),
    "last row not in dweight": ("normal", replace(SOUND, column_sum=without_last), dict),
    "means summed in bf16": ("normal", replace(SOUND, row_sum=in_the(BF16)), dict),
    "dweight summed in bf16": ("normal", replace(SOUND, column_sum=in_the(BF16)), dict),
    "dweight summed in fp16": ("normal", replace(SOUND, column_sum=in_the(FP16)), dict),
    "wrong sign of c2": ("normal", replace(SOUND, combine=Combine(0, sign=-1.0)), dict),
    # The rows that are 1e-3 of the largest: a norm over the tensor wouldn't see it.
    "rstd of small rows": ("scaled_rows", SOUND, _changed("rstd", _with_small_rows_off)),
}


@pytest.mark.parametrize("dtypes", DTYPES, ids=_label)
@pytest.mark.parametrize("defect", DEFECTS)
def test_planted_defect_exceeds_the_bound(defect: str, dtypes: Dtypes) -> None:
    """A kernel with one thing wrong is seen, in every dtype, and the sound one beside it isn't."""
    distribution, how, change = DEFECTS[defect]
    trial = Trial.of((64, 33), dtypes, distribution)
    limits = trial.bound(Numerics())
    assert trial.ratios(emulate(trial.case, trial.inputs, SOUND), limits)[0] <= 1
    assert trial.ratios(emulate(trial.case, change(trial.inputs), how), limits)[0] > 1


@pytest.mark.parametrize("dtypes", DTYPES, ids=_label)
def test_relative_error_of_rstd_is_seen(dtypes: Dtypes) -> None:
    """Measured: an rstd off by 2^-20 is seen in fp32, by 2^-17 in the halves; one step to spare."""
    power = 19 if dtypes[0] == SINGLE else 16
    trial = Trial.of((64, 33), dtypes)
    change = _changed("rstd", lambda rstd: rstd * (1 + 2.0**-power))
    outputs = emulate(trial.case, change(trial.inputs), SOUND)
    assert max(trial.ratios(outputs, trial.bound(Numerics()))) > 1


def _ratios_of_bounds(
    distribution: str, one: Numerics, other: Numerics
) -> dict[str, tuple[float, float]]:
    """For each output the least and the largest of bound(one) / bound(other), in fp32."""
    trial = Trial.of((64, 33), DTYPES[0], distribution)
    above, below = trial.bound(one), trial.bound(other)
    quotients = {name: above[name].deterministic / below[name].deterministic for name in above}
    # The bound of zeros is 0 whatever a kernel declares.
    ratios = {name: quotient.nan_to_num(nan=1.0) for name, quotient in quotients.items()}
    return {name: (float(ratio.min()), float(ratio.max())) for name, ratio in ratios.items()}


@pytest.mark.parametrize("distribution", FINITE)
def test_bounds_only_widen_with_what_a_kernel_declares(distribution: str) -> None:
    """A distributed normalisation narrows no bound, and gradual underflow widens none."""
    for wider in (DISTRIBUTED, Numerics()):
        for least, _ in _ratios_of_bounds(distribution, wider, PLAIN).values():
            assert least >= 1 - 1e-15  # float64's own roundings


def test_bounds_widen_where_a_declaration_matters() -> None:
    """x rstd - mean rstd costs in proportion to the mean, a flush only among subnormals."""
    for distribution, factor in (("normal", 1), ("mean100", 3), ("mean1e4", 200)):
        quotients = _ratios_of_bounds(distribution, DISTRIBUTED, PLAIN)
        assert quotients["dx"][0] > 1
        assert quotients["dweight"][0] > factor  # measured: 1.02, 4.1 and 290
        assert quotients["dbias"] == (1, 1)
    flushed = _ratios_of_bounds("subnormals", Numerics(), PLAIN).values()
    assert min(least for least, _ in flushed) > 1
    assert set(_ratios_of_bounds("normal", Numerics(), PLAIN).values()) == {(1, 1)}


def test_bounds_double_with_the_accumulation_roundoff() -> None:
    """But for terms of second order: 64 roundings of 2^-23 are 8e-6.

    An output in fp32 has no rounding of its own: its last operation rounds it. 1 / n is exact here.
    """
    trial = Trial.of((64, 32), DTYPES[0])
    one, two = trial.bound(PLAIN), trial.bound(replace(PLAIN, accumulation_roundoff=2.0**-23))
    for name in trial.truth:
        quotient = two[name].deterministic / one[name].deterministic
        assert bool(((quotient - 2).abs() <= 1e-5).all())


def test_zero_centred_weight_adds_its_rounding() -> None:
    """With equal values of 1 + weight, the bound of dx is wider, and those of the sums the same."""
    trial = Trial.of((64, 33), DTYPES[0], "normal", "zero_centred")
    weight = trial.inputs["weight"]
    assert isinstance(weight, Tensor)
    inputs: Inputs = {**trial.inputs, "weight": 1 + weight.double()}
    plain = replace(trial, case=replace(trial.case, options=frozenset()), inputs=inputs)
    one, other = trial.bound(PLAIN), plain.bound(PLAIN)
    assert bool((one["dx"].deterministic > other["dx"].deterministic).all())
    for name in ("dweight", "dbias"):
        assert torch.equal(one[name].deterministic, other[name].deterministic)
