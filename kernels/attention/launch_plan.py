"""Launch plans: a call like an earlier one goes straight to its compiled kernel's launcher.

At each launch Triton's JIT inspects the arguments (types, values of 1, multiples of 16, layouts of
boxes) to find the compiled kernel. That takes most of a small call's time, and the result is the
same for the same shapes, strides, dtypes, devices and options. So the first call goes through
Triton's own launch and leaves a plan: the compiled kernel, and its arguments except addresses. A
later call with the same key fills in the addresses of its own tensors and calls the C function that
Triton calls at the end.

A plan skips the following steps:

- our checks of arguments, and the JIT's look-up: what they depend on is in the key, and a call that
  they refuse has no plan. Addresses are in no key: all are multiples of 16, or no plan is used.
- the driver's check that a pointer is one of a GPU's: tensors are on the key's device.
- the JIT's check that globals of a kernel's module haven't changed: it runs as it was compiled.

The stream and the current device are asked for at each call, and descriptors for TMA are made anew.
In doubt the ordinary launch is taken (`_is_plain`, `key_of`, `keep`): for a version of Triton whose
launch nobody has read, hooks, debugging, a launch that was replaced (the suites do, to count).
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import lru_cache, reduce
from operator import or_
from typing import Any

import torch
import triton
from torch import Tensor
from triton import knobs
from triton.compiler import CompiledKernel
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.runtime import driver, jit

from kernel_workbench.kernels.configurations import configuration
from kernel_workbench.kernels.device import is_told, on_device_of

Forward = tuple[Tensor, Tensor]
Key = tuple[object, ...]

enabled = True  # False: every launch is the ordinary one
CHECKED_VERSIONS = ("3.6.0", "3.7.1")
_ALIGNED = 16  # bytes
_PLAIN = (type(None), bool, int, float, str)
_ORDINARY_RUN = jit.JITFunction.run


class LaunchPlan:
    """A launch of one kernel: all arguments of its C launcher, except addresses and the stream."""

    def __init__(
        self, kernel: Any, compiled: Any, arguments: Sequence[object], tensors: Sequence[Tensor]
    ) -> None:
        """Prepare a plan; arguments: the kernel's; tensors: those among them."""
        # Another version may not have it.
        from triton.backends.nvidia.driver import TMA_DTYPE_DEVICE_TO_HOST  # noqa: PLC0415

        index = {id(tensor): number for number, tensor in enumerate(tensors)}
        boxes = iter(getattr(compiled.metadata, "tensordesc_meta", None) or ())
        # As the launcher has them: a descriptor is followed by its shape and strides.
        self._arguments: list[object] = []
        self._pointers: list[tuple[int, int]] = []
        self._boxes: list[tuple[int, int, tuple[object, ...]]] = []
        for argument in arguments:
            place = len(self._arguments)
            self._arguments.append(argument)
            if isinstance(argument, Tensor):
                self._pointers.append((place, index[id(argument)]))
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
                self._boxes.append((place, index[id(argument.base)], box))
                self._arguments += [*argument.shape, *argument.strides]
        for place, _ in (*self._pointers, *((place, 0) for place, _, _ in self._boxes)):
            self._arguments[place] = None  # no tensor is kept
        self._kernel, self._driver, utils = kernel, driver.active, driver.active.utils
        launcher = compiled.run
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

    def is_current(self) -> bool:
        """Return True if the ordinary launch would do the same as this plan."""
        return driver.active is self._driver and _is_plain(self._kernel)

    def launch(self, programs: int, *tensors: Tensor) -> bool:
        """Launch with these tensors; return False, without a launch, if one isn't aligned."""
        addresses = [tensor.data_ptr() for tensor in tensors]
        if reduce(or_, addresses) % _ALIGNED:
            return False
        arguments = self._arguments.copy()
        for place, number in self._pointers:
            arguments[place] = addresses[number]
        for place, number, box in self._boxes:
            arguments[place] = self._describe(addresses[number], *box)
        with on_device_of(tensors[0]):
            stream = self._driver.get_current_stream(tensors[0].get_device())
            listed = (arguments,) if self._listed else arguments
            self._launch(programs, 1, 1, stream, *self._head, *listed)
        return True


def _is_plain(kernel: Any) -> bool:
    """Return True if the JIT only launches; a hook outside of a chain counts as a hook."""
    runtime = knobs.runtime
    return not (
        getattr(runtime.launch_enter_hook, "calls", True)
        or getattr(runtime.launch_exit_hook, "calls", True)
        or runtime.add_stages_inspection_hook
        or runtime.debug
        or knobs.compilation.instrumentation_mode
        or kernel.pre_run_hooks
        or kernel.debug
        or type(kernel).run is not _ORDINARY_RUN
        or is_told()
        or configuration() is not None
    )


@lru_cache(maxsize=512)
def _place(_: Key) -> list[tuple[LaunchPlan, int]]:
    """Return the plan of a key and its number of programs; empty until there is one."""
    return []


def key_of(entry: str, q: Tensor, k: Tensor, v: Tensor, *options: object) -> Key | None:
    """Return everything that a call of the function `entry` depends on; None: it has no plan."""
    if not (enabled and type(q) is Tensor and type(k) is Tensor and type(v) is Tensor):
        return None
    for option in options:
        # 0.0 and -0.0 are equal, and two scales.
        if type(option) not in _PLAIN or (type(option) is float and not option):
            return None
    return (
        entry, q.shape, q.stride(), q.dtype, q.device, k.shape, k.stride(), k.dtype, k.device,
        v.shape, v.stride(), v.dtype, v.device, options,
    )  # fmt: skip


def keep(
    key: Key | None,
    kernel: Any,
    compiled: object,
    programs: int,
    arguments: Sequence[object],
    tensors: Sequence[Tensor],
) -> None:
    """Keep a plan of the last launch, if it can have one: see `LaunchPlan`."""
    if (
        key is None
        or triton.__version__ not in CHECKED_VERSIONS
        or getattr(_ORDINARY_RUN, "__globals__", None) is not vars(jit)  # replaced before we came
        or not isinstance(compiled, CompiledKernel)
        or compiled.metadata.target.backend != "cuda"
        or compiled.metadata.global_scratch_size
        or compiled.metadata.profile_scratch_size
        or not _is_plain(kernel)
        or any(tensor.data_ptr() % _ALIGNED for tensor in tensors)
        or len({id(tensor) for tensor in tensors}) < len(tensors)  # of k and v, which was which?
    ):
        return
    _place(key)[:] = [(LaunchPlan(kernel, compiled, arguments, tensors), programs)]


def forward(key: Key | None, q: Tensor, k: Tensor, v: Tensor) -> Forward | None:
    """Compute out and lse by the plan of a forward; None: take the ordinary launch."""
    place = None if key is None else _place(key)
    if not place:
        return None
    ((plan, programs),) = place
    if not plan.is_current():
        return None
    b, s_q, h_q, _ = q.shape
    # Sizes one by one: torch takes 1 to 2 us less for them than for a tuple or a shape.
    out, lse = q.new_empty(b, s_q, h_q, v.shape[3]), q.new_empty(b, h_q, s_q, dtype=torch.float32)
    return (out, lse) if plan.launch(programs, q, k, v, out, lse) else None
