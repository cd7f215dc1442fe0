"""The inputs of a case, drawn once; where a buffer is of gigabytes, drawn anew when they are read.

Of such a buffer the gaps are memory that nothing touched, or two of it are too many.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernel_workbench.oracles.cases.layouts import LARGEST_POISONED_BUFFER
from kernel_workbench.oracles.op import Case, Inputs, Op


class Originals:
    """The inputs of one case on one device, which no candidate is ever given."""

    def __init__(
        self, op: Op, case: Case, device: torch.device, drawn: Inputs | None = None
    ) -> None:
        """Of the case's own inputs, or of those that were `drawn` for it, small ones."""
        self._op, self._case = op, case
        drawn = op.inputs(case, device) if drawn is None else drawn
        tensors = [each for each in drawn.values() if isinstance(each, Tensor)]
        self.device = tensors[0].device  # with its index
        largest = max(each.untyped_storage().nbytes() for each in tensors)
        self._kept = drawn if largest <= LARGEST_POISONED_BUFFER else None

    def read(self) -> Inputs:
        """The inputs for oracle, bound and parcels, which change nothing."""
        return self._op.inputs(self._case, self.device) if self._kept is None else self._kept
