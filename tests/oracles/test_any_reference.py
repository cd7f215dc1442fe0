"""Whatever a user's function does, its op works, or is refused in one sentence with its line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kernel_workbench.kernels import registry
from kernel_workbench.kernels.registry import KernelError, load_ops
from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.op import Numerics, Op
from kernel_workbench.oracles.reference import ReferenceOp

CPU = torch.device("cpu")
_HEAD = """
import math
import numpy as np
import torch
from torch.nn import functional as F
from jaxtyping import Bool, Float, Float32, Int, Int8, Int32
from torch import Tensor
from kernel_workbench import Sizes
from kernel_workbench import op

def some(*values):
    return Sizes("some", {"some": values}, lambda _: "some")

SIZES = {"m": some(4, 9, 0), "n": some(6, 8)}
"""
_X = 'x: Float[Tensor, "m n"]'
_I = 'i: Int[Tensor, "m 3"]'
_K = 'k: Bool[Tensor, "m n"]'
_MN, _M = 'Float[Tensor, "m n"]', 'Float[Tensor, "m"]'

# Functions that work: arguments, what is returned, the body.
_WORKS = {
    "truth value times a number": (f"{_X}, {_K}", _MN, "return x * k"),
    "number times a comparison": (_X, _MN, "return (x > 0) * x"),
    "truth values counted": (f"{_X}, {_K}", _M, "return (x * k).sum(1) / k.sum(1).clamp(min=1)"),
    "truth value as a factor of a mean": (f"{_X}, {_K}", _M, "return (x * ~k).mean(1)"),
    "sum of a number along an axis": (_X, 'Float[Tensor, ""]', "return x.sum().sum(0)"),
    "mean of a number along an axis": (_X, 'Float[Tensor, ""]', "return x.sum().mean(-1)"),
    "softmax of a number": (_X, 'Float[Tensor, ""]', "return x.sum().softmax(0)"),
    "variance of a row": (_X, _M, "return x.var(-1)"),
    "index_add with alpha": (
        f'{_X}, i: Int[Tensor, "3"]',
        _MN,
        "return x.index_add(1, i, x[:, :3], alpha=0.3)",
    ),
    "scatter with reduce": (f"{_X}, {_I}", _MN, 'return x.scatter(1, i, x[:, :3], reduce="add")'),
    "scatter of a number": (f"{_X}, {_I}", _MN, 'return x.scatter(1, i, 0.3, reduce="add")'),
    "scatter_reduce by sum": (f"{_X}, {_I}", _MN, 'return x.scatter_reduce(1, i, x[:, :3], "sum")'),
    "scatter_reduce of others alone": (
        f"{_X}, {_I}",
        _MN,
        'return x.scatter_reduce(1, i, x[:, :3], "mean", include_self=False)',
    ),
    "scatter_reduce by extreme": (
        f"{_X}, {_I}",
        _MN,
        'return x.scatter_reduce(1, i, x[:, :3], "amax")',
    ),
    "scatter_reduce by product": (
        f"{_X}, {_I}",
        _MN,
        'return x.scatter_reduce(1, i, x[:, :3], "prod")',
    ),
    "a convolution": (
        _X,
        _MN,
        "return F.conv1d(x[:, None], x.new_ones(1, 1, 3) / 3, padding=1)[:, 0]",
    ),
    "a max pool": (_X, _MN, "return F.max_pool1d(x[:, None] * 1.1, 3, 1, 1)[:, 0]"),
    "an average pool": (_X, _MN, "return F.avg_pool1d(x[:, None], 3, 1, 1)[:, 0]"),
    "numbers in order": (_X, _MN, "return torch.sort(x * 1.1, -1).values"),
    "a median": (_X, _M, "return (x * 1.1).median(-1).values"),
    "a product of a row": (_X, _M, "return (1 + x / 8).prod(-1)"),
    "whole numbers as real ones": (_X, _MN, "return torch.round(x * 3.3) + x"),
    "an inverse sine": (_X, _MN, "return torch.asin(torch.tanh(x))"),
    "a saturated number": (_X, _MN, "return (x * 1.1).clamp(-0.1, 0.3)"),
    "a root by math": (_X, _MN, "return x * math.sqrt(x.shape[1])"),
    "rows of a table": (f"{_X}, {_I}", 'Float[Tensor, "m 3 m"]', "return x.T[i]"),
    "embedding": (f"{_X}, {_I}", 'Float[Tensor, "m 3 m"]', "return F.embedding(i, x.T)"),
    "a list of whole numbers": (
        f"{_X}, {_I}",
        _MN,
        "return x + sum(x[:, a] for a in i.flatten().tolist()).unsqueeze(1) if len(x) else x",
    ),
    "a whole number taken out": (f"{_X}, {_I}", _MN, "return x * int(i.sum())"),
    "a branch by whole numbers": (f"{_X}, {_I}", _MN, "return x if i.sum() > 9 else 2 * x"),
    "numpy of whole numbers": (f"{_X}, {_I}", _MN, "return x * float(np.sum(i.numpy()))"),
    "shapes by whole numbers": (
        f"{_X}, {_I}",
        _MN,
        "y, rows = x.clone(), (i[:, 0] > 2).nonzero().squeeze(-1)\n"  # noqa: ISC004
        "    y[rows] = 3 * x[rows]\n    return y",
    ),
    "rows by a mask of whole numbers": (
        f"{_X}, {_I}",
        'Float[Tensor, "n"]',
        "return x[i[:, 0] > 2].sum(0)",
    ),
    "sorted whole numbers": (f"{_X}, {_I}", _MN, "return x[i[:, 0].argsort()]"),
    "attention": (_X, _MN, "return F.scaled_dot_product_attention(x[None], x[None], x[None])[0]"),
    "causal attention": (
        _X,
        _MN,
        "return F.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=True)[0]",
    ),
    "a view of a new tensor that is written": (_X, _MN, "y = x * 2\n    y[:, 0] = 1\n    return y"),
    "a new tensor changed in place": (_X, _MN, "return (x * 2).add_(1).mul_(x)"),
    "its argument": (_X, _MN, "return x"),
    "a view of its argument": (_X, 'Float[Tensor, "n m"]', "return x.T"),
    "a copy alone": (_X, 'Float[Tensor, "m 2*n"]', "return torch.cat([x, x], 1)"),
    "a list of parts": (_X, _MN, "return torch.stack(list(x.unbind(1)), 1)"),
    "a string that chooses": (
        f'{_X}, kind: str = "silu"',
        _MN,
        'return F.silu(x) if kind == "silu" else x',
    ),
    "a list of tensors": (f"xs: list[{_MN}]", _MN, "return sum(xs[1:], xs[0])"),
    "an optional tensor": (
        f"{_X}, b: {_MN} | None = None",
        _MN,
        "return x if b is None else x + b",
    ),
    "an argument that is None": (f"{_X}, s: float | None = None", _MN, "return x * (s or 2.0)"),
    "indices returned": (_X, 'Int[Tensor, "m"]', "return x.argmax(1)"),
    "indices of the largest in order": (
        _X,
        'Int32[Tensor, "m 2"]',
        "return x.topk(2).indices.int()",
    ),
    "truth values returned": (_X, 'Bool[Tensor, "m n"]', "return x.exp() > 1.5"),
    "bytes returned": (
        _X,
        'Int8[Tensor, "m n"]',
        "return (x * 9).round().clamp(-9, 9).to(torch.int8)",
    ),
    "bytes as an argument": (f'{_X}, w: Int8[Tensor, "m n"]', _MN, "return x * w"),
    "an axis of one more": (f'{_X}, w: Float[Tensor, "m+1 n"]', _MN, "return x + w[1:]"),
    "an axis of a size that is 1 or 0": (
        f'{_X}, s: Float[Tensor, "m one"]',
        _M,
        "return (x.sum(1, keepdim=True) * s).sum(1)",
    ),
    "an axis of 1": (f'{_X}, s: Float[Tensor, "m 1"]', _MN, "return x * s"),
    "a running sum of a number": (_X, 'Float[Tensor, ""]', "return (x.sum() + 1).cumsum(0) * 3"),
    "numbers of math": (_X, _MN, "return x * math.sqrt(math.pi)"),
    "a dtype that is asked for": (
        _X,
        _MN,
        "return x.sum(1, keepdim=True, dtype=torch.float32) + x",
    ),
    "a function that warns": (
        _X,
        _MN,
        'import warnings\n    warnings.warn("old", DeprecationWarning)\n    return x + 1',
    ),
    "a loop over rows": (_X, _MN, "return torch.stack([each * 2 for each in x]) if len(x) else x"),
    "einsum": (_X, 'Float[Tensor, "m m"]', 'return torch.einsum("ab,cb->ac", x, x)'),
    "a product of nothing": (_X, _MN, "return x + x[:, :0] @ x[:, :0].T @ x"),
}
# Functions whose gradients are ops too, likewise.
_GRADIENTS = {
    "softmax of a number": (_X, 'Float[Tensor, ""]', "return x.sum().softmax(0) * x.sum()"),
    "an index of columns": (f"{_X}, {_I}", 'Float[Tensor, "m m 3"]', "return x[:, i]"),
    "an index of the last axis": (f"{_X}, {_I}", 'Float[Tensor, "m m 3"]', "return x[..., i]"),
    "an index behind a new axis": (
        f"{_X}, {_I}",
        'Float[Tensor, "m 1 m 3"]',
        "return x[:, None, i]",
    ),
    "two indices with an axis between": (
        f'x: Float[Tensor, "n m n"], {_I}',
        'Float[Tensor, "m 3 m"]',
        "return x[i, :, i.flip(1)]",
    ),
}
# Functions that are refused, and a part of the sentence.
_REFUSED = {
    "an inverse": (
        _X,
        _MN,
        "return x @ torch.linalg.inv(x.T @ x)",
        "torch.linalg.inv has no rule",
    ),
    "attention with dropout": (
        _X,
        _MN,
        "return F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.5)[0]",
        "draws random numbers",
    ),
    "a list of real numbers": (
        _X,
        _MN,
        "return x * x.flatten().tolist()[0]",
        "leaves PyTorch by tolist",
    ),
    "a real number taken out": (_X, _MN, "return x * x.sum().item()", "values"),
    "a real number in a float": (_X, _MN, "return x * float(x.sum())", "values"),
    "a branch by real numbers": (_X, _MN, "return x if x.sum() > 0 else -x", "values"),
    "places of real numbers": (_X, 'Float[Tensor, "n"]', "return x[x[:, 0] > 0].sum(0)", "values"),
    "nonzero": (_X, 'Float[Tensor, ""]', "return x * x.nonzero().shape[0]", ""),
    "numpy": (_X, _MN, "return torch.from_numpy(np.sin(x.numpy()))", "leaves PyTorch by numpy"),
    "numpy called on a tensor": (_X, _MN, "return torch.as_tensor(np.sin(x))", ""),
    "nothing returned": (_X, _MN, "x * 2", "None"),
    "an empty tuple": (_X, _MN, "return ()", "returns 0 tensors"),
    "a list returned": (_X, _MN, "return [x]", ""),
    "a number returned": (_X, _MN, "return 3.0", ""),
    "a tuple of too many": (_X, _MN, "return x, x", "returns 2 tensors"),
    "a dict returned": (_X, _MN, 'return {"y": x}', ""),
    "another shape": (_X, _MN, "return x.sum(1)", "has shape"),
    "another dtype": (_X, _MN, "return (x > 0)", "isn't float64"),
    "indices computed with": (_X, 'Int[Tensor, "m"]', "return x.exp().argmax(1) * 2", "indices"),
    "real numbers for whole ones": (_X, 'Int[Tensor, "m"]', "return x.sum(1)", "real numbers"),
    "an argument that is changed": (_X, _MN, "return x.mul_(2)", "changes its argument x"),
    "a view of an argument that is changed": (
        _X,
        _MN,
        "x[:, 0] = 0\n    return x",
        "changes its argument x",
    ),
    "an attribute that torch has not": (
        _X,
        _MN,
        "return torch.no_such_function(x)",
        "no_such_function",
    ),
    "a name that nothing has": (_X, _MN, "return x * beta", "beta"),
    "an error of its own": (_X, _MN, 'raise RuntimeError("two\\nlines")', "two lines"),
    "an assertion": (_X, _MN, "assert len(x) > 100\n    return x", "AssertionError"),
    "a call without end": (_X, _MN, "return mine(x)", ""),
    "an extreme of nothing": (_X, 'Float[Tensor, "n"]', "return x.amax(0)", "where m is 0"),
    "complex numbers": (_X, _MN, "return torch.fft.fft(x).real", ""),
    "magnitudes of complex numbers": (
        _X,
        'Float[Tensor, "m n//2+1"]',
        "return torch.fft.rfft(x).abs()",
        "complex numbers",
    ),
    "sparse numbers": (_X, _MN, "return x.to_sparse().to_dense()", ""),
    "a convolution": (_X, _MN, "return F.conv1d(x[None], x.new_ones(len(x), len(x), 1))[0]", ""),
    "a string without a default": (f"kind: str, {_X}", _MN, "return x", "kind is a string"),
    "a list of anything": (f"{_X}, xs: list[int]", _MN, "return x", "xs_0 has no shape"),
    "code that is run as text": (_X, _MN, 'return eval("x + ")', "SyntaxError"),
    "the end of the process": (_X, _MN, "import sys\n    sys.exit(3)", ""),
}
# Functions of one tensor: those that no rule is for are refused, the others work.
_OF_ONE = (
    *("acos", "acosh", "addbmm", "angle", "arctan", "argsort", "asinh", "atan", "atanh"),
    *("bucketize", "cbrt", "ceil", "celu", "cholesky", "conj", "corrcoef", "cos", "cosh", "cov"),
    *("cummax", "cummin", "cumprod", "deg2rad", "detach", "diff", "digamma", "dist", "dot", "elu"),
    *("erfc", "erfinv", "exp", "expm1", "fix", "flatten", "fliplr", "floor", "frac", "frexp"),
    *("gelu", "glu", "hardsigmoid", "hardswish", "hardtanh", "histc", "i0", "inverse", "isfinite"),
    *("kthvalue", "lgamma", "log", "log10", "log1p", "logcumsumexp", "logit", "logsigmoid"),
    *("logsumexp", "median", "mish", "mode", "msort", "nan_to_num", "neg", "norm", "normalize"),
    *(
        "nonzero",
        "nuclear_norm",
        "pinverse",
        "polygamma",
        "positive",
        "prod",
        "quantile",
        "rad2deg",
    ),
    *("ravel", "relu", "relu6", "renorm", "round", "rot90", "rsqrt", "selu", "sgn", "sigmoid"),
    *("sign", "silu", "sin", "sinc", "sinh", "softplus", "softshrink", "sort", "sqrt", "square"),
    *("std", "std_mean", "svd", "tan", "tanh", "tanhshrink", "threshold", "topk", "trace"),
    *("trapezoid", "tril", "trunc", "unique", "var", "vander"),
)


@pytest.fixture(autouse=True)
def _known_ops_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test defines is gone after it."""
    before = dict(OPS)
    monkeypatch.setattr(registry, "_homes", {})
    yield
    OPS.clear()
    OPS.update(before)


def _written(folder: Path, arguments: str, returned: str, body: str) -> Path:
    file = folder / "mine.py"
    labels = ', labels={"i": "n"}' if " i: " in arguments else ""
    one = ' | {"one": some(1, 0)}' if " one" in arguments else ""
    decorator = f"@op(sizes=SIZES{one}{labels})"
    file.write_text(f"{_HEAD}\n{decorator}\ndef mine({arguments}) -> {returned}:\n    {body}\n")
    return file


def _tried(op: Op) -> int:
    """How many cases have arguments, a truth, a bound and an emulation; it raises OpError."""
    assert isinstance(op, ReferenceOp)
    op.found_signs()
    cases = op.cases()
    for case in cases[:: max(1, len(cases) // 5)]:
        inputs = op.inputs(case, CPU)
        truth = op.oracle(case, inputs)
        bound = op.bound(case, inputs, truth, Numerics())
        for name, form in op.forms(case).items():
            value = truth[name]
            assert value is not None
            assert tuple(value.shape) == form.shape == tuple(bound[name].deterministic.shape)
        op.reference.emulate(case, inputs, Numerics())
        op.flops(case)
    return len(cases)


def _is_sentence(message: str, file: Path) -> bool:
    """Tell whether it is one line that names a line of the user's file."""
    return (
        "\n" not in message and re.search(rf"{re.escape(str(file))}:\d+: \S", message) is not None
    )


@pytest.mark.parametrize("name", _WORKS)
def test_function_of_operations_that_have_rules_is_an_op(name: str, tmp_path: Path) -> None:
    """It has cases, and each of those tried has a truth and a bound."""
    (loaded,) = load_ops(_written(tmp_path, *_WORKS[name]))
    assert _tried(loaded) > 60


@pytest.mark.parametrize("name", _GRADIENTS)
def test_gradient_of_a_function_is_an_op(name: str, tmp_path: Path) -> None:
    """Whatever axis an index is of, and of a number that has no axis."""
    file = _written(tmp_path, *_GRADIENTS[name])
    file.write_text(file.read_text() + "\ngradients = mine.backward()\n")
    _, loaded = load_ops(file)
    assert _tried(loaded) > 60


@pytest.mark.parametrize("name", _REFUSED)
def test_function_that_is_no_op_is_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    """With the user's file and line, and what is wrong; no other exception comes out."""
    *written, part = _REFUSED[name]
    file = _written(tmp_path, *written)
    with pytest.raises(KernelError) as refused:
        load_ops(file)
    message = str(refused.value)
    assert _is_sentence(message, file), message
    assert part in message, message


@pytest.mark.parametrize("name", _OF_ONE)
def test_function_of_torchs_works_or_is_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    """Whether a rule is for it or not; called with no more than a tensor, it may not even run."""
    call = f'getattr(torch, "{name}", None) or getattr(F, "{name}")'
    file = _written(tmp_path, _X, _MN, f"made = ({call})(x)\n    return made")
    try:
        (loaded,) = load_ops(file)
    except KernelError as refused:
        message = str(refused)
    else:
        assert _tried(loaded) > 60
        return
    assert _is_sentence(message, file), message
