"""Calls of our functions as a model makes them, each beside the same call of PyTorch's function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor
from torch.nn import functional

from kernel_workbench.kernels.attention import attention
from kernel_workbench.kernels.layer_norm import layer_norm, rms_norm

Function = Callable[..., Tensor]


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A call of one of our functions.

    Attributes:
        name: the function's name.
        ours: our function of the tensors.
        theirs: PyTorch's of the same tensors.
        sizes: by name.
        shapes: of the tensors, all of them inputs with a gradient.
        options: of the call.
    """

    name: str
    ours: Function
    theirs: Function
    sizes: dict[str, int]
    shapes: tuple[tuple[int, ...], ...]
    options: tuple[str, ...] = ()


def _their_layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.layer_norm(x, weight.shape, weight, bias)


def _their_rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(x, list(weight.shape), weight, 1e-6)


def _their_attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False) -> Tensor:
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v, is_causal=causal)


def _attention_case(b: int, s: int, h: int, d: int, *, causal: bool) -> ModelCall:
    ours, theirs = partial(attention, causal=causal), partial(_their_attention, causal=causal)
    options = ("causal",) if causal else ()
    sizes = {"b": b, "s": s, "h": h, "d": d}
    return ModelCall("attention", ours, theirs, sizes, ((b, s, h, d),) * 3, options)


_ROWS = ((64, 256), (2048, 8192), (4096, 16384), (16384, 4096))
MODEL_CALLS: tuple[ModelCall, ...] = (
    *(
        ModelCall(
            "layer_norm", layer_norm, _their_layer_norm, {"m": m, "n": n}, ((m, n), (n,), (n,))
        )
        for m, n in _ROWS
    ),
    *(
        ModelCall("rms_norm", rms_norm, _their_rms_norm, {"m": m, "n": n}, ((m, n), (n,)))
        for m, n in _ROWS
    ),
    _attention_case(2, 256, 8, 64, causal=False),
    _attention_case(1, 128, 8, 128, causal=True),
    _attention_case(2, 1024, 16, 64, causal=True),
    _attention_case(2, 4096, 16, 128, causal=True),
)
