"""Launches of attention's kernels: a kernel receives the arguments that its parameters name.

A tensor `q` is passed as q_ptr, with its strides stride_qb, stride_qm, stride_qh and stride_qd over
(b, s, h, d). Strides and head sizes are in units of VECTOR elements, except d's own stride.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import triton
from torch import Tensor

from kernel_workbench.kernels.attention.problem import (
    AttentionCall,
    adjacent,
    is_wide,
    vector_elements,
)
from kernel_workbench.kernels.attention.registration import need_of_call
from kernel_workbench.kernels.attention.tile_model import WIDE_CHUNK
from kernel_workbench.kernels.attention.variants import Need, Variant
from kernel_workbench.kernels.device import on_device_of, sm_of
from kernel_workbench.kernels.launch_plan import Launched

# Adjacent keys of a bias are worth a kernel of their own.
_SPECIALISED = {"stride_bn"}
# How strides are called: by the tensor, and by its axes.
_STRIDES = {
    "q": ("q", "bmhd"), "k": ("k", "bnhd"), "v": ("v", "bnhd"), "out": ("o", "bmhd"),
    "do": ("g", "bmhd"), "dq": ("dq", "bmhd"), "dk": ("dk", "bnhd"), "dv": ("dv", "bnhd"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class VectorTwins:
    """Two kernels of one function: for tensors at 16-byte addresses, and at any address."""

    aligned: Any
    any: Any

    def of(self, vector: int) -> Any:
        """Return the kernel for loads of `vector` elements."""
        return self.aligned if vector > 1 else self.any


def compiled(function: Callable[..., object], *vectors: str, ones: Collection[str] = ()) -> Any:
    """Return the kernel of a function.

    The JIT learns nothing else of a number or an address, so one compiled kernel serves every
    size, stride and mask: only VECTOR determines the width of loads.

    Args:
        function: the function.
        *vectors: tensors that may be at 16-byte addresses.
        ones: numbers that get a kernel of their own where they are 1.
    """
    names = [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.annotation is inspect.Parameter.empty
    ]
    pointers = [name for name in names if name.endswith("_ptr") or name.startswith("cu_")]
    numbers = [name for name in names if name not in {*pointers, *_SPECIALISED, *ones}]
    loose = [name for name in pointers if name not in vectors]
    return triton.jit(function, do_not_specialize=numbers, do_not_specialize_on_alignment=loose)


def compiled_twice(
    function: Callable[..., object], *vectors: str, ones: Collection[str] = ()
) -> VectorTwins:
    """Return `compiled` with `vectors`, and without."""
    return VectorTwins(compiled(function, *vectors, ones=ones), compiled(function, ones=ones))


def arguments_of(tensors: Mapping[str, Tensor], vector: int) -> dict[str, object]:
    """Return the pointers and strides of tensors [b, s, h, d]; strides in `vector` elements."""
    arguments: dict[str, object] = {}
    for name, tensor in tensors.items():
        letter, axes = _STRIDES[name]
        arguments[f"{name}_ptr"] = tensor
        for axis, stride in zip(axes, tensor.stride(), strict=True):
            arguments[f"stride_{letter}{axis}"] = stride if axis == "d" else stride // vector
    return arguments


class Launcher:
    """Launches the kernels of one call; others: tensors loaded as vectors beside q, k and v."""

    def __init__(self, problem: AttentionCall, *, tf32: bool, **others: Tensor) -> None:
        self.problem = problem
        self.loaded = {"q": problem.q, "k": problem.k, "v": problem.v, **others}
        self._vector = vector_elements(*self.loaded.values())
        sm = sm_of(problem.q.device)
        self.need: Need = need_of_call(problem, sm, self._vector, tf32=tf32)
        self._known: dict[int, dict[str, object]] = {}

    def vector(self, variant: Variant) -> int:
        """Return the elements of a load of q, k, v and the others."""
        return self._vector if variant.aligned else 1

    def _arguments(self, vector: int) -> dict[str, object]:
        """Return the arguments of all kernels, in loads of `vector` elements; cached."""
        if vector not in self._known:
            problem, loaded = self.problem, self.loaded.values()
            self._known[vector] = {
                **problem.arguments,
                **arguments_of(self.loaded, vector),
                "d": problem.d // vector,
                "d_v": problem.d_v // vector,
                "ADJACENT": adjacent(*loaded),
                "VECTOR": vector,
                "WIDE": is_wide(*loaded),
                "BLOCK_C": WIDE_CHUNK,
            }
        return self._known[vector]

    def launch(
        self,
        kernel: VectorTwins,
        programs: int,
        variant: Variant,
        stored: Mapping[str, Tensor] | None = None,
        /,
        **own: object,
    ) -> Launched | None:
        """Run `programs` of a kernel, if any, with a variant's tile.

        Args:
            kernel: the kernel.
            programs: number of programs.
            variant: the variant.
            stored: stored tensors in the layout (b, s, h, d).
            **own: arguments of this kernel only, which override the others.
        """
        if not programs:
            return None
        tile, vector, scale = variant.tile, self.vector(variant), self.problem.scale
        arguments = {
            **self._arguments(vector),
            **arguments_of(stored or {}, vector),
            # Without anything added to them scores are kept in base 2.
            "scale": scale if variant.bias else scale * math.log2(math.e),
            "NATURAL": variant.bias,
            "DROPOUT": variant.dropout,
            "PRECISION": variant.precision,
            "BLOCK_M": tile.queries,
            "BLOCK_N": tile.keys,
            "STAGES": tile.stages,
            **own,
        }
        chosen = kernel.of(vector)
        named = {name: arguments[name] for name in chosen.arg_names}
        with on_device_of(self.problem.q):
            result = chosen[(programs,)](**named, num_warps=tile.warps, num_stages=tile.stages)
        return Launched(chosen, result, (programs,), tuple(named.values()))
