"""Measure two properties of a kernel's bits: batch invariance and device independence.

Both are measured on each kernel that repeats its own bits, on plain cases with relations and on
cases whose option asks for the property. A kernel that declares a property which it lacks fails, on
any case with relations; a kernel that declares nothing is measured and reported.

    batch-invariant     a part of the rows, batches, key heads or sequences gets the same bits alone
    device-independent  the bits are the same when the kernel reads another number of SMs. A kernel
                        that doesn't read the number, or kept an earlier answer, can't be measured
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

# The number of SMs that a kernel reads instead of the device's: a prime, not a power of two.
OTHER_MULTIPROCESSORS = 5
_OPTION = "device_independent"
_PLAIN = ("normal", COARSE)  # distributions of cases that measure a kernel that declares nothing


@dataclass(slots=True)
class Invariance:
    """A kernel's properties on one case; broken: a sentence on a property that had to hold."""

    tried: tuple[Tried, ...] = ()
    broken: str | None = None

    def add(self, name: Property, reason: str | None, promise: str | None) -> None:
        """Note a property.

        Args:
            name: the property.
            reason: a clause that says why the property doesn't hold; None if it holds.
            promise: a clause that says why it has to hold; None if it doesn't have to.
        """
        earlier = next((tried for tried in self.tried if tried.name == name), None)
        if earlier is None or (earlier.holds and reason is not None):
            rest = tuple(tried for tried in self.tried if tried.name != name)
            self.tried = (*rest, Tried(name=name, holds=reason is None, reason=reason))
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
    """Measure the properties of a kernel that passed the case.

    The arguments are those of `relations.examine`.
    """
    invariance = Invariance()
    plain = case.distribution in _PLAIN
    related = kernel.op.relations(case)
    declared = kernel.numerics
    repeats = declared.bitwise_repeatable
    promise = _promise(kernel, "batch_invariant")
    if (repeats and plain) or promise:
        for relation in related:
            if not isinstance(relation, Relation) or relation.of != "batch-invariant":
                continue
            expected = relation.carry(outputs)
            if expected and serves(relation.case):
                result = call(relation.case, relation.change(inputs), PLAIN)
                reason = _difference(relation.name, result, expected)
                invariance.add("batch-invariant", reason, promise)
                if reason is not None:
                    break
    promise = _promise(kernel, "device_independent")
    if _OPTION in case.options:
        promise = f"{_OPTION}=True asks for bits that don't depend on the device"
    if ((repeats and plain) or promise) and (related or _OPTION in case.options):
        result = call(case, inputs, How(multiprocessors=OTHER_MULTIPROCESSORS))
        if result.read_sms or result.rule is not None:
            name = f"with {OTHER_MULTIPROCESSORS} SMs"
            invariance.add("device-independent", _difference(name, result, outputs), promise)
    return invariance


def _promise(kernel: Kernel, name: str) -> str | None:
    """Return the kernel's declaration of a property, in words; None if it declares nothing."""
    return f"it declares {name}=True" if getattr(kernel.numerics, name) else None


def _difference(name: str, result: Call, expected: Mapping[str, Tensor]) -> str | None:
    """Describe the first output that differs in any bit; return None if none does."""
    if result.rule is not None:
        return f"{name}: {result.reason}"
    for output, value in expected.items():
        difference = beyond(output, result.outputs[output], value.double(), None)
        if difference is not None:
            return f"{name}: {difference.text}"
    return None
