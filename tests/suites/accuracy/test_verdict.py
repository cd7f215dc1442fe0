"""The verdict on hand-made calls: elements, bounds, two calls. Blocks: test_verdict_blocks.py.

The values are small whole numbers and powers of two, so that every ratio here is exact.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kernel_workbench.oracles.op import Bound, Numerics
from kernel_workbench.reports.record import OutputError
from kernel_workbench.suites.accuracy.verdict import Verdict, judge
from kernel_workbench.suites.sandbox.call import SENTINEL, Call, stored

INF, NAN = math.inf, math.nan
LARGEST = torch.finfo(torch.float16).max  # 65504


def _tensor(values: list[float], dtype: torch.dtype) -> Tensor:
    return torch.tensor(values, dtype=dtype)


def _judge(
    got: Tensor,
    truth: Tensor,
    bound: float | Tensor = 1.0,
    probabilistic: float | None = None,
    *,
    again: Tensor | None = None,
    numerics: Numerics | None = None,
) -> Verdict:
    """The verdict on an output `dx`; both calls left `got` where `again` isn't given."""
    limit = bound if isinstance(bound, Tensor) else torch.full_like(truth, bound)
    likely = None if probabilistic is None else torch.full_like(truth, probabilistic)
    return judge(
        Call({"dx": got}, 0.0),
        Call({"dx": got.clone() if again is None else again}, 0.0),
        {"dx": truth},
        {"dx": Bound(limit, likely)},
        numerics or Numerics(),
    )


def _halves(
    got: list[float], truth: list[float], bound: float = 1.0, again: list[float] | None = None
) -> Verdict:
    return _judge(
        _tensor(got, torch.float16),
        _tensor(truth, torch.float64),
        bound,
        again=None if again is None else _tensor(again, torch.float16),
    )


def _measured(verdict: Verdict) -> OutputError:
    (only,) = verdict.outputs
    return only


def test_error_at_the_bound_passes_and_past_it_fails() -> None:
    """`error <= bound`: the bound itself is allowed."""
    at, past = _halves([3.0], [2.0], bound=1.0), _halves([3.0], [2.0], bound=0.5)
    assert at.rule is None
    assert at.reason is None
    assert _measured(at).worst_deterministic == 1.0
    assert past.rule == "deterministic bound"
    assert past.reason == "dx[0]: got 3, expected 2, 2 times the bound 0.5"


@pytest.mark.parametrize("bound", [0.0, 1.0, 1e300, NAN])
@pytest.mark.parametrize("truth", [0.0, 2.0, LARGEST * 2])
def test_nan_never_passes_for_a_number(truth: float, bound: float) -> None:
    """Whatever the bound, a NaN at both calls isn't any number, past the dtype's end or not."""
    verdict = _halves([1.0, NAN], [1.0, truth], bound)
    assert verdict.rule == "non-finite values"
    assert verdict.reason == f"dx[1]: got nan, expected {truth:.9g}"


@pytest.mark.parametrize("bound", [NAN, 0.0])
def test_bound_that_allows_nothing_passes_nothing_wrong(bound: float) -> None:
    """A bound of NaN is no permission, and one of zero is for exact values alone."""
    assert _halves([1.0, 2.5], [1.0, 2.0], bound).rule == "deterministic bound"


@pytest.mark.parametrize("sign", [1, -1])
def test_infinity_passes_only_where_the_dtype_ends(sign: int) -> None:
    """Infinity passes only if its sign is right and |truth| + bound reaches the largest number."""
    infinity, other, largest = [sign * INF], [-sign * INF], [sign * LARGEST]
    assert _halves(infinity, largest).rule is None
    assert _halves(infinity, [sign * (LARGEST - 1)]).rule is None  # with a bound of 1
    assert _halves(infinity, [sign * (LARGEST - 2)]).rule == "non-finite values"
    assert _halves(other, largest).rule == "non-finite values"
    assert _halves(infinity, [sign * LARGEST * 4]).rule is None
    assert _halves([NAN], [sign * LARGEST * 4]).rule == "non-finite values"


def test_infinite_truth_takes_its_infinity_or_nan() -> None:
    """inf - inf depends on the order of evaluation, so NaN is a right answer; a number isn't."""
    assert _halves([INF, NAN], [INF, INF]).rule is None
    assert _halves([-INF], [INF]).rule == "non-finite values"
    assert _halves([LARGEST], [INF]).reason == "dx[0]: got 65504, expected inf"


@pytest.mark.parametrize("sign", [1, -1])
def test_infinite_truth_with_a_bound_of_zero_takes_that_infinity_alone(sign: int) -> None:
    """A row that attends to no key has an lse of -inf, and no order of evaluation makes it NaN."""
    truth = [1.0, sign * INF]
    assert _halves(truth, truth, bound=0.0).rule is None
    for wrong in (NAN, -sign * INF, sign * LARGEST):
        verdict = _halves([1.0, wrong], truth, bound=0.0)
        assert verdict.rule == "non-finite values"
        assert verdict.reason == f"dx[1]: got {wrong:.9g}, expected {sign * INF:.9g}"


@pytest.mark.parametrize("got", [0.0, -99.0, INF, NAN])
@pytest.mark.parametrize("truth", [1.0, INF, NAN])
def test_element_of_an_infinite_bound_isnt_judged(got: float, truth: float) -> None:
    """Nothing is promised of it: neither a value, nor that it is written, nor that it repeats."""
    limit = _tensor([1.0, INF], torch.float64)
    exact, again = _tensor([2.0, truth], torch.float64), _tensor([2.0, SENTINEL], torch.float16)
    verdict = _judge(_tensor([2.0, got], torch.float16), exact, limit, again=again)
    assert (verdict.rule, verdict.reason) == (None, None)
    measured = _measured(verdict)
    assert (measured.elements, measured.unjudged) == (2, 1)
    assert (measured.worst_deterministic, measured.rmse, measured.max_ulp) == (0.0, 0.0, 0.0)
    neighbour = _judge(_tensor([9.0, got], torch.float16), exact, limit)
    assert neighbour.reason == "dx[0]: got 9, expected 2, 7 times the bound 1"


def test_element_that_isnt_a_number_is_told_from_one_never_written() -> None:
    """Where NaN is right, or -inf, memory that still holds what it did is wrong all the same."""
    verdict = _halves([1.0, NAN], [1.0, NAN], again=[1.0, SENTINEL])
    assert verdict.reason == "dx[1] was never written"
    verdict = _halves([1.0, NAN], [1.0, -INF], bound=0.0, again=[1.0, SENTINEL])
    assert verdict.reason == "dx[1] was never written"


@pytest.mark.parametrize("got", [0.0, INF, -INF])
def test_nan_truth_takes_nan_alone(got: float) -> None:
    """A number where there is none hides that the input was poison."""
    assert _halves([NAN], [NAN]).rule is None
    verdict = _halves([1.0, got], [1.0, NAN])
    assert verdict.rule == "non-finite values"
    assert verdict.reason == f"dx[1]: got {got:.9g}, expected nan"


@pytest.mark.parametrize(("got", "truth"), [(0.0, -0.0), (-0.0, 0.0)])
def test_zeros_of_either_sign_are_equal(got: float, truth: float) -> None:
    """An error of zero, within the smallest of bounds."""
    verdict = _halves([got], [truth], bound=5e-324)
    assert verdict.rule is None
    assert _measured(verdict).worst_deterministic == 0.0


@pytest.mark.parametrize(("got", "again"), [(0.0, -0.0), (-0.0, 0.0)])
def test_zeros_of_two_signs_repeat_each_other(got: float, again: float) -> None:
    """Signs that are flipped for the second call, and back, leave a zero's to chance."""
    assert _halves([got], [0.0], again=[again]).rule is None


@pytest.mark.parametrize("sign", [1, -1])
def test_element_never_written_may_hold_the_sentinel_with_either_sign(sign: int) -> None:
    """The second call's outputs have their signs flipped back, and what was never written too."""
    verdict = _halves([1.0, NAN], [1.0, 2.0], again=[1.0, sign * SENTINEL])
    assert verdict.reason == "dx[1] was never written"


_CODES = torch.float8_e4m3fn


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("sign", [1, -1])
def test_code_of_an_infinity_may_be_the_largest_number(dtype: torch.dtype, sign: int) -> None:
    """Casts to fp8 saturate on a GPU, of an infinity as of a number past the largest."""
    exact, largest = _tensor([sign * INF], torch.float64), torch.finfo(dtype).max
    assert _judge(_tensor([sign * largest], dtype), exact, 0.0).rule is None
    for wrong in (-sign * largest, sign * largest / 2, 0.0):
        assert _judge(_tensor([wrong], dtype), exact, 0.0).rule == "non-finite values"


@pytest.mark.parametrize("truth", [0.0, 0.0009, 0.013, -0.4, 1.06, 17.01, -300.0, 447.0, 1e4])
def test_code_that_a_cast_makes_of_the_truth_is_right(truth: float) -> None:
    """Whatever its distance to the truth, and what is too large is the largest code."""
    exact = _tensor([truth], torch.float64)
    verdict = _judge(exact.float().clamp(-448, 448).to(_CODES), exact, 0.0)
    assert (verdict.rule, _measured(verdict).worst_deterministic) == (None, 0.0)


@pytest.mark.parametrize(
    ("truth", "code", "apart"),
    [
        (1.0625 - 2.0**-9, 1.125, 2.0**-9),  # 1.0625 lies between 1 and 1.125
        (1.0625 + 2.0**-9, 1.0, 2.0**-9),
        (1.0, 1.25, 0.1875),
        (-17.0 + 2.0**-7, -18.0, 2.0**-7),
        (2.0**-10 - 2.0**-15, 2.0**-9, 2.0**-15),  # the smallest code
        (2.0**-5, -(2.0**-9), 2.0**-5 + 2.0**-10),
        (430.0, 448.0, 2.0),
    ],
)
def test_other_code_is_right_where_the_bound_reaches_it(
    truth: float, code: float, apart: float
) -> None:
    """The boundary between two codes is what counts, not how far apart they are."""
    exact, got = _tensor([truth], torch.float64), _tensor([code], _CODES)
    assert _judge(got, exact, apart).rule is None
    assert _judge(got, exact, apart * (1 - 2.0**-20)).rule == "deterministic bound"


def test_code_of_a_number_is_no_nan_and_one_of_nan_no_number() -> None:
    """Not even of a number past the largest code: a cast saturates."""
    assert _judge(_tensor([NAN], _CODES), _tensor([1e4], torch.float64)).rule == (
        "non-finite values"
    )
    assert _judge(_tensor([NAN], _CODES), _tensor([NAN], torch.float64)).rule is None
    assert _judge(_tensor([1.0], _CODES), _tensor([NAN], torch.float64)).rule == (
        "non-finite values"
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, _CODES])
def test_element_never_written_is_named(dtype: torch.dtype) -> None:
    """It holds what fresh memory held: NaN at the first call, the sentinel at the second."""
    truth = torch.ones(2, 3, dtype=torch.float64)
    got, again = truth.to(dtype), truth.to(dtype)
    got[1, 1], again[1, 1] = NAN, stored(SENTINEL, dtype)
    verdict = _judge(got, truth, again=again)
    assert (verdict.rule, verdict.reason) == ("unwritten output", "dx[1, 1] was never written")
    assert _measured(verdict).worst_index == (1, 1)


def test_nan_that_was_written_isnt_taken_for_memory() -> None:
    """NaN at both calls was computed, and the rule is another."""
    assert _halves([NAN], [1.0], again=[NAN]).rule == "non-finite values"


def test_elements_never_written_are_boxed() -> None:
    """A program that is missing from a grid leaves a tile."""
    truth, got = torch.ones(8, 6).double(), torch.ones(8, 6)
    again = got.clone()
    got[4:8, 2:4], again[4:8, 2:4] = NAN, -SENTINEL
    assert _judge(got, truth, again=again).reason == (
        "dx[4, 2] was never written; 8 of 48 elements weren't, all of them in dx[4:8, 2:4]"
    )
    assert _judge(got, truth).reason == (
        "dx[4, 2]: got nan, expected 1; 8 of 48 elements are finite where they mustn't be, or the "
        "reverse, all of them in dx[4:8, 2:4]"
    )


def test_rules_are_named_in_their_order() -> None:
    """Never written comes before not finite, that before a large error; and the place is its."""
    verdict = _halves([99.0, INF, NAN], [1.0, 1.0, 1.0], again=[99.0, INF, SENTINEL])
    assert verdict.reason == "dx[2] was never written"
    verdict = _halves([99.0, INF], [1.0, 1.0])
    assert verdict.reason == "dx[1]: got inf, expected 1"


def test_probabilistic_bound_fails_where_the_deterministic_one_passes() -> None:
    """The reason names the element that is worst by the bound that failed."""
    got, truth = _tensor([3.0, 2.25], torch.float32), _tensor([2.0, 2.0], torch.float64)
    limit = _tensor([8.0, 0.5], torch.float64)  # the ratios: 1/8 and 1/2
    verdict = _judge(got, truth, limit, probabilistic=0.5)
    assert verdict.rule == "probabilistic bound"
    assert verdict.reason == "dx[0]: got 3, expected 2, 2 times the probabilistic bound 0.5"
    measured = _measured(verdict)
    assert (measured.worst_deterministic, measured.worst_probabilistic) == (0.5, 2.0)
    assert _judge(got, truth, limit, probabilistic=1.0).rule is None
    assert _judge(got, truth, limit).rule is None


def test_deterministic_bound_comes_before_the_probabilistic() -> None:
    """Where both fail it is the certain one that is told."""
    verdict = _judge(torch.ones(1), torch.zeros(1).double(), 0.5, probabilistic=0.25)
    assert verdict.rule == "deterministic bound"


def test_calls_that_differ_fail_unless_the_kernel_says_so() -> None:
    """Both within the bound, and yet not the same: atomics, most likely."""
    got, again, truth = torch.ones(2, 2), torch.ones(2, 2), torch.ones(2, 2).double()
    again[1, 0] = 1.5
    verdict = _judge(got, truth, again=again)
    assert verdict.rule == "not repeatable"
    assert verdict.reason is not None
    assert "dx[1, 0] is 1 and then 1.5" in verdict.reason
    declared = Numerics(bitwise_repeatable=False)
    assert _judge(got, truth, again=again, numerics=declared).rule is None


@pytest.mark.parametrize("repeatable", [True, False])
@pytest.mark.parametrize(
    ("again", "rule", "told"),
    [
        (99.0, "deterministic bound", "got 99 at the second call, expected 1, 98 times the bound"),
        (1.75, "probabilistic bound", "got 1.75 at the second call, expected 1, 1.5 times"),
        (NAN, "non-finite values", "got nan at the second call, expected 1"),
    ],
)
def test_second_call_is_judged_by_the_bounds_as_well(
    again: float, rule: str, told: str, *, repeatable: bool
) -> None:
    """A right first call excuses no wrong second one, of a kernel that may differ neither."""
    verdict = _judge(
        _tensor([2.0, 1.0], torch.float32),
        _tensor([2.0, 1.0], torch.float64),
        probabilistic=0.5,
        again=_tensor([2.0, again], torch.float32),
        numerics=Numerics(bitwise_repeatable=repeatable),
    )
    assert verdict.rule == rule
    assert verdict.reason is not None
    assert verdict.reason.startswith(f"dx[1]: {told}")
    assert _measured(verdict).worst_index == (1,)
    assert _measured(verdict).rmse == 0  # of the first call


@pytest.mark.parametrize("shape", [(0,), (0, 5), (2, 0, 3)])
def test_empty_output_passes(shape: tuple[int, ...]) -> None:
    """With m = 0 there is nothing to be wrong, and nothing to divide by."""
    verdict = _judge(torch.ones(shape), torch.ones(shape).double(), probabilistic=1.0)
    assert (verdict.rule, verdict.reason) == (None, None)
    measured = _measured(verdict)
    assert (measured.worst_deterministic, measured.worst_probabilistic) == (0.0, 0.0)
    assert (measured.rmse, measured.max_ulp, measured.worst_index) == (0.0, 0.0, ())


@pytest.mark.parametrize("transposed", [False, True])
def test_worst_element_of_a_3d_output_is_where_it_is(transposed: bool) -> None:  # noqa: FBT001
    """By its own indices, however the output lies in memory."""
    truth = torch.zeros(2, 3, 5, dtype=torch.float64)
    got = torch.zeros(5, 3, 2).permute(2, 1, 0) if transposed else torch.zeros(2, 3, 5)
    got[1, 2, 3], got[0, 1, 4] = 4.0, 2.0
    measured = _measured(verdict := _judge(got, truth))
    assert verdict.reason == (
        "dx[1, 2, 3]: got 4, expected 0, 4 times the bound 1; 2 of 30 elements are beyond it, "
        "all of them in dx[0:2, 1:3, 3:5]"
    )
    assert measured.worst_index == (1, 2, 3)
    assert (measured.got, measured.expected, measured.bound) == (4.0, 0.0, 1.0)


def test_worst_element_past_a_chunk_is_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs are judged a chunk at a time; a place is counted from the output's start."""
    monkeypatch.setattr("kernel_workbench.suites.accuracy.elements._CHUNK_ELEMENTS", 4)
    truth = torch.zeros(3, 5, dtype=torch.float64)
    got = torch.zeros(3, 5)
    got[0, 2], got[2, 4] = 2.0, 3.0  # a chunk is a row at the least: the first and the last
    verdict = _judge(got, truth)
    assert verdict.reason == (
        "dx[2, 4]: got 3, expected 0, 3 times the bound 1; 2 of 15 elements are beyond it, "
        "all of them in dx[0:3, 2:5]"
    )
    assert _measured(verdict).rmse == math.sqrt((4 + 9) / 15)
    again = got.clone()
    again[1, 3] = 1.0
    wide = _judge(got, truth, bound=4.0, again=again)
    assert wide.reason is not None
    assert "dx[1, 3] is 0 and then 1" in wide.reason


def test_rmse_and_ulps_are_those_computed_by_hand() -> None:
    """float16 has ten bits of fraction: from 1 to 2 it steps by 2^-10, from 1024 to 2048 by 1.

    Errors of 3, 4 and 0 have a root mean square of 5 / sqrt(3); below 2^-14 the step is 2^-24.
    """
    verdict = _halves([1027.0, 2044.0, 7.0], [1024.0, 2048.0, 7.0], bound=8.0)
    assert _measured(verdict).rmse == 5 / math.sqrt(3)
    assert _measured(verdict).max_ulp == 3.0  # 4 is two steps of 2 from 2048 on
    assert _measured(verdict).worst_deterministic == 0.5
    assert _measured(_halves([1.0 + 2.0**-9], [1.0])).max_ulp == 2.0
    assert _measured(_halves([2.0**-24], [0.0])).max_ulp == 1.0
    assert _measured(_halves([INF, 1.0], [LARGEST, 1.5])).rmse == 0.5  # of the finite element


@pytest.mark.parametrize(
    ("taken", "declared", "reason"),
    [
        (100, 100, None),
        (
            101,
            100,
            "it took 101 bytes beyond its inputs and outputs, and declares 100 for this case",
        ),
        (2**40, None, None),
        (None, 0, None),
    ],
)
def test_memory_past_what_was_declared_fails(
    taken: int | None, declared: int | None, reason: str | None
) -> None:
    """The second call's memory counts; without a declaration or a measurement there is no limit."""
    outputs, one = {"dx": torch.ones(1)}, torch.ones(1).double()
    calls = Call(outputs, 0.0, workspace_bytes=2**50), Call(outputs, 0.0, workspace_bytes=taken)
    bounds = {"dx": Bound(one, None)}
    verdict = judge(*calls, {"dx": one}, bounds, Numerics(), declared_bytes=declared)
    assert (verdict.rule, verdict.reason) == (None if reason is None else "workspace", reason)
    verdict = judge(*calls, {"dx": -one}, bounds, Numerics(), declared_bytes=declared)
    assert verdict.rule == "deterministic bound"  # which comes first


def test_calls_own_evidence_is_the_verdict() -> None:
    """A call that broke a rule, be it the second, is told before anything is compared."""
    sound = Call({"dx": torch.ones(1)}, 0.0)
    broken = Call({}, 0.0, "changed input", "it wrote to x")
    for pair in ((sound, broken), (broken, sound)):
        verdict = judge(*pair, {}, {}, Numerics())
        assert (verdict.rule, verdict.reason) == ("changed input", "it wrote to x")


def test_every_output_is_measured_and_the_first_that_fails_is_told() -> None:
    """In the op's order; the errors of those after it are in the record as well."""
    names = ("dx", "dweight", "dbias")
    outputs = dict(zip(names, map(torch.tensor, ([1.0], [4.0], [8.0])), strict=True))
    verdict = judge(
        Call(outputs, 0.0),
        Call(outputs, 0.0),
        {name: torch.ones(1).double() for name in names},
        {name: Bound(torch.ones(1).double(), None) for name in names},
        Numerics(),
    )
    assert verdict.reason == "dweight[0]: got 4, expected 1, 3 times the bound 1"
    assert [each.worst_deterministic for each in verdict.outputs] == [0.0, 3.0, 7.0]


def test_elements_beyond_a_bound_are_counted_and_boxed() -> None:
    """A tile that is wrong shows as a tile: between which indices of every axis it lies."""
    truth, got = torch.zeros(2, 8, 3, 16).double(), torch.zeros(2, 8, 3, 16)
    got[1, 4:6, 2, 8:] = 2.0
    verdict = _judge(got, truth)
    assert verdict.reason is not None
    assert verdict.reason.endswith(
        "; 16 of 768 elements are beyond it, all of them in dx[1, 4:6, 2, 8:16]"
    )
    one = _judge(torch.ones(4), torch.tensor([1.0, 1.0, 5.0, 1.0]).double(), 0.5)
    assert one.reason == "dx[2]: got 1, expected 5, 8 times the bound 0.5"
    several = _judge(torch.zeros(6), torch.tensor([0, 3, 0, 0, 3, 0]).double(), 8.0, 2.0)
    assert several.reason is not None  # of one axis, and by the likelier bound
    assert several.reason.endswith("; 2 of 6 elements are beyond it, all of them in dx[1:5]")
