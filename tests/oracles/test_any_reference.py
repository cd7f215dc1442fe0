"""Whatever a user's function does, its op works, or is refused in one sentence with its line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from kernel_workbench.kernels.registry import KernelError, load_ops
from kernel_workbench.oracles.op import Numerics, Op
from kernel_workbench.oracles.reference import ReferenceOp

pytestmark = pytest.mark.usefixtures("known_ops_alone")

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
_XI, _XK = f"{_X}, {_I}", f'{_X}, k: Bool[Tensor, "m n"]'
_MN, _M = 'Float[Tensor, "m n"]', 'Float[Tensor, "m"]'

# Functions that work: the body, what is returned if not _MN, and the arguments if not _X alone.
_WORKS: dict[str, tuple[str, ...]] = {
    "truth value times a number": ("return x * k", _MN, _XK),
    "number times a comparison": ("return (x > 0) * x",),
    "truth values counted": ("return (x * k).sum(1) / k.sum(1).clamp(min=1)", _M, _XK),
    "truth value as a factor of a mean": ("return (x * ~k).mean(1)", _M, _XK),
    "sum of a number along an axis": ("return x.sum().sum(0)", 'Float[Tensor, ""]'),
    "mean of a number along an axis": ("return x.sum().mean(-1)", 'Float[Tensor, ""]'),
    "softmax of a number": ("return x.sum().softmax(0)", 'Float[Tensor, ""]'),
    "variance of a row": ("return x.var(-1)", _M),
    "index_add with alpha": (
        "return x.index_add(1, i, x[:, :3], alpha=0.3)",
        _MN,
        f'{_X}, i: Int[Tensor, "3"]',
    ),
    "scatter with reduce": ('return x.scatter(1, i, x[:, :3], reduce="add")', _MN, _XI),
    "scatter of a number": ('return x.scatter(1, i, 0.3, reduce="add")', _MN, _XI),
    "scatter_reduce by sum": ('return x.scatter_reduce(1, i, x[:, :3], "sum")', _MN, _XI),
    "scatter_reduce of others alone": (
        'return x.scatter_reduce(1, i, x[:, :3], "mean", include_self=False)',
        _MN,
        _XI,
    ),
    "scatter_reduce by extreme": ('return x.scatter_reduce(1, i, x[:, :3], "amax")', _MN, _XI),
    "scatter_reduce by product": ('return x.scatter_reduce(1, i, x[:, :3], "prod")', _MN, _XI),
    "a convolution": ("return F.conv1d(x[:, None], x.new_ones(1, 1, 3) / 3, padding=1)[:, 0]",),
    "a max pool": ("return F.max_pool1d(x[:, None] * 1.1, 3, 1, 1)[:, 0]",),
    "an average pool": ("return F.avg_pool1d(x[:, None], 3, 1, 1)[:, 0]",),
    "numbers in order": ("return torch.sort(x * 1.1, -1).values",),
    "a median": ("return (x * 1.1).median(-1).values", _M),
    "a product of a row": ("return (1 + x / 8).prod(-1)", _M),
    "whole numbers as real ones": ("return torch.round(x * 3.3) + x",),
    "an inverse sine": ("return torch.asin(torch.tanh(x))",),
    "a saturated number": ("return (x * 1.1).clamp(-0.1, 0.3)",),
    "a root by math": ("return x * math.sqrt(x.shape[1])",),
    "rows of a table": ("return x.T[i]", 'Float[Tensor, "m 3 m"]', _XI),
    "embedding": ("return F.embedding(i, x.T)", 'Float[Tensor, "m 3 m"]', _XI),
    "a list of whole numbers": (
        "return x + sum(x[:, a] for a in i.flatten().tolist()).unsqueeze(1) if len(x) else x",
        _MN,
        _XI,
    ),
    "a whole number taken out": ("return x * int(i.sum())", _MN, _XI),
    "a branch by whole numbers": ("return x if i.sum() > 9 else 2 * x", _MN, _XI),
    "numpy of whole numbers": ("return x * float(np.sum(i.numpy()))", _MN, _XI),
    "shapes by whole numbers": (
        (
            "y, rows = x.clone(), (i[:, 0] > 2).nonzero().squeeze(-1)\n"
            "    y[rows] = 3 * x[rows]\n    return y"
        ),
        _MN,
        _XI,
    ),
    "rows by a mask of whole numbers": ("return x[i[:, 0] > 2].sum(0)", 'Float[Tensor, "n"]', _XI),
    "sorted whole numbers": ("return x[i[:, 0].argsort()]", _MN, _XI),
    "attention": ("return F.scaled_dot_product_attention(x[None], x[None], x[None])[0]",),
    "causal attention": (
        "return F.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=True)[0]",
    ),
    "a view of a new tensor that is written": ("y = x * 2\n    y[:, 0] = 1\n    return y",),
    "a new tensor changed in place": ("return (x * 2).add_(1).mul_(x)",),
    "its argument": ("return x",),
    "a view of its argument": ("return x.T", 'Float[Tensor, "n m"]'),
    "a copy alone": ("return torch.cat([x, x], 1)", 'Float[Tensor, "m 2*n"]'),
    "a list of parts": ("return torch.stack(list(x.unbind(1)), 1)",),
    "a string that chooses": (
        'return F.silu(x) if kind == "silu" else x',
        _MN,
        f'{_X}, kind: str = "silu"',
    ),
    "a list of tensors": ("return sum(xs[1:], xs[0])", _MN, f"xs: list[{_MN}]"),
    "an optional tensor": (
        "return x if b is None else x + b",
        _MN,
        f"{_X}, b: {_MN} | None = None",
    ),
    "an argument that is None": ("return x * (s or 2.0)", _MN, f"{_X}, s: float | None = None"),
    "indices returned": ("return x.argmax(1)", 'Int[Tensor, "m"]'),
    "indices of the largest in order": ("return x.topk(2).indices.int()", 'Int32[Tensor, "m 2"]'),
    "truth values returned": ("return x.exp() > 1.5", 'Bool[Tensor, "m n"]'),
    "bytes returned": ("return (x * 9).round().clamp(-9, 9).to(torch.int8)", 'Int8[Tensor, "m n"]'),
    "bytes as an argument": ("return x * w", _MN, f'{_X}, w: Int8[Tensor, "m n"]'),
    "an axis of one more": ("return x + w[1:]", _MN, f'{_X}, w: Float[Tensor, "m+1 n"]'),
    "an axis of a size that is 1 or 0": (
        "return (x.sum(1, keepdim=True) * s).sum(1)",
        _M,
        f'{_X}, s: Float[Tensor, "m one"]',
    ),
    "an axis of 1": ("return x * s", _MN, f'{_X}, s: Float[Tensor, "m 1"]'),
    "a running sum of a number": ("return (x.sum() + 1).cumsum(0) * 3", 'Float[Tensor, ""]'),
    "numbers of math": ("return x * math.sqrt(math.pi)",),
    "a dtype that is asked for": ("return x.sum(1, keepdim=True, dtype=torch.float32) + x",),
    "a function that warns": (
        'import warnings\n    warnings.warn("old", DeprecationWarning)\n    return x + 1',
    ),
    "a loop over rows": ("return torch.stack([each * 2 for each in x]) if len(x) else x",),
    "einsum": ('return torch.einsum("ab,cb->ac", x, x)', 'Float[Tensor, "m m"]'),
    "a product of nothing": ("return x + x[:, :0] @ x[:, :0].T @ x",),
}
# Functions whose gradients are ops too, likewise.
_GRADIENTS: dict[str, tuple[str, ...]] = {
    "softmax of a number": ("return x.sum().softmax(0) * x.sum()", 'Float[Tensor, ""]'),
    "an index of columns": ("return x[:, i]", 'Float[Tensor, "m m 3"]', _XI),
    "an index of the last axis": ("return x[..., i]", 'Float[Tensor, "m m 3"]', _XI),
    "an index behind a new axis": ("return x[:, None, i]", 'Float[Tensor, "m 1 m 3"]', _XI),
    "two indices with an axis between": (
        "return x[i, :, i.flip(1)]",
        'Float[Tensor, "m 3 m"]',
        f'x: Float[Tensor, "n m n"], {_I}',
    ),
}
# Functions that are refused, likewise, each after a part of the sentence.
_REFUSED: dict[str, tuple[str, ...]] = {
    "an inverse": ("torch.linalg.inv has no rule", "return x @ torch.linalg.inv(x.T @ x)"),
    "attention with dropout": (
        "draws random numbers",
        "return F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.5)[0]",
    ),
    "a list of real numbers": ("leaves PyTorch by tolist", "return x * x.flatten().tolist()[0]"),
    "a real number taken out": ("values", "return x * x.sum().item()"),
    "a real number in a float": ("values", "return x * float(x.sum())"),
    "a branch by real numbers": ("values", "return x if x.sum() > 0 else -x"),
    "places of real numbers": ("values", "return x[x[:, 0] > 0].sum(0)", 'Float[Tensor, "n"]'),
    "nonzero": ("", "return x * x.nonzero().shape[0]", 'Float[Tensor, ""]'),
    "numpy": ("leaves PyTorch by numpy", "return torch.from_numpy(np.sin(x.numpy()))"),
    "numpy called on a tensor": ("", "return torch.as_tensor(np.sin(x))"),
    "nothing returned": ("None", "x * 2"),
    "an empty tuple": ("returns 0 tensors", "return ()"),
    "a list returned": ("", "return [x]"),
    "a number returned": ("", "return 3.0"),
    "a tuple of too many": ("returns 2 tensors", "return x, x"),
    "a dict returned": ("", 'return {"y": x}'),
    "another shape": ("has shape", "return x.sum(1)"),
    "another dtype": ("isn't float64", "return (x > 0)"),
    "indices computed with": ("indices", "return x.exp().argmax(1) * 2", 'Int[Tensor, "m"]'),
    "real numbers for whole ones": ("real numbers", "return x.sum(1)", 'Int[Tensor, "m"]'),
    "an argument that is changed": ("changes its argument x", "return x.mul_(2)"),
    "a view of an argument that is changed": (
        "changes its argument x",
        "x[:, 0] = 0\n    return x",
    ),
    "an attribute that torch has not": ("no_such_function", "return torch.no_such_function(x)"),
    "a name that nothing has": ("beta", "return x * beta"),
    "an error of its own": ("two lines", 'raise RuntimeError("two\\nlines")'),
    "an assertion": ("AssertionError", "assert len(x) > 100\n    return x"),
    "a call without end": ("", "return mine(x)"),
    "an extreme of nothing": ("where m is 0", "return x.amax(0)", 'Float[Tensor, "n"]'),
    "complex numbers": ("", "return torch.fft.fft(x).real"),
    "magnitudes of complex numbers": (
        "complex numbers",
        "return torch.fft.rfft(x).abs()",
        'Float[Tensor, "m n//2+1"]',
    ),
    "sparse numbers": ("", "return x.to_sparse().to_dense()"),
    "a convolution": ("", "return F.conv1d(x[None], x.new_ones(len(x), len(x), 1))[0]"),
    "a string without a default": ("kind is a string", "return x", _MN, f"kind: str, {_X}"),
    "a list of anything": ("xs_0 has no shape", "return x", _MN, f"{_X}, xs: list[int]"),
    "code that is run as text": ("SyntaxError", 'return eval("x + ")'),
    "the end of the process": ("", "import sys\n    sys.exit(3)"),
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
    *("nonzero", "nuclear_norm", "pinverse", "polygamma", "positive", "prod", "quantile"),
    *("rad2deg", "ravel", "relu", "relu6", "renorm", "round", "rot90", "rsqrt", "selu", "sgn"),
    *("sigmoid", "sign", "silu", "sin", "sinc", "sinh", "softplus", "softshrink", "sort", "sqrt"),
    *("square", "std", "std_mean", "svd", "tan", "tanh", "tanhshrink", "threshold", "topk"),
    *("trace", "trapezoid", "tril", "trunc", "unique", "var", "vander"),
)


def _written(folder: Path, body: str, returned: str = _MN, arguments: str = _X) -> Path:
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
    part, *written = _REFUSED[name]
    file = _written(tmp_path, *written)
    with pytest.raises(KernelError) as refused:
        load_ops(file)
    message = str(refused.value)
    assert _is_sentence(message, file), message
    assert part in message, message


@pytest.mark.parametrize("name", _OF_ONE)
def test_function_of_torchs_works_or_is_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    """A function may have a rule or none; called with a tensor alone, it may not even run."""
    call = f'getattr(torch, "{name}", None) or getattr(F, "{name}")'
    file = _written(tmp_path, f"made = ({call})(x)\n    return made")
    try:
        (loaded,) = load_ops(file)
    except KernelError as refused:
        message = str(refused)
    else:
        assert _tried(loaded) > 60
        return
    assert _is_sentence(message, file), message
