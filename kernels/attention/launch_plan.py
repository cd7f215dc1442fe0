"""Launch plans: a call like an earlier one goes straight to its compiled kernel's launcher.

Triton's JIT asks of each launch what its arguments are (types, values of 1, multiples of 16, layouts
of boxes), to find the compiled kernel among those that it has. That takes most of a small call's
time, and the answer is the same for the same shapes, strides, dtypes, devices and options. So the
first call goes through Triton's own launch, and a plan is kept of it: the compiled kernel, and its
arguments but for addresses. A later call with the same key fills in the addresses of its own
tensors and calls the C function that Triton calls at the end.

What is skipped, and why it may be:

- the JIT's look-up, and with it our own checks of arguments: all that they depend on is in the key,
  and a call that they refuse has no plan. Addresses aren't: they are multiples of 16, or the call
  has no plan.
- the driver's check that a pointer is one of a GPU's: tensors are on the key's device.
- the JIT's check that globals of a kernel's module haven't changed: it is run as it was compiled.

The stream and the device are asked for at each call, and descriptors for TMA are made at each. The
ordinary launch is taken where in doubt: another version of Triton than those whose launch was
read, a hook on launches, debugging, instrumentation, a launch that somebody has replaced (as the
suites do, to count), a driver other than the first call's, tensors of a subclass.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor
from triton import knobs
from triton.compiler import CompiledKernel
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.runtime import driver, jit

from kernels.device import is_told, on_device_of

Forward = tuple[Tensor, Tensor]
Key = tuple[object, ...]

enabled = True  # False: every launch is the ordinary one
CHECKED_VERSIONS = ("3.6.0", "3.7.1")
_MOST_KEPT = 512
_ALIGNED = 16  # bytes
_PLAIN = (type(None), bool, int, float, str)
_ORDINARY_RUN = jit.JITFunction.run


class LaunchPlan:
    """A launch of one kernel: all that its C launcher takes, but for addresses and the stream."""

    def __init__(
        self,
        kernel: Any,  # noqa: ANN401  # triton has no types
        compiled: Any,  # noqa: ANN401
        programs: int,
        arguments: Sequence[object],
        tensors: Sequence[Tensor],
    ) -> None:
        """arguments: those of the first call, by the kernel's parameters; tensors: those of them."""
        from triton.backends.nvidia.driver import TMA_DTYPE_DEVICE_TO_HOST  # noqa: PLC0415

        at = {id(tensor): index for index, tensor in enumerate(tensors)}
        boxes = iter(getattr(compiled.metadata, "tensordesc_meta", None) or ())
        self._given: list[object] = []
        self._pointers: list[tuple[int, int]] = []
        self._boxes: list[tuple[int, int, tuple[object, ...]]] = []
        for argument in arguments:
            place = len(self._given)
            if isinstance(argument, Tensor):
                self._pointers.append((place, at[id(argument)]))
                self._given.append(None)
            elif isinstance(argument, TensorDescriptor):
                said, shape, strides = next(boxes), argument.shape, argument.strides
                dtype = TMA_DTYPE_DEVICE_TO_HOST[said["elem_type"]]
                box = said["swizzle"], said["elem_size"], dtype, said["block_size"]
                zeros = 0  # past an edge
                filled = (*box, shape, strides, zeros)
                self._boxes.append((place, at[id(argument.base)], filled))
                self._given += [None, *shape, *strides]
            else:
                self._given.append(argument)
        self._kernel, self._compiled, self._programs = kernel, compiled, programs
        self._driver = driver.active
        launcher = compiled.run
        launch = launcher.launch
        if inspect.isfunction(launch):  # it makes descriptors, and calls what it encloses
            launch = inspect.getclosurevars(launch).nonlocals["launcher"]
        self._launch, utils = launch, self._driver.utils
        flags = compiled.function, launcher.launch_cooperative_grid, launcher.launch_pdl
        metadata, scratch, hooks = compiled.packed_metadata, (None, None), (None, None, None)
        self._listed = triton.__version__ != "3.6.0"  # a kernel's arguments are passed as a list
        if self._listed:
            signature = launcher.arg_annotations, launcher.kernel_signature
            self._head = (*flags, metadata, *hooks, *scratch, *signature)
            self._fill = utils.fill_tma_descriptor_tiled
        else:
            self._head = (*flags, *scratch, metadata, *hooks)
            self._fill = utils.fill_tma_descriptor

    def is_current(self) -> bool:
        """Whether the ordinary launch would do what this one does."""
        return driver.active is self._driver and _is_plain(self._kernel)

    def launch(self, *tensors: Tensor) -> bool:
        """Launch with these tensors' addresses; False, and nothing is, where one isn't aligned."""
        addresses = [tensor.data_ptr() for tensor in tensors]
        if any([address % _ALIGNED for address in addresses]):  # noqa: C419  # a list is faster
            return False
        given = self._given.copy()
        for place, index in self._pointers:
            given[place] = addresses[index]
        for place, index, filled in self._boxes:
            given[place] = self._fill(addresses[index], *filled)
        first = tensors[0]
        with on_device_of(first):
            stream = self._driver.get_current_stream(first.get_device())
            if self._listed:
                self._launch(self._programs, 1, 1, stream, *self._head, given)
            else:
                self._launch(self._programs, 1, 1, stream, *self._head, *given)
        return True


def _is_plain(kernel: Any) -> bool:  # noqa: ANN401
    """Whether a launch by the JIT does nothing but launch. A hook of unknown kind counts as one."""
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
    )


_kept: OrderedDict[Key, LaunchPlan] = OrderedDict()


def key_of(entry: str, q: Tensor, k: Tensor, v: Tensor, *options: object) -> Key | None:
    """What a plan is kept under: all that a call of `entry` depends on; None: it has no plan."""
    if not (enabled and type(q) is Tensor and type(k) is Tensor and type(v) is Tensor):
        return None
    for option in options:
        # 0.0 and -0.0 are one key, and two scales.
        if type(option) not in _PLAIN or (type(option) is float and not option):
            return None
    return (
        entry, q.shape, q.stride(), q.dtype, q.device, k.shape, k.stride(), k.dtype, k.device,
        v.shape, v.stride(), v.dtype, v.device, options,
    )  # fmt: skip


def keep(
    key: Key | None,
    kernel: Any,  # noqa: ANN401
    compiled: object,
    programs: int,
    arguments: Sequence[object],
    tensors: Sequence[Tensor],
) -> None:
    """Keep a plan of a launch that was just made, if there can be one; the last used are kept."""
    if (
        key is None
        or triton.__version__ not in CHECKED_VERSIONS
        or _ORDINARY_RUN.__globals__ is not vars(jit)  # it was replaced before we came
        or not isinstance(compiled, CompiledKernel)
        or compiled.metadata.target.backend != "cuda"
        or compiled.metadata.global_scratch_size
        or compiled.metadata.profile_scratch_size
        or not _is_plain(kernel)
        or any(tensor.data_ptr() % _ALIGNED for tensor in tensors)
    ):
        return
    _kept[key] = LaunchPlan(kernel, compiled, programs, arguments, tensors)
    if len(_kept) > _MOST_KEPT:
        _kept.popitem(last=False)


def forward(key: Key | None, q: Tensor, k: Tensor, v: Tensor) -> Forward | None:
    """out and lse by the plan that is kept of a forward; None: the ordinary launch is to be made."""
    plan = _kept.get(key) if key is not None else None
    if key is None or plan is None or not plan.is_current():
        return None
    try:
        _kept.move_to_end(key)
    except KeyError:  # another thread has just let it go
        pass
    b, s_q, h_q, _ = q.shape
    # Sizes one by one: torch takes 1 to 2 us less for them than for a tuple or a shape.
    out, lse = q.new_empty(b, s_q, h_q, v.shape[3]), q.new_empty(b, h_q, s_q, dtype=torch.float32)
    return (out, lse) if plan.launch(q, k, v, out, lse) else None
