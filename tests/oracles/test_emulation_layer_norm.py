"""The emulation of layer norm: what it makes, and that rule 3 has teeth and no false alarm.

Sound arithmetic is tests/builders/emulated_layer_norm.py in its several ways.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernel_workbench.oracles import LAYER_NORM_BACKWARD
from kernel_workbench.oracles.layer_norm.cases import OPTION_SETS, layer_norm_case
from kernel_workbench.oracles.layer_norm.values import DISTRIBUTIONS
from kernel_workbench.oracles.op import Case, Inputs, Numerics, Outputs, dtype_name
from kernel_workbench.suites.accuracy.verdict import Verdict, judge
from kernel_workbench.suites.sandbox.call import Call
from tests.builders.emulated_layer_norm import PLAIN, Arithmetic, Combine, emulate, sound_ways

CPU = torch.device("cpu")
SINGLE, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16
DTYPES = ((SINGLE, SINGLE), (FP16, FP16), (BF16, BF16), (FP16, SINGLE), (BF16, SINGLE))
# Each has a block in dx: long rows, short ones, few and many.
SHAPES = ((20, 300), (5, 1025), (300, 7))
FINITE = tuple(each for each in DISTRIBUTIONS if not each.startswith(("nan", "inf")))


def _case(
    shape: tuple[int, int],
    dtypes: tuple[torch.dtype, torch.dtype],
    distribution: str = "normal",
    options: frozenset[str] = frozenset(),
) -> Case:
    return layer_norm_case(*shape, dtypes, distribution=distribution, options=options)


def _emulated(case: Case, inputs: Inputs, numerics: Numerics) -> Outputs:
    assert LAYER_NORM_BACKWARD.emulate is not None
    return LAYER_NORM_BACKWARD.emulate(case, inputs, numerics)


def _verdict(
    case: Case, inputs: Inputs, outputs: dict[str, Tensor], numerics: Numerics, *, rule3: bool
) -> Verdict:
    truth = LAYER_NORM_BACKWARD.oracle(case, inputs)
    bounds = LAYER_NORM_BACKWARD.bound(case, inputs, truth, numerics)
    call = Call(outputs, 0.0)
    other = _emulated(case, inputs, numerics) if rule3 else None
    return judge(call, call, truth, bounds, numerics, emulation=other)


def _all_ways(case: Case) -> Iterator[tuple[Arithmetic, Verdict]]:
    """The verdict on every sound way."""
    op, inputs = LAYER_NORM_BACKWARD, LAYER_NORM_BACKWARD.inputs(case, CPU)
    truth = op.oracle(case, inputs)
    known = {}
    for how, declared in sound_ways():
        if declared not in known:
            bounds = op.bound(case, inputs, truth, declared)
            known[declared] = bounds, _emulated(case, inputs, declared)
        bounds, other = known[declared]
        call = Call(emulate(case, inputs, how), 0.0)
        yield how, judge(call, call, truth, bounds, declared, emulation=other)


@pytest.mark.parametrize("distribution", FINITE)
def test_sound_arithmetic_never_alarms(distribution: str) -> None:
    """No order of summation, form of x^ or way to combine dx fails the whole verdict."""
    turn = FINITE.index(distribution)
    for index in (turn, turn + 1):
        shape, dtypes = SHAPES[index % len(SHAPES)], DTYPES[(turn + index) % len(DTYPES)]
        if distribution == "near_overflow":
            dtypes = DTYPES[1]
        for how, verdict in _all_ways(_case(shape, dtypes, distribution)):
            assert verdict.rule is None, (shape, dtypes, how, verdict.reason)


@pytest.mark.parametrize("options", OPTION_SETS, ids=lambda each: "+".join(sorted(each)))
def test_sound_arithmetic_never_alarms_with_options(options: frozenset[str]) -> None:
    """Each option's own roundings are the emulation's too."""
    distribution = ("normal", "mean100", "uniform")[OPTION_SETS.index(options) % 3]
    for how, verdict in _all_ways(_case(SHAPES[0], DTYPES[0], distribution, options)):
        assert verdict.rule is None, (distribution, how, verdict.reason)


def test_emulation_has_the_outputs_of_its_case_and_passes_by_its_bounds() -> None:
    """For a third of the cases of `ci`, unless it isn't comparable: then for no output."""
    compared = 0
    for case in LAYER_NORM_BACKWARD.cases()[::3]:
        if case.tier != "ci" or case.size("m") * case.size("n") > 2**17:
            continue
        inputs = LAYER_NORM_BACKWARD.inputs(case, CPU)
        outputs = _emulated(case, inputs, Numerics())
        if not outputs:
            continue
        forms = {
            name: (form.shape, form.dtype) for name, form in LAYER_NORM_BACKWARD.forms(case).items()
        }
        made = {name: each for name, each in outputs.items() if each is not None}
        assert {name: (tuple(each.shape), each.dtype) for name, each in made.items()} == forms
        assert _verdict(case, inputs, made, Numerics(), rule3=False).rule is None, case.id()
        compared += 1
    assert compared > 50


@pytest.mark.parametrize(
    ("distribution", "dtypes"),
    [
        *((each, DTYPES[0]) for each in ("subnormals", "dy_subnormal", "constant_rows")),
        *((each, DTYPES[0]) for each in ("constant_dy", "zero_dy", "integers")),
        ("mean1e4", DTYPES[1]),
        ("mean1e4", DTYPES[2]),
    ],
)
def test_families_whose_errors_arent_draws_arent_compared(
    distribution: str, dtypes: tuple[torch.dtype, torch.dtype]
) -> None:
    """Underflow, equal addends, exact values; and in the halves 1e4 + N(0, 1) is one number."""
    case = _case(SHAPES[0], dtypes, distribution)
    assert _emulated(case, LAYER_NORM_BACKWARD.inputs(case, CPU), Numerics()) == {}


@pytest.mark.parametrize(
    ("thing", "power", "options"),
    [("rstd", 21, ()), ("weight", 21, ()), ("dresidual", 21, ("residual",))],
)
def test_small_errors_in_fp32_are_seen_by_the_emulation_alone(
    thing: str, power: int, options: tuple[str, ...]
) -> None:
    """A number off by 2^-k passes both bounds, which are many times what errors come to."""
    case = _case((40, 300), DTYPES[0], "normal", frozenset(options))
    inputs = LAYER_NORM_BACKWARD.inputs(case, CPU)
    value = inputs[thing]
    assert isinstance(value, Tensor)
    off = emulate(case, {**inputs, thing: value * (1 + 2.0**-power)}, Arithmetic())
    assert _verdict(case, inputs, off, PLAIN, rule3=False).rule is None
    verdict = _verdict(case, inputs, off, PLAIN, rule3=True)
    assert verdict.rule == "emulation"
    sound = emulate(case, inputs, Arithmetic())
    assert _verdict(case, inputs, sound, PLAIN, rule3=True).rule is None


def test_a_distributed_normalisation_is_emulated_where_it_is_declared() -> None:
    """Around a mean of 1e4 its products cancel, and only a kernel that says so may lose that."""
    case = _case((40, 300), DTYPES[0], "mean100")
    inputs = LAYER_NORM_BACKWARD.inputs(case, CPU)
    declared = replace(PLAIN, distributed_normalisation=True)
    plain, wide = (_emulated(case, inputs, each) for each in (PLAIN, declared))
    truth = LAYER_NORM_BACKWARD.oracle(case, inputs)
    errors = []
    for made in (plain, wide):
        output, exact = made["dweight"], truth["dweight"]
        assert output is not None and exact is not None
        errors.append(float((output.double() - exact).abs().max()))
    assert errors[1] > 4 * errors[0]


@pytest.mark.parametrize("dtypes", DTYPES, ids=lambda each: "_".join(map(dtype_name, each)))
def test_a_means_share_left_out_is_seen(dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    """c2 with the wrong sign fails, by whatever rule: the emulation hides no defect."""
    case = _case(SHAPES[0], dtypes)
    inputs = LAYER_NORM_BACKWARD.inputs(case, CPU)
    wrong = emulate(case, inputs, Arithmetic(combine=Combine(0, sign=-1.0)))
    assert _verdict(case, inputs, wrong, PLAIN, rule3=True).rule is not None
