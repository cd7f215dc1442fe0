"""The one place where a candidate is called, and the evidence that a call leaves behind.

Nothing else in the suite touches a candidate: what goes in is made here and nowhere kept, what
comes out is checked for form and handed over with what the call did to its inputs.
"""

from __future__ import annotations

import time
import traceback
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.registry import Kernel
from oracles.inputs import LARGEST_POISONED_BUFFER
from oracles.op import Case, Inputs, dtype_name
from suites.accuracy import strict
from suites.accuracy.allocations import fresh_memory

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

    fatal: the device can't be used again in this process.
    """

    outputs: dict[str, Tensor]
    seconds: float
    rule: str | None = None
    reason: str | None = None
    fatal: bool = False


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """An input's buffer before the call: all of it, or the view alone where it is gigabytes."""

    name: str
    tensor: Tensor
    before: Tensor
    whole: bool

    @classmethod
    def take(cls, name: str, tensor: Tensor) -> _Snapshot:
        whole = tensor.untyped_storage().nbytes() <= LARGEST_POISONED_BUFFER
        return cls(name, tensor, _bits(tensor, whole=whole).clone(), whole)

    def changed(self, *, updated: bool, original: Tensor) -> bool:
        """Whether anything but the view of an argument that is to be updated has changed."""
        if updated:
            now = self.tensor.clone()
            self.tensor.copy_(original)
            same = torch.equal(_bits(self.tensor, whole=self.whole), self.before)
            self.tensor.copy_(now)
            return not same
        return not torch.equal(_bits(self.tensor, whole=self.whole), self.before)


def _bits(tensor: Tensor, *, whole: bool) -> Tensor:
    if not whole:
        return tensor.contiguous().view(torch.uint8)
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def call_candidate(kernel: Kernel, case: Case, device: torch.device, *, fill: float) -> Call:
    """Call `kernel` on fresh inputs of `case`, its fresh memory filled with `fill`."""
    arguments = kernel.op.inputs(case, device)
    tensors = {name: value for name, value in arguments.items() if isinstance(value, Tensor)}
    snapshots = [_Snapshot.take(name, value) for name, value in tensors.items()]
    originals = {name: tensors[name].clone() for name in kernel.op.updates if name in tensors}
    started = time.perf_counter()
    try:
        # A candidate may warn: that is no failure, as it would be where warnings are errors.
        with (
            strict.watched() as violation,
            fresh_memory(fill),
            warnings.catch_warnings(action="default"),
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
        fatal = any(each in str(error) for each in _FATAL)
        return Call({}, seconds, "raised", _describe(error, kernel), fatal)
    seconds = time.perf_counter() - started
    if violation() is not None:  # a candidate may have caught the error
        return Call({}, seconds, "illegal access", violation())
    problem, outputs = _form(kernel, case, arguments, returned)
    if problem is not None:
        return Call({}, seconds, "wrong outputs", problem)
    for snapshot in snapshots:
        name = snapshot.name
        updated = name in kernel.op.updates
        if snapshot.changed(updated=updated, original=originals.get(name, snapshot.tensor)):
            where = "around" if updated else "or around"
            return Call(
                outputs, seconds, "changed input", f"it wrote to memory {where} input {name}"
            )
    return Call(outputs, seconds)


def _describe(error: BaseException, kernel: Kernel) -> str:
    """The error in one line, with the last line of the kernel's own file that it passed through."""
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
    kernel: Kernel, case: Case, arguments: Inputs, returned: object
) -> tuple[str | None, dict[str, Tensor]]:
    """What is wrong with the form of what was returned, in a sentence; and the outputs by name."""
    names, forms = kernel.op.outputs, kernel.op.forms(case)
    if not isinstance(returned, tuple | list):
        kind = type(returned).__name__
        return f"it returned a {kind}, not a tuple of {', '.join(names)}", {}
    if len(returned) != len(names):
        return f"it returned {len(returned)} outputs, not {len(names)}: {', '.join(names)}", {}
    device = next(each.device for each in arguments.values() if isinstance(each, Tensor))
    outputs: dict[str, Tensor] = {}
    for name, value in zip(names, returned, strict=True):
        if name not in forms:
            if value is not None:
                return f"{name} must be None for this case, got a {type(value).__name__}", {}
            continue
        if type(value) is not Tensor:
            return f"{name} must be a torch.Tensor, got a {type(value).__name__}", {}
        form = forms[name]
        if tuple(value.shape) != form.shape:
            return f"{name} must have shape {form.shape}, got {tuple(value.shape)}", {}
        if value.dtype != form.dtype:
            return f"{name} must be {dtype_name(form.dtype)}, got {dtype_name(value.dtype)}", {}
        if value.device != device:
            return f"{name} must be on {device}, got {value.device}", {}
        existing = arguments.get(name)
        if isinstance(existing, Tensor) and value.data_ptr() != existing.data_ptr():
            return f"{name} must be the tensor that was passed in, added to in place", {}
        # A clone: a candidate may keep its tensor, and write to it again at the next call.
        outputs[name] = value.detach().clone()
    return None, outputs
