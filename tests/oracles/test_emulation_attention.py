"""The emulation of attention: what it makes, and that rule 3 raises no false alarm.

Sound arithmetic is tests/builders/emulated_attention.py in its several ways; what the rule sees is
in test_emulation_attention_defects.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.attention import scores
from kernel_workbench.oracles.attention.geometry import BACKWARD, DELTA, FORWARD, GRADIENTS
from kernel_workbench.oracles.attention.probes import NEEDLES
from kernel_workbench.oracles.attention.values import DISTRIBUTIONS
from kernel_workbench.oracles.cases.distributions import INTEGERS
from kernel_workbench.oracles.cases.names import case_named
from kernel_workbench.oracles.op import Numerics, Op, required
from kernel_workbench.suites.accuracy.verdict import judge
from kernel_workbench.suites.sandbox.call import Call
from tests.builders.attention_trials import FEATURES, JUDGED, Trial
from tests.builders.emulated_attention import Way
from tests.builders.emulated_verdicts import verdict_on_way

CPU = torch.device("cpu")
SINGLE, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16
DTYPES = (SINGLE, FP16, BF16)
# Outputs of several blocks; more keys than queries and the reverse, grouped heads.
SHAPES = ((1, 4, 2, 40, 70, 24, 64), (2, 2, 2, 70, 33, 64, 16))
NOT_FINITE = ("nan", "inf")
# Nothing is rounded in exact probes, and one of them is for delta alone.
FINITE = tuple(
    name for name in DISTRIBUTIONS if not name.startswith((*NOT_FINITE, NEEDLES, INTEGERS))
)
# Every order of summation, form of the exponential and declared rounding once at least.
WAYS = (
    Way(),
    Way(product="sequential", base2=True, folded=True),
    Way(base2=True, coarse=True, splits=3),
    Way(rounds_factors=True, half_partials=True, half_bias_gradient=True, key_tile=16),
)
TRUNCATING = Way(product="truncating", coarse=True, key_tile=16)
TF32 = (Way(product="truncating", tf32=True, coarse=True), Way(tf32=True, base2=True, folded=True))


def _feature_of(distribution: str) -> str:
    """A feature in which the distribution shows."""
    for name in ("bias", "sink"):
        if distribution.startswith(name):
            return name
    return "none"


@pytest.mark.parametrize("distribution", FINITE)
def test_sound_arithmetic_never_alarms(distribution: str) -> None:
    """No order of summation, form of the exponential or declared cast fails the whole verdict."""
    turn = FINITE.index(distribution)
    for index, op in enumerate(JUDGED):
        dtype = FP16 if distribution == "near_overflow" else DTYPES[(turn + index) % 3]
        shape = SHAPES[(turn + index) % 2]
        trial = Trial.of(op, shape, dtype, _feature_of(distribution), distribution)
        more = TF32 if dtype == SINGLE else (TRUNCATING,)
        for way in (*WAYS, *more):
            verdict = verdict_on_way(trial, way)
            assert verdict.rule is None, (op, dtype, shape, way, verdict.reason)


@pytest.mark.parametrize("feature", FEATURES)
def test_sound_arithmetic_never_alarms_with_options(feature: str) -> None:
    """Each option's own roundings are the emulation's too; with positive values nothing cancels."""
    turn = tuple(FEATURES).index(feature)
    for index, op in enumerate(JUDGED):
        dtype, distribution = DTYPES[(turn + index) % 3], ("normal", "positive")[(turn + index) % 2]
        trial = Trial.of(op, SHAPES[index % 2], dtype, feature, distribution)
        for way in (*WAYS, *(TF32[1:] if dtype == SINGLE else ())):
            verdict = verdict_on_way(trial, way)
            assert verdict.rule is None, (op, dtype, way, verdict.reason)


def _ci(op: Op) -> Iterator[Trial]:
    cases = [case for case in op.cases() if case.tier == "ci" and case.layout.name == "contiguous"]
    for case in cases[::3]:
        yield Trial.given(op.name, case, op.inputs(case, CPU))


@pytest.mark.parametrize("name", [FORWARD, DELTA, BACKWARD, GRADIENTS])
def test_emulation_has_the_outputs_of_its_case_and_passes_by_its_bounds(name: str) -> None:
    """For a third of `ci`'s contiguous cases, unless it isn't comparable: then for no output."""
    op, compared = OPS[name], 0
    assert op.emulate is not None
    for trial in _ci(op):
        outputs = op.emulate(trial.case, trial.inputs, Numerics())
        made = {name: each for name, each in outputs.items() if each is not None}
        if not made:
            continue
        forms = {name: (form.shape, form.dtype) for name, form in op.forms(trial.case).items()}
        assert {name: (tuple(each.shape), each.dtype) for name, each in made.items()} == forms
        if not trial.case.distribution.startswith(NOT_FINITE):
            call = Call({name: each.contiguous() for name, each in made.items()}, 0.0)
            bounds = trial.bounds(Numerics())
            verdict = judge(call, call, trial.truth, bounds, Numerics())
            assert verdict.rule is None, (trial.case.id(), verdict.reason)
        compared += 1
    assert compared > 10


@pytest.mark.parametrize("distribution", ["nan_q", "nan_k", "inf_k", "nan_v", "nan_masked"])
def test_emulation_of_values_that_arent_finite_is_finite_where_the_truth_is(
    distribution: str,
) -> None:
    """Made of the finite part of its arguments, as the bounds are: the rest isn't judged."""
    trial = Trial.of(FORWARD, (2, 2, 2, 37, 70, 16, 16), SINGLE, "causal", distribution)
    assert trial.op.emulate is not None
    made = trial.op.emulate(trial.case, trial.inputs, Numerics())["out"]
    exact, bounds = trial.truth["out"], trial.bounds(Numerics())
    assert made is not None and exact is not None
    judged = exact.isfinite() & bounds["out"].deterministic.isfinite()
    assert judged.any()
    error = (made.double() - exact).abs()
    assert bool((error <= bounds["out"].deterministic)[judged].all())


@pytest.mark.parametrize(
    "distribution",
    ["subnormals", "qk_subnormals", "logits1e4", "bias_large", "constant", "needles", "integers"],
)
def test_families_whose_errors_arent_draws_arent_compared(distribution: str) -> None:
    """Underflow, scores of thousands, equal addends and exact values: rules 1 and 2 judge those."""
    op = OPS[DELTA if distribution == "integers" else BACKWARD]
    cases = [case for case in op.cases() if case.distribution == distribution]
    assert cases
    assert op.emulate is not None
    smallest = min(cases, key=op.flops)
    assert op.emulate(smallest, op.inputs(smallest, CPU), Numerics()) == {}


def test_truncating_sums_are_compared_where_a_cast_is_larger() -> None:
    """Their errors all have one sign, which an emulation that rounds to nearest hasn't.

    With fp32 operands nothing is compared, with halves all but lse, which no cast precedes; tf32's
    cut operands are larger than any truncation.
    """
    truncating = Numerics(accumulation_roundoff=2.0**-23)
    cut = Numerics(accumulation_roundoff=2.0**-23, tf32_operands=True)
    for dtype, numerics, names in (
        (SINGLE, truncating, set()),
        (SINGLE, cut, {"out", "lse"}),
        (SINGLE, Numerics(), {"out", "lse"}),
        (BF16, truncating, {"out"}),
        (BF16, Numerics(), {"out", "lse"}),
    ):
        trial = Trial.of(FORWARD, SHAPES[0], dtype)
        assert trial.op.emulate is not None
        assert set(trial.op.emulate(trial.case, trial.inputs, numerics)) == names


def test_truncation_of_fp32_would_be_a_false_alarm() -> None:
    """Why it isn't compared: sums of positive numbers, cut at each step, are off to one side."""
    trial = Trial.of(BACKWARD, SHAPES[1], SINGLE, "none", "positive")
    verdict = verdict_on_way(trial, Way(product="truncating"))
    assert verdict.rule is None
    assert trial.op.emulate is not None
    other = trial.op.emulate(trial.case, trial.inputs, Numerics())
    outputs = trial.outputs(Way(product="truncating"))
    call = Call({name: each.contiguous() for name, each in outputs.items()}, 0.0)
    declared = Way(product="truncating").numerics
    alarmed = judge(call, call, trial.truth, trial.bounds(declared), declared, emulation=other)
    assert alarmed.rule == "emulation"


def test_emulation_takes_whole_products_whatever_the_process_has_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that allows tf32 would widen the verdict on every fp32 kernel without a word."""
    seen = set()

    def matmul(one: Tensor, other: Tensor) -> Tensor:
        seen.add(torch.get_float32_matmul_precision())
        return torch.matmul(one, other)

    monkeypatch.setattr(Tensor, "__matmul__", matmul)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        for op in JUDGED:
            trial = Trial.of(op, (1, 1, 1, 5, 7, 8, 8), SINGLE)
            seen.clear()
            assert trial.op.emulate is not None
            trial.op.emulate(trial.case, trial.inputs, Numerics())
            assert seen == {"highest"}
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)


def test_emulation_of_several_pieces_is_that_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are cut into pieces to bound memory: sums over queries meet in fp32, in their order."""
    trial = Trial.of(GRADIENTS, (2, 4, 2, 33, 40, 16, 16), SINGLE, "softcap, bias and sink")
    assert trial.op.emulate is not None
    whole = trial.op.emulate(trial.case, trial.inputs, Numerics())
    monkeypatch.setitem(scores._PIECE_ELEMENTS, "cpu", 500)
    parts = trial.op.emulate(trial.case, trial.inputs, Numerics())
    for name, each in whole.items():
        other = parts[name]
        assert each is not None and other is not None
        torch.testing.assert_close(each, other, rtol=2.0**-18, atol=2.0**-20)


def test_exponentials_below_normal_numbers_are_zero_unless_they_are_kept() -> None:
    """A right kernel of a GPU has zeros there, far from what an emulation that keeps them has."""
    op = OPS[BACKWARD]
    sizes = "b1-h_q1-h_kv1-s_q37-s_kv41-d64-d_v64"
    case = case_named(op, f"{BACKWARD}-{sizes}-float32-contiguous-one_hot-bias")
    assert case is not None
    inputs = op.inputs(case, torch.device("cpu"))
    bound = op.bound(case, inputs, op.oracle(case, inputs), Numerics())["dbias"].deterministic
    assert op.emulate is not None
    flushed, kept = (
        required(op.emulate(case, inputs, Numerics(gradual_underflow=keeps)), "dbias").double()
        for keeps in (False, True)
    )
    z = (flushed - kept).abs() / bound
    assert bool(((flushed == 0) & (kept != 0) & (z > 1 / 4)).any())
    assert float(z.max()) <= 1
