"""Compute a case's inputs, truth, bounds and emulation once for all kernels, when needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

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
_MARGIN = 16  # two truths may differ by this part of a bound
_PLAIN = "normal"  # the distribution whose signs mean nothing


def _agree(one: Tensor | None, other: Tensor, bound: Bound) -> bool:
    """Return True if two truths differ by at most a 16th of a bound in every element."""
    if one is None:
        return True
    near = (one - other).abs() * _MARGIN <= bound.deterministic
    same = (one == other) | (one.isnan() & other.isnan()) | near
    return bool((same | (bound.deterministic == math.inf)).all())


@dataclass(slots=True)
class CaseValues:
    """A case's inputs, its truth, and for each numerics its bounds and emulation.

    secret: the seed of signs and further values. parcel: the inputs as workers get them. further:
    further values of the case, once they were drawn, with their own truths. judged: the kernel that
    was judged last, its first call, and the function that judges two calls of it.
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
    further: tuple[CaseValues, ...] | None = None
    judged: tuple[str, Call, Callable[[Call, Call], Verdict]] | None = None

    @classmethod
    def of(cls, op: Op, case: Case, originals: Originals, secret: int) -> CaseValues:
        """Return the case's values with nothing computed but the inputs."""
        return cls(op, case, originals, secret, op.signs(case, secret))

    def at_home(self, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return outputs on the device where the case is judged; small ones are on the CPU."""
        home = self.originals.device
        return {name: output.to(home) for name, output in outputs.items()}

    def exact(self) -> Outputs:
        """Return the truth, which is computed when it is first needed."""
        if self.truth is None:
            self.truth = self.op.oracle(self.case, self.originals.read())
        return self.truth

    def keep_true_signs(self, bounds: Mapping[str, Bound]) -> bool:
        """Check that changed signs leave the truth the same; drop the signs if they don't.

        Signs are derived on small sizes, and may be a symmetry of these alone.

        Args:
            bounds: the bounds by output, beside which truths are compared.

        Returns:
            True if the signs leave the truth the same.
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
        """Return the bounds for the kernel's declared numerics, by output."""
        numerics = kernel.numerics.of_bounds
        if numerics not in self.bounds:
            truth = self.exact()
            if not self._keeps_several:
                self.bounds.clear()
            inputs = self.originals.read()
            self.bounds[numerics] = self.op.bound(self.case, inputs, truth, numerics)
        return self.bounds[numerics]

    @property
    def bytes_of_truth(self) -> int:
        """The bytes of the truth and the bounds that were computed."""
        tensors: list[Tensor | None] = list((self.truth or {}).values())
        for bound in chain.from_iterable(bounds.values() for bounds in self.bounds.values()):
            tensors += bound.deterministic, bound.probabilistic, bound.powerless
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)

    def emulation_of(self, kernel: Kernel) -> Outputs:
        """Return the outputs of an idealised kernel with the same numerics."""
        return self._emulated(kernel.numerics.of_bounds, None)

    def emulations_in_other_orders(self, kernel: Kernel) -> Iterator[Outputs]:
        """Yield the emulation in other orders of addition, each computed when it is needed."""
        for lanes in LANES:
            yield self._emulated(kernel.numerics.of_bounds, lanes)

    def _emulated(self, numerics: Numerics, lanes: int | None) -> Outputs:
        key = numerics, lanes
        if key not in self.emulations:
            if not self._keeps_several:
                self.emulations.clear()
            inputs = self.originals.read()
            with nullcontext() if lanes is None else summed_in(lanes):
                self.emulations[key] = self.op.emulate(self.case, inputs, numerics)
        return self.emulations[key]

    def forget_truth(self) -> None:
        """Drop truth, bounds and emulations, which can be computed again."""
        self.truth = None
        self.bounds.clear()
        self.emulations.clear()

    def draw_others(self, *, both: bool) -> tuple[CaseValues, ...]:
        """Draw further values, which no kernel can have prepared for, once, from the secret.

        There are two kinds: values of the case with the secret as its seed; and the same values
        with random signs in an argument in which outputs are linear, so that a kernel has to
        compute to get the outputs. The second kind exists for normal values alone.

        Args:
            both: draw both kinds; else the secret chooses one.

        Returns:
            The further values.
        """
        if self.further is None:
            kinds: list[Callable[[], CaseValues]] = [partial(self.of_seed, self.secret)]
            if self.case.distribution == _PLAIN:
                kinds.append(self._of_other_signs)
            chosen = kinds if both else [kinds[self.secret % len(kinds)]]
            self.further = tuple(draw() for draw in chosen)
        return self.further

    def of_seed(self, seed: int) -> CaseValues:
        """Draw other values of the case, by another seed."""
        case = replace(self.case, seed=seed)
        originals = Originals(self.op, case, self.originals.device)
        return CaseValues.of(self.op, case, originals, seed)

    def _of_other_signs(self) -> CaseValues:
        drawn = self.op.inputs(self.case, self.originals.device)
        linear_flips(self.op, drawn, self.secret).apply_(drawn)
        originals = Originals(self.op, self.case, self.originals.device, drawn)
        return CaseValues.of(self.op, self.case, originals, self.secret)

    @property
    def _keeps_several(self) -> bool:
        return self.op.bytes(self.case) <= _MOST_BYTES_OF_SEVERAL_BOUNDS
