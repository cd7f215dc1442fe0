"""Exact probes of layer norm: what they promise of their values, and what they find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernel_workbench.oracles import LAYER_NORM_BACKWARD
from kernel_workbench.oracles.cases.distributions import INTEGERS
from kernel_workbench.oracles.op import Case, Numerics, dtype_name
from tests.builders.by_hand import DTYPES, kernel_of, run_on
from tests.builders.emulated_layer_norm import emulate, sound_ways
from tests.builders.wrong_layer_norms import Outputs, closed_form

CPU = torch.device("cpu")
PROBES = [
    case
    for case in LAYER_NORM_BACKWARD.cases()
    if case.tier == "ci" and case.distribution == INTEGERS
]


def _case(m: int, n: int, dtype: torch.dtype) -> Case:
    sizes = (("m", m), ("n", n))
    plain = next(case for case in PROBES if not case.options)
    return replace(plain, sizes=sizes, dtype=dtype, weight_dtype=dtype)


@pytest.mark.parametrize("case", PROBES, ids=Case.id)
def test_integers_leave_no_rounding_to_their_outputs(case: Case) -> None:
    """The type holds each element of the truth, and what is asked is equality, but for 4 u_a."""
    inputs = LAYER_NORM_BACKWARD.inputs(case, CPU)
    truth = LAYER_NORM_BACKWARD.oracle(case, inputs)
    bounds = LAYER_NORM_BACKWARD.bound(case, inputs, truth, Numerics())
    n = case.size("n")
    for name, bound in bounds.items():
        exact = truth[name]
        assert exact is not None
        dtype = case.dtype if name == "dx" else case.weight_dtype
        assert torch.equal(exact.to(dtype).double(), exact), name
        rounds = name == "dx" and dtype == torch.float32 and n & (n - 1)
        most = (exact.abs() + 8) * 2.0**-21 if rounds else bound.deterministic  # 8: a residual's
        assert bool((bound.deterministic <= most).all())
        assert rounds or not bool(bound.deterministic.any()), name


@pytest.mark.parametrize("n", [3, 4, 5, 64, 65])
def test_integers_have_means_of_rows_where_they_are_exact(n: int) -> None:
    """c1 and c2 are 0 where n is no power of two, else whole numbers; dx never vanishes."""
    made = LAYER_NORM_BACKWARD.inputs(_case(7, n, torch.float32), CPU)
    dy, x, weight, mean, rstd = (made[name] for name in LAYER_NORM_BACKWARD.arguments)
    assert isinstance(dy, Tensor) and isinstance(x, Tensor) and isinstance(weight, Tensor)
    assert isinstance(mean, Tensor) and isinstance(rstd, Tensor)
    x_hat, g = (x - mean[:, None]) * rstd[:, None], dy * weight
    c1, c2 = g.sum(1), (g * x_hat).sum(1)
    if n & (n - 1):
        assert not bool(c1.any() or c2.any())
    else:
        assert torch.equal(c1 / n, (c1 / n).round())
        assert bool(c1.all())
        assert bool(c2.all())
    truth = LAYER_NORM_BACKWARD.oracle(_case(7, n, torch.float32), made)["dx"]
    assert bool((truth != 0).any(1).all())  # type: ignore[union-attr]


@pytest.mark.parametrize("options", ["", "rms_norm", "zero_centred", "residual accumulate"])
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
def test_correct_arithmetic_is_exact_on_integers(dtype: torch.dtype, options: str) -> None:
    """Whatever the order of its sums, the form of its x^ and the way it combines dx."""
    for m, n in ((64, 33), (5, 1025), (64, 32), (3, 1024)):
        case = replace(_case(m, n, dtype), options=frozenset(options.split()))
        inputs = LAYER_NORM_BACKWARD.inputs(case, CPU)
        truth = LAYER_NORM_BACKWARD.oracle(case, inputs)
        for how, declared in sound_ways():
            limits = LAYER_NORM_BACKWARD.bound(case, inputs, truth, declared)
            for name, output in emulate(case, inputs, how).items():
                exact = truth[name]
                assert exact is not None
                error = (output.double() - exact).abs()
                assert bool((error <= limits[name].deterministic).all()), (name, how)


def _row_left_out(row: int) -> Callable[..., Outputs]:
    def function(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor) -> Outputs:
        kept = torch.arange(x.shape[0]) != row % x.shape[0]
        dx, _, _ = closed_form(dy, x, weight, mean, rstd)
        fewer = closed_form(dy[kept], x[kept], weight, mean[kept], rstd[kept])
        return dx, *fewer[1:]

    return function


def _column_left_out(column: int) -> Callable[..., Outputs]:
    """c1 and c2 are sums without the column, or, from n on, with one that isn't there."""

    def function(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor) -> Outputs:
        kept = dy.clone()
        kept[:, column] = 0
        full = closed_form(dy, x, weight, mean, rstd)
        g = dy.float() * weight.float()
        wide = (x.float() - mean[:, None]) * rstd[:, None]
        seen = kept.float() * weight.float()
        c1, c2 = seen.mean(1, keepdim=True), (seen * wide).mean(1, keepdim=True)
        dx = (g - c1 - wide * c2) * rstd[:, None]
        return dx.to(x.dtype), *full[1:]

    return function


def _tiles_swapped(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor) -> Outputs:
    """dweight's first two tiles of 16 columns are stored in each other's place."""
    dx, dweight, dbias = closed_form(dy, x, weight, mean, rstd)
    order = [*range(16, 32), *range(16), *range(32, x.shape[1])]
    return dx, dweight[order], dbias


def _last_tile_twice(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor) -> Outputs:
    """The rows of the last tile are folded into dbias twice."""
    dx, dweight, dbias = closed_form(dy, x, weight, mean, rstd)
    return dx, dweight, (dbias.float() + dy[-2:].float().sum(0)).to(dbias.dtype)


def _neighbour_s_row(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor) -> Outputs:
    """The last row takes the mean of the one before it."""
    other = torch.cat([mean[:-1], mean[-2:-1]])
    return closed_form(dy, x, weight, other, rstd)


WRONG: dict[str, Callable[..., Outputs]] = {
    "last row": _row_left_out(-1),
    "first row": _row_left_out(0),
    "row 16": _row_left_out(16),
    "last column": _column_left_out(-1),
    "first column": _column_left_out(0),
    "column 63": _column_left_out(63),
    "tiles of columns swapped": _tiles_swapped,
    "last tile of rows twice": _last_tile_twice,
    "mean of another row": _neighbour_s_row,
}


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
@pytest.mark.parametrize("name", WRONG)
def test_wrong_layer_norm_fails_on_integers(
    name: str, dtype: torch.dtype, device: torch.device
) -> None:
    """One row, column or tile too few, too many or in another's place is found, at any width."""
    for m, n in ((17, 64), (33, 129), (18, 1024)):
        row = run_on(device).try_pair(kernel_of(WRONG[name]), _case(m, n, dtype))
        assert row.rule == "deterministic bound", (m, n)


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
def test_sound_layer_norm_passes_on_integers(dtype: torch.dtype, device: torch.device) -> None:
    """The layer norm that the wrong ones are made from has every bit right."""
    for m, n in ((17, 64), (33, 129), (18, 1024), (1, 1), (2, 3), (5, 2)):
        row = run_on(device).try_pair(kernel_of(closed_form), _case(m, n, dtype))
        assert row.status == "passed", row.reason
