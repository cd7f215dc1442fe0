"""What a candidate is asked for, and what a call of it leaves: the same wherever it is called.

`judge_side.workers.Workers` calls it in a process apart, `worker_side.in_process.InProcess` in this
one, and both are asked alike: `refusal`, `declared`, `call`.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import ConfigDict
from torch import Tensor

from kernel_workbench.kernels.registry import Kernel
from kernel_workbench.oracles.declared import wrong_strings
from kernel_workbench.oracles.op import Case
from kernel_workbench.reports.record import Rule

Fill = Literal["nan", "sentinel"]
"""What fresh memory holds during a call."""
Stub = Literal["silent", "raising", "scrambled", "handed"]
"""What becomes of Triton launches: nothing, an error, or work on other numbers.

"handed": they are scrambled, and outputs are replaced by what launches were handed.
"""
Then = Literal["call", "replay"]
"""What follows a call in the same memory, on other values: another call, or a CUDA graph's replay.

The graph is captured after the first call, so that nothing is compiled or tuned in it.
"""
SENTINEL = -12345.0  # rounded to the dtype; far from any value of the cases


# After an error of these words the CUDA context is dead, and every later call in its process fails.
_FATAL = (
    "illegal memory access",
    "unspecified launch failure",
    "device-side assert",
    "misaligned address",
    "illegal instruction",
)


def is_fatal(message: str) -> bool:
    """Return whether the CUDA context of a process is dead after an error with this message."""
    return any(words in message for words in _FATAL)


def held(value: float, dtype: torch.dtype) -> float:
    """What memory of the dtype holds that is filled with it; fp8 ends before the sentinel.

    Whole numbers have neither: the smallest stands for NaN, the largest for the sentinel.
    """
    if dtype == torch.bool:
        return math.isnan(value)
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        return info.min if math.isnan(value) else info.max
    return value if math.isnan(value) else max(value, torch.finfo(dtype).min)


@dataclass(frozen=True, slots=True)
class Call:
    """What one call left: its outputs by name, or the rule it broke and a sentence about it.

    fatal: the device can't be used again in the kernel's process. spent: no other kernel is to be
    called in this process, of which something can't be set back. workspace_bytes: the most memory
    that it took at one time beyond inputs and outputs, kept_bytes: what it left allocated beside
    outputs, None where that isn't known. launches, operations: how many Triton kernels it
    launched, and how many of PyTorch's operations it called, None where nobody counts.
    configurations: the most that one of them may be tuned to, 0 where none is autotuned. asked:
    it asked how many SMs there are, where it was to be told another number. printed: the first
    lines that its process printed meanwhile. undefined: its loads with undefined lanes, which a
    mask switched off, or which break a promise, as sentences name them.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    outputs: dict[str, Tensor]
    seconds: float
    rule: str | None = None
    reason: str | None = None
    fatal: bool = False
    spent: bool = False
    workspace_bytes: int | None = None
    kept_bytes: int | None = None
    launches: int | None = None
    operations: int | None = None
    configurations: int = 0
    asked: bool = False
    printed: tuple[str, ...] = ()
    undefined: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class How:
    """What is special about a call; by default nothing.

    stub           what becomes of its Triton launches
    configuration  which of an autotuned kernel's configurations it takes
    busy           another stream of the GPU is kept busy meanwhile
    multiprocessors    how many SMs it is told that the device has
    zeros          lanes that a load leaves undefined read 0, under the strict interpreter too
    then           what follows on other values at the same addresses, and is what is judged
    """

    stub: Stub | None = None
    configuration: int | None = None
    busy: bool = False
    multiprocessors: int | None = None
    zeros: bool = False
    then: Then | None = None


PLAIN = How()
NOT_CAPTURED = "not captured"  # no rule of a row: the call can't be made part of a CUDA graph
NOT_INTERPRETED = "not interpreted"  # no rule of a row: the call says that it can't be made here


@dataclass(frozen=True, slots=True)
class Declared:
    """What a kernel says of a case before it runs; problem: a sentence where saying it failed.

    rule: the rule that the problem breaks.

    configurations: those that it could take beside its own choice, `variant`. refusal: why its
    domain doesn't hold the case; nothing else is said then.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    variant: str | None = None
    workspace_bytes: int | None = None
    configurations: tuple[str, ...] = ()
    problem: str | None = None
    rule: Rule = "raised"
    refusal: str | None = None


def printed_by(calls: Iterable[Call]) -> tuple[str, ...]:
    """What a kernel printed in the call that failed, else in the first in which it did."""
    ordered = sorted(calls, key=lambda each: each.rule is None)
    return next((each.printed for each in ordered if each.printed), ())


def declared(kernel: Kernel, case: Case, sm: int) -> Declared:
    """What `kernel` says of `case`: the variant, the bytes that it may take, configurations.

    Of a user's kernel to be asked in the worker alone.
    """
    try:
        variant = None if kernel.variant is None else kernel.variant(case, sm)
        workspace = None if kernel.workspace is None else kernel.workspace(case)
        others = () if kernel.configurations is None else kernel.configurations(case, sm)
    except Exception as error:  # noqa: BLE001  (a user's function, whatever it raises)
        told = told_of(error, kernel).removeprefix("it ")
        return Declared(problem=f"its variant, workspace or configurations {told}")
    for name, value, kind in (("variant", variant, str), ("workspace", workspace, int)):
        if value is not None and not isinstance(value, kind):
            got = type(value).__name__
            return Declared(problem=f"its {name} must be of type {kind.__name__}, got {got}")
    problem = wrong_strings("configurations", others)
    if problem is not None:
        return Declared(problem=f"its {problem}")
    return Declared(variant, workspace, tuple(each for each in others if each != variant))


def told_of(error: BaseException, kernel: Kernel) -> str:
    """The error in one line, with the last line of the kernel's own file that it passed through."""
    # What judges tensors alone reads this module, and does without triton.
    from triton.runtime.errors import InterpreterError  # noqa: PLC0415

    while isinstance(error, InterpreterError) and error.__cause__ is not None:
        error = error.__cause__  # what a line of a jit function raised; the rest repeats it
    text = " ".join(str(error).split())
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == kernel.path
    ]
    where = f" at line {frames[-1].lineno} of {kernel.path}" if frames else ""
    return (
        f"it raised {type(error).__name__}{where}: {text[:500]}"
        if text
        else (f"it raised {type(error).__name__}{where}")
    )
