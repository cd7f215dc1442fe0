"""The float64 oracle of layer-norm backward, against mpmath, autograd and finite differences."""

from __future__ import annotations

import math

import mpmath  # type: ignore[import-untyped]
import pytest
import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from kernel_workbench.oracles import LAYER_NORM_BACKWARD
from kernel_workbench.oracles.layer_norm import reference
from kernel_workbench.oracles.layer_norm.arguments import OPTIONS
from kernel_workbench.oracles.layer_norm.cases import OPTION_SETS, layer_norm_case
from kernel_workbench.oracles.op import CONTIGUOUS, Case, Inputs, Layout, OutputForm, TensorLayout

CPU = torch.device("cpu")
EPS = 1e-5
DTYPES = (
    (torch.float32, torch.float32),
    (torch.float16, torch.float16),
    (torch.bfloat16, torch.bfloat16),
    (torch.float16, torch.float32),
    (torch.bfloat16, torch.float32),
)
DISTRIBUTIONS = (
    *("normal", "uniform", "outliers", "mean1e4", "constant_rows", "constant_both"),
    *("tiny_variance", "dy_parallel", "scaled_rows", "subnormals"),
)
# Every option by itself too, were one ever left out of the sets.
ALL_OPTION_SETS = sorted(
    {frozenset[str](), *OPTION_SETS, *(frozenset({option}) for option in OPTIONS)}, key=sorted
)


def _case(
    m: int,
    n: int,
    dtypes: tuple[torch.dtype, torch.dtype] = DTYPES[0],
    *,
    distribution: str = "normal",
    options: frozenset[str] = frozenset(),
    layout: Layout = CONTIGUOUS,
) -> Case:
    return layer_norm_case(m, n, dtypes, layout=layout, distribution=distribution, options=options)


def _tensor(inputs: Inputs, name: str) -> Tensor:
    value = inputs[name]
    assert isinstance(value, Tensor)
    return value


def _numbers(inputs: Inputs, name: str, width: int) -> list[list[mpmath.mpf]] | None:
    """The argument `name` as rows of exact mpmath numbers, None where it is absent."""
    value = inputs.get(name)
    if not isinstance(value, Tensor):
        return None
    flat = [mpmath.mpf(each) for each in value.double().reshape(-1).tolist()]
    return [flat[start : start + width] for start in range(0, len(flat), width)]


class _Exact:
    """The definition, element by element at 50 digits; and the size of what was added up.

    With x_hat_k = (x_k - mean) rstd and loss L = sum_ik dy_ik (x_hat_ik w_k + bias_k), the chain
    rule through mean and rstd gives, for each pair of columns of a row,

        d x_hat_k / d x_j = rstd (delta_jk - 1/n - x_hat_j x_hat_k / n)

    so dx_j is the sum over k of dy_k w_k times that: n terms, and no means taken beforehand.
    """

    def __init__(self, case: Case, inputs: Inputs) -> None:
        m, n, options = case.size("m"), case.size("n"), case.options
        dy, x = _numbers(inputs, "dy", n), _numbers(inputs, "x", n)
        weight, rstd = _numbers(inputs, "weight", n), _numbers(inputs, "rstd", 1)
        mean, residual = _numbers(inputs, "mean", 1), _numbers(inputs, "dresidual", n)
        assert dy is not None and x is not None and rstd is not None
        centred = 0 if "rms_norm" in options else 1
        self.dx: list[list[mpmath.mpf]] = []
        self.dx_scale: list[mpmath.mpf] = []
        hats = []
        for i in range(m):
            mu = mean[i][0] if mean is not None else mpmath.mpf(0)
            hat = [(x[i][j] - mu) * rstd[i][0] for j in range(n)]
            scale = [mpmath.mpf(1)] * n if weight is None else list(weight[0])
            if "zero_centred" in options:
                scale = [1 + each for each in scale]
            row = []
            largest = mpmath.mpf(0)
            for j in range(n):
                total = mpmath.mpf(0) if residual is None else residual[i][j]
                largest = max(largest, abs(total))
                for k in range(n):
                    out = dy[i][k] * scale[k] * rstd[i][0]
                    parts = out * (j == k), -out * centred / n, -out * hat[j] * hat[k] / n
                    total += sum(parts)
                    largest = max(largest, *(abs(part) for part in parts))
                row.append(total)
            hats.append(hat)
            self.dx.append(row)
            self.dx_scale.append(largest)
        self.dweight, self.dweight_scale = self._column_sums(
            [[dy[i][j] * hats[i][j] for j in range(n)] for i in range(m)],
            _numbers(inputs, "dweight", n),
        )
        self.dbias, self.dbias_scale = self._column_sums(dy, _numbers(inputs, "dbias", n))

    @staticmethod
    def _column_sums(
        rows: list[list[mpmath.mpf]], earlier: list[list[mpmath.mpf]] | None
    ) -> tuple[list[mpmath.mpf], mpmath.mpf]:
        addends = rows + (earlier or [])
        sums = [sum((row[j] for row in addends), mpmath.mpf(0)) for j in range(len(rows[0]))]
        return sums, max(abs(each) for row in addends for each in row)


def _assert_exact(case: Case) -> None:
    """The oracle is within 1e-14 of mpmath, of the largest number added up in the row or output.

    Not of dx itself: where dy is parallel to x^ it is all cancellation, and float64, which adds
    the same terms, can only be as near as they are large. Within a row no element is harder than
    another; between rows the scale differs by 1e3, so that each row has its own.
    1e-14 is 90 unit roundoffs of float64: the longest sum here has 21 terms, after 6 operations.
    """
    inputs = LAYER_NORM_BACKWARD.inputs(case, CPU)
    outputs = LAYER_NORM_BACKWARD.oracle(case, inputs)
    n = case.size("n")
    with mpmath.workdps(50):
        exact = _Exact(case, inputs)
        expected = {
            "dx": (exact.dx, exact.dx_scale),
            "dweight": ([exact.dweight], [exact.dweight_scale]),
            "dbias": ([exact.dbias], [exact.dbias_scale]),
        }
        for name, (rows, scales) in expected.items():
            value = outputs[name]
            assert (value is not None) == (name in LAYER_NORM_BACKWARD.forms(case))
            if value is None:
                continue
            assert value.dtype == torch.float64
            for got, row, scale in zip(value.view(-1, n).tolist(), rows, scales, strict=True):
                for one, other in zip(got, row, strict=True):
                    assert abs(one - other) <= 1e-14 * scale, (name, case.id())


@pytest.mark.parametrize("options", ALL_OPTION_SETS, ids=lambda each: "+".join(sorted(each)))
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_oracle_agrees_with_mpmath(distribution: str, options: frozenset[str]) -> None:
    """Every option alone and every set of them, on each distribution, in each pair of dtypes."""
    for dtypes in DTYPES:
        # Odd sizes, fewer rows than columns: an index that is transposed can't go unseen.
        _assert_exact(_case(3, 5, dtypes, distribution=distribution, options=options))


@pytest.mark.parametrize(("m", "n"), [(1, 1), (1, 7), (7, 1), (21, 2)])
def test_oracle_agrees_with_mpmath_on_one_row_and_one_column(m: int, n: int) -> None:
    """A mean over one element, a sum over one row, and more rows than columns."""
    for options in (frozenset[str](), frozenset({"rms_norm", "no_bias", "residual"})):
        _assert_exact(_case(m, n, options=options))


def test_oracle_agrees_with_mpmath_in_rank_three() -> None:
    """Batches apart in memory give the rows of one matrix, and dx keeps the rank."""
    padded = TensorLayout(batch_padding=5)
    layout = Layout("rank3pad5", (("dy", padded), ("x", padded)), batches=3)
    case = _case(6, 5, layout=layout, options=frozenset({"residual"}))
    _assert_exact(case)
    dx = LAYER_NORM_BACKWARD.oracle(case, LAYER_NORM_BACKWARD.inputs(case, CPU))["dx"]
    assert dx is not None
    assert dx.shape == (3, 2, 5)


def _statistics(x: Tensor, *, rms_norm: bool) -> tuple[Tensor | None, Tensor]:
    if rms_norm:
        return None, (x.square().mean(1) + EPS).rsqrt()
    return x.mean(1), (x.var(1, correction=0) + EPS).rsqrt()


def _forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, options: frozenset[str]
) -> Tensor:
    """y, with mean and rstd as functions of x, so that autograd goes through them."""
    mean, rstd = _statistics(x, rms_norm="rms_norm" in options)
    y = (x if mean is None else x - mean[:, None]) * rstd[:, None]
    if weight is not None:
        y = y * (1 + weight if "zero_centred" in options else weight)
    return y if bias is None else y + bias


@pytest.mark.parametrize("options", ALL_OPTION_SETS, ids=lambda each: "+".join(sorted(each)))
def test_oracle_agrees_with_autograd_in_float64(options: frozenset[str]) -> None:
    """Given float64's own mean and rstd, the closed form is autograd's gradient, to 1e-13.

    The residual reaches the loss beside the norm, and earlier gradients lie in .grad: both are
    what a training step makes of them. 1e-13 for sums of 37 and some hundred operations of 1e-16.
    """
    m, n = 37, 19  # odd, unequal, and no power of two
    draw = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float64).normal_(generator=draw)

    x, dy = (3 * normal(m, n) + 2).requires_grad_(), normal(m, n)
    weight = None if "no_weight" in options else normal(n).requires_grad_()
    bias = None if {"no_weight", "no_bias"} & options else normal(n).requires_grad_()
    with torch.no_grad():
        mean, rstd = _statistics(x, rms_norm="rms_norm" in options)
    inputs: Inputs = {"dy": dy, "x": x.detach(), "mean": mean, "rstd": rstd}
    inputs["weight"] = None if weight is None else weight.detach()
    loss = (_forward(x, weight, bias, options) * dy).sum()
    if "residual" in options:
        inputs["dresidual"] = normal(m, n)
        loss = loss + (x * _tensor(inputs, "dresidual")).sum()
    for name, parameter in (("dweight", weight), ("dbias", bias)):
        if "accumulate" in options and parameter is not None:
            inputs[name] = normal(n)
            parameter.grad = _tensor(inputs, name).clone()
    loss.backward()
    case = _case(m, n, (torch.float64, torch.float64), options=options)
    outputs = LAYER_NORM_BACKWARD.oracle(case, inputs)
    for name, leaf in (("dx", x), ("dweight", weight), ("dbias", bias)):
        value = outputs[name]
        if leaf is None:
            assert value is None
            continue
        assert value is not None and leaf.grad is not None
        assert bool(((value - leaf.grad).abs() <= 1e-13 * leaf.grad.abs().max()).all()), name


_RMS_NORM = frozenset({"rms_norm", "no_bias"})


class _Norm(torch.autograd.Function):
    """A layer norm (RMS norm where there is no bias) whose backward is the oracle."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """y, as `_forward` has it."""
        ctx.save_for_backward(x, weight)
        ctx.options = _RMS_NORM if bias is None else frozenset()  # type: ignore[attr-defined]
        return _forward(x, weight, bias, ctx.options)  # type: ignore[attr-defined]

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, dy: Tensor) -> tuple[Tensor | None, ...]:
        """The oracle's outputs."""
        x, weight = ctx.saved_tensors  # type: ignore[attr-defined]
        options: frozenset[str] = ctx.options  # type: ignore[attr-defined]
        mean, rstd = _statistics(x, rms_norm="rms_norm" in options)
        inputs: Inputs = {"dy": dy, "x": x, "weight": weight, "mean": mean, "rstd": rstd}
        case = _case(x.shape[0], x.shape[1], (torch.float64, torch.float64), options=options)
        outputs = LAYER_NORM_BACKWARD.oracle(case, inputs)
        return tuple(outputs[name] for name in LAYER_NORM_BACKWARD.outputs)


@pytest.mark.parametrize("with_bias", [True, False], ids=["layer_norm", "rms_norm"])
def test_oracle_passes_gradcheck(*, with_bias: bool) -> None:
    """Finite differences of the forward, in every direction, are what the oracle says."""
    draw = torch.Generator().manual_seed(2)
    leaves = [
        torch.empty(shape, dtype=torch.float64).normal_(generator=draw).requires_grad_()
        for shape in ((3, 5), (5,), (5,))
    ]

    def norm(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return _Norm.apply(x, weight, bias)  # type: ignore[no-untyped-call, no-any-return]

    assert torch.autograd.gradcheck(norm, leaves if with_bias else leaves[:2])


@pytest.mark.parametrize("rows", [1, 4])
def test_oracle_is_the_same_in_any_chunks(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """dx keeps its bits and the column sums differ by their order's rounding alone.

    1e-15 of what is added up is 9 unit roundoffs, for 13 addends in another order.
    """
    case = _case(13, 229, options=frozenset({"residual", "accumulate"}))
    inputs = LAYER_NORM_BACKWARD.inputs(case, CPU)
    whole = LAYER_NORM_BACKWARD.oracle(case, inputs)
    # 13 rows in steps of 4 leave a last part of one.
    monkeypatch.setattr(reference, "_PART_ELEMENTS", rows * 229)
    split = LAYER_NORM_BACKWARD.oracle(case, inputs)
    for name in LAYER_NORM_BACKWARD.outputs:
        one, other = whole[name], split[name]
        assert one is not None and other is not None
        if name == "dx":
            assert torch.equal(one, other)
        else:
            scale = _tensor(inputs, "dy").double().abs().sum(0).max()
            assert bool(((one - other).abs() <= 1e-15 * scale).all())


def test_oracle_gives_zero_gradients_of_no_rows() -> None:
    """dweight and dbias of no rows are zeros, and earlier gradients where they accumulate."""
    case = _case(0, 17)
    outputs = LAYER_NORM_BACKWARD.oracle(case, LAYER_NORM_BACKWARD.inputs(case, CPU))
    dx, dweight, dbias = (outputs[name] for name in LAYER_NORM_BACKWARD.outputs)
    assert dx is not None and dweight is not None and dbias is not None
    assert dx.shape == (0, 17)
    assert torch.equal(dweight, torch.zeros(17, dtype=torch.float64))
    assert torch.equal(dbias, torch.zeros(17, dtype=torch.float64))
    case = _case(0, 17, options=frozenset({"accumulate"}))
    inputs = LAYER_NORM_BACKWARD.inputs(case, CPU)
    outputs = LAYER_NORM_BACKWARD.oracle(case, inputs)
    for name in ("dweight", "dbias"):
        value = outputs[name]
        assert value is not None
        assert torch.equal(value, _tensor(inputs, name).double())


@pytest.mark.parametrize(
    ("distribution", "row", "dweight_columns", "dbias_columns"),
    [
        # A NaN in x spoils its row's statistics, so every column's x^ in that row.
        ("nan_x", 1, [0, 1, 2, 3, 4], []),
        # In dy it spoils the row's means, so all of dx's row; and its own column's sums.
        ("nan_dy", 2, [2], [2]),
        ("inf_dy", 2, [2], [2]),
    ],
)
def test_oracle_spreads_what_is_not_finite_no_further_than_the_formula(
    distribution: str, row: int, dweight_columns: list[int], dbias_columns: list[int]
) -> None:
    """One NaN or infinity reaches the row and the columns that it is summed into, and no other."""
    case = _case(3, 5, distribution=distribution)
    outputs = LAYER_NORM_BACKWARD.oracle(case, LAYER_NORM_BACKWARD.inputs(case, CPU))
    dx, dweight, dbias = (outputs[name] for name in LAYER_NORM_BACKWARD.outputs)
    assert dx is not None and dweight is not None and dbias is not None
    assert (~dx.isfinite()).nonzero().tolist() == [[row, column] for column in range(5)]
    assert (~dweight.isfinite()).nonzero().flatten().tolist() == dweight_columns
    assert (~dbias.isfinite()).nonzero().flatten().tolist() == dbias_columns
    if distribution == "inf_dy":
        assert float(dbias[2]) == -math.inf
        assert float(dweight[2].abs()) == math.inf


def test_forms_follow_the_layout_the_dtypes_and_the_options() -> None:
    """dx is like x, the others like the weight; options leave dbias, or both, out."""
    half, single = torch.bfloat16, torch.float32
    forms = LAYER_NORM_BACKWARD.forms
    vector = OutputForm((5,), single)
    dx = OutputForm((6, 5), half)
    case = _case(6, 5, (half, single))
    assert forms(case) == {"dx": dx, "dweight": vector, "dbias": vector}
    case = _case(6, 5, (half, single), options=frozenset({"no_bias"}))
    assert forms(case) == {"dx": dx, "dweight": vector}
    case = _case(6, 5, (half, single), options=frozenset({"no_weight"}))
    assert forms(case) == {"dx": dx}
    case = _case(6, 5, (half, single), layout=Layout("rank3", batches=3))
    assert forms(case)["dx"] == OutputForm((3, 2, 5), half)


def test_flops_are_twelve_for_each_element() -> None:
    """x^ 2, g 1, sums 1 + 2, dx 3, dweight 2, dbias 1."""
    assert LAYER_NORM_BACKWARD.flops(_case(16384, 1024)) == 12 * 16384 * 1024


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # dy, x read and dx written; mean, rstd; weight read, dweight and dbias written.
        ("", (2 + 1) * 16384 * 1024 * 2 + 8 * 16384 + 3 * 1024 * 2),
        ("no_weight", 3 * 16384 * 1024 * 2 + 8 * 16384),
        ("no_bias", 3 * 16384 * 1024 * 2 + 8 * 16384 + 2 * 1024 * 2),
        ("residual", 4 * 16384 * 1024 * 2 + 8 * 16384 + 3 * 1024 * 2),
        # Gradients that accumulate are read before they are written.
        ("accumulate", 3 * 16384 * 1024 * 2 + 8 * 16384 + 5 * 1024 * 2),
        ("rms_norm no_bias", 3 * 16384 * 1024 * 2 + 4 * 16384 + 2 * 1024 * 2),
    ],
)
def test_bytes_are_each_input_and_output_once(options: str, expected: int) -> None:
    """The least traffic, counted by hand for 16384 rows of 1024 in bf16."""
    case = _case(16384, 1024, DTYPES[2], options=frozenset(options.split()))
    assert LAYER_NORM_BACKWARD.bytes(case) == expected


def test_bytes_count_a_wider_weight_at_its_own_size() -> None:
    """An fp32 weight doubles the vectors' part, and nothing else."""
    expected = 3 * 37 * 64 * 2 + 8 * 37 + 3 * 64 * 4
    assert LAYER_NORM_BACKWARD.bytes(_case(37, 64, DTYPES[4])) == expected
