"""Measure the time of our kernels in the interpreter: stock, mended, and strict.

`python -m studies.interpreter_cost` starts a process for each interpreter, since mending can't be
undone, in three rounds. It prints the least processor time of a call in milliseconds, in fp32 and
fp16: the stock interpreter has no bfloat16.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table

from kernel_workbench.kernels.attention.backward import two_pass
from kernel_workbench.kernels.attention.forward import flash
from kernel_workbench.kernels.device import SIMULATED_SM_VARIABLE
from kernel_workbench.kernels.layer_norm.row_persistent import row_persistent
from kernel_workbench.suites import ROOT
from kernel_workbench.suites.interpreter import repairs, strict
from kernel_workbench.suites.sandbox.worker_side.allocations import fresh_memory

_MODES = ("stock", "mended", "strict")
_CALLS, _ROUNDS = 5, 3


def _layer_norm(m: int, n: int, dtype: torch.dtype) -> Callable[[], object]:
    x, dy = torch.randn(2, m, n).to(dtype)
    weight, wide = torch.randn(n).to(dtype), x.float()
    rstd = (wide.var(1, unbiased=False) + 1e-5).rsqrt()
    return lambda: row_persistent(dy, x, weight, wide.mean(1), rstd, aligned=True)


def _attention(s: int, dtype: torch.dtype, *, backward: bool) -> Callable[[], object]:
    q, k, v, do = torch.randn(4, 1, s, 2, 64).to(dtype)
    if not backward:
        return lambda: flash(q, k, v)
    out, lse = flash(q, k, v)
    return lambda: two_pass(do, q, k, v, out, lse)


def _calls() -> dict[str, Callable[[], object]]:
    single, half = torch.float32, torch.float16
    return {
        "layer norm backward, 7 x 264, fp32": _layer_norm(7, 264, single),
        "layer norm backward, 64 x 1024, fp32": _layer_norm(64, 1024, single),
        "layer norm backward, 256 x 256, fp16": _layer_norm(256, 256, half),
        "attention forward, s 37, fp16": _attention(37, half, backward=False),
        "attention forward, s 256, fp16": _attention(256, half, backward=False),
        "attention forward, s 256, fp32": _attention(256, single, backward=False),
        "attention backward, s 37, fp16": _attention(37, half, backward=True),
        "attention backward, s 256, fp16": _attention(256, half, backward=True),
        "attention backward, s 256, fp32": _attention(256, single, backward=True),
    }


def _measure(mode: str) -> dict[str, float]:
    """Install the mode's interpreter in this process; return milliseconds of each call."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if mode != "stock":
        repairs.install()
    if mode == "strict":
        strict.install()
    times_ms = {}
    for name, call in _calls().items():
        with strict.watched(), fresh_memory(math.nan, torch.device("cpu")):
            call()
            times = []
            for _ in range(_CALLS):
                start = time.process_time()
                call()
                times.append(time.process_time() - start)
        times_ms[name] = 1000 * min(times)
    return times_ms


def _in_a_process(mode: str) -> dict[str, float]:
    # numpy's own threads would count as the interpreter's time.
    changed = {"TRITON_INTERPRET": "1", "OPENBLAS_NUM_THREADS": "1", SIMULATED_SM_VARIABLE: "90"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "studies.interpreter_cost", mode],
        cwd=ROOT,
        env={**os.environ, **changed},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def main() -> None:
    """Print the table, or the figures of one mode as JSON if the command names it."""
    if len(sys.argv) > 1:
        print(json.dumps(_measure(sys.argv[1])))
        return
    rounds = [{mode: _in_a_process(mode) for mode in _MODES} for _ in range(_ROUNDS)]
    of = {
        mode: {name: min(figures[mode][name] for figures in rounds) for name in rounds[0][mode]}
        for mode in _MODES
    }
    table = Table("call, ms", *_MODES, "strict / mended", "strict / stock")
    for name in of["stock"]:
        stock, mended, checked = (of[mode][name] for mode in _MODES)
        shares = f"{checked / mended:.2f}", f"{checked / stock:.2f}"
        table.add_row(name, f"{stock:.1f}", f"{mended:.1f}", f"{checked:.1f}", *shares)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
