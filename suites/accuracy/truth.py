"""What is made once for all kernels of a case, in order and only when it is needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

from torch import Tensor

from kernel_workbench.kernels.registry import Kernel
from kernel_workbench.oracles.op import Bound, Case, Flips, Numerics, Op, Outputs
from kernel_workbench.oracles.orders import LANES, summed_in
from kernel_workbench.oracles.signs import linear_flips
from kernel_workbench.suites.accuracy.verdict import Verdict
from kernel_workbench.suites.sandbox.call import Call
from kernel_workbench.suites.sandbox.originals import Originals
from kernel_workbench.suites.sandbox.parcels import Parcel

# Bounds take up to eight times a case's bytes for each numerics; of a larger case one set is kept.
_MOST_BYTES_OF_SEVERAL_BOUNDS = 2**25
_MARGIN = 16  # times less than a bound: what two truths may be apart
_PLAIN = "normal"  # the distribution whose signs mean nothing


def _agree(one: Tensor | None, other: Tensor, bound: Bound) -> bool:
    """Compare two truths: they agree where they differ by little beside a bound."""
    if one is None:
        return True
    near = (one - other).abs() * _MARGIN <= bound.deterministic
    same = (one == other) | (one.isnan() & other.isnan()) | near
    return bool((same | (bound.deterministic == math.inf)).all())


@dataclass(slots=True)
class Known:
    """A case's inputs, and as they are sent; its truth; and for each numerics bounds and emulation.

    secret: what signs and further values are drawn from. others: further values of the case, once
    they were drawn, each with a truth of its own. judged: the kernel that was judged last, its
    first call, and the verdict on two calls of it.
    """

    op: Op
    case: Case
    originals: Originals
    secret: int
    flips: Flips
    parcel: Parcel | None = None
    truth: Outputs | None = None
    bounds: dict[Numerics, dict[str, Bound]] = field(default_factory=dict)
    emulations: dict[tuple[Numerics, int | None], Outputs] = field(default_factory=dict)
    others: tuple[Known, ...] | None = None
    judged: tuple[str, Call, Callable[[Call, Call], Verdict]] | None = None

    @classmethod
    def of(cls, op: Op, case: Case, originals: Originals, secret: int) -> Known:
        """Nothing but the inputs."""
        return cls(op, case, originals, secret, op.signs(case, secret))

    def exact(self) -> Outputs:
        """The truth."""
        if self.truth is None:
            self.truth = self.op.oracle(self.case, self.originals.read())
        return self.truth

    def keep_true_signs(self, bounds: Mapping[str, Bound]) -> bool:
        """Check that changed signs have the same truth, and drop them where they haven't.

        Signs are found on small sizes, and may be a symmetry of these alone.
        """
        inputs = self.originals.read()
        changed = {
            name: value.clone() if isinstance(value, Tensor) else value
            for name, value in inputs.items()
        }
        self.flips.apply_(changed)
        turned = self.op.oracle(self.case, changed)
        back = self.flips.outputs({name: x for name, x in turned.items() if x is not None})
        truth = self.exact()
        holds = all(_agree(truth[name], value, bounds[name]) for name, value in back.items())
        if not holds:
            self.flips = Flips({}, {})
        return holds

    def bounds_of(self, kernel: Kernel) -> dict[str, Bound]:
        """The bounds for what the kernel declares."""
        numerics = kernel.numerics.of_bounds
        if numerics not in self.bounds:
            truth = self.exact()
            if not self._keeps_several:
                self.bounds.clear()
            inputs = self.originals.read()
            self.bounds[numerics] = self.op.bound(self.case, inputs, truth, numerics)
        return self.bounds[numerics]

    def emulation_of(self, kernel: Kernel) -> Outputs | None:
        """What an idealised kernel with the same numerics returns; None where the op has none."""
        if self.op.emulate is None:
            return None
        return self._emulated(kernel.numerics.of_bounds, None)

    def emulations_in_other_orders(self, kernel: Kernel) -> Iterator[Outputs]:
        """The same in other orders of addition, each computed as it is asked for."""
        if self.op.emulate is not None:
            for lanes in LANES:
                yield self._emulated(kernel.numerics.of_bounds, lanes)

    def _emulated(self, numerics: Numerics, lanes: int | None) -> Outputs:
        key = numerics, lanes
        if key not in self.emulations:
            if not self._keeps_several:
                self.emulations.clear()
            inputs = self.originals.read()
            assert self.op.emulate is not None
            with nullcontext() if lanes is None else summed_in(lanes):
                self.emulations[key] = self.op.emulate(self.case, inputs, numerics)
        return self.emulations[key]

    def forget_truth(self) -> None:
        """Let go of all that is made of the inputs."""
        self.truth = None
        self.bounds.clear()
        self.emulations.clear()

    def draw_others(self, *, both: bool) -> tuple[Known, ...]:
        """Further values, which no kernel can have been made for: drawn once, from the secret.

        Of the case with the secret for its seed; and of the same magnitudes, of which random ones
        of the argument that outputs are linear in have the other sign: nothing but computing tells
        what becomes of outputs then. One of the two, by the secret, unless `both`.
        """
        if self.others is None:
            kinds: list[Callable[[], Known]] = [partial(self.of_seed, self.secret)]
            if self.case.distribution == _PLAIN:
                kinds.append(self._of_other_signs)
            chosen = kinds if both else [kinds[self.secret % len(kinds)]]
            self.others = tuple(each() for each in chosen)
        return self.others

    def of_seed(self, seed: int) -> Known:
        """Draw other values of the case, by another seed."""
        case = replace(self.case, seed=seed)
        originals = Originals(self.op, case, self.originals.device)
        return Known.of(self.op, case, originals, seed)

    def _of_other_signs(self) -> Known:
        drawn = self.op.inputs(self.case, self.originals.device)
        linear_flips(self.op, drawn, self.secret).apply_(drawn)
        originals = Originals(self.op, self.case, self.originals.device, drawn)
        return Known.of(self.op, self.case, originals, self.secret)

    @property
    def _keeps_several(self) -> bool:
        return self.op.bytes(self.case) <= _MOST_BYTES_OF_SEVERAL_BOUNDS
