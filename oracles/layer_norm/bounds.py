"""How far a correct layer-norm backward may be from the closed form.

First-order rounding analysis of the closed form with mean and rstd given, r = rstd, H = n, sums
in any order (gamma covers every tree), every elementary operation within u_a of its result:

    E_x^  = 3 u_a |x^| + eta_a (1 + r)           subtract, multiply, and one to spare
            (+ u_a r (|x| + |mu|)                declared form x r - mu r: its products cancel)
    E_c1  = (gamma_H + u_a) mean|g| + u_a |c1| + eta_a           product; sum; scaling by 1/n
    E_c2  = (gamma_H + u_a) mean|g|(|x^| + E_x^) + mean|g| E_x^ + u_a |c2| + eta_a
    E_pre = r [E_c1 + (|x^| + E_x^) E_c2 + E_x^ |c2|
               + 5 u_a (|g| + |c1| + (|x^| + E_x^)(|c2| + E_c2))]
            + eta_a [1 + r (4 + |w| + mean|w| + (|x^| + E_x^) mean|w|(|x^| + E_x^))]
    E_dx  = E_pre (1 + u_o) + u_o |dx| + eta_o

The product E_x^ E_c2 is of second order and still needed: constant rows near 1e4 have an x^ that
is all rounding. 5 u_a covers the five operations on the way from g, c1 and x^ c2 to dx in every
order of evaluation; (r / n)(n g - s1 - x^ s2) puts a sixth on g, which gamma_H mean|g| >= u_a |g|
pays for. The terms in eta_a are what flushing loses: x - mu before it is multiplied by r, dy as it
is read (which reaches g by |w|, and c2 by |w| |x^|), and the last product.

zero_centred adds the rounding of 1 + w to every product with g: u_a mean|g| in E_c1 and
u_a mean|g|(|x^| + E_x^) in E_c2; as dy + w dy it is u_a (1 + |w|)|dy|, never less, and that is what
is allowed. A residual adds one rounding of dx + res before the last.

    W     = gamma_{m+1} sum|dy|(|x^| + E_x^) + sum|dy| E_x^
            + eta_a (m + sum max(1, r) + sum|dy| r + sum|x^|)
    E_dweight = W (1 + u_o) + u_o |dweight| + eta_o
    E_dbias   = (gamma_m sum|dy| + m eta_a)(1 + u_o) + u_o |dbias| + eta_o

Accumulating into an earlier gradient adds u_a |new| to W, one fp32 addition before the rounding.

Casts that a kernel declares (casts.py), to a half with u_p and eta_p, are summed in full:

    e_d  = u_p |dy| + eta_p                        rounds_gradient
    e_g  = |w| e_d [+ u_p (|g| + |w| e_d) + eta_p]              [rounds_weighted]
    E_x^ of dweight alone: + u_p (|x^| + E_x^) + eta_p          rounds_normalised
    e_p  = u_p (|dy| + e_d)(|x^| + E_x^) + eta_p                rounds_products

|g| + e_g stands for |g| and |dy| + e_d for |dy|, and then

    E_pre + r [e_g + mean e_g + (|x^| + E_x^) mean e_g (|x^| + E_x^)]       none of c1 in RMS norm
    W     + sum e_d (|x^| + E_x^) + sum e_p       dbias + sum e_d
    either + ((1 + u_p)^k - 1) sum|addends| + m eta_p (1 + u_p)^k      of partial sums

k = 1 with half_partials, ceil(m / P) with half_accumulators of P. Nothing is promised where what is
cast may be past the half's largest number; and where these casts alone allow a third of the rows to
be left out, max(|dweight|, sqrt(3 sum (dy x^)^2)) / 3, underflow apart, the bound says nothing.

Checked on an H200 against PyTorch's native kernel; see docs/measured.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernel_workbench.oracles.layer_norm.casts import Casts
from kernel_workbench.oracles.layer_norm.closed_form import Rows, chunks
from kernel_workbench.oracles.layer_norm.probes import probe_bound
from kernel_workbench.oracles.layer_norm.values import addends_vary
from kernel_workbench.oracles.op import Bound, Case, Inputs, Numerics, Outputs, optional, required
from kernel_workbench.oracles.rounding import (
    FLUSHED,
    GRADUAL,
    HALF_SUBNORMAL_SPACING,
    UNIT_ROUNDOFF,
    Gamma,
)


@dataclass(frozen=True, slots=True)
class _Terms:
    """What the formulas need beside the values: gamma in one of its forms, u_a, eta_a."""

    gamma: Gamma
    u: float
    eta: float
    distributed: bool
    zero_centred: bool
    casts: Casts

    def x_hat(self, part: Rows) -> Tensor:
        """E_x^, [rows, n]."""
        error = 3 * self.u * part.x_hat.abs() + self.eta * (1 + part.rstd.abs())
        if self.distributed:
            error = error + self.u * part.rstd.abs() * (part.x.abs() + part.mean.abs())
        return error

    def dx(self, part: Rows, *, rms_norm: bool) -> Tensor:
        """E_pre, [rows, n]."""
        u, eta, n = self.u, self.eta, part.x.shape[1]
        e_x = self.x_hat(part)
        x_hat, c1, c2, r = part.x_hat.abs(), part.c1.abs(), part.c2.abs(), part.rstd.abs()
        g = part.g.abs()
        weight = None if part.weight is None else part.weight.abs()
        e_g = self.casts.of_g(part.dy.abs(), g, weight)
        if e_g is not None:
            g = g + e_g
        if self.zero_centred and part.weight is not None:
            g_rounded = (1 + (part.weight - 1).abs()) * part.dy.abs()
            g_rounded = g_rounded if e_g is None else g_rounded + e_g
        else:
            g_rounded = g
        grown = x_hat + e_x
        product = u if not self.zero_centred else 2 * u
        e_c2 = (
            self.gamma(n) * (g * grown).mean(1, keepdim=True)
            + product * (g_rounded * grown).mean(1, keepdim=True)
            + (g * e_x).mean(1, keepdim=True)
            + u * c2
            + eta
        )
        if rms_norm:
            e_c1 = torch.zeros_like(c1)
        else:
            e_c1 = (
                self.gamma(n) * g.mean(1, keepdim=True)
                + product * g_rounded.mean(1, keepdim=True)
                + u * c1
                + eta
            )
        if e_g is not None:
            e_c2 = e_c2 + (e_g * grown).mean(1, keepdim=True)
            e_c1 = e_c1 if rms_norm else e_c1 + e_g.mean(1, keepdim=True)
        coherent = e_c1 + grown * e_c2 + e_x * c2
        if e_g is not None:
            coherent = coherent + e_g
        local = 5 * u * (g_rounded + c1 + grown * (c2 + e_c2))
        # |w|, by which an underflow of dy reaches g: 1 where there is no weight.
        w = torch.ones_like(part.x[:1]) if weight is None else weight[None, :]
        underflow = eta * (1 + r * (4 + w + w.mean() + grown * (w * grown).mean(1, keepdim=True)))
        return r * (coherent + local) + underflow

    def add_dweight(self, part: Rows, m: int, column: _Columns) -> None:
        """The chunk's share of W, in `column`."""
        dy, x_hat, r, casts = part.dy.abs(), part.x_hat.abs(), part.rstd.abs(), self.casts
        e_x = self.x_hat(part)
        size, error = dy * (x_hat + e_x), dy * e_x
        if casts.of_sums:
            size, cast = casts.of_product(dy, x_hat + e_x)
            error = error + cast
            column.add(part.dy * part.x_hat, size)
        flushed = r.clamp(min=1).sum() + (dy * r).sum(0) + x_hat.sum(0)
        column.error += self.gamma(m + 1) * size.sum(0) + error.sum(0)
        column.error += self.eta * (dy.shape[0] + flushed)

    def add_dbias(self, part: Rows, m: int, column: _Columns) -> None:
        """The chunk's share of dbias's error before the cast, in `column`."""
        size = dy = part.dy.abs()
        if self.casts.of_sums:
            cast = self.casts.gradient.error(dy)
            size = dy + cast
            column.error += cast.sum(0)
            column.add(part.dy, size)
        column.error += self.gamma(m) * size.sum(0) + dy.shape[0] * self.eta


@dataclass(slots=True)
class _Columns:
    """A sum over the rows, chunk by chunk: what is known of each of its n columns.

    error      its bound before any cast of a sum
    size, largest    the sum of its addends' magnitudes as a kernel has them, and the largest one
    total, magnitude, squares    the exact sums of its addends, of their magnitudes and squares
    """

    error: Tensor
    size: Tensor
    largest: Tensor
    total: Tensor
    magnitude: Tensor
    squares: Tensor

    @classmethod
    def of(cls, n: int, device: torch.device) -> _Columns:
        """Of nothing yet."""
        made = (torch.zeros(n, dtype=torch.float64, device=device) for _ in range(6))
        return cls(*made)

    def add(self, addends: Tensor, size: Tensor) -> None:
        """A chunk's addends, and their magnitudes as a kernel has them."""
        self.size += size.sum(0)
        self.largest = torch.maximum(self.largest, size.amax(0))
        self.total += addends.sum(0)
        self.magnitude += addends.abs().sum(0)
        self.squares += addends.square().sum(0)

    def silenced(self, share: float) -> Tensor:
        """Where a third of the rows is less than this share of all magnitudes, bool."""
        third = torch.maximum(self.total.abs(), (3 * self.squares).sqrt()) / 3
        return share * self.magnitude > third


def _rounded(before: Tensor, value: Tensor, dtype: torch.dtype) -> Tensor:
    """The bound after the last cast to `dtype`; NaN where the value isn't finite.

    There an infinite bound would say that nothing is promised: the value is, only no distance.
    """
    u = UNIT_ROUNDOFF[dtype]
    after = before * (1 + u) + u * value.abs() + HALF_SUBNORMAL_SPACING[dtype]
    return torch.where(value.isfinite(), after, torch.nan)


@dataclass(frozen=True, slots=True)
class _Errors:
    """The bounds of all outputs in one form, and where casts leave them nothing to say."""

    of: dict[str, Tensor]
    powerless: dict[str, Tensor]


def _errors(
    case: Case, inputs: Inputs, truth: Outputs, numerics: Numerics, *, probable: bool
) -> _Errors:
    m, n = case.size("m"), case.size("n")
    u = numerics.accumulation_roundoff
    eta = GRADUAL if numerics.gradual_underflow else FLUSHED
    casts = Casts.of(case, numerics)

    def terms(compared: int) -> _Terms:
        return _Terms(
            gamma=Gamma(u, compared if probable else None),
            u=u,
            eta=eta,
            distributed=numerics.distributed_normalisation,
            zero_centred="zero_centred" in case.options,
            casts=casts,
        )

    for_dx, for_columns = terms(m * n), terms(n)
    dx_truth = truth["dx"]
    assert dx_truth is not None
    dx_values = dx_truth.view(-1, n)
    e_dx = torch.empty_like(dx_values)
    columns = {name: _Columns.of(n, e_dx.device) for name in ("dweight", "dbias")}
    for part in chunks(case, inputs):
        before = for_dx.dx(part, rms_norm="rms_norm" in case.options)
        if "residual" in case.options:
            before = before + u * dx_values[part.rows].abs()
        e_dx[part.rows] = _rounded(before, dx_values[part.rows], required(inputs, "x").dtype)
        for_columns.add_dweight(part, m, columns["dweight"])
        for_columns.add_dbias(part, m, columns["dbias"])
    made = _Errors({"dx": e_dx.view(dx_truth.shape)}, {})
    for name, column in columns.items():
        value = truth[name]
        if value is None:
            continue
        before = column.error
        if casts.of_sums:
            size = column.size * (1 + for_columns.gamma(m + 1))  # with what fp32 has made of it
            before = before + casts.of_partials(size, column.largest, m)
            made.powerless[name] = column.silenced(casts.share(products=name == "dweight"))
        if optional(inputs, name) is not None:
            before = before + u * value.abs()
        made.of[name] = _rounded(before, value, case.weight_dtype)
    return made


def bound(case: Case, inputs: Inputs, truth: Outputs, numerics: Numerics) -> dict[str, Bound]:
    """The deterministic bound of each output, and the probabilistic one where it is valid.

    Of an exact probe most bounds are 0.
    """
    exact = probe_bound(case, inputs, truth, numerics)
    if exact is not None:
        return exact
    sure = _errors(case, inputs, truth, numerics, probable=False)
    likely: dict[str, Tensor] = {}
    if addends_vary(case):
        likely = _errors(case, inputs, truth, numerics, probable=True).of
    return {
        name: Bound(error, likely.get(name), sure.powerless.get(name))
        for name, error in sure.of.items()
    }
