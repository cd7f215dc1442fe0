"""The verdict on one kernel and case: is every output within its bound of the truth?

In this order, and the first that fails names the rule: the call's own evidence (it raised, wrong
form, inputs changed), elements never written, values that aren't finite, the deterministic bound,
the probabilistic bound, bits that differ between two calls, and more memory than declared. NaN
never passes: an element is right only where error <= bound is true.

An element whose bound is infinite is promised nothing, and isn't judged by any of these.

Non-finite values: where the truth is NaN the output must be NaN; where it is an infinity, that
infinity or NaN (inf - inf depends on the order of evaluation), and with a bound of exactly 0 that
infinity alone; where it is finite the output must be finite, but for an infinity of the right sign
where |truth| + bound reaches the dtype's largest number.
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

_CHUNK_ELEMENTS = 2**24  # 128 MiB for each float64 temporary, of which there are about ten


@dataclass(frozen=True, slots=True)
class Verdict:
    """The rule that failed and why, None where all passed; and the errors, output by output."""

    rule: Rule | None
    reason: str | None
    outputs: tuple[OutputError, ...]


def judge(
    first: Call,
    second: Call,
    truth: Outputs,
    bounds: dict[str, Bound],
    numerics: Numerics,
    *,
    declared_bytes: int | None = None,
) -> Verdict:
    """The verdict on two calls; fresh memory held NaN at the first, the sentinel at the second.

    declared_bytes: the most that a call may take beyond inputs and outputs; None: any number. The
    second call is measured: the first may be the one that compiles, tunes or fills a cache.
    """
    for call in (first, second):
        if call.rule is not None:
            return Verdict(call.rule, call.reason, ())  # type: ignore[arg-type]
    failures: list[tuple[Rule, str]] = []
    unrepeated: list[tuple[Rule, str]] = []
    errors = []
    for name, output in first.outputs.items():
        exact = truth[name]
        assert exact is not None
        found = _examine(output, second.outputs[name], exact, bounds[name])
        errors.append(found.measured(name, probable=bounds[name].probabilistic is not None))
        failure = found.failure(name, probable=bounds[name].probabilistic is not None)
        if failure is not None:
            failures.append(failure)
        if found.differing.exists:
            unrepeated.append(("not repeatable", _unrepeated(name, found.differing)))
    if not failures and numerics.bitwise_repeatable:
        failures = unrepeated
    taken = second.workspace_bytes
    if taken is not None and declared_bytes is not None and not taken <= declared_bytes:
        failures.append(("workspace", _took(taken, declared_bytes)))
    first_rule, why = failures[0] if failures else (None, None)
    return Verdict(first_rule, why, tuple(errors))


def _took(taken: int, declared: int) -> str:
    beyond = f"it took {taken:,} bytes beyond its inputs and outputs"
    return f"{beyond}, and declares {declared:,} for this case"


def _unrepeated(name: str, found: _Element) -> str:
    return (
        f"two calls on the same values differ: {name}{list(found.place)} is "
        f"{found.got:.9g} and then {found.again:.9g}; a kernel that isn't bitwise repeatable "
        "says so with Numerics(bitwise_repeatable=False)"
    )


@dataclass(frozen=True, slots=True)
class _Element:
    """One element of an output: how bad it is (0: not at all), where, and what it holds.

    again: what it held after the second call. limit, likely: its two bounds.
    """

    badness: float
    place: tuple[int, ...]
    got: float
    again: float
    expected: float
    limit: float
    likely: float

    @property
    def exists(self) -> bool:
        """Whether any element is bad at all."""
        return self.badness > 0

    @property
    def text(self) -> str:
        return f"{list(self.place)}: got {self.got:.9g}, expected {self.expected:.9g}"


_NONE = _Element(0.0, (), 0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Findings:
    """What an output shows: the first or worst element by each rule, and sums over all."""

    unwritten: _Element
    not_finite: _Element
    worst: _Element  # badness: error / deterministic bound
    worst_likely: _Element
    differing: _Element
    squares: float
    compared: float
    ulps: float
    unjudged: float
    elements: int

    def measured(self, name: str, *, probable: bool) -> OutputError:
        """The record's form of it."""
        shown = next(
            (each for each in (self.unwritten, self.not_finite) if each.exists), self.worst
        )
        return OutputError(
            output=name,
            worst_deterministic=self.worst.badness,
            worst_probabilistic=self.worst_likely.badness if probable else None,
            worst_index=shown.place,
            got=shown.got,
            expected=shown.expected,
            bound=shown.limit,
            rmse=math.sqrt(self.squares / self.compared) if self.compared else 0.0,
            max_ulp=self.ulps,
            elements=self.elements,
            unjudged=int(self.unjudged),
        )

    def failure(self, name: str, *, probable: bool) -> tuple[Rule, str] | None:
        """The rule that the output breaks, and a sentence; None where it is right."""
        if self.unwritten.exists:
            return "unwritten output", f"{name}{list(self.unwritten.place)} was never written"
        if self.not_finite.exists:
            return "non-finite values", f"{name}{self.not_finite.text}"
        worst, likely = self.worst, self.worst_likely
        if not worst.badness <= 1.0:
            excess = f"{worst.badness:.3g} times the bound {worst.limit:.3g}"
            return "deterministic bound", f"{name}{worst.text}, {excess}"
        if probable and not likely.badness <= 1.0:
            excess = f"{likely.badness:.3g} times the probabilistic bound {likely.likely:.3g}"
            return "probabilistic bound", f"{name}{likely.text}, {excess}"
        return None


def _examine(output: Tensor, again: Tensor, truth: Tensor, bound: Bound) -> _Findings:
    """All that is to know of an output and its repetition, a chunk at a time."""
    likely_bound = bound.deterministic if bound.probabilistic is None else bound.probabilistic
    elements: list[_Element] = [_NONE] * 5
    squares = compared = ulps = unjudged = 0.0
    tensors = (output, again, truth, bound.deterministic, likely_bound)
    for start, chunk in _flat_chunks(*tensors):
        # Everything in one transfer: on a GPU each waits for all that was launched before it.
        numbers = _numbers(*chunk).tolist()
        squares, compared = squares + numbers[0], compared + numbers[1]
        ulps, unjudged = max(ulps, numbers[2]), unjudged + numbers[3]
        for kind in range(5):
            badness, index, *held = numbers[4 + kind :: 5]
            # The worst of all chunks; of a rule without degrees, 1, the first.
            if badness > elements[kind].badness or elements[kind] is _NONE:
                place = _unravelled(start + int(index), output.shape)
                elements[kind] = _Element(badness, place, *held)
    left, not_finite, worst, likely, differing = elements
    return _Findings(
        unwritten=left,
        not_finite=not_finite,
        worst=worst,
        worst_likely=likely,
        differing=differing,
        squares=squares,
        compared=compared,
        ulps=ulps,
        unjudged=unjudged,
        elements=output.numel(),
    )


def _flat_chunks(*tensors: Tensor) -> Iterator[tuple[int, tuple[Tensor, ...]]]:
    flat = [each.reshape(-1) for each in tensors]
    for start in range(0, flat[0].numel(), _CHUNK_ELEMENTS):
        yield start, tuple(each[start : start + _CHUNK_ELEMENTS] for each in flat)


def _numbers(got: Tensor, twice: Tensor, exact: Tensor, limit: Tensor, likely: Tensor) -> Tensor:
    """Four sums over a chunk, then badness, index, got, twice, exact, limit and likely of five.

    All on the chunk's device, in float64; the five are those of `_Findings`, in that order.
    """
    largest = torch.finfo(got.dtype).max
    sentinel = torch.tensor(SENTINEL).to(got.dtype).item()
    wide, judged = got.double(), limit != math.inf
    finite, known = exact.isfinite(), wide.isfinite()
    left = judged & wide.isnan() & (twice == sentinel)
    overflows = (exact.abs() + limit >= largest) & wide.isinf() & (wide.sign() == exact.sign())
    infinite = exact.isinf() & ((wide == exact) | (wide.isnan() & (limit != 0)))
    right = torch.where(finite, known | overflows, infinite | (exact.isnan() & wide.isnan()))
    compared = judged & finite & known
    error = torch.where(compared, (wide - exact).abs(), 0.0)
    ratios = [
        torch.where(error > 0, error / allowed, 0.0).nan_to_num(nan=math.inf, posinf=math.inf)
        for allowed in (limit, likely)  # an error of 0 is within a bound of 0
    ]
    integer = {2: torch.int16, 4: torch.int32}[got.element_size()]
    differs = judged & (got.view(integer) != twice.view(integer))
    differs &= ~(wide.isnan() & twice.isnan())
    sums = (
        error.square().sum(),
        compared.sum(),
        (error / _ulp(exact, got.dtype)).nan_to_num(0.0).max(),
        (~judged).sum(),
    )
    kinds = torch.stack([left.double(), (judged & ~right).double(), *ratios, differs.double()])
    at = kinds.argmax(1)
    badness = kinds.gather(1, at[:, None]).squeeze(1)
    held = [each[at].double() for each in (wide, twice, exact, limit, likely)]
    return torch.cat([torch.stack([each.double() for each in sums]), badness, at.double(), *held])


def _unravelled(index: int, shape: torch.Size) -> tuple[int, ...]:
    place = []
    for extent in reversed(shape):
        index, here = divmod(index, extent)
        place.append(here)
    return tuple(reversed(place))


def _ulp(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """The spacing of `dtype` at each element of `exact`."""
    info = torch.finfo(dtype)
    _, exponent = torch.frexp(exact.abs().clamp(min=info.smallest_normal, max=info.max))
    return torch.ldexp(torch.full_like(exact, info.eps), exponent - 1)
