"""A verdict says more than right and wrong: bounds without power, and errors that are counted."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kernel_workbench.oracles.op import Bound, Numerics, Outputs
from kernel_workbench.reports.record import ULP_EDGES, OutputError
from kernel_workbench.suites.accuracy.verdict import Verdict, judge
from kernel_workbench.suites.sandbox.call import Call

INF = math.inf


def _tensor(values: list[float], dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(values, dtype=dtype)


def _judge(got: Tensor, truth: Tensor, bound: Bound) -> Verdict:
    call = Call({"dx": got}, 0.0)
    return judge(call, call, {"dx": truth}, {"dx": bound}, Numerics())


def _measured(verdict: Verdict) -> OutputError:
    (only,) = verdict.outputs
    return only


def test_errors_are_counted_by_units_of_the_last_place() -> None:
    """In fp16 a unit is 2^-10 from 1 to 2; what isn't a number isn't counted."""
    unit = 2.0**-10
    truth = _tensor([1.0, 1.0 + unit / 2, 1.0, 1.0, 1.0, 1.0, 1.0, math.nan])
    got = [1.0, 1.0, 1.0 + unit, 1.0 + 3 * unit, 1.0 - 3 * unit, 65.0, 129.0, math.nan]
    bound = torch.full_like(truth, 1000.0)
    measured = _measured(_judge(_tensor(got, torch.float16), truth, Bound(bound, None)))
    # Errors of 0, 1/2, 1, 3, 3, 2^16 and 2^17 units.
    assert measured.ulp_histogram == (1, 1, 1, 0, 2, *[0] * 13, 1, 1)
    assert len(measured.ulp_histogram) == len(ULP_EDGES) + 1
    assert measured.max_ulp == 2.0**17


def test_zeros_at_the_end_of_the_counts_are_left_out() -> None:
    """A record holds as many as there are."""
    ones = torch.ones(3)
    measured = _measured(_judge(ones, ones.double(), Bound(ones.double(), None)))
    assert measured.ulp_histogram == (3,)
    empty = torch.ones(0, 4)
    nothing = _measured(_judge(empty, empty.double(), Bound(empty.double(), None)))
    assert nothing.ulp_histogram == ()


def _powerless(
    got: list[float], truth: list[float], bound: list[float], silent: list[bool]
) -> Verdict:
    limits = Bound(_tensor(bound), None, torch.tensor(silent))
    return _judge(_tensor(got, torch.float32), _tensor(truth), limits)


def test_output_whose_bounds_say_nothing_has_no_power() -> None:
    """It is no pass; one element that says something makes it one, and a wrong one still fails."""
    none = _powerless([1.0, 2.0], [2.0, 4.0], [50.0, 50.0], [True, True])
    assert (none.rule, none.status) == (None, "no power")
    assert _measured(none).powerless == 2
    some = _powerless([1.0, 2.0], [2.0, 4.0], [50.0, 50.0], [True, False])
    assert (some.rule, some.status) == (None, "passed")
    wrong = _powerless([1.0, 99.0], [2.0, 4.0], [50.0, 50.0], [True, True])
    assert (wrong.rule, wrong.status) == ("deterministic bound", "failed")


def test_what_nothing_is_promised_of_is_not_what_has_no_power() -> None:
    """An infinite bound isn't judged at all: it leaves nothing for the others to have power of."""
    promised = _powerless([1.0, 2.0], [2.0, 4.0], [INF, INF], [False, False])
    assert promised.status == "passed"
    assert (_measured(promised).unjudged, _measured(promised).powerless) == (2, 0)
    left = _powerless([1.0, 2.0], [2.0, 4.0], [INF, 50.0], [True, True])
    assert left.status == "no power"
    assert (_measured(left).unjudged, _measured(left).powerless) == (1, 1)


def test_one_output_without_power_is_enough() -> None:
    """The row's claim is that every output is right."""
    one = torch.ones(3)
    silent = Bound(one.double(), None, torch.ones(3, dtype=torch.bool))
    call = Call({"out": one, "lse": one}, 0.0)
    truth: Outputs = {"out": one.double(), "lse": one.double()}
    bounds = {"out": Bound(one.double(), None), "lse": silent}
    assert judge(call, call, truth, bounds, Numerics()).status == "no power"


def test_call_without_outputs_has_not_passed() -> None:
    """Where a kernel's process says that a case has none of its outputs, nothing was judged."""
    call = Call({}, 0.0)
    assert judge(call, call, {}, {}, Numerics()).status == "no power"
