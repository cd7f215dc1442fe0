"""How errors go through bags of embeddings: sums, means and maxima of rows that indices choose."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernel_workbench.oracles.analysis.arithmetic import Arithmetic
from kernel_workbench.oracles.analysis.quantities import Combination, Quantity
from kernel_workbench.oracles.analysis.rules import EPS_DIVISION, UnknownError, monotone, rule

_aten = torch.ops.aten
_MEAN, _MOST = 1, 2  # torch's numbers, beside 0 for sums


def _bag(  # aten's own
    operation: Any,  # noqa: ANN401
    arithmetic: Arithmetic,
    out: Sequence[Quantity],
    weight: Quantity,
    indices: Quantity,
    offsets: Quantity,
    by_frequency: bool = False,  # noqa: FBT001,FBT002
    mode: int = 0,
    sparse: bool = False,  # noqa: FBT001,FBT002
    factors: Quantity | None = None,
    *rest: Any,  # noqa: ANN401
) -> tuple[Combination | Tensor | None, None, None, Tensor | None]:
    def bags(rows: Tensor, by: Tensor | None) -> Tensor:
        places = indices.value, offsets.value
        result: Tensor = operation(rows, *places, by_frequency, mode, sparse, by, *rest)[0]
        return result

    if mode == _MOST:
        error = monotone(out[0], lambda x: bags(x, None), weight)
        index = out[3].value
        open_ = None if error is None else torch.full(index.shape, math.inf, dtype=torch.float64)
        return error, None, None, open_
    ends = torch.cat([offsets.value, offsets.value.new_tensor([indices.value.numel()])])
    n = int(ends.diff().amax()) if len(ends) > 1 else 0
    reach = None if factors is None else factors.reach
    size = bags(weight.reach, reach)
    result = size * arithmetic.sure.growth(n if factors is not None else max(n - 1, 0))
    if weight.error is not None:
        result.add_(bags(weight.error, reach))
    if factors is not None and factors.error is not None:
        result.add_(bags(weight.size, factors.error))
    result.add_(2 * n * arithmetic.eta)
    roundings = EPS_DIVISION / arithmetic.u + 2 if mode == _MEAN and n > 1 else 0.0
    return arithmetic.rounded(out[0], result, roundings), None, None, None


for _name in ("_embedding_bag", "_embedding_bag_forward_only"):
    rule(_name)(partial(_bag, getattr(_aten, _name)))


@rule("_embedding_bag_dense_backward")
def _of_bags(  # noqa: PLR0913,PLR0917  # aten's own
    arithmetic: Arithmetic,
    out: Quantity,
    dy: Quantity,
    indices: Quantity,
    bags: Quantity,
    sizes: Quantity,
    largest: Quantity,
    rows: int,
    by_frequency: bool,  # noqa: FBT001
    mode: int,
    factors: Quantity | None,
    *rest: Any,  # noqa: ANN401
) -> Combination:
    """A row gets the sum of the gradients of the bags that it is in."""
    if not largest.exact:
        raise UnknownError("goes by which of several rounded numbers is the largest")

    def spread(x: Tensor, by: Tensor | None) -> Tensor:
        places = (item.value for item in (indices, bags, sizes, largest))
        result: Tensor = _aten._embedding_bag_dense_backward(  # noqa: SLF001  # torch's own name
            x, *places, rows, by_frequency, mode, by, *rest
        )
        return result

    chosen = indices.value.flatten()
    n = int(chosen.bincount().amax()) if chosen.numel() else 1
    if mode == _MOST:
        n = largest.value.shape[0]
    reach = None if factors is None else factors.size
    divided = EPS_DIVISION + 2 * arithmetic.u if mode == _MEAN or by_frequency else 0.0
    result = spread(dy.reach, reach)
    result.mul_(arithmetic.sure.growth(n) * (1 + divided) + divided)
    if dy.error is not None:
        result.add_(spread(dy.error, reach))
    if factors is not None and factors.error is not None:
        result.add_(spread(dy.reach, factors.error), alpha=1 + arithmetic.sure.growth(n))
    return arithmetic.rounded(out, result.add_(2 * n * arithmetic.eta), 0)
