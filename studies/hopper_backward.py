"""Attention's backward on Hopper for heads of 256, on trial: a file of a user's kernels.

`nox -s accuracy -- --kernels=studies/hopper_backward.py --kernel hopper_ordered_256`; bench
likewise. It has been compiled, and run on a CPU, and not on a GPU. When it is right there, and
quicker than `two_pass`, 256 joins what `hopper_ordered` serves.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from kernels.attention.backward import Gradients
from kernels.attention.hopper import lacks_alignment
from kernels.attention.hopper_backward import hopper_gradients
from kernels.attention.problem import Corner, Options, Problem
from kernels.registry import all_kernels, kernel
from oracles import ATTENTION_BACKWARD
from oracles.op import Case


def _refusal(case: Case) -> str | None:
    if case.size("d") != 256:
        return f"serves heads of 256, got {case.size('d')}"
    return lacks_alignment(case, "q", "k", "v", "do")


def _register(name: str, *, ordered: bool) -> None:
    narrow = next(each for each in all_kernels() if each.name == name)

    def wide(
        do: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        *,
        causal: bool = False,
        corner: Corner = "top_left",
        scale: float | None = None,
    ) -> Gradients:
        problem = Problem.of(q, k, v, Options(causal=causal, corner=corner, scale=scale))
        return hopper_gradients(do, problem, out, lse, ordered=ordered)

    kernel(
        ATTENTION_BACKWARD,
        replace(narrow.domain, also=_refusal),
        numerics=narrow.numerics,
        name=f"{name}_256",
    )(wide)


_register("hopper_ordered", ordered=True)
_register("hopper_atomic", ordered=False)
