"""`python -m studies.host_time`: the host's time of a call of our functions, and of PyTorch's.

A loop makes calls and never waits for the device. The figure is the mean of a loop's calls, in the
fastest of several loops, in us. A backward is `torch.autograd.grad` on a graph that is kept. The
second table has whole backwards in a loop that waits at its end: the device's time, or the host's
where that is longer. The study needs a GPU.

--calls: calls of a loop.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional

from kernel_workbench.kernels.attention import attention
from kernel_workbench.kernels.layer_norm import layer_norm, rms_norm

_LOOPS = 7
_Call = Callable[[], object]
_Function = Callable[..., Tensor]
# By name, ours, PyTorch's, and the shapes of the inputs.
_Functions = dict[str, tuple[_Function, _Function, tuple[tuple[int, ...], ...]]]


def _their_layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.layer_norm(x, weight.shape, weight, bias)


def _their_rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(x, list(weight.shape), weight, 1e-6)


def _their_attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False) -> Tensor:
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v, is_causal=causal)


_SMALL: _Functions = {
    "layer_norm": (layer_norm, _their_layer_norm, ((64, 256), (256,), (256,))),
    "rms_norm": (rms_norm, _their_rms_norm, ((64, 256), (256,))),
    "attention": (attention, _their_attention, ((2, 256, 8, 64),) * 3),
}
_LARGE: _Functions = {
    **{
        f"layer_norm {m} x {n}": (layer_norm, _their_layer_norm, ((m, n), (n,), (n,)))
        for m, n in ((2048, 8192), (4096, 16384), (16384, 4096))
    },
    **{
        f"attention, causal, s {s}, d {d}": (
            partial(attention, causal=True),
            partial(_their_attention, causal=True),
            ((2, s, 16, d),) * 3,
        )
        for s, d in ((1024, 64), (4096, 128))
    },
}


def _least(call: _Call, calls: int, *, waits: bool) -> float:
    """Return the mean time of a call in us, in the fastest loop; waits: for the device."""
    fastest = float("inf")
    for _ in range(max(2, calls // 10)):
        call()
    for _ in range(_LOOPS):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(calls):
            call()
        if waits:
            torch.cuda.synchronize()
        fastest = min(fastest, (time.perf_counter() - started) / calls)
    return 1e6 * fastest


def _backward(function: _Function, inputs: Sequence[Tensor]) -> _Call:
    y = function(*inputs)
    dy = torch.randn_like(y)
    return lambda: torch.autograd.grad(y, inputs, dy, retain_graph=True)


def _drawn(shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    return [torch.randn(s, device="cuda").bfloat16().requires_grad_() for s in shapes]


def _without_gradient(function: _Function, inputs: Sequence[Tensor]) -> Tensor:
    with torch.no_grad():
        return function(*inputs)


def small_calls(calls: int) -> Table:
    """Return the table of the host's time of small calls."""
    table = Table("host time, us", "no gradient", "forward", "backward")
    for name, (ours, theirs, shapes) in _SMALL.items():
        for whose, function in ((name, ours), (f"{name}, PyTorch", theirs)):
            inputs = _drawn(shapes)
            loops: tuple[_Call, ...] = (
                partial(_without_gradient, function, inputs),
                partial(function, *inputs),
                _backward(function, inputs),
            )
            table.add_row(whose, *(f"{_least(loop, calls, waits=False):.1f}" for loop in loops))
    return table


def large_backwards(calls: int) -> Table:
    """Return the table of whole backwards of large calls."""
    table = Table("backward in a loop, us", "ours", "PyTorch")
    for name, (ours, theirs, shapes) in _LARGE.items():
        inputs = _drawn(shapes)
        loops = (_backward(function, inputs) for function in (ours, theirs))
        table.add_row(name, *(f"{_least(loop, calls, waits=True):.1f}" for loop in loops))
    return table


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m studies.host_time", description=__doc__)
    parser.add_argument("--calls", type=int, default=200)
    calls = parser.parse_args().calls
    if not torch.cuda.is_available():
        parser.error("torch finds no GPU here; the host's time of a launch needs one")
    console = Console()
    console.print(small_calls(calls))
    console.print(large_backwards(max(1, calls // 4)))


if __name__ == "__main__":
    main()
