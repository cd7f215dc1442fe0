"""Layer-norm backward as an idealised kernel computes it: the closed form in fp32, cast once.

    x^ = (x - mu) r    or, where distributed_normalisation is declared, x r - mu r
    g = dy w    c1 = sum(g) / n    c2 = sum(g x^) / n    dx = (g - c1 - x^ c2) r [+ residual]
    dweight = sum dy x^ [+ earlier]    dbias = sum dy [+ earlier]

with the casts that are declared (casts.py). Sums are torch's, in whatever order it has; no tile and
no partial of a kernel is copied, for fp32 partials differ from them by roundings of the same size.
Of partials that are cast once there are two, or one where the output is of another type, which
leaves as much as any number of them; of accumulators as many as are declared.
docs/derivations/verdict.md says what the comparison is sound for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kernel_workbench.oracles.cases.distributions import INTEGERS
from kernel_workbench.oracles.layer_norm.casts import Casts
from kernel_workbench.oracles.layer_norm.closed_form import forms
from kernel_workbench.oracles.layer_norm.values import addends_vary
from kernel_workbench.oracles.op import Case, Inputs, Numerics, Outputs, optional, required

# There errors come from underflow, few in a block and not the same from one order of operations to
# another; and of probes nothing is rounded.
_OTHER_FAMILIES = frozenset({"subnormals", "dy_subnormal", INTEGERS})
_CHUNK_ELEMENTS = 2**24  # 64 MiB for each fp32 temporary
# From here on casts of partial sums leave dweight and dbias no power.
_POWERLESS_GROWTH = 3**-0.5


def comparable(case: Case) -> bool:
    """Whether a kernel's errors on the case say something beside those of an emulation.

    In the halves numbers near 1e4 are all but equal: x^ is one rounding, the same for a whole row.
    """
    equal = case.distribution == "mean1e4" and case.dtype != torch.float32
    return addends_vary(case) and not equal and case.distribution not in _OTHER_FAMILIES


@dataclass(frozen=True, slots=True)
class _Part:
    """A chunk of rows in fp32: dy, dy x^, and dx before any residual, [rows, n]."""

    rows: slice
    dy: Tensor
    products: Tensor
    dx: Tensor


@dataclass(slots=True)
class _Sum:
    """A sum over the rows in fp32, in partials [p, n] that are cast as declared."""

    casts: Casts
    partials: Tensor

    @classmethod
    def of(cls, case: Case, casts: Casts, device: torch.device) -> _Sum:
        """Of nothing yet."""
        two = casts.partials and not casts.accumulators and case.weight_dtype == case.dtype
        count = casts.accumulators if casts.roundings > 1 else 2 if two else 1
        return cls(casts, torch.zeros(count, case.size("n"), dtype=torch.float32, device=device))

    def add(self, addends: Tensor) -> None:
        """The next rows, [rows, n]: a multiple of p, unless they are the last."""
        count, casts = self.partials.shape[0], self.casts
        if casts.roundings > 1:
            for few in addends.split(count):
                held = self.partials[: few.shape[0]]
                held.copy_(casts.partials(held + few))
        elif casts.accumulators:  # one for each row
            self.partials[0] += casts.partials(addends).sum(0)
        else:
            for number in range(count):
                self.partials[number] += addends[number::count].sum(0)

    @property
    def total(self) -> Tensor:
        """The sum, [n]."""
        cast_already = self.casts.accumulators > 0
        return (self.partials if cast_already else self.casts.partials(self.partials)).sum(0)


def _parts(
    case: Case, inputs: Inputs, numerics: Numerics, casts: Casts, multiple: int
) -> Iterator[_Part]:
    """Chunks of the rows, of all but the last a multiple of so many."""
    n = case.size("n")
    dy, x = required(inputs, "dy").reshape(-1, n), required(inputs, "x").reshape(-1, n)
    rstd, mean = required(inputs, "rstd").reshape(-1, 1), optional(inputs, "mean")
    weight = optional(inputs, "weight")
    wide_weight = None if weight is None else weight.float()
    if wide_weight is not None and "zero_centred" in case.options:
        wide_weight = 1 + wide_weight
    step = -(-max(1, _CHUNK_ELEMENTS // n) // multiple) * multiple
    for start in range(0, x.shape[0], step):
        rows = slice(start, start + step)
        wide_dy, x_hat, r = dy[rows].float(), x[rows].float(), rstd[rows].float()
        wide_dy = casts.gradient(wide_dy)
        g = wide_dy if wide_weight is None else casts.weighted(wide_dy * wide_weight)
        if mean is None:
            x_hat = x_hat * r
            dx = g - x_hat * ((g * x_hat).sum(1, keepdim=True) / n)
        else:
            mu = mean.reshape(-1, 1)[rows].float()
            distributed = numerics.distributed_normalisation
            x_hat = x_hat * r - mu * r if distributed else (x_hat - mu) * r
            c1, c2 = g.sum(1, keepdim=True) / n, (g * x_hat).sum(1, keepdim=True) / n
            dx = g - c1 - x_hat * c2
        products = casts.products(wide_dy * casts.normalised(x_hat))
        yield _Part(rows, wide_dy, products, dx * r)


def emulate(case: Case, inputs: Inputs, numerics: Numerics) -> Outputs:
    """dx, dweight and dbias in their dtypes; nothing where they aren't comparable."""
    if not comparable(case):
        return {}
    present, n = forms(case), case.size("n")
    x = required(inputs, "x")
    residual = optional(inputs, "dresidual")
    dx = torch.empty((x.numel() // n, n), dtype=case.dtype, device=x.device)
    casts = Casts.of(case, numerics)
    dweight, dbias = (_Sum.of(case, casts, x.device) for _ in range(2))
    for part in _parts(case, inputs, numerics, casts, dweight.partials.shape[0]):
        wide = part.dx
        if residual is not None:
            wide = wide + residual.reshape(-1, n)[part.rows].float()
        dx[part.rows] = wide.to(case.dtype)
        if casts.growth < _POWERLESS_GROWTH:
            dweight.add(part.products)
            dbias.add(part.dy)
    made: Outputs = {"dx": dx.view(x.shape)}
    for name, column in (("dweight", dweight), ("dbias", dbias)):
        if name in present and casts.growth < _POWERLESS_GROWTH:
            earlier, total = optional(inputs, name), column.total
            added = total if earlier is None else total + earlier.float()
            made[name] = added.to(case.weight_dtype)
    return made
