"""Exact probes of layer norm: values on which a correct kernel has no rounding at all.

The statistics are given, so that they can be chosen: a small integer for mean, a power of two r for
rstd, and x = mean + x^ / r. Columns are paired, in an order that is drawn; a pair shares an x^ of
+-1 or +-2, and its g are +a and -a (the last three of an odd row: a, a, -2a). Their share of
sum g and of sum g x^ is 0. Where n is a power of two half of the pairs have x^ = 1, the others -1,
and c + d x^ is added to g, so that c1 = c and c2 = d: in any case

    dx = r (g - c1 - x^ c2) = +-r a       dweight = sum dy x^       dbias = sum dy

are sums of few bits, exact in fp32 in any order, and so is dy = g / weight with a weight of +-1/2,
+-1 or +-2. An error is left in the last cast of a sum that the type doesn't hold; and, if n is no
power of two, the rounding of r / n in (r / n)(n g - s1 - x^ s2), 4 u_a |r a| with its products, of
which nothing is left in the halves unless a residual takes dx to 0. A column or row that is
dropped, doubled, swapped or counted too many shows in c1 and c2, and so in a whole row of dx, or in
a column of dweight and dbias.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from kernel_workbench.oracles.cases.distributions import Values
from kernel_workbench.oracles.layer_norm.partials import Addends, PartialCasts
from kernel_workbench.oracles.op import Bound, Case, Inputs, Numerics, Outputs, optional, required
from kernel_workbench.oracles.rounding import HALF_SUBNORMAL_SPACING, UNIT_ROUNDOFF


def _is_power_of_two(n: int) -> bool:
    return n & (n - 1) == 0


def integers(values: Values) -> None:
    """The distribution of that name: x, dy, weight, mean and rstd as the module says."""
    tensors, options, draw = values.tensors, values.case.options, values.draw
    (m, n), device = tensors["x"].shape, tensors["x"].device

    def drawn(low: int, high: int, *shape: int) -> Tensor:
        """Integers from low to high, both included, in float32."""
        return torch.randint(low, high + 1, shape, generator=draw, device=device).float()

    def signs(*shape: int) -> Tensor:
        return drawn(0, 1, *shape) * 2 - 1

    plain = _is_power_of_two(n)
    pairs = n // 2
    order = torch.rand(n, generator=draw, device=device).argsort()
    x_hat, g = torch.zeros(m, n, device=device), torch.zeros(m, n, device=device)
    first, second = order[:pairs], order[pairs : 2 * pairs]
    if plain:
        shared = signs(m, 1) * (1 - 2 * (torch.arange(pairs, device=device) % 2)).float()
    else:
        shared = signs(m, pairs) * drawn(1, 2, m, pairs)
    size = signs(m, pairs) * drawn(1, 3, m, pairs)
    x_hat[:, first] = x_hat[:, second] = shared
    g[:, first], g[:, second] = size, -size
    if n % 2 and n > 1:
        x_hat[:, order[-1]] = shared[:, -1]
        g[:, order[-1]] = -2 * size[:, -1]
        g[:, second[-1]] = size[:, -1]
    if plain:
        g += signs(m, 1) * drawn(1, 2, m, 1) + x_hat * (signs(m, 1) * drawn(1, 2, m, 1))
    # No row has the statistics of one near it.
    row = torch.arange(m, device=device) + drawn(0, 50, 1)
    rstd = tensors["rstd"] = 2.0 ** (row % 3 - 1)
    tensors["x"].copy_(x_hat / rstd[:, None])
    if "rms_norm" not in options:
        tensors["mean"] = 5 * row % 17 - 8
        tensors["x"] += tensors["mean"][:, None]
    weight = tensors["weight"].copy_(signs(n) * 2.0 ** drawn(-1, 1, n))
    tensors["dy"].copy_(g if "no_weight" in options else g / weight)


def probe_bound(
    case: Case,
    inputs: Inputs,
    truth: Outputs,
    numerics: Numerics,
    casts: PartialCasts | None,
    addends: Mapping[str, Addends],
) -> dict[str, Bound]:
    """Return the bounds of a case that is an exact probe.

    casts, addends: of partial sums that a kernel casts, and what they are sums of. Addends are
    multiples of 1/2, and so are their sums, which are exact up to 1 / (2 u_p).
    """
    limits = {}
    for name, value in truth.items():
        if value is not None:
            dtype = case.dtype if name == "dx" else case.weight_dtype
            limits[name] = (value.to(dtype).double() - value).abs()
    dx = truth["dx"]
    if dx is not None and not _is_power_of_two(case.size("n")):
        residual = optional(inputs, "dresidual")
        size = dx.abs() if residual is None else dx.abs() + residual.double().abs()
        u, u_o = numerics.accumulation_roundoff, UNIT_ROUNDOFF[case.dtype]
        loose = 4 * u * size * (1 + u_o) + u_o * dx.abs()
        # A half holds no number so near another one, but for those near 0.
        is_half = case.dtype != torch.float32
        limits["dx"] = torch.where(dx == 0, loose, limits["dx"]) if is_half else loose
    for name, measured in addends.items():
        assert casts is not None
        size, largest, value = measured.size, measured.largest, required(truth, name)
        u_o, eta_o = UNIT_ROUNDOFF[case.weight_dtype], HALF_SUBNORMAL_SPACING[case.weight_dtype]
        loose = casts.error(size, largest) * (1 + u_o) + u_o * value.abs() + eta_o
        exact = casts.largest_partial(size, largest) <= 0.5 / UNIT_ROUNDOFF[casts.dtype]
        limits[name] = torch.where(exact, limits[name], loose)
    return {name: Bound(limit, None) for name, limit in limits.items()}
