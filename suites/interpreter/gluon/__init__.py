"""Gluon kernels for Hopper on a CPU: what is asynchronous is done as late as it may be, or at once.

`mend` gives `GluonJITFunction` a launch of its own. The launches of a kernel take turns: in one, a
copy by TMA is done when somebody waits for its barrier, and what it will write is NaN till then; a
product reads shared memory when it is waited for; a store reads it when its end is waited for;
whoever arrives at a barrier lets the others go first. In the next, all is done where it is asked
for. So a wait that is missing shows, as NaN or as values of another tile, in one of the two: every
row of the accuracy suite calls a kernel more than once. A wait that nothing will end is told of,
and a product that is used before it was waited for.

Accesses outside of an argument's elements, reads of what nothing has written and two programs that
store to one element are illegal, as for kernels in Triton (suites/interpreter/strict). Not
modelled: layouts, registers, fences, what threads of one partition do to one another, programs that
read what others write, integers that overflow. What isn't served (other GPUs' instructions,
assembly) is refused in one sentence.
"""

from __future__ import annotations

import importlib
import inspect
from collections import Counter
from typing import Any

_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
_launches: Counter[int] = Counter()  # of each kernel


def mend() -> None:
    """Let kernels in Gluon run here, for the rest of this process."""
    runtime = importlib.import_module("triton.experimental.gluon._runtime")
    runtime.GluonJITFunction.run = _run


def _run(kernel: Any, *arguments: object, grid: Any, warmup: bool, **named: object) -> None:
    from kernel_workbench.suites.interpreter.gluon.machine import Machine  # noqa: PLC0415  (imports Gluon)

    del warmup
    given = {name: value for name, value in named.items() if name not in _OPTIONS}
    bound = inspect.signature(kernel.fn).bind(*arguments, **given)
    bound.apply_defaults()
    programs = grid(bound.arguments) if callable(grid) else grid
    Machine(late=_is_late(kernel)).launch(kernel, tuple(programs), bound.arguments)


def _is_late(kernel: object) -> bool:
    """Whether this launch of a kernel does asynchronous work late: every other one."""
    _launches[id(kernel)] += 1
    return _launches[id(kernel)] % 2 == 1
