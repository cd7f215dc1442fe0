"""Launch plans: a call like an earlier one goes straight to its compiled kernels' launchers.

At each launch Triton's JIT inspects the arguments (types, values of 1, multiples of 16, layouts of
boxes) to find the compiled kernel. That takes most of a small call's time, and the result is the
same for the same shapes, strides, dtypes, devices and options. So the first call goes through
Triton's own launches and leaves a plan: the compiled kernels, their arguments except addresses, and
the memory to allocate. A later call with the same key allocates, fills in the addresses of its own
tensors and calls the C functions that Triton calls at the end.

A plan skips the following steps:

- our checks of arguments, and the JIT's look-up: what they depend on is in the key, and a call that
  they refuse has no plan. Addresses are in no key: all are multiples of 16, or no plan is used.
- the driver's check that a pointer is one of a GPU's: tensors are on the key's device.
- the JIT's check that globals of a kernel's module haven't changed: it runs as it was compiled.

The stream and the current device are asked for at each call, and descriptors for TMA are made anew.
In doubt the ordinary launches are taken (`_is_plain`, `key_of`, `keep`): for a version of Triton
whose launch nobody has read, hooks, debugging, a launch that was replaced (the suites do, to
count).
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from operator import or_
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton import knobs
from triton.compiler import CompiledKernel
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.runtime import driver, jit

from kernel_workbench.kernels.configurations import configuration
from kernel_workbench.kernels.device import is_told, on_device_of
from kernel_workbench.kernels.eager import PLAIN_TENSORS

Key = tuple[object, ...]

enabled = True  # False: every launch is the ordinary one
CHECKED_VERSIONS = ("3.6.0", "3.7.1")
_ALIGNED = 16  # bytes
_APART = 256  # bytes between the beginnings of scratch tensors, at least
_PLAIN = (type(None), bool, int, float, str)
_ORDINARY_RUN = jit.JITFunction.run


class Launched(NamedTuple):
    """A launch: all arguments of its kernel in order, constants included."""

    kernel: Any
    compiled: object  # what Triton's launch returns
    grid: tuple[int, ...]
    arguments: Sequence[object]


class Filled(NamedTuple):
    """A scratch tensor of a call that holds one number before the first launch."""

    tensor: Tensor
    value: int


@dataclass(slots=True)
class Recorded:
    """Everything that a call launched, in order, and the scratch memory of its launches.

    Nothing wrote the tensors of `scratch` before the first launch.
    """

    launches: list[Launched] = field(default_factory=list)
    scratch: list[Tensor] = field(default_factory=list)
    filled: list[Filled] = field(default_factory=list)


class _MemoryPlace(NamedTuple):
    """A place in memory: bytes from the beginning of one of a call's tensors."""

    number: int
    offset: int


class _UnplannedError(ValueError):
    """A call can't have a plan."""


class _CallMemory:
    """The tensors of one call, by which addresses are found again in a later call's.

    Inputs, outputs and filled scratch tensors are numbered one by one; other scratch tensors share
    one block, which has the last number.
    """

    def __init__(self, numbered: Sequence[Tensor], scratch: Sequence[Tensor]) -> None:
        places = [(tensor, _MemoryPlace(number, 0)) for number, tensor in enumerate(numbered)]
        self.scratch_bytes = 0
        for tensor in scratch:
            places.append((tensor, _MemoryPlace(len(numbered), self.scratch_bytes)))
            self.scratch_bytes += -(-tensor.nbytes // _APART) * _APART
        self._places: dict[int, list[_MemoryPlace]] = {}
        for tensor, place in places:
            self._places.setdefault(tensor.data_ptr(), []).append(place)

    def place_of(self, tensor: Tensor) -> _MemoryPlace:
        """Return the place of a tensor that a launch was given.

        Raises _UnplannedError if it isn't aligned, or if it begins where none or several of the
        call's tensors begin: it may be a copy, and a later call's may begin elsewhere.
        """
        address = tensor.data_ptr()
        places = self._places.get(address, [])
        if address % _ALIGNED or len(places) != 1:
            raise _UnplannedError
        return places[0]


class LaunchPlan:
    """A launch of one kernel: all arguments of its C launcher, except addresses and the stream."""

    def __init__(self, launched: Launched, memory: _CallMemory) -> None:
        # Another version may not have it.
        from triton.backends.nvidia.driver import TMA_DTYPE_DEVICE_TO_HOST  # noqa: PLC0415

        _, compiled, grid, arguments = launched
        assert isinstance(compiled, CompiledKernel)
        self._grid = (*grid, 1, 1)[:3]
        boxes = iter(getattr(compiled.metadata, "tensordesc_meta", None) or ())
        # As the launcher has them: a descriptor is followed by its shape and strides.
        self._arguments: list[object] = []
        self._pointers: list[tuple[int, _MemoryPlace]] = []
        self._boxes: list[tuple[int, _MemoryPlace, tuple[object, ...]]] = []
        for argument in arguments:
            place = len(self._arguments)
            if isinstance(argument, Tensor):
                self._pointers.append((place, memory.place_of(argument)))
                self._arguments.append(None)  # no tensor is kept
            elif isinstance(argument, TensorDescriptor):
                described, sizes = next(boxes), (argument.shape, argument.strides)
                dtype, padding = TMA_DTYPE_DEVICE_TO_HOST[described["elem_type"]], 0
                box = (
                    described["swizzle"],
                    described["elem_size"],
                    dtype,
                    described["block_size"],
                    *sizes,
                    padding,
                )
                self._boxes.append((place, memory.place_of(argument.base), box))
                self._arguments += [None, *argument.shape, *argument.strides]
            else:
                self._arguments.append(argument)
        utils, launcher = driver.active.utils, compiled.run
        self._launch = launcher.launch
        if inspect.isfunction(self._launch):  # it makes descriptors, and calls what it encloses
            self._launch = inspect.getclosurevars(self._launch).nonlocals["launcher"]
        flags = compiled.function, launcher.launch_cooperative_grid, launcher.launch_pdl
        metadata, scratch, hooks = compiled.packed_metadata, (None, None), (None, None, None)
        self._head: tuple[object, ...]
        self._listed = triton.__version__ != "3.6.0"  # a kernel's arguments are one list
        if self._listed:
            signature = launcher.arg_annotations, launcher.kernel_signature
            self._head = (*flags, metadata, *hooks, *scratch, *signature)
            self._describe = utils.fill_tma_descriptor_tiled
        else:
            self._head = (*flags, *scratch, metadata, *hooks)
            self._describe = utils.fill_tma_descriptor

    def launch(self, stream: int, addresses: Sequence[int]) -> None:
        """Launch; addresses: of a call's tensors, numbered as `_CallMemory` numbers them."""
        arguments = self._arguments.copy()
        for place, (number, offset) in self._pointers:
            arguments[place] = addresses[number] + offset
        for place, (number, offset), box in self._boxes:
            arguments[place] = self._describe(addresses[number] + offset, *box)
        listed = (arguments,) if self._listed else arguments
        self._launch(*self._grid, stream, *self._head, *listed)


class CallPlan:
    """The launches of one call, and the memory that they need."""

    def __init__(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        recorded: Recorded,
    ) -> None:
        filled = (scratch.tensor for scratch in recorded.filled)
        memory = _CallMemory((*inputs, *outputs, *filled), recorded.scratch)
        self._launches = [LaunchPlan(launched, memory) for launched in recorded.launches]
        self._kernels = [launched.kernel for launched in recorded.launches]
        self._outputs = [(tuple(output.shape), output.dtype) for output in outputs]
        self._filled = [
            (tuple(tensor.shape), tensor.dtype, value) for tensor, value in recorded.filled
        ]
        self._scratch_bytes, self._driver = memory.scratch_bytes, driver.active

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor] | None:
        """Return new outputs; None, without a launch, if the ordinary launches are needed."""
        if driver.active is not self._driver or not _is_plain(self._kernels):
            return None
        addresses = [tensor.data_ptr() for tensor in inputs]
        if reduce(or_, addresses) % _ALIGNED:
            return None
        first = inputs[0]
        # Sizes one by one: torch takes 1 to 2 us less for them than for a tuple or a shape.
        outputs = [first.new_empty(*shape, dtype=dtype) for shape, dtype in self._outputs]
        scratch = [
            first.new_full(shape, value, dtype=dtype) for shape, dtype, value in self._filled
        ]
        if self._scratch_bytes:
            scratch.append(first.new_empty(self._scratch_bytes, dtype=torch.uint8))
        addresses += [tensor.data_ptr() for tensor in (*outputs, *scratch)]
        with on_device_of(first):
            stream = self._driver.get_current_stream(first.get_device())
            for plan in self._launches:
                plan.launch(stream, addresses)
        return outputs


def _is_plain(kernels: Sequence[Any]) -> bool:
    """Return True if the JIT only launches; a hook outside of a chain counts as a hook."""
    runtime = knobs.runtime
    return not (
        getattr(runtime.launch_enter_hook, "calls", True)
        or getattr(runtime.launch_exit_hook, "calls", True)
        or runtime.add_stages_inspection_hook
        or runtime.debug
        or knobs.compilation.instrumentation_mode
        or is_told()
        or configuration() is not None
        or any(
            kernel.pre_run_hooks or kernel.debug or type(kernel).run is not _ORDINARY_RUN
            for kernel in kernels
        )
    )


@lru_cache(maxsize=512)
def _place(_: Key) -> list[CallPlan]:
    """Return the plan of a key in a list; empty until there is one."""
    return []


def key_of(entry: str, tensors: Sequence[Tensor], *options: object) -> Key | None:
    """Return everything that a call of the function `entry` depends on; None: it has no plan."""
    if not enabled:
        return None
    for option in options:
        # 0.0 and -0.0 are equal, and two scales.
        if type(option) not in _PLAIN or (type(option) is float and not option):
            return None
    key: list[object] = [entry, options]
    for tensor in tensors:
        if type(tensor) not in PLAIN_TENSORS:
            return None
        key += (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
    return tuple(key)


def keep(
    key: Key | None,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    recorded: Recorded,
) -> None:
    """Keep a plan of a call, if it can have one: see `CallPlan`.

    Args:
        key: the call's key; None: it has no plan.
        inputs: the tensors that the call was given, as the key has them.
        outputs: the tensors that it returned, packed.
        recorded: its launches, and their other tensors.
    """
    launches = recorded.launches
    if (
        key is None
        or not launches
        or triton.__version__ not in CHECKED_VERSIONS
        or getattr(_ORDINARY_RUN, "__globals__", None) is not vars(jit)  # replaced before we came
        or not all(_has_a_plan(launched.compiled) for launched in launches)
        or not _is_plain([launched.kernel for launched in launches])
        or not all(output.is_contiguous() for output in outputs)
    ):
        return
    try:
        plan = CallPlan(inputs, outputs, recorded)
    except _UnplannedError:
        return
    _place(key)[:] = [plan]


def _has_a_plan(compiled: object) -> bool:
    """Return True if a compiled kernel is launched without scratch memory of Triton's."""
    return (
        isinstance(compiled, CompiledKernel)
        and compiled.metadata.target.backend == "cuda"
        and not compiled.metadata.global_scratch_size
        and not compiled.metadata.profile_scratch_size
    )


def planned(key: Key | None, inputs: Sequence[Tensor]) -> list[Tensor] | None:
    """Compute a call's outputs by its plan; None: take the ordinary launches."""
    place = None if key is None else _place(key)
    return place[0].run(inputs) if place else None
