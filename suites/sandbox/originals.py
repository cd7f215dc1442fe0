"""The inputs of a case, drawn once.

Inputs with a buffer of gigabytes are drawn again at every read, because two copies may not fit into
memory.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernel_workbench.oracles.cases.layouts import LARGEST_POISONED_BUFFER
from kernel_workbench.oracles.op import Case, Inputs, Op


class Originals:
    """The inputs of one case on one device. No candidate receives these tensors."""

    def __init__(
        self, op: Op, case: Case, device: torch.device, drawn: Inputs | None = None
    ) -> None:
        """Draw the case's inputs, or take `drawn` (small inputs) instead."""
        self._op, self._case = op, case
        drawn = op.inputs(case, device) if drawn is None else drawn
        tensors = [value for value in drawn.values() if isinstance(value, Tensor)]
        self.device = tensors[0].device  # with its index
        largest = max(tensor.untyped_storage().nbytes() for tensor in tensors)
        self._kept = drawn if largest <= LARGEST_POISONED_BUFFER else None

    def read(self) -> Inputs:
        """Return the inputs, by name. The caller must not change them."""
        return self._op.inputs(self._case, self.device) if self._kept is None else self._kept
