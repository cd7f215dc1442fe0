"""How much work a reference is: its operations, counted without computing them.

A matrix product has two for each product of elements, as PyTorch's own counter has them; any other
operation has as many as its largest operand has elements; what only looks at memory another way,
makes or copies it, has none. Tensors are on the device "meta", which has shapes and no values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# A marked cast (kernel_workbench.oracles.analysis.rounds) is none of the work that is asked for.
_COPIES = frozenset({"_to_copy", "clone", "copy_", "contiguous", "cat", "stack", "rounds"})
_LOGARITHMS = frozenset({"logsumexp", "_log_softmax", "log", "log2"})


@cache
def _formulas() -> Mapping[Any, Callable[..., int]]:
    """Return torch's flops of each operation; its module imports triton, where there is one."""
    from torch.utils.flop_counter import flop_registry  # noqa: PLC0415

    return flop_registry


class Counter(TorchDispatchMode):
    """Counts inside `with`.

    operations: how often one is called, views too. flops: of all of them. products: whether some
    are matrix products. logarithms: whether one is a logarithm, that of a sum of exponentials too.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations, self.flops, self.products, self.logarithms = 0, 0, False, False
        self._formulas = _formulas()

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        packet = func.overloadpacket
        self.operations += 1
        self.logarithms |= packet.__name__ in _LOGARITHMS
        if packet in self._formulas:
            self.flops += self._formulas[packet](*args, **(kwargs or {}), out_val=result)
            self.products = True
        elif packet.__name__ not in _COPIES and not _is_view(func):
            operands = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
            returned = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
            if operands:
                self.flops += max(tensor.numel() for tensor in (*operands, *returned))
        return result


def _is_view(func: Any) -> bool:
    returns = func._schema.returns  # noqa: SLF001
    return any(
        result.alias_info is not None and not result.alias_info.is_write for result in returns
    )


def meta(shape: tuple[int, ...], kind: object) -> Tensor:
    """A tensor of this shape with no values; kind: as of `Array`, real numbers in float64."""
    dtype = torch.float64
    if isinstance(kind, torch.dtype) and not kind.is_floating_point:
        dtype = kind
    return torch.empty(shape, dtype=dtype, device="meta")
