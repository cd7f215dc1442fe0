"""Drawing the signs that second calls are made on: what the ops' `signs` share."""

from __future__ import annotations

import torch
from torch import Tensor

from kernel_workbench.oracles.cases.distributions import generator
from kernel_workbench.oracles.op import Case, Flips, Inputs, Op


class Signs:
    """A source of random signs, the same for the same key."""

    def __init__(self, *key: object) -> None:
        self._draw = generator(torch.device("cpu"), *key)

    def __call__(self, *shape: int) -> Tensor:
        """Bool of this shape, True for a flip: one at least, and of several not all."""
        result = self.perhaps(*shape)
        if result.numel() and len(result.unique()) == 1:
            result.view(-1)[0] = True
            result.view(-1)[1:] = False
        return result

    def perhaps(self, *shape: int) -> Tensor:
        """Likewise; none, perhaps."""
        return torch.rand(shape, generator=self._draw) < 0.5


def expanded(case: Case, *names: str) -> str:
    """The letters of the axes that some of these tensors see one entry of, throughout."""
    return "".join(case.layout.of(name).expanded for name in names)


def linear_flips(op: Op, inputs: Inputs, seed: int) -> Flips:
    """Signs for single elements of the argument that the op's outputs are linear in.

    Outputs sum over such elements, so that none has the signs of a call without them.
    """
    tensor = inputs[op.linear]
    assert isinstance(tensor, Tensor)
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    signs = Signs("linear", seed)(*(1 if step == 0 else size for size, step in sizes))
    return Flips({op.linear: (signs,)}, {})
