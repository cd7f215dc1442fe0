"""The oracle of layer-norm backward: its closed form, in float64.

With g = weight * dy, x^ = (x - mean) rstd, c1 = mean_j g, c2 = mean_j g x^ (means over the row):

    dx      = rstd (g - c1 - x^ c2)         the projection that undoes the row's normalisation
    dweight = sum_i dy x^                   dbias = sum_i dy

(Ba, Kiros & Hinton 2016, differentiated; for RMS norm, Zhang & Sennrich 2019, mean and c1 are 0.)
mean and rstd are inputs: dx is the closed form in them, whatever x they came from.
Rows are independent but for dweight and dbias, so the work goes in chunks of rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from kernel_workbench.oracles.cases.layouts import strides_of
from kernel_workbench.oracles.op import (
    Case,
    Geometry,
    Inputs,
    OutputForm,
    Outputs,
    optional,
    required,
)

OPTIONS = MappingProxyType(
    {
        "no_weight": "no affine part: weight is None, dweight and dbias are None",
        "no_bias": "has_bias=False is passed, dbias is None",
        "zero_centred": "zero_centred=True is passed: the weight acts as 1 + weight, added in fp32",
        "rms_norm": "mean is None: x^ = x * rstd, with no mean taken off anywhere",
        "residual": "dresidual, like dx, is passed and added to dx before it is rounded",
        "accumulate": "dweight and dbias are passed, added to in place, and returned",
        "device_independent": "device_independent=True is passed: bits don't depend on the device",
    }
)

_CHUNK_ELEMENTS = 2**24  # 128 MiB for each float64 temporary


@dataclass(frozen=True, slots=True)
class Rows:
    """A chunk of rows, in float64: everything that the closed form and its bound share.

    rows        the chunk's slice of the m rows
    dy, x, g    [rows, n]; x_hat likewise
    mean, rstd, c1, c2    [rows, 1]
    """

    rows: slice
    dy: Tensor
    x: Tensor
    weight: Tensor | None  # [n], 1 added where it is zero-centred
    mean: Tensor
    rstd: Tensor
    x_hat: Tensor
    g: Tensor
    c1: Tensor
    c2: Tensor

    @property
    def dx(self) -> Tensor:
        """The gradient of x, before any residual, [rows, n]."""
        return self.rstd * (self.g - self.c1 - self.x_hat * self.c2)


def chunks(case: Case, inputs: Inputs) -> Iterator[Rows]:
    """The rows of a case in float64, a chunk at a time."""
    n = case.size("n")
    dy, x = required(inputs, "dy").reshape(-1, n), required(inputs, "x").reshape(-1, n)
    rstd = required(inputs, "rstd").reshape(-1, 1)
    mean = optional(inputs, "mean")
    weight = optional(inputs, "weight")
    wide_weight = None if weight is None else weight.double()
    if wide_weight is not None and "zero_centred" in case.options:
        wide_weight = 1 + wide_weight
    step = max(1, _CHUNK_ELEMENTS // n)
    for start in range(0, x.shape[0], step):
        rows = slice(start, start + step)
        wide_dy, wide_x, r = dy[rows].double(), x[rows].double(), rstd[rows].double()
        mu = torch.zeros_like(r) if mean is None else mean.reshape(-1, 1)[rows].double()
        x_hat = (wide_x - mu) * r
        g = wide_dy if wide_weight is None else wide_dy * wide_weight
        c1 = torch.zeros_like(r) if mean is None else g.mean(1, keepdim=True)
        c2 = (g * x_hat).mean(1, keepdim=True)
        yield Rows(rows, wide_dy, wide_x, wide_weight, mu, r, x_hat, g, c1, c2)


def layer_norm_backward(case: Case, inputs: Inputs) -> Outputs:
    """dx [..., n], dweight and dbias [n], in float64; None where the options leave one out."""
    x = required(inputs, "x")
    n = case.size("n")
    dx = torch.empty((x.numel() // n, n), dtype=torch.float64, device=x.device)
    dweight = torch.zeros(n, dtype=torch.float64, device=x.device)
    dbias = torch.zeros_like(dweight)
    residual = optional(inputs, "dresidual")
    for part in chunks(case, inputs):
        dx[part.rows] = part.dx
        dweight += (part.dy * part.x_hat).sum(0)
        dbias += part.dy.sum(0)
        if residual is not None:
            dx[part.rows] += residual.reshape(-1, n)[part.rows].double()
    for name, total in (("dweight", dweight), ("dbias", dbias)):
        earlier = optional(inputs, name)
        if earlier is not None:
            total += earlier.double()
    present = forms(case)
    return {
        "dx": dx.view(x.shape),
        "dweight": dweight if "dweight" in present else None,
        "dbias": dbias if "dbias" in present else None,
    }


def rows_of(case: Case) -> tuple[int, ...]:
    """The shape of a statistic: (m,), or (batches, m / batches)."""
    m, batches = case.size("m"), case.layout.batches
    return (m,) if batches is None else (batches, m // batches)


def axes_of(case: Case) -> str:
    """The letters of a matrix's axes."""
    return "mn" if case.layout.batches is None else "bmn"


def forms(case: Case) -> dict[str, OutputForm]:
    """dx like x, and dweight and dbias like the weight, where the options leave them in."""
    n = case.size("n")
    made = {"dx": OutputForm((*rows_of(case), n), case.dtype)}
    if "no_weight" not in case.options:
        made["dweight"] = OutputForm((n,), case.weight_dtype)
        if "no_bias" not in case.options:
            made["dbias"] = OutputForm((n,), case.weight_dtype)
    return made


def geometry(case: Case) -> dict[str, Geometry]:
    """Where the case puts dy, x and dresidual, and each vector that has an offset of its own."""
    rows, n, options, made = rows_of(case), case.size("n"), case.options, {}
    for name in ("dy", "x", "dresidual") if "residual" in options else ("dy", "x"):
        layout, shape = case.layout.of(name), (*rows, n)
        strides = strides_of(layout, axes_of(case), shape)
        made[name] = Geometry(shape, strides, layout.offset, case.dtype)
    gradients = [name for name in forms(case) if name != "dx"] if "accumulate" in options else []
    weight = [] if "no_weight" in options else ["weight"]
    for name in (*weight, *gradients):
        made[name] = Geometry((n,), (1,), case.layout.of(name).offset, case.weight_dtype)
    for name in ("rstd",) if "rms_norm" in options else ("mean", "rstd"):
        steps = (*(max(each, 1) for each in rows[1:]), 1)
        made[name] = Geometry(rows, steps, case.layout.of(name).offset, torch.float32)
    return made


def flops(case: Case) -> int:
    """Additions and multiplications of the closed form: 12 for each element.

    x^ 2, g 1, the row's sums 1 + 2, dx 3 (and rstd), dweight 2, dbias 1.
    """
    return 12 * case.size("m") * case.size("n")


def least_bytes(case: Case) -> int:
    """The least traffic: every input read once, every output written once."""
    m, n = case.size("m"), case.size("n")
    matrices = 3 + ("residual" in case.options)
    statistics = 1 if "rms_norm" in case.options else 2
    vectors = 0
    if "no_weight" not in case.options:
        gradients = len(forms(case)) - 1
        vectors = 1 + gradients * (2 if "accumulate" in case.options else 1)
    return (
        matrices * m * n * case.dtype.itemsize
        + statistics * m * torch.float32.itemsize
        + vectors * n * case.weight_dtype.itemsize
    )
