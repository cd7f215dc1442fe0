"""Layer-norm backward as an idealised kernel computes it: the closed form in fp32, cast once.

    x^ = (x - mu) r    or, where distributed_normalisation is declared, x r - mu r
    g = dy w    c1 = sum(g) / n    c2 = sum(g x^) / n    dx = (g - c1 - x^ c2) r [+ residual]
    dweight = sum dy x^ [+ earlier]    dbias = sum dy [+ earlier]

Sums are torch's, in whatever order it has; no tile and no partial of a kernel is copied, for fp32
partials differ from them by roundings of the same size. docs/derivations/verdict.md says what the
comparison is sound for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from oracles.layer_norm.closed_form import forms, required, tensor
from oracles.layer_norm.probes import INTEGERS
from oracles.layer_norm.values import addends_vary
from oracles.op import Case, Inputs, Numerics, Outputs

# There errors come from underflow, few in a block and not the same from one order of operations to
# another; and of probes nothing is rounded.
_OTHER_FAMILIES = frozenset({"subnormals", "dy_subnormal", INTEGERS})
_CHUNK_ELEMENTS = 2**24  # 64 MiB for each fp32 temporary


def comparable(case: Case) -> bool:
    """Whether a kernel's errors on the case say something beside those of an emulation.

    In the halves numbers near 1e4 are all but equal: x^ is one rounding, the same for a whole row.
    """
    equal = case.distribution == "mean1e4" and case.dtype != torch.float32
    return addends_vary(case) and not equal and case.distribution not in _OTHER_FAMILIES


@dataclass(frozen=True, slots=True)
class _Part:
    """A chunk of rows in fp32: dy, x_hat, and dx before any residual, [rows, n]."""

    rows: slice
    dy: Tensor
    x_hat: Tensor
    dx: Tensor


def _parts(case: Case, inputs: Inputs, numerics: Numerics) -> Iterator[_Part]:
    n = case.size("n")
    dy, x = required(inputs, "dy").reshape(-1, n), required(inputs, "x").reshape(-1, n)
    rstd, mean = required(inputs, "rstd").reshape(-1, 1), tensor(inputs, "mean")
    weight = tensor(inputs, "weight")
    wide_weight = None if weight is None else weight.float()
    if wide_weight is not None and "zero_centred" in case.options:
        wide_weight = 1 + wide_weight
    step = max(1, _CHUNK_ELEMENTS // n)
    for start in range(0, x.shape[0], step):
        rows = slice(start, start + step)
        wide_dy, x_hat, r = dy[rows].float(), x[rows].float(), rstd[rows].float()
        g = wide_dy if wide_weight is None else wide_dy * wide_weight
        if mean is None:
            x_hat = x_hat * r
            dx = g - x_hat * ((g * x_hat).sum(1, keepdim=True) / n)
        else:
            mu = mean.reshape(-1, 1)[rows].float()
            distributed = numerics.distributed_normalisation
            x_hat = x_hat * r - mu * r if distributed else (x_hat - mu) * r
            c1, c2 = g.sum(1, keepdim=True) / n, (g * x_hat).sum(1, keepdim=True) / n
            dx = g - c1 - x_hat * c2
        yield _Part(rows, wide_dy, x_hat, dx * r)


def emulate(case: Case, inputs: Inputs, numerics: Numerics) -> Outputs:
    """dx, dweight and dbias in their dtypes; nothing where they aren't comparable."""
    if not comparable(case):
        return {}
    present, n = forms(case), case.size("n")
    x = required(inputs, "x")
    residual = tensor(inputs, "dresidual")
    dx = torch.empty((x.numel() // n, n), dtype=case.dtype, device=x.device)
    dweight = torch.zeros(n, dtype=torch.float32, device=x.device)
    dbias = torch.zeros_like(dweight)
    for part in _parts(case, inputs, numerics):
        wide = part.dx
        if residual is not None:
            wide = wide + residual.reshape(-1, n)[part.rows].float()
        dx[part.rows] = wide.to(case.dtype)
        dweight += (part.dy * part.x_hat).sum(0)
        dbias += part.dy.sum(0)
    made: Outputs = {"dx": dx.view(x.shape)}
    for name, total in (("dweight", dweight), ("dbias", dbias)):
        if name in present:
            earlier = tensor(inputs, name)
            added = total if earlier is None else total + earlier.float()
            made[name] = added.to(case.weight_dtype)
    return made
