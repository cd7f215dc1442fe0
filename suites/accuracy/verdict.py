"""The verdict on one kernel and case: is every output within its bound of the truth?

In this order, and the first that fails names the rule: the call's own evidence (it raised, wrong
form, inputs changed), elements never written, values that aren't finite, the deterministic bound,
the probabilistic bound, and bits that differ between two calls. NaN never passes: an element is
right only where error <= bound is true.

Non-finite values: where the truth is NaN the output must be NaN; where it is an infinity, that
infinity or NaN (inf - inf depends on the order of evaluation); where it is finite the output must
be finite, but for an infinity of the right sign where |truth| + bound reaches the dtype's largest
number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from oracles.op import Bound, Numerics, Outputs
from reports.schema import OutputError, Rule
from suites.accuracy.allocations import SENTINEL
from suites.accuracy.candidate import Call

_CHUNK_ELEMENTS = 2**25  # 256 MiB for each float64 temporary


@dataclass(frozen=True, slots=True)
class Verdict:
    """The rule that failed and why, None where all passed; and the errors, output by output."""

    rule: Rule | None
    reason: str | None
    outputs: tuple[OutputError, ...]


@dataclass(slots=True)
class _Worst:
    """The element with the largest error / bound met so far."""

    ratio: float = -1.0
    index: int = 0


def judge(
    first: Call,
    second: Call,
    truth: Outputs,
    bounds: dict[str, Bound],
    numerics: Numerics,
) -> Verdict:
    """The verdict on two calls; fresh memory held NaN at the first, the sentinel at the second."""
    for call in (first, second):
        if call.rule is not None:
            return Verdict(call.rule, call.reason, ())  # type: ignore[arg-type]
    failures: list[tuple[Rule, str]] = []
    errors = []
    for name, output in first.outputs.items():
        exact = truth[name]
        assert exact is not None
        error, failure = _judge_output(name, output, second.outputs[name], exact, bounds[name])
        errors.append(error)
        if failure is not None:
            failures.append(failure)
    if not failures and numerics.bitwise_repeatable:
        failures += [
            failure
            for name, output in first.outputs.items()
            if (failure := _repeats(name, output, second.outputs[name])) is not None
        ]
    rule, reason = failures[0] if failures else (None, None)
    return Verdict(rule, reason, tuple(errors))


def _flat_chunks(*tensors: Tensor) -> Iterator[tuple[int, tuple[Tensor, ...]]]:
    flat = [each.reshape(-1) for each in tensors]
    for start in range(0, flat[0].numel(), _CHUNK_ELEMENTS):
        yield start, tuple(each[start : start + _CHUNK_ELEMENTS] for each in flat)


def _judge_output(
    name: str, output: Tensor, again: Tensor, truth: Tensor, bound: Bound
) -> tuple[OutputError, tuple[Rule, str] | None]:
    largest = torch.finfo(output.dtype).max
    sentinel = torch.tensor(SENTINEL, dtype=output.dtype, device=output.device)
    probabilistic = bound.deterministic if bound.probabilistic is None else bound.probabilistic
    worst, worst_probable = _Worst(), _Worst()
    unwritten: int | None = None
    non_finite: int | None = None
    squares, counted, ulps = 0.0, 0, 0.0
    tensors = (output, again, truth, bound.deterministic, probabilistic)
    for start, (got, twice, exact, limit, likely) in _flat_chunks(*tensors):
        wide = got.double()
        finite = exact.isfinite()
        left = finite & wide.isnan() & (twice == sentinel)
        if unwritten is None and bool(left.any()):
            unwritten = start + int(left.int().argmax())
        overflows = (exact.abs() + limit >= largest) & wide.isinf() & (wide.sign() == exact.sign())
        right = torch.where(
            finite,
            wide.isfinite() | overflows,
            wide.isnan() | (exact.isinf() & (wide == exact)),
        )
        if non_finite is None and not bool(right.all()):
            non_finite = start + int((~right).int().argmax())
        compared = finite & wide.isfinite()
        error = torch.where(compared, (wide - exact).abs(), 0.0)
        for kept, allowed in ((worst, limit), (worst_probable, likely)):
            ratio = torch.where(error > 0, error / allowed, 0.0)  # 0 is within a bound of 0
            ratio = ratio.nan_to_num(nan=math.inf, posinf=math.inf)
            at = int(ratio.argmax())
            if float(ratio[at]) > kept.ratio:
                kept.ratio, kept.index = float(ratio[at]), start + at
        squares += float(error.square().sum())
        counted += int(compared.sum())
        ulps = max(ulps, float((error / _ulp(exact, output.dtype)).nan_to_num(0.0).max()))
    index = next(each for each in (unwritten, non_finite, worst.index) if each is not None)
    shown = _Element.at(index, output, truth, bound.deterministic)
    measured = OutputError(
        output=name,
        worst_deterministic=max(worst.ratio, 0.0),
        worst_probabilistic=None if bound.probabilistic is None else max(worst_probable.ratio, 0.0),
        worst_index=shown.place,
        got=shown.got,
        expected=shown.expected,
        bound=shown.bound,
        rmse=math.sqrt(squares / counted) if counted else 0.0,
        max_ulp=ulps,
    )
    failure: tuple[Rule, str] | None = None
    if unwritten is not None:
        failure = ("unwritten output", f"{name}{list(shown.place)} was never written")
    elif non_finite is not None:
        failure = ("non-finite values", f"{name}{shown.text}")
    elif not worst.ratio <= 1.0:
        excess = f"{worst.ratio:.3g} times the bound {shown.bound:.3g}"
        failure = ("deterministic bound", f"{name}{shown.text}, {excess}")
    elif bound.probabilistic is not None and not worst_probable.ratio <= 1.0:
        beyond = _Element.at(worst_probable.index, output, truth, bound.probabilistic)
        excess = f"{worst_probable.ratio:.3g} times the probabilistic bound {beyond.bound:.3g}"
        failure = ("probabilistic bound", f"{name}{beyond.text}, {excess}")
    return measured, failure


@dataclass(frozen=True, slots=True)
class _Element:
    """One element of an output: where it is, what it is, what it should be and how nearly."""

    place: tuple[int, ...]
    got: float
    expected: float
    bound: float

    @classmethod
    def at(cls, index: int, output: Tensor, truth: Tensor, bound: Tensor) -> _Element:
        """The element of flat index `index`; all zero where the output is empty."""
        if not output.numel():
            return cls((), 0.0, 0.0, 0.0)
        place = tuple(int(each) for each in torch.unravel_index(torch.tensor(index), output.shape))
        return cls(place, float(output[place]), float(truth[place]), float(bound[place]))

    @property
    def text(self) -> str:
        return f"{list(self.place)}: got {self.got:.9g}, expected {self.expected:.9g}"


def _ulp(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """The spacing of `dtype` at each element of `exact`."""
    info = torch.finfo(dtype)
    _, exponent = torch.frexp(exact.abs().clamp(min=info.smallest_normal, max=info.max))
    return torch.ldexp(torch.full_like(exact, info.eps), exponent - 1)


def _repeats(name: str, first: Tensor, second: Tensor) -> tuple[Rule, str] | None:
    """The failure where two calls on the same values gave other bits."""
    integer = {2: torch.int16, 4: torch.int32}[first.element_size()]
    for start, (one, other) in _flat_chunks(first, second):
        differs = (one.view(integer) != other.view(integer)) & ~(one.isnan() & other.isnan())
        if bool(differs.any()):
            index = torch.tensor(start + int(differs.int().argmax()))
            place = tuple(int(each) for each in torch.unravel_index(index, first.shape))
            reason = (
                f"two calls on the same values differ: {name}{list(place)} is "
                f"{float(first[place]):.9g} and then {float(second[place]):.9g}; a kernel that "
                "isn't bitwise repeatable says so with Numerics(bitwise_repeatable=False)"
            )
            return "not repeatable", reason
    return None
