"""The one place where a candidate is called, and the evidence that a call leaves behind.

Nothing else in the suite touches a candidate: what goes in was made for this one call, what comes
out is checked for form and handed over with what the call did to its inputs, and to memory.
"""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from triton.runtime.errors import InterpreterError

from kernels.registry import Kernel
from oracles.op import Case, dtype_name
from suites.accuracy import process_state, strict, watching
from suites.accuracy.allocations import Memory, fresh_memory
from suites.accuracy.originals import Given
from suites.accuracy.strict import undefined

# After one of these the CUDA context is dead and so is every later call in this process.
_FATAL = (
    "illegal memory access",
    "unspecified launch failure",
    "device-side assert",
    "misaligned address",
    "illegal instruction",
)


@dataclass(frozen=True, slots=True)
class Call:
    """What one call left: its outputs by name, or the rule it broke and a sentence about it.

    fatal: the device can't be used again in this process. spent: no other kernel is to be called
    in this process, of which something can't be set back. workspace_bytes: the most memory that
    it took at one time beyond inputs and outputs, kept_bytes: what it left allocated beside
    outputs, None where that isn't known. launches, operations: how many Triton kernels it
    launched, and how many of PyTorch's operations it called, None where nobody counts.
    configurations: the most that one of them may be tuned to, 0 where none is autotuned. asked:
    it asked how many SMs there are, where it was to be told another number. printed: the first
    lines that its process printed meanwhile. undefined: its loads without `other` whose masks
    switched lanes off, as sentences name them.
    """

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


@dataclass(frozen=True, slots=True)
class How:
    """What is special about a call; by default nothing.

    stub           what becomes of its Triton launches
    configuration  which of an autotuned kernel's configurations it takes
    busy           another stream of the GPU is kept busy meanwhile
    multiprocessors    how many SMs it is told that the device has
    zeros          lanes that a load leaves undefined read 0, under the strict interpreter too
    """

    stub: watching.Stub | None = None
    configuration: int | None = None
    busy: bool = False
    multiprocessors: int | None = None
    zeros: bool = False


PLAIN = How()


@dataclass(frozen=True, slots=True)
class Declared:
    """What a kernel says of a case before it runs; problem: a sentence where saying it failed."""

    variant: str | None = None
    workspace_bytes: int | None = None
    problem: str | None = None


def printed_by(calls: Iterable[Call]) -> tuple[str, ...]:
    """What a kernel printed in the call that failed, else in the first in which it did."""
    ordered = sorted(calls, key=lambda each: each.rule is None)
    return next((each.printed for each in ordered if each.printed), ())


def ask_candidate(kernel: Kernel, case: Case, sm: int) -> Declared:
    """The variant that `kernel` takes for `case` and the bytes that it may take, if it says so."""
    try:
        with process_state.kept(kernel.path, process_state.Changes()):
            variant = None if kernel.variant is None else kernel.variant(case, sm)
            workspace = None if kernel.workspace is None else kernel.workspace(case)
    except Exception as error:  # noqa: BLE001  (a user's function, whatever it raises)
        told = told_of(error, kernel).removeprefix("it ")
        return Declared(problem=f"its variant or workspace {told}")
    for name, value, kind in (("variant", variant, str), ("workspace", workspace, int)):
        if value is not None and not isinstance(value, kind):
            got = type(value).__name__
            return Declared(problem=f"its {name} must be of type {kind.__name__}, got {got}")
    return Declared(variant, workspace)


def call_candidate(
    kernel: Kernel, case: Case, given: Given, *, fill: float, how: How = PLAIN
) -> Call:
    """Call `kernel` on inputs of `case` made for this call, its fresh memory filled with `fill`."""
    changes = process_state.Changes()
    with process_state.freed(changes):
        call = _call(kernel, case, given, fill, how, changes)
    if call.rule is None and changes.broken is not None and kernel.origin != "baseline":
        call = Call({}, call.seconds, "changed process state", changes.broken)
    # A launch that was cut off leaves what the kernel keeps, a semaphore say, as no launch would.
    return replace(call, spent=changes.spent or call.rule == "illegal access")


def _call(
    kernel: Kernel,
    case: Case,
    given: Given,
    fill: float,
    how: How,
    changes: process_state.Changes,
) -> Call:
    arguments, device = given.arguments, given.device
    started = time.perf_counter()
    try:
        # A candidate may warn: that is no failure, as it would be where warnings are errors.
        with (
            strict.watched(arguments.values(), same_stores=kernel.same_stores) as violation,
            undefined.noted(zeros=how.zeros) as loads,
            watching.seen(how.stub, how.configuration) as seen,
            watching.libraries_refused(kernel, device),
            fresh_memory(fill, device) as memory,
            warnings.catch_warnings(action="default"),
            process_state.kept(kernel.path, changes),
        ):
            returned = kernel.function(**arguments)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  (sys.exit and pytest.skip are no way to pass)
        seconds = time.perf_counter() - started
        if violation() is not None:
            return Call({}, seconds, "illegal access", violation())
        rule, reason = _library_call(kernel, seen) or ("raised", told_of(error, kernel))
        return Call({}, seconds, rule, reason, is_fatal(error))
    seconds = time.perf_counter() - started
    if violation() is not None:  # a candidate may have caught the error
        return Call({}, seconds, "illegal access", violation())
    broken = _conduct(kernel, seen, changes)
    if broken is not None:
        return Call({}, seconds, *broken)
    problem, outputs = _form(kernel, case, given, returned)
    if problem is not None:
        return Call({}, seconds, "wrong outputs", problem)
    changed = given.changed()
    if changed is not None:
        where = "around" if changed in kernel.op.updates else "or around"
        reason = f"it wrote to memory {where} input {changed}"
        return Call(outputs, seconds, "changed input", reason)
    taken = _workspace(kernel, case, given, memory)
    del returned
    return Call(
        outputs,
        seconds,
        workspace_bytes=taken,
        kept_bytes=memory.kept_bytes(outputs.values()),
        launches=seen.launches,
        operations=seen.operations,
        configurations=seen.configurations,
        undefined=loads(),
    )


def _conduct(
    kernel: Kernel, seen: watching.Seen, changes: process_state.Changes
) -> tuple[str, str] | None:
    """The rule, and a sentence, where a kernel isn't what it says; a peer may be a library."""
    if kernel.origin == "baseline":
        return None
    if seen.left:
        names = ", ".join(sorted(seen.left))
        return "left running", f"it left a thread running when it returned: {names}"
    library = _library_call(kernel, seen)
    if library is None and changes.broken is not None:
        return "changed process state", changes.broken
    return library


def _library_call(kernel: Kernel, seen: watching.Seen) -> tuple[str, str] | None:
    library = seen.library | watching.symbols_looked_up(kernel)
    if watching.may_be_a_library(kernel) or not library:
        return None
    called = ", ".join(sorted(library))
    return "library call", (
        f"it calls {called}, which computes the op; a kernel that is a way of calling a "
        "library says so with wraps='its name'"
    )


def _workspace(kernel: Kernel, case: Case, given: Given, memory: Memory) -> int | None:
    """Bytes that the call took at its peak beyond its inputs and the outputs that it made.

    None where less was counted than it made: it kept its outputs' memory from before, or nobody
    counts (as with PYTORCH_NO_CUDA_MEMORY_CACHING).
    """
    made = sum(
        form.nbytes for name, form in kernel.op.forms(case).items() if name not in given.updates
    )
    peak = memory.peak_bytes
    return None if peak is None or peak < made else peak - made


def is_fatal(error: BaseException) -> bool:
    """Whether the CUDA context is dead after it."""
    return any(each in str(error) for each in _FATAL)


def told_of(error: BaseException, kernel: Kernel) -> str:
    """The error in one line, with the last line of the kernel's own file that it passed through."""
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


def _form(
    kernel: Kernel, case: Case, given: Given, returned: object
) -> tuple[str | None, dict[str, Tensor]]:
    """What is wrong with the form of what was returned, in a sentence; and the outputs by name."""
    names, forms = kernel.op.outputs, kernel.op.forms(case)
    returned = kernel.op.as_tuple(returned)
    if not isinstance(returned, tuple | list):
        kind = type(returned).__name__
        return f"it returned a {kind}, not a tuple of {', '.join(names)}", {}
    if len(returned) != len(names):
        return f"it returned {len(returned)} outputs, not {len(names)}: {', '.join(names)}", {}
    device = given.device
    outputs: dict[str, Tensor] = {}
    for name, value in zip(names, returned, strict=True):
        if name not in forms:
            if value is not None:
                return f"{name} must be None for this case, got a {type(value).__name__}", {}
            continue
        if type(value) is not Tensor:
            return f"{name} must be a torch.Tensor, got a {type(value).__name__}", {}
        if value.layout != torch.strided or value.is_conj() or value.is_neg():
            return f"{name} must be a plain strided tensor, got a lazy or sparse one", {}
        form = forms[name]
        if tuple(value.shape) != form.shape:
            return f"{name} must have shape {form.shape}, got {tuple(value.shape)}", {}
        if value.dtype != form.dtype:
            return f"{name} must be {dtype_name(form.dtype)}, got {dtype_name(value.dtype)}", {}
        if value.device != device:
            return f"{name} must be on {device}, got {value.device}", {}
        if name in given.updates and value.data_ptr() != given.updates[name][0].data_ptr():
            return f"{name} must be the tensor that was passed in, added to in place", {}
        # A clone: a candidate may keep its tensor, and write to it again at the next call.
        outputs[name] = value.detach().clone()
    return None, outputs
