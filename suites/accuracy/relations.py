"""Try metamorphic relations on a kernel: compare it with itself, on changed inputs.

A relation that isn't exact allows the sum of two bounds, E on the inputs and E' after the change.
A balance is a sum of an output's elements y_j with weights w_j and bounds E_j; it allows

    |sum w_j y_j - total| <= sum |w_j| (E_j - r_j) + min(sum |w_j| r_j, lambda |w r|)

r_j = u_o |y_j| + eta_o is the cast's share of E_j. Casts to nearest of values that vary err to
either side, so that their sum exceeds lambda times the root of the sum of squares with probability
1e-6 for all k sums of the output (Hoeffding 1963, theorem 2), lambda = sqrt(2 ln(2 k / 1e-6)).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kernel_workbench.kernels.registry import Kernel
from kernel_workbench.oracles.op import Balance, Bound, Case, Inputs, Relation
from kernel_workbench.oracles.rounding import HALF_SUBNORMAL_SPACING, UNIT_ROUNDOFF
from kernel_workbench.reports.record import Tried
from kernel_workbench.suites.sandbox.call import PLAIN, Call, How

_FAILURE_PROBABILITY = 1e-6  # of any sum of an output

CallOn = Callable[[Case, Inputs, How], Call]
BoundsOf = Callable[[Case, Inputs], dict[str, Bound]]


@dataclass(frozen=True, slots=True)
class Difference:
    """The element of an output that is furthest beyond its limit."""

    output: str
    place: tuple[int, ...]
    got: float
    expected: float
    limit: float

    @property
    def text(self) -> str:
        """Return the element's place, value and expected value, in words."""
        within = f" within {self.limit:.3g}" if self.limit > 0 else ""
        return (
            f"{self.output}{list(self.place)}: got {self.got:.9g}, "
            f"expected {self.expected:.9g}{within}"
        )


def examine(
    kernel: Kernel,
    case: Case,
    inputs: Inputs,
    outputs: Mapping[str, Tensor],
    call: CallOn,
    bounds: BoundsOf,
    *,
    serves: Callable[[Case], bool] = lambda _: True,
) -> tuple[Tried, ...]:
    """Try each relation of the case on a kernel that passed the case.

    A relation is left out if it concerns none of the outputs that the kernel returns.

    Args:
        kernel: the kernel.
        case: the case.
        inputs: the case's inputs, which stay unchanged.
        outputs: the kernel's outputs on the inputs.
        call: (case, inputs, how) -> a call on copies of these inputs.
        bounds: (case, inputs) -> the kernel's bounds there.
        serves: returns True if the kernel's domain holds a case; the relations of other cases are
            left out.

    Returns:
        One result for each relation that was tried.
    """
    results = []
    for relation in kernel.op.relations(case):
        if isinstance(relation, Balance):
            if relation.output in outputs:
                results.append(_balanced(relation, case, inputs, outputs, bounds))
        elif relation.of is None and serves(relation.case) and relation.carry(outputs):
            results.append(_related(relation, kernel, case, inputs, outputs, call, bounds))
    return tuple(results)


def _related(
    relation: Relation,
    kernel: Kernel,
    case: Case,
    inputs: Inputs,
    outputs: Mapping[str, Tensor],
    call: CallOn,
    bounds: BoundsOf,
) -> Tried:
    """Call the kernel on changed inputs, and compare the outputs with the carried ones."""
    changed = relation.change(inputs)
    result = call(relation.case, changed, PLAIN)
    if result.rule is not None:
        reason = f"on the changed inputs {result.reason}"
        return Tried(name=relation.name, holds=False, reason=reason)
    expected = relation.carry(outputs)
    shifts = {} if relation.shift is None else relation.shift(inputs)
    numerics = kernel.numerics
    underflows = relation.underflows and numerics.casts_early
    if relation.exact and numerics.bitwise_repeatable and not underflows:
        limits = {} if relation.slack is None else relation.slack(outputs)
    else:
        own = {name: bound.deterministic for name, bound in bounds(case, inputs).items()}
        theirs, carried = bounds(relation.case, changed), relation.carry(own)
        limits = {name: carried[name] + theirs[name].deterministic for name in expected}
    for name, value in expected.items():
        wanted = value.double() + shifts[name] if name in shifts else value.double()
        difference = beyond(name, result.outputs[name], wanted, limits.get(name))
        if difference is not None:
            return Tried(name=relation.name, holds=False, reason=difference.text)
    return Tried(name=relation.name, holds=True)


def beyond(name: str, got: Tensor, expected: Tensor, limit: Tensor | None) -> Difference | None:
    """Find the element of an output that is furthest beyond its limit.

    Equal infinities and two NaN don't differ, nor do zeros of either sign.

    Args:
        name: the output's name.
        got: the output.
        expected: float64 of the same shape.
        limit: the allowed differences; an element whose limit isn't finite is skipped. None allows
            no difference.

    Returns:
        The element, or None if all are within their limits.

    >>> beyond("y", torch.tensor([1.0, 3.0]), torch.tensor([1.0, 2.0]).double(), None).text
    'y[1]: got 3, expected 2'
    """
    wide = got.double()
    allowed = torch.zeros_like(wide) if limit is None else limit
    same = (wide == expected) | (wide.isnan() & expected.isnan())
    within = same | ((wide - expected).abs() <= allowed) | ~allowed.isfinite()
    if bool(within.all()):
        return None
    excess = torch.where(within, -1.0, ((wide - expected).abs() - allowed).nan_to_num(math.inf))
    index = int(excess.argmax())
    place = tuple(int(at) for at in torch.unravel_index(torch.tensor(index), got.shape))
    values = (tensor.reshape(-1)[index].item() for tensor in (wide, expected, allowed))
    return Difference(name, place, *values)


def _balanced(
    balance: Balance,
    case: Case,
    inputs: Inputs,
    outputs: Mapping[str, Tensor],
    bounds: BoundsOf,
) -> Tried:
    """Compare the weighted sums of an output with the balance's total."""
    output = outputs[balance.output]
    value = output.double()
    size = 1.0 if balance.weights is None else balance.weights(inputs)
    total = balance.total(inputs)
    weighted = value * size
    sums = weighted.sum(-1)
    u_o, eta_o = UNIT_ROUNDOFF[output.dtype], HALF_SUBNORMAL_SPACING[output.dtype]
    weights = torch.as_tensor(size, device=value.device).double().abs().expand(value.shape)
    cast = u_o * value.abs() + eta_o
    before = (bounds(case, inputs)[balance.output].deterministic - cast).clamp(min=0)
    of_casts = cast * weights
    likely = math.sqrt(2 * math.log(2 * max(sums.numel(), 1) / _FAILURE_PROBABILITY))
    limit = (before * weights).sum(-1) + torch.minimum(
        of_casts.sum(-1), likely * of_casts.square().sum(-1).sqrt()
    )
    # float64's own sums
    limit = limit + value.shape[-1] * 2.0**-52 * weighted.abs().sum(-1)
    difference = beyond(balance.output, sums, total, limit)
    if difference is None:
        return Tried(name=balance.name, holds=True)
    place = ", ".join(map(str, (*difference.place, ":")))
    return Tried(
        name=balance.name,
        holds=False,
        reason=f"{balance.output}[{place}] adds up to {difference.got:.9g}, "
        f"expected {difference.expected:.9g} within {difference.limit:.3g}",
    )
