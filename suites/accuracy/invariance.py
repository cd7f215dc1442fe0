"""Whether a kernel's bits depend on what they need not: the rows beside a row, the device's size.

Both are measured on any kernel that repeats its own bits, by cases that are good for it (plain ones
with relations, and those whose option asks for it), and set beside what the kernel declares: a
kernel that declares what isn't so fails, on whichever case with relations; one that declares
nothing is measured and reported.

    batch-invariant     a part of the rows, batches, key heads or sequences gets the same bits alone
    device-independent  a kernel that is told of another number of SMs gives the same bits. One that
                        doesn't ask, or has asked before and kept the answer, can't be told
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from kernel_workbench.kernels.registry import Kernel
from kernel_workbench.oracles.cases.distributions import COARSE
from kernel_workbench.oracles.op import Case, Inputs, Property, Relation
from kernel_workbench.reports.record import Tried
from kernel_workbench.suites.accuracy.relations import CallOn, beyond
from kernel_workbench.suites.sandbox.call import PLAIN, Call, How

# SMs that a kernel is told of, beside those that it finds: not a power of two, and a prime.
TOLD_MULTIPROCESSORS = 5
_OPTION = "device_independent"
_PLAIN = ("normal", COARSE)  # distributions of cases that a kernel is measured on unasked


@dataclass(slots=True)
class Invariance:
    """What one case says of a kernel's properties; broken: a sentence where one must hold."""

    tried: tuple[Tried, ...] = ()
    broken: str | None = None

    def add(self, name: Property, reason: str | None, promise: str | None) -> None:
        """Note a property, and the reason why it doesn't hold; promise: why it has to."""
        earlier = next((each for each in self.tried if each.name == name), None)
        if earlier is None or (earlier.holds and reason is not None):
            others = tuple(each for each in self.tried if each.name != name)
            self.tried = (*others, Tried(name=name, holds=reason is None, reason=reason))
        if reason is not None and promise is not None and self.broken is None:
            self.broken = f"{promise}, and isn't: {reason}"


def examine(
    kernel: Kernel,
    case: Case,
    inputs: Inputs,
    outputs: Mapping[str, Tensor],
    call: CallOn,
    *,
    serves: Callable[[Case], bool] = lambda _: True,
) -> Invariance:
    """What the case says of a kernel that has passed it; arguments as in `relations.examine`."""
    result = Invariance()
    plain = case.distribution in _PLAIN
    related = () if kernel.op.relations is None else kernel.op.relations(case)
    declared = kernel.numerics
    repeats = declared.bitwise_repeatable
    promise = _promise(kernel, "batch_invariant")
    if (repeats and plain) or promise:
        for each in related:
            if not isinstance(each, Relation) or each.of != "batch-invariant":
                continue
            expected = each.carry(outputs)
            if expected and serves(each.case):
                made = call(each.case, each.change(inputs), PLAIN)
                reason = _difference(each.name, made, expected)
                result.add("batch-invariant", reason, promise)
                if reason is not None:
                    break
    promise = _promise(kernel, "device_independent")
    if _OPTION in case.options:
        promise = f"{_OPTION}=True asks for bits that don't depend on the device"
    if ((repeats and plain) or promise) and (related or _OPTION in case.options):
        made = call(case, inputs, How(multiprocessors=TOLD_MULTIPROCESSORS))
        if made.asked or made.rule is not None:
            name = f"told of {TOLD_MULTIPROCESSORS} SMs"
            result.add("device-independent", _difference(name, made, outputs), promise)
    return result


def _promise(kernel: Kernel, name: str) -> str | None:
    """What a kernel declares, in words, where it declares it."""
    return f"it declares {name}=True" if getattr(kernel.numerics, name) else None


def _difference(name: str, made: Call, expected: Mapping[str, Tensor]) -> str | None:
    """The first output that isn't as expected, bit by bit, in a sentence; None where all are."""
    if made.rule is not None:
        return f"{name}: {made.reason}"
    for output, value in expected.items():
        found = beyond(output, made.outputs[output], value.double(), None)
        if found is not None:
            return f"{name}: {found.text}"
    return None
