"""Layer norm's gradients as a torch function, from which truth, bounds and emulation follow.

With x^ = (x - mean) rstd, g = weight dy, and means over a row:

    dx      = rstd (g - mean g - x^ mean(g x^)) [+ dresidual]
    dweight = sum dy x^ [+ earlier dweight]      dbias = sum dy [+ earlier dbias]

(Ba, Kiros & Hinton 2016, differentiated; for RMS norm, Zhang & Sennrich 2019, both means are 0.)
mean and rstd are arguments: dx is exact in them, whatever x they came from.

Rows of dx are independent, and so are columns of dweight and dbias. Large cases go in parts of some
rows for dx, and in parts of some columns for the sums.
docs/derivations/layer_norm.md says what the analysis of this function allows a kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from kernel_workbench.oracles import analysis
from kernel_workbench.oracles.analysis import rounds
from kernel_workbench.oracles.cases.distributions import INTEGERS
from kernel_workbench.oracles.layer_norm.arguments import forms
from kernel_workbench.oracles.layer_norm.numerics import LayerNormNumerics
from kernel_workbench.oracles.layer_norm.partials import Addends, PartialCasts
from kernel_workbench.oracles.layer_norm.probes import probe_bound
from kernel_workbench.oracles.layer_norm.values import addends_vary
from kernel_workbench.oracles.op import Bound, Case, Inputs, Numerics, Outputs, optional, required

_PART_ELEMENTS = 2**24  # 128 MiB for each float64 temporary

# Errors of these come from underflow, few in a block and not the same from one order of operations
# to another; and of probes nothing is rounded.
_OTHER_FAMILIES = frozenset({"subnormals", "dy_subnormal", INTEGERS})


def normalise(x: Tensor, mean: Tensor | None, rstd: Tensor, *, distributed: bool = False) -> Tensor:
    """Return x^ [rows, n] of x [rows, n]; mean (None in RMS norm) and rstd are [rows, 1].

    distributed: multiply x and mean by rstd before they are subtracted.
    """
    if mean is None:
        return x * rstd
    return x * rstd - mean * rstd if distributed else (x - mean) * rstd


def row_gradient(
    g: Tensor, x_hat: Tensor, rstd: Tensor, *, has_mean: bool, apart: bool = False
) -> Tensor:
    """Return the gradient of x [rows, n] that g = weight dy [rows, n] gives: the projection.

    has_mean: the mean was taken off x, as RMS norm doesn't.
    apart: compute (rstd / n) (n g) - (rstd / n) sum g - (rstd / n) (x^ sum(g x^)), which has the
    roundings of each order in which kernels compute it: nothing is divided or cancels before it is
    multiplied.
    """
    if not apart:
        c2 = (g * x_hat).mean(-1, keepdim=True)
        centred = g - g.mean(-1, keepdim=True) if has_mean else g
        return (centred - x_hat * c2) * rstd
    n = g.shape[-1]
    scale = rstd * (1 / n)
    dx = g * n * scale
    if has_mean:
        dx = dx - g.sum(-1, keepdim=True) * scale
    return dx - x_hat * (g * x_hat).sum(-1, keepdim=True) * scale


@dataclass(frozen=True, slots=True)
class Form:
    """Choices of a case and of a kernel that the function's graph depends on.

    weighting    how g follows from dy and weight: "" (no weight), "weight", or of a zero-centred
                 weight "(1 + w) dy" and "dy + w dy", which are rounded apart
    gradient     the dtype that dy is cast to first, where a kernel declares that
    has_bias     the kernel returns dbias
    distributed  as in `normalise`
    apart        as in `row_gradient`: its errors are the largest
    """

    weighting: str
    gradient: torch.dtype | None
    has_bias: bool
    distributed: bool
    apart: bool

    def weighted(self, dy: Tensor, weight: Tensor) -> Tensor:
        """Return g of dy [rows, n] and weight [n]."""
        if not self.weighting:
            return dy
        if self.weighting == "dy + w dy":
            return rounds(dy + weight * dy, "dnormalised")
        return rounds(dy * (weight if self.weighting == "weight" else 1 + weight), "dnormalised")

    def cast(self, dy: Tensor) -> Tensor:
        """Return dy as the kernel reads it."""
        return dy if self.gradient is None else rounds(dy, "gradient", self.gradient)


def _forms(case: Case, numerics: Numerics, *, apart: bool = False) -> list[Form]:
    """Return the forms that a kernel with these numerics may have: several where all are right."""
    options = case.options
    # dy that has the weight's dtype already is exact after that cast.
    is_cast = case.weight_dtype != case.dtype and numerics.makes("gradient")
    if "no_weight" in options:
        weightings = [""]
    else:
        weightings = ["(1 + w) dy", "dy + w dy"] if "zero_centred" in options else ["weight"]
    return [
        Form(
            weighting=weighting,
            gradient=case.weight_dtype if is_cast and weighting else None,
            has_bias="no_bias" not in options,
            distributed=LayerNormNumerics.of(numerics).distributed_normalisation,
            apart=apart,
        )
        for weighting in weightings
    ]


def _sum_of_rows(addends: Tensor) -> Tensor:
    return addends.sum(0)


def gradient_of_x(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor | None,
    rstd: Tensor,
    *,
    dresidual: Tensor | None = None,
    form: Form,
    **_: object,
) -> Tensor:
    """Return dx [rows, n]; mean and rstd are [rows, 1]."""
    dy = form.cast(dy)
    x_hat = normalise(x, mean, rstd, distributed=form.distributed)
    g = dy if weight is None else form.weighted(dy, weight)
    dx = row_gradient(g, x_hat, rstd, has_mean=mean is not None, apart=form.apart)
    return dx if dresidual is None else rounds(dx, "dx") + dresidual


def gradients_of_parameters(
    dy: Tensor,
    x: Tensor,
    mean: Tensor | None,
    rstd: Tensor,
    *,
    dweight: Tensor | None = None,
    dbias: Tensor | None = None,
    form: Form,
    total: Callable[[Tensor], Any] = _sum_of_rows,
    **_: object,
) -> tuple[Any, ...]:
    """Return dweight [n], and dbias [n] where there is one; none without a weight.

    total: how addends [rows, n] are added up over the rows.
    """
    if not form.weighting:
        return ()
    dy = form.cast(dy)
    x_hat = rounds(normalise(x, mean, rstd, distributed=form.distributed), "normalised")
    weight_sum = total(rounds(dy * x_hat, "products"))
    sums = [weight_sum if dweight is None else rounds(weight_sum, "sums") + dweight]
    if form.has_bias:
        bias_sum = total(dy)
        sums.append(bias_sum if dbias is None else rounds(bias_sum, "sums") + dbias)
    return tuple(sums)


def layer_norm_backward(**arguments: Any) -> tuple[Tensor, ...]:  # noqa: ANN401
    """Return dx, dweight and dbias, as far as the case has them."""
    return gradient_of_x(**arguments), *gradients_of_parameters(**arguments)


def _arguments(case: Case, inputs: Inputs) -> Inputs:
    """Return the arguments as matrices [m, n] and columns [m, 1]; vectors [n] stay."""
    n = case.size("n")
    matrices: Inputs = {}
    for name in ("dy", "x", "weight", "mean", "rstd", "dresidual", "dweight", "dbias"):
        tensor = optional(inputs, name)
        if tensor is not None and name in _MATRICES:
            tensor = tensor.reshape(-1, n if name not in {"mean", "rstd"} else 1)
        matrices[name] = tensor
    return matrices


_MATRICES = frozenset({"dy", "x", "dresidual", "mean", "rstd"})

Reference = Callable[..., Any]
Item = TypeVar("Item")
# (function, arguments, names of its outputs) -> an item for each.
Run = Callable[[Reference, dict[str, Any], tuple[str, ...]], Sequence[Item]]
Parts = Iterator[tuple[str, slice, Item]]


def _cut(arguments: Inputs, part: slice, *, rows: bool) -> dict[str, Any]:
    """Return the arguments of some rows, or of some columns, packed."""

    def cut(name: str, tensor: Tensor) -> Tensor:
        if name in _MATRICES:
            is_cut = rows or tensor.shape[1] > 1
            return (tensor[part] if rows else tensor[:, part]) if is_cut else tensor
        return tensor if rows else tensor[part]

    return {
        name: cut(name, value).contiguous() if isinstance(value, Tensor) else value
        for name, value in arguments.items()
    }


def _parts(case: Case, inputs: Inputs, run: Run[Item]) -> Parts[Item]:
    """Yield each output's name, its slice (rows of dx, columns of a sum), and `run`'s result."""
    arguments, (m, n) = _arguments(case, inputs), (case.size("m"), case.size("n"))
    dx, *sums = forms(case)
    functions: list[tuple[Reference, int, tuple[str, ...]]]
    functions = [(layer_norm_backward, m, (dx, *sums))]
    if m * n > _PART_ELEMENTS:
        functions = [(gradient_of_x, m, (dx,)), (gradients_of_parameters, n, tuple(sums))]
    for function, length, names in functions:
        step = max(1, _PART_ELEMENTS * length // max(1, m * n))
        for start in range(0, max(length, 1) if names else 0, step):
            part = slice(start, start + step)
            cut = _cut(arguments, part, rows=function is not gradients_of_parameters)
            for name, result in zip(names, run(function, cut, names), strict=True):
                yield name, part, result


def _joined(case: Case, parts: Parts[Tensor]) -> dict[str, Tensor]:
    """Put the parts of each output together, in the output's shape."""
    outputs: dict[str, Tensor] = {}
    for name, part, tensor in parts:
        shape = forms(case)[name].shape
        if tensor.numel() == math.prod(shape):
            outputs[name] = tensor.view(shape)
            continue
        if name not in outputs:
            outputs[name] = torch.empty(shape, dtype=tensor.dtype, device=tensor.device)
        outputs[name].view(-1, *tensor.shape[1:])[part] = tensor
    return outputs


def truth(case: Case, inputs: Inputs) -> Outputs:
    """Return dx [..., n], dweight and dbias [n] in float64; None for one that options leave out."""
    form = _forms(case, Numerics())[0]

    def run(function: Reference, arguments: dict[str, Any], *_: object) -> tuple[Tensor, ...]:
        return analysis.truth(function, {**arguments, "form": form})

    outputs = _joined(case, _parts(case, inputs, run))
    return {name: outputs.get(name) for name in ("dx", "dweight", "dbias")}


def bound(case: Case, inputs: Inputs, exact: Outputs, numerics: Numerics) -> dict[str, Bound]:
    """Return the bound of each output: the widest of the forms that are right.

    The probabilistic form is None where equal addends are summed. Most bounds of an exact probe are
    0.
    """
    casts = PartialCasts.of(case, numerics)
    addends = {} if casts is None else _addends(case, inputs)
    if case.distribution == INTEGERS:
        return probe_bound(case, inputs, exact, numerics, casts, addends)
    dtypes = {name: form.dtype for name, form in forms(case).items()}
    if casts is not None:  # they come before the last cast
        dtypes |= dict.fromkeys(dtypes.keys() - {"dx"}, torch.float64)

    results = case.size("m") * case.size("n")

    def derived(form: Form) -> dict[str, Bound]:
        def run(
            function: Reference, arguments: dict[str, Any], names: tuple[str, ...]
        ) -> tuple[Bound, ...]:
            arguments_of_form = {**arguments, "form": form}
            derived_bounds = analysis.bounds(
                function,
                arguments_of_form,
                numerics,
                [dtypes[name] for name in names],
                results=results,
            )
            return tuple(map(_unknown, derived_bounds)) if numerics.casts else derived_bounds

        return _joined_bounds(case, list(_parts(case, inputs, run)))

    bounds, *further = map(derived, _forms(case, numerics, apart=True))
    for wider_form in further:
        bounds = {name: _wider(bounds[name], wider_form[name]) for name in bounds}
    if casts is not None:
        for name, measured in addends.items():
            bounds[name] = casts.widened(bounds[name], measured, required(exact, name))
    varies = addends_vary(case)
    return {
        name: _judged(derived_bounds, required(exact, name), varies=varies)
        for name, derived_bounds in bounds.items()
    }


def _judged(bound: Bound, exact: Tensor, *, varies: bool) -> Bound:
    """Return the bound without a probable form where addends are equal.

    It is NaN where the output isn't finite: the value is promised there, only no distance.
    """
    finite = exact.isfinite()
    likely = bound.probabilistic if varies else None
    return replace(
        bound,
        deterministic=bound.deterministic.where(finite, torch.nan),
        probabilistic=None if likely is None else likely.where(finite, torch.nan),
    )


def _joined_bounds(case: Case, parts: list[tuple[str, slice, Bound]]) -> dict[str, Bound]:
    """Put the parts of each output's bound together."""
    silent = {name for name, _, part_bound in parts if part_bound.powerless is not None}
    fields: tuple[list[tuple[str, slice, Tensor]], ...] = ([], [], [])
    for name, part, part_bound in parts:
        fields[0].append((name, part, part_bound.deterministic))
        if part_bound.probabilistic is not None:
            fields[1].append((name, part, part_bound.probabilistic))
        if name in silent:
            none = torch.zeros_like(part_bound.deterministic, dtype=torch.bool)
            fields[2].append(
                (name, part, none if part_bound.powerless is None else part_bound.powerless)
            )
    sure, probable, powerless = (_joined(case, iter(field_parts)) for field_parts in fields)
    return {name: Bound(sure[name], probable.get(name), powerless.get(name)) for name in sure}


def _unknown(bound: Bound) -> Bound:
    """Return a bound that promises nothing where a declared cast may overflow.

    The analysis calls that fp32's largest number where it is so for a whole output.
    """
    largest = bound.deterministic == torch.finfo(torch.float32).max
    return replace(bound, deterministic=bound.deterministic.masked_fill(largest, torch.inf))


def _wider(one: Bound, other: Bound) -> Bound:
    """Return the wider of two bounds, element by element; it has power where both have."""
    likely = None
    if one.probabilistic is not None and other.probabilistic is not None:
        likely = torch.maximum(one.probabilistic, other.probabilistic)
    silent = [mask for mask in (one.powerless, other.powerless) if mask is not None]
    powerless = silent[0] | silent[-1] if silent else None
    return Bound(torch.maximum(one.deterministic, other.deterministic), likely, powerless)


def _addends(case: Case, inputs: Inputs) -> dict[str, Addends]:
    """Measure what dweight and dbias are sums of, in float64."""
    form, arguments = _forms(case, Numerics())[0], _arguments(case, inputs)
    arguments |= {"dweight": None, "dbias": None}
    m, n = case.size("m"), case.size("n")
    step = max(1, _PART_ELEMENTS // max(1, m))
    parts: list[tuple[Addends, ...]] = []
    for start in range(0, n, step):
        cut = _cut(arguments, slice(start, start + step), rows=False)
        wide = {
            name: value.double() if isinstance(value, Tensor) else value
            for name, value in cut.items()
        }
        parts.append(gradients_of_parameters(**wide, form=form, total=Addends.of))
    names = tuple(forms(case))[1:]
    return {
        name: Addends.joined(few) for name, few in zip(names, zip(*parts, strict=True), strict=True)
    }


def comparable(case: Case) -> bool:
    """Say whether a kernel's errors on the case say something beside those of an emulation.

    In the halves numbers near 1e4 are all but equal: x^ is one rounding, the same for a whole row.
    """
    equal = case.distribution == "mean1e4" and case.dtype != torch.float32
    return addends_vary(case) and not equal and case.distribution not in _OTHER_FAMILIES


def emulate(case: Case, inputs: Inputs, numerics: Numerics) -> Outputs:
    """Return dx, dweight and dbias of the function in fp32; none where they aren't comparable.

    Sums are torch's, in whatever order it has: partial sums in fp32 differ from them by roundings
    of the same size. Declared casts of partial sums are made; where those leave no power, dweight
    and dbias are left out.
    """
    if not comparable(case):
        return {}
    casts, form = PartialCasts.of(case, numerics), _forms(case, numerics)[0]
    total = _sum_of_rows if casts is None else casts.emulated_sum
    dtypes = {name: form_of_output.dtype for name, form_of_output in forms(case).items()}

    def run(
        function: Reference, arguments: dict[str, Any], names: tuple[str, ...]
    ) -> tuple[Tensor, ...]:
        arguments_of_form = {**arguments, "form": form, "total": total}
        return analysis.emulate(
            function, arguments_of_form, numerics, [dtypes[name] for name in names]
        )

    outputs = _joined(case, _parts(case, inputs, run))
    if casts is not None and not casts.have_power:
        del outputs["dweight"]
        outputs.pop("dbias", None)
    return dict(outputs)
