"""The functions that a recording knows, where their callers find them, and their arguments."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import Parameter, Signature
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


# What views call a parameter of torch's.
_NAMES = {"input": "x", "normalized_shape": "shape", "mat2": "other"}


def named_arguments(signature: Signature) -> Callable[..., Mapping[str, Any]]:
    """Return a function that names the arguments of a call of a function with this signature."""
    return lambda *args, **kwargs: signature.bind(*args, **kwargs).arguments


def _named(*names: str, **defaults: object) -> Callable[..., Mapping[str, Any]]:
    """Return the same for a function of torch, of whose parameters the last have defaults."""
    kind, empty = Parameter.POSITIONAL_OR_KEYWORD, Parameter.empty
    every = [
        Parameter(name, kind, default=defaults.get(name, empty)) for name in (*names, *defaults)
    ]
    named = named_arguments(Signature(every))
    return lambda *args, **kwargs: {
        _NAMES.get(name, name): value
        for name, value in (defaults | dict(named(*args, **kwargs))).items()
    }


_FUNCTIONAL = "torch.nn.functional"
_NORM = ("layer_norm",)
_RMS = ("rms_norm",)
_OWN = "kernel_workbench.kernels"
_LAYER_NORM = _named("input", "normalized_shape", weight=None, bias=None, eps=1e-5)
_RMS_NORM = _named("input", "normalized_shape", weight=None, eps=None)
_OWN_LAYER_NORM = _named("x", weight=None, bias=None, eps=1e-5)
_OWN_RMS_NORM = _named("x", weight=None, eps=1e-6)
_SDPA = _named(
    *("query", "key", "value"),
    attn_mask=None,
    dropout_p=0.0,
    is_causal=False,
    scale=None,
    enable_gqa=False,
)
_SOFTMAX = _named("input", "dim", dtype=None)
_CROSS_ENTROPY = _named(
    *("input", "target"),
    weight=None,
    size_average=None,
    ignore_index=-100,
    reduce=None,
    reduction="mean",
    label_smoothing=0.0,
)
_MATMUL, _BMM = _named("input", "other", out=None), _named("input", "mat2", out=None)
TARGETS = (
    Target(_FUNCTIONAL, "layer_norm", _NORM, views.layer_norm, _LAYER_NORM),
    Target(f"{_OWN}.layer_norm.function", "layer_norm", _NORM, views.layer_norm, _OWN_LAYER_NORM),
    Target(_FUNCTIONAL, "rms_norm", _RMS, views.rms_norm, _RMS_NORM),
    Target(f"{_OWN}.layer_norm.function", "rms_norm", _RMS, views.rms_norm, _OWN_RMS_NORM),
    Target(
        _FUNCTIONAL,
        "scaled_dot_product_attention",
        ("attention",),
        views.scaled_dot_product_attention,
        _SDPA,
        low_precision=True,
        reads_output=True,
    ),
    Target(
        f"{_OWN}.attention.function",
        "attention",
        ("attention",),
        views.attention,
        lambda q, k, v, **options: {"q": q, "k": k, "v": v, **options},
        reads_output=True,
    ),
    Target(
        _FUNCTIONAL,
        "softmax",
        ("softmax",),
        views.softmax,
        _named("input", dim=None, _stacklevel=3, dtype=None),
    ),
    Target("torch", "softmax", ("softmax",), views.softmax, _SOFTMAX),
    Target("torch", "Tensor.softmax", ("softmax",), views.softmax, _SOFTMAX),
    Target(
        _FUNCTIONAL,
        "cross_entropy",
        ("cross_entropy", "smoothed_cross_entropy"),
        views.cross_entropy,
        _CROSS_ENTROPY,
    ),
    Target(
        _FUNCTIONAL,
        "linear",
        ("matmul",),
        views.linear,
        _named("input", "weight", bias=None),
        low_precision=True,
    ),
    *(
        Target("torch", path, ("matmul",), views.matmul, arguments, low_precision=True)
        for path, arguments in (
            ("matmul", _MATMUL),
            ("Tensor.matmul", _MATMUL),
            ("Tensor.__matmul__", _MATMUL),
            ("mm", _BMM),
            ("Tensor.mm", _BMM),
            ("bmm", _BMM),
            ("Tensor.bmm", _BMM),
        )
    ),
)
# silu(gate) up is two calls: the product is recorded where a factor is what silu has just returned.
SWIGLU = Target(_FUNCTIONAL, "silu", ("swiglu",), views.swiglu, _named("gate", "up"))
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
