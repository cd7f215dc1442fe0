"""A call of a candidate: its settings, and the result that it leaves.

`judge_side.workers.Workers` makes calls in another process, `worker_side.in_process.InProcess`
makes them in this one. Both have the same methods: `refusal`, `declared`, `call`.
"""

from __future__ import annotations

import math
import re
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import ConfigDict
from torch import Tensor

from kernel_workbench.kernels.causes import with_cause
from kernel_workbench.kernels.registry import Kernel
from kernel_workbench.oracles.declared import wrong_strings
from kernel_workbench.oracles.op import Case
from kernel_workbench.reports.record import Rule

Fill = Literal["nan", "sentinel"]
"""The value that fresh memory contains during a call."""
Stub = Literal["silent", "raising", "scrambled", "handed"]
"""How Triton launches are replaced: by nothing, by an error, or by work on other numbers.

"handed": launches work on other numbers, and the tensors that they received replace the outputs.
"""
Then = Literal["call", "replay"]
"""The step after a call in the same memory, on other values: another call, or a graph's replay.

The graph is captured after the first call, so that nothing is compiled or tuned in it.
"""
SENTINEL = -12345.0  # rounded to the dtype; far from any value of the cases


def stored(value: float, dtype: torch.dtype) -> float:
    """Return a fill value as the dtype stores it: fp8 cannot store the sentinel.

    Args:
        value: NaN or a number.
        dtype: any dtype. A whole number's smallest stands for NaN, its largest for the sentinel.

    Returns:
        The value, or the lowest number of the dtype where the value is lower.

    >>> stored(float("nan"), torch.uint8), stored(SENTINEL, torch.uint8)
    (0, 255)
    """
    if dtype == torch.bool:
        return math.isnan(value)
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        return info.min if math.isnan(value) else info.max
    return value if math.isnan(value) else max(value, torch.finfo(dtype).min)


@dataclass(frozen=True, slots=True)
class Call:
    """The result of one call: outputs by name, or the broken rule and a sentence about it.

    outputs          the output tensors by name, empty if a rule is broken
    seconds          the duration of the call
    rule, reason     the broken rule and a sentence, or None
    fatal            the process can't use the device any more
    spent            the process must not call another kernel, because some state can't be restored
    workspace_bytes  peak memory beyond inputs and outputs; None: not measured
    kept_bytes       memory still allocated beside the outputs; None: not measured
    launches         number of Triton launches, of a replay all kernels; None: not counted
    operations       number of PyTorch operations; None: not counted
    configurations   the largest number of configurations of one autotuned kernel, or 0
    read_sms         the kernel read the number of SMs, which `How.multiprocessors` had replaced
    printed          the first lines that the process printed during the call
    undefined        sentences that name loads with undefined lanes
    replaced         names of outputs that the stub "handed" replaced
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
    read_sms: bool = False
    printed: tuple[str, ...] = ()
    undefined: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class How:
    """Special conditions of a call; the default has none.

    stub             how Triton launches are replaced
    configuration    index of the configuration of an autotuned kernel
    busy             keep another stream of the GPU busy during the call
    multiprocessors  number of SMs that the kernel reads instead of the device's
    zeros            lanes that a load leaves undefined read 0, also under the strict interpreter
    then             what follows on other values at the same addresses, and is what is judged
    """

    stub: Stub | None = None
    configuration: int | None = None
    busy: bool = False
    multiprocessors: int | None = None
    zeros: bool = False
    then: Then | None = None


PLAIN = How()
NOT_CAPTURED = "not captured"  # the call can't be part of a CUDA graph; no row has this rule
NOT_INTERPRETED = "not interpreted"  # this call can't be made here; no row has this rule


@dataclass(frozen=True, slots=True)
class Declared:
    """A kernel's declarations about a case, before a call.

    variant          the name of the variant that the kernel chooses
    workspace_bytes  the most bytes that a call may allocate
    configurations   the other configurations that the kernel could choose
    problem          a sentence if a declaration failed, and `rule`: the rule that this breaks
    refusal          the sentence by which the kernel's domain rejects the case; then no other field
                     is set
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    variant: str | None = None
    workspace_bytes: int | None = None
    configurations: tuple[str, ...] = ()
    problem: str | None = None
    rule: Rule = "raised"
    refusal: str | None = None


def printed_by(calls: Iterable[Call]) -> tuple[str, ...]:
    """Return the lines printed by the failed call, else by the first call that printed."""
    ordered = sorted(calls, key=lambda call: call.rule is None)
    return next((call.printed for call in ordered if call.printed), ())


def declared(kernel: Kernel, case: Case, sm: int) -> Declared:
    """Return the variant, the workspace and the configurations that `kernel` declares for `case`.

    This calls functions of the kernel: call it for a user's kernel in a worker only.

    Args:
        kernel: a kernel whose domain contains the case.
        case: the case.
        sm: the GPU generation, for example 90.
    """
    try:
        variant = None if kernel.variant is None else kernel.variant(case, sm)
        workspace = None if kernel.workspace is None else kernel.workspace(case)
        configurations = () if kernel.configurations is None else kernel.configurations(case, sm)
    except Exception as error:  # noqa: BLE001  (a user's function, whatever it raises)
        message = told_of(error, kernel).removeprefix("it ")
        return Declared(problem=f"its variant, workspace or configurations {message}")
    for name, value, kind in (("variant", variant, str), ("workspace", workspace, int)):
        if value is not None and not isinstance(value, kind):
            got = type(value).__name__
            return Declared(problem=f"its {name} must be of type {kind.__name__}, got {got}")
    problem = wrong_strings("configurations", configurations)
    if problem is not None:
        return Declared(problem=f"its {problem}")
    return Declared(
        variant, workspace, tuple(choice for choice in configurations if choice != variant)
    )


# torch ends each CUDA error with this advice.
_ADVICE = re.compile(r" (?:Search for `cuda|CUDA kernel errors might be|For debugging consider).*")


def told_of(error: BaseException, kernel: Kernel) -> str:
    """Return an error in one line, with the last line of the kernel's file in its traceback.

    The cause follows where it is known (`kernels.causes`).
    """
    # `kernel_workbench.testing` reads this module, and does without triton.
    from triton.runtime.errors import InterpreterError  # noqa: PLC0415

    while isinstance(error, InterpreterError) and error.__cause__ is not None:
        error = error.__cause__  # the error of a line in a jit function; the outer errors repeat it
    text = _ADVICE.sub("", " ".join(str(error).split()))
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == kernel.path
    ]
    where = f" at line {frames[-1].lineno} of {kernel.path}" if frames else ""
    sentence = f"it raised {type(error).__name__}{where}"
    return with_cause(f"{sentence}: {text[:500]}" if text else sentence, str(error))
