"""The functions that a recording knows, where their callers find them, and their arguments."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kernel_workbench.recording import views
from kernel_workbench.recording.views import ViewOf


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """A function that a recording replaces.

    Attributes:
        module: the module that has the function.
        path: the function's name there, with its class's where it is a method.
        ops: prefixes of the ops that the function stands for.
        view: how a call of the function is one of the op.
        arguments: a function that has the call's arguments, under the names that `view` reads.
        low_precision: autocast converts the call's tensors to its own dtype.
        has_backward: the function's gradient is recorded, too.
        reads_output: the view of the gradient reads the output.
    """

    module: str
    path: str
    ops: tuple[str, ...]
    view: ViewOf
    arguments: Callable[..., Mapping[str, Any]]
    low_precision: bool = False
    has_backward: bool = True
    reads_output: bool = False

    @property
    def name(self) -> str:
        """Return the function's name, as a user writes it."""
        return f"{self.module}:{self.path}"


def _layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-5):  # type: ignore[no-untyped-def]  # noqa: A002, ANN001, ANN202
    return {"x": input, "shape": normalized_shape, "weight": weight, "bias": bias, "eps": eps}


def _own_layer_norm(x, weight=None, bias=None, eps=1e-5):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    return {"x": x, "weight": weight, "bias": bias, "eps": eps}


def _rms_norm(input, normalized_shape, weight=None, eps=None):  # type: ignore[no-untyped-def]  # noqa: A002, ANN001, ANN202
    return {"x": input, "shape": normalized_shape, "weight": weight, "eps": eps}


def _own_rms_norm(x, weight=None, eps=1e-6):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    return {"x": x, "weight": weight, "eps": eps}


def _sdpa(  # type: ignore[no-untyped-def]  # noqa: ANN202
    query,  # noqa: ANN001
    key,  # noqa: ANN001
    value,  # noqa: ANN001
    attn_mask=None,  # noqa: ANN001
    dropout_p=0.0,  # noqa: ANN001
    is_causal=False,  # noqa: ANN001, FBT002
    scale=None,  # noqa: ANN001
    enable_gqa=False,  # noqa: ANN001, FBT002
):
    del enable_gqa
    return locals()


def _attention(q, k, v, **options):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN003, ANN202
    return {"q": q, "k": k, "v": v, **options}


def _softmax(input, dim=None, _stacklevel=3, dtype=None):  # type: ignore[no-untyped-def]  # noqa: A002, ANN001, ANN202
    return {"x": input, "dim": dim, "dtype": dtype}


def _torch_softmax(input, dim, dtype=None):  # type: ignore[no-untyped-def]  # noqa: A002, ANN001, ANN202
    return {"x": input, "dim": dim, "dtype": dtype}


def _cross_entropy(  # type: ignore[no-untyped-def]  # noqa: ANN202
    input,  # noqa: A002, ANN001
    target,  # noqa: ANN001
    weight=None,  # noqa: ANN001
    size_average=None,  # noqa: ANN001
    ignore_index=-100,  # noqa: ANN001
    reduce=None,  # noqa: ANN001
    reduction="mean",  # noqa: ANN001
    label_smoothing=0.0,  # noqa: ANN001
):
    del size_average, ignore_index, reduce
    return {
        "x": input,
        "target": target,
        "weight": weight,
        "reduction": reduction,
        "label_smoothing": label_smoothing,
    }


def _linear(input, weight, bias=None):  # type: ignore[no-untyped-def]  # noqa: A002, ANN001, ANN202
    return {"x": input, "weight": weight, "bias": bias}


def _matmul(input, other, *, out=None):  # type: ignore[no-untyped-def]  # noqa: A002, ANN001, ANN202
    del out
    return {"a": input, "b": other}


def _bmm(input, mat2, *, out=None):  # type: ignore[no-untyped-def]  # noqa: A002, ANN001, ANN202
    del out
    return {"a": input, "b": mat2}


def _swiglu(gate, up):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    return {"gate": gate, "up": up}


_FUNCTIONAL, _TENSOR = "torch.nn.functional", "torch"
_NORM = ("layer_norm",)
_RMS = ("rms_norm",)
_OWN = "kernel_workbench.kernels"
TARGETS = (
    Target(_FUNCTIONAL, "layer_norm", _NORM, views.layer_norm, _layer_norm),
    Target(f"{_OWN}.layer_norm.function", "layer_norm", _NORM, views.layer_norm, _own_layer_norm),
    Target(_FUNCTIONAL, "rms_norm", _RMS, views.rms_norm, _rms_norm),
    Target(f"{_OWN}.layer_norm.function", "rms_norm", _RMS, views.rms_norm, _own_rms_norm),
    Target(
        _FUNCTIONAL,
        "scaled_dot_product_attention",
        ("attention",),
        views.scaled_dot_product_attention,
        _sdpa,
        low_precision=True,
        reads_output=True,
    ),
    Target(
        f"{_OWN}.attention.function",
        "attention",
        ("attention",),
        views.attention,
        _attention,
        reads_output=True,
    ),
    Target(_FUNCTIONAL, "softmax", ("softmax",), views.softmax, _softmax),
    Target("torch", "softmax", ("softmax",), views.softmax, _torch_softmax),
    Target("torch", "Tensor.softmax", ("softmax",), views.softmax, _torch_softmax),
    Target(
        _FUNCTIONAL,
        "cross_entropy",
        ("cross_entropy", "smoothed_cross_entropy"),
        views.cross_entropy,
        _cross_entropy,
    ),
    Target(_FUNCTIONAL, "linear", ("matmul",), views.linear, _linear, low_precision=True),
    *(
        Target("torch", path, ("matmul",), views.matmul, arguments, low_precision=True)
        for path, arguments in (
            ("matmul", _matmul),
            ("Tensor.matmul", _matmul),
            ("Tensor.__matmul__", _matmul),
            ("mm", _bmm),
            ("Tensor.mm", _bmm),
            ("bmm", _bmm),
            ("Tensor.bmm", _bmm),
        )
    ),
)
# silu(gate) up is two calls: the product is recorded where a factor is what silu has just returned.
SWIGLU = Target(_FUNCTIONAL, "silu", ("swiglu",), views.swiglu, _swiglu)
PRODUCTS = (("torch", "mul"), ("torch", "Tensor.mul"), ("torch", "Tensor.__mul__"))


def place_of(module: str, path: str) -> tuple[Any, str]:
    """Return what has a function as its attribute, and the attribute's name.

    Raises:
        ImportError: there is no such module.
        AttributeError: the module has no such class.
    """
    owner: Any = importlib.import_module(module)
    *classes, name = path.split(".")
    for part in classes:
        owner = getattr(owner, part)
    return owner, name


def named_arguments(function: Callable[..., Any]) -> Callable[..., Mapping[str, Any]]:
    """Return a function that names the arguments of a call of `function`.

    Raises:
        ValueError: the function has no signature.
    """
    signature = inspect.signature(function)

    def named(*args: Any, **kwargs: Any) -> Mapping[str, Any]:  # noqa: ANN401  (any function's)
        bound = signature.bind(*args, **kwargs)
        return dict(bound.arguments)

    return named
