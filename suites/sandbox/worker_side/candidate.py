"""Call a candidate, and collect the evidence that the call leaves.

Only this module calls candidates. The inputs are made for one call. The form of the outputs is
checked, and they are returned with the call's changes to its inputs and to memory.
"""

from __future__ import annotations

import importlib
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch import Tensor

from kernel_workbench.kernels.causes import is_fatal
from kernel_workbench.kernels.registry import Kernel
from kernel_workbench.oracles.op import Case, dtype_name
from kernel_workbench.suites.interpreter import strict
from kernel_workbench.suites.interpreter.operations import NotInterpretedError
from kernel_workbench.suites.interpreter.strict import masked_lanes
from kernel_workbench.suites.sandbox.call import (
    NOT_CAPTURED,
    NOT_INTERPRETED,
    PLAIN,
    SENTINEL,
    Call,
    Fill,
    How,
    told_of,
)
from kernel_workbench.suites.sandbox.graph_nodes import kernel_nodes
from kernel_workbench.suites.sandbox.parcels import Unpacked
from kernel_workbench.suites.sandbox.worker_side import process_state, watch
from kernel_workbench.suites.sandbox.worker_side.allocations import CallMemory, fresh_memory
from kernel_workbench.suites.sandbox.worker_side.handed_tensors import HandedTensors

if TYPE_CHECKING:
    from kernel_workbench.kernels.device import ReportedCount

# Bound before a candidate is imported, which may replace the originals.
_now: Callable[[], float] = time.perf_counter
_synchronize: Callable[[torch.device], None] = torch.cuda.synchronize
_clone: Callable[[Tensor], Tensor] = Tensor.clone
_detach: Callable[[Tensor], Tensor] = Tensor.detach

_BUSY_EXTENT = 4096
_BUSY_PRODUCTS = 10  # about 2 ms of an H200: longer than most calls
_UNUSED_CONFIGURATIONS = (
    "it lists configurations and never asks kernel_workbench.configuration() "
    "which one to use, so its own choice ran"
)
_STRAYED = frozenset(
    {"illegal access", "wrote out of bounds"}
)  # it touched memory of unknown owners
_VALUES = {"nan": math.nan, "sentinel": SENTINEL}
# A run makes more graphs of a function than a model does. Beyond its limits, 8 and 256 graphs,
# torch runs the function uncompiled, or raises where the whole function must be one graph.
_MOST_GRAPHS = 2**20
_LIMITS_OF_GRAPHS = ("recompile_limit", "accumulated_recompile_limit")


def call_candidate(
    kernel: Kernel, case: Case, unpacked: Unpacked, fill: Fill = "nan", how: How = PLAIN
) -> Call:
    """Call the kernel on inputs that were made for this call.

    Args:
        kernel: the kernel.
        case: the case of the inputs.
        unpacked: the inputs.
        fill: the value that fresh memory contains.
        how: special conditions.

    Returns:
        The call, with clones of the outputs.
    """
    if how.busy and unpacked.device.type == "cuda":
        keep_busy(unpacked.device)
    if how.multiprocessors is not None:
        with replaced_multiprocessors(how.multiprocessors) as answer:
            call = call_candidate(kernel, case, unpacked, fill, replace(how, multiprocessors=None))
        return replace(call, read_sms=answer.asked)
    if kernel.configuration is not None:
        # Imported now and by name, as in `replaced_multiprocessors`.
        configurations = importlib.import_module("kernel_workbench.kernels.configurations")
        with configurations.held_to(kernel.configuration) as choice:
            call = call_candidate(replace(kernel, configuration=None), case, unpacked, fill, how)
        if call.rule is None and not choice.asked:
            return Call({}, call.seconds, "raised", _UNUSED_CONFIGURATIONS)
        return call
    changes = process_state.StateChanges()
    with process_state.freed(changes):
        call = _call(kernel, case, unpacked, _VALUES[fill], how, changes)
    if call.rule is None and changes.broken is not None and kernel.origin != "baseline":
        call = Call({}, call.seconds, "changed process state", changes.broken)
    # An interrupted launch may leave a kernel's own memory, such as a semaphore, inconsistent.
    return replace(call, spent=changes.spent or call.rule in _STRAYED)


def call_again(
    kernel: Kernel, case: Case, given: Unpacked, other: Unpacked, fill: Fill = "nan"
) -> Call:
    """Call the kernel once more, with other values where the earlier call's inputs lie."""
    given.take_values(other)
    return call_candidate(kernel, case, given, fill)


# The kernel's result, a function that computes it again, and the number of its kernels.
Captured = tuple[object, Callable[[], None], int]


def replay_candidate(
    kernel: Kernel,
    case: Case,
    given: Unpacked,
    other: Unpacked,
    capture: Callable[[Callable[[], object], torch.device], Captured] | None = None,
) -> Call:
    """Capture a call that was made before, change the values of its inputs, and replay it.

    A call that can't be captured has the rule `NOT_CAPTURED`. Tests replace `capture`.
    """
    started = _now()
    changes = process_state.StateChanges()
    try:
        with (
            process_state.freed(changes),
            process_state.kept(kernel.path, changes),
            warnings.catch_warnings(action="default"),
        ):
            call = partial(kernel.function, **given.arguments)
            captured = (capture or _captured)(call, given.device)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  (whatever a capture makes of a kernel)
        reason = f"{NOT_CAPTURED}: {told_of(error, kernel)}"
        return Call({}, _now() - started, NOT_CAPTURED, reason, is_fatal(str(error)), spent=True)
    returned, replay, kernels = captured
    given.take_values(other)
    try:
        replay()
    except RuntimeError as error:
        return Call({}, _now() - started, "raised", told_of(error, kernel), is_fatal(str(error)))
    problem, outputs = _form(kernel, case, given, returned)
    seconds = _now() - started
    if problem is not None:
        return Call({}, seconds, "wrong outputs", problem)
    return Call(outputs, seconds, spent=changes.spent, launches=kernels)


def _captured(call: Callable[[], object], device: torch.device) -> Captured:
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    _synchronize(device)
    with torch.cuda.graph(graph):
        returned = call()

    def replay() -> None:
        graph.replay()
        _synchronize(device)

    return returned, replay, kernel_nodes(graph.raw_cuda_graph())


def _call(
    kernel: Kernel,
    case: Case,
    unpacked: Unpacked,
    fill: float,
    how: How,
    changes: process_state.StateChanges,
) -> Call:
    arguments, device = unpacked.arguments, unpacked.device
    forms = kernel.op.forms(case).values()
    sizes = ((form.nbytes // form.dtype.itemsize, form.nbytes) for form in forms)
    handed = HandedTensors.of(sizes) if how.stub == "handed" else None
    started = _now()
    try:
        _lift_limits_of_graphs()
        # Show a candidate's warnings, even where pytest turns warnings into errors.
        with (
            strict.watched(arguments.values(), same_stores=kernel.same_stores) as violation,
            masked_lanes.noted(zeros=how.zeros) as loads,
            watch.seen(how.stub, how.configuration, handed) as seen,
            watch.libraries_refused(kernel, device),
            fresh_memory(fill, device) as memory,
            warnings.catch_warnings(action="default"),
            process_state.kept(kernel.path, changes),
        ):
            returned = kernel.function(**arguments)
        if device.type == "cuda":
            _synchronize(device)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  (sys.exit and pytest.skip are no way to pass)
        seconds = _now() - started
        if violation() is not None:
            return Call({}, seconds, "illegal access", violation())
        broken = _library_call(kernel, seen) or _not_interpreted(error)
        rule, reason = broken or ("raised", told_of(error, kernel))
        return Call({}, seconds, rule, reason, is_fatal(str(error)))
    seconds = _now() - started
    if violation() is not None:  # a candidate may have caught the error
        return Call({}, seconds, "illegal access", violation())
    broken = _conduct(kernel, seen, changes)
    if broken is not None:
        return Call({}, seconds, *broken)
    overrun = memory.guards.broken()
    if overrun is not None:
        return Call({}, seconds, "wrote out of bounds", overrun)
    problem, outputs = _form(kernel, case, unpacked, returned)
    problem = problem or _overwritten(kernel, unpacked, returned)
    if problem is not None:
        return Call({}, seconds, "wrong outputs", problem)
    replaced: dict[str, Tensor] = {}
    if handed is not None:
        parts: Any = kernel.op.as_tuple(returned)
        named = dict(zip(kernel.op.outputs, parts, strict=True))
        homes = {name: named[name].untyped_storage().data_ptr() for name in outputs}
        inputs = [value for value in arguments.values() if isinstance(value, Tensor)]
        replaced = handed.stand_ins(outputs, homes, inputs)
    unpacked.restore()
    workspace = _workspace(kernel, case, unpacked, memory)
    del returned
    return Call(
        outputs | replaced,
        seconds,
        workspace_bytes=workspace,
        kept_bytes=memory.kept_bytes(outputs.values()),
        launches=seen.launches,
        operations=seen.operations,
        configurations=seen.configurations,
        undefined=loads(),
        replaced=tuple(replaced),
    )


def _lift_limits_of_graphs() -> None:
    """Let torch.compile make a graph for every case; do nothing until torch's compiler is there."""
    config = sys.modules.get("torch._dynamo.config")
    for name in _LIMITS_OF_GRAPHS if config is not None else ():
        if getattr(config, name) < _MOST_GRAPHS:
            setattr(config, name, _MOST_GRAPHS)


def _not_interpreted(error: BaseException) -> tuple[str, str] | None:
    """Return a rule and a sentence if the interpreter doesn't support the code, else None."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, NotInterpretedError):
            return NOT_INTERPRETED, " ".join(str(cause).split())
        cause = cause.__cause__
    return None


def _conduct(
    kernel: Kernel, seen: watch.Seen, changes: process_state.StateChanges
) -> tuple[str, str] | None:
    """Return the rule that the kernel's conduct breaks and a sentence, or None.

    A peer may call a library.
    """
    if kernel.origin == "baseline":
        return None
    if seen.left:
        names = ", ".join(sorted(seen.left))
        return "left running", f"it left a thread running when it returned: {names}"
    library = _library_call(kernel, seen)
    if library is None and changes.broken is not None:
        return "changed process state", changes.broken
    return library


def _library_call(kernel: Kernel, seen: watch.Seen) -> tuple[str, str] | None:
    library = seen.library | watch.symbols_looked_up(kernel)
    if watch.may_be_a_library(kernel) or not library:
        return None
    called = ", ".join(sorted(library))
    return "library call", (
        f"it calls {called}, which computes the op; a kernel that is a way of calling a "
        "library says so with wraps='its name'"
    )


def _workspace(kernel: Kernel, case: Case, unpacked: Unpacked, memory: CallMemory) -> int | None:
    """Return the peak bytes of the call beyond its inputs and new outputs.

    None: fewer bytes were counted than the outputs take. Then the call reused memory of earlier
    outputs, or nothing is counted (as with PYTORCH_NO_CUDA_MEMORY_CACHING).
    """
    output_bytes = sum(
        form.nbytes for name, form in kernel.op.forms(case).items() if name not in unpacked.updates
    )
    peak = memory.peak_bytes
    return None if peak is None or peak < output_bytes else peak - output_bytes


def _form(
    kernel: Kernel, case: Case, unpacked: Unpacked, returned: object
) -> tuple[str | None, dict[str, Tensor]]:
    """Return the outputs by name, and a sentence if the form of the returned value is wrong."""
    names, forms = kernel.op.outputs, kernel.op.forms(case)
    returned = kernel.op.as_tuple(returned)
    if not isinstance(returned, tuple | list):
        kind = type(returned).__name__
        return f"it returned a {kind}, not a tuple of {', '.join(names)}", {}
    if len(returned) != len(names):
        return f"it returned {len(returned)} outputs, not {len(names)}: {', '.join(names)}", {}
    device = unpacked.device
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
        if name in unpacked.updates and value.data_ptr() != unpacked.updates[name][0].data_ptr():
            return f"{name} must be the tensor that was passed in, changed in place", {}
        # Clone: a candidate may keep its tensor and write to it at the next call.
        outputs[name] = _clone(_detach(value))
    return None, outputs


def _overwritten(kernel: Kernel, unpacked: Unpacked, returned: object) -> str | None:
    """Return a sentence if an output lies where the call before left one, which a user may keep."""
    if not (unpacked.followed or unpacked.earlier):
        return None
    parts: Any = kernel.op.as_tuple(returned)
    arguments = (value for value in unpacked.arguments.values() if isinstance(value, Tensor))
    passed = {value.untyped_storage().data_ptr() for value in arguments}
    homes = {
        name: value
        for name, value in zip(kernel.op.outputs, parts, strict=True)
        if isinstance(value, Tensor) and value.numel()
        if value.untyped_storage().data_ptr() not in passed
    }
    for name, value in homes.items():
        if value.untyped_storage().data_ptr() in unpacked.earlier:
            return f"{name} lies in the memory of an output of the call before, and replaced it"
    if unpacked.followed:
        unpacked.earlier = {value.untyped_storage().data_ptr(): value for value in homes.values()}
    return None


@contextmanager
def replaced_multiprocessors(count: int) -> Iterator[ReportedCount]:
    """Within the context, tell kernels that the device has `count` SMs.

    `kernels.device` and torch both return that number.
    """
    # Imported now and by name: a changed copy of `kernels` may replace the checkout's.
    device = importlib.import_module("kernel_workbench.kernels.device")
    properties = torch.cuda.get_device_properties
    with device.told_multiprocessors(count) as answer:

        def changed(*arguments: object, **named: object) -> _Properties:
            return _Properties(properties(*arguments, **named), answer)  # type: ignore[arg-type]

        with mock.patch.object(torch.cuda, "get_device_properties", changed):
            yield answer


class _Properties:
    """A device's properties, with another number of SMs."""

    def __init__(self, properties: object, answer: ReportedCount) -> None:
        self._properties, self._answer = properties, answer

    def __getattr__(self, name: str) -> object:
        if name != "multi_processor_count":
            return getattr(self._properties, name)
        self._answer.asked = True
        return self._answer.count


@cache
def _busy(device: torch.device) -> tuple[torch.cuda.Stream, Tensor, Tensor]:
    square = torch.ones(_BUSY_EXTENT, _BUSY_EXTENT, dtype=torch.float16, device=device)
    return torch.cuda.Stream(device), square, torch.empty_like(square)


def keep_busy(device: torch.device) -> None:
    """Enqueue some milliseconds of products on another stream, and return at once."""
    stream, square, product = _busy(device)
    with torch.cuda.stream(stream):
        for _ in range(_BUSY_PRODUCTS):
            torch.mm(square, square, out=product)
