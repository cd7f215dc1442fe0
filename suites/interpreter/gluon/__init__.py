"""Run Gluon kernels for Hopper on a CPU; asynchronous work is done as late as possible, or at once.

`mend` replaces the launch of `GluonJITFunction`. The launches of a kernel alternate. In a late
launch, a copy by TMA runs when a partition waits for its barrier, and its target is NaN until then;
a product reads shared memory when it is waited for; a store reads shared memory when its end is
waited for; a partition that arrives at a barrier lets the others run first. In the next launch, all
work is done at once. So a missing wait shows in one of the two launches, as NaN or as values of
another tile: every row of the accuracy suite calls a kernel more than once. A wait that never ends
is an error, and so is a use of a product before the wait for it.

Accesses outside of an argument's elements, reads of unwritten memory and two programs that store to
one element are illegal, as for kernels in Triton (suites/interpreter/strict). The model ignores
layouts, registers, fences, races between threads of one partition, programs that read what other
programs write, and integer overflow. An unsupported operation (other GPUs' instructions, assembly)
is refused in one sentence.
"""

from __future__ import annotations

import importlib
import inspect
from collections import Counter
from typing import Any

_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
_launches: Counter[int] = Counter()  # launches of each kernel, by its id


def mend() -> None:
    """Make kernels in Gluon run on the CPU, for the rest of this process."""
    runtime = importlib.import_module("triton.experimental.gluon._runtime")
    runtime.GluonJITFunction.run = _run


def _run(kernel: Any, *arguments: object, grid: Any, warmup: bool, **named: object) -> None:
    from kernel_workbench.suites.interpreter.gluon.machine import GluonMachine  # noqa: PLC0415  (imports Gluon)

    del warmup
    passed = {name: value for name, value in named.items() if name not in _OPTIONS}
    bound = inspect.signature(kernel.fn).bind(*arguments, **passed)
    bound.apply_defaults()
    programs = grid(bound.arguments) if callable(grid) else grid
    GluonMachine(late=_is_late(kernel)).launch(kernel, tuple(programs), bound.arguments)


def _is_late(kernel: object) -> bool:
    """Return True for every other launch of a kernel: it does asynchronous work late."""
    _launches[id(kernel)] += 1
    return _launches[id(kernel)] % 2 == 1
