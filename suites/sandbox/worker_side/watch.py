"""Watch a candidate's side effects: Triton launches, calls of a library, threads that it leaves.

An autotuned kernel can be restricted to one of its configurations: each configuration has to be
right, not only the fastest.

A launch can be replaced: it does nothing, raises, or reads other numbers (sign_scrambler.py). If
the kernel's outputs are right all the same, its launches didn't compute them. A library is code
that computes the op itself: PyTorch's attention or norms, or the oracle. A kernel that calls a
library declares that (`wraps=`), or is no kernel of its own. A dispatch mode sees the library calls
of the calling thread. PyTorch's operations that compute an op are also refused to the whole process
during a call: to its other threads, to forked children, to operations without an entry in the
dispatcher, and to symbols of its C libraries.
"""

from __future__ import annotations

import inspect
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from types import FrameType, FunctionType
from typing import Any
from unittest import mock

import torch
from torch._ops import HigherOrderOperator
from torch.library import Library, _scoped_library

from kernel_workbench.kernels.registry import Kernel, all_kernels
from kernel_workbench.oracles import OPS
from kernel_workbench.suites.sandbox.call import Stub
from kernel_workbench.suites.sandbox.worker_side import threads
from kernel_workbench.suites.sandbox.worker_side.handed_tensors import HandedTensors
from kernel_workbench.suites.sandbox.worker_side.sign_scrambler import scrambled

# Prefixes of the names of PyTorch operations that compute an op of ours.
_LIBRARY = (
    "_scaled_dot_product",
    "scaled_dot_product",
    "_flash_attention",
    "_efficient_attention",
    "_cudnn_attention",
    "_fused_sdp",
    "_native_multi_head_attention",
    "_triton_scaled_dot_attention",
    "_triton_multi_head_attention",
    "_transformer_encoder_layer",
    "flex_attention",
    "native_layer_norm",
    "layer_norm",
    "_fused_rms_norm",
    "rms_norm",
    # A row is a group, an instance, or a channel of a batch of one.
    "native_group_norm",
    "group_norm",
    "instance_norm",
    "native_batch_norm",
    "_native_batch_norm",
    "_batch_norm",
    "batch_norm",
    "cudnn_batch_norm",
    "miopen_batch_norm",
)
# Symbols of PyTorch's and cuDNN's libraries that compute an op, as ctypes looks them up. A kernel's
# own functions in C may have any name.
_SYMBOL = re.compile(
    r"^(aoti_torch_|_ZNK?(2at|5torch)).*(attention|(layer|rms|batch|group|instance)_?norm)"
    r"|^cudnn(BatchNorm|Norm|MultiHeadAttn)",
    re.IGNORECASE,
)
_ORACLES = "the workbench's oracles"
_COMPUTE = ("scores", "emulation", "bounds")  # prefixes of the names of its modules
_ANALYSIS, _MARK = (
    "kernel_workbench.oracles.analysis",
    "rounds",
)  # a function that references use


class StubbedError(RuntimeError):
    """A launch that was made to fail: a kernel must not hide it behind another way of computing."""


@dataclass(slots=True)
class Seen:
    """Observations of one call.

    launches        number of Triton launches
    operations      number of PyTorch operations
    configurations  the largest number of configurations of an autotuned kernel
    library         names of called libraries
    left            names of threads that the candidate left
    """

    launches: int = 0
    operations: int = 0
    configurations: int = 0
    library: set[str] = field(default_factory=set)
    left: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _State:
    seen: Seen = field(default_factory=Seen)
    stub: Stub | None = None
    configuration: int | None = None
    handed: HandedTensors | None = None


_STATE = _State()
# Bound before a candidate is imported, which may replace the original.
_frame: Callable[[int], FrameType] = sys._getframe  # noqa: SLF001


@contextmanager
def seen(
    stub: Stub | None = None,
    configuration: int | None = None,
    handed: HandedTensors | None = None,
) -> Iterator[Seen]:
    """Watch the calls within the context.

    Args:
        stub: how Triton launches are replaced.
        configuration: the index of the configuration that autotuned kernels take (kernels with
        fewer take their last); None: the fastest.
        handed: collects copies of the arguments of scrambled launches.
    """
    _STATE.seen, _STATE.stub, _STATE.configuration = Seen(), stub, configuration
    _STATE.handed = handed
    try:
        with threads.watched() as _STATE.seen.left:
            yield _STATE.seen
    finally:
        _STATE.stub = _STATE.configuration = _STATE.handed = None


def may_be_a_library(kernel: Kernel) -> bool:
    """Return True if the kernel declares that it calls a library, or is a peer."""
    return kernel.origin == "baseline" or kernel.wraps is not None


# torch itself may have replaced an operation in Python, for example rms_norm on some GPUs.
_OVERRIDE = (
    {"allow_override": True}
    if "allow_override" in inspect.signature(Library.impl).parameters
    else {}
)


class _Refusal:
    """Replaces PyTorch operations that compute an op by functions that record the call and raise.

    The replacement is in the dispatcher's table of a device, below modes and for all threads. It
    takes two milliseconds, so a worker keeps it until a kernel comes that may call libraries.
    """

    def __init__(self) -> None:
        self._replaced = ExitStack()
        self._device: str | None = None
        self.is_kept = False

    def set(self, device: str | None) -> None:
        """Refuse the operations on `device`; None: nowhere."""
        if device == self._device:
            return
        self._replaced.close()
        self._device = device
        if device is None:
            return
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Warning only once for all operators")
            library = self._replaced.enter_context(_scoped_library("aten", "IMPL"))
            for name, key in _kernels_of_libraries(device):
                refused = partial(_refused_operation, name)
                library.impl(name.removeprefix("aten::"), refused, key, **_OVERRIDE)
        call: Any = HigherOrderOperator.__call__

        def called(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            if _library(f"higher_order.{self.name()}") is not None:
                _refused_operation(f"higher_order::{self.name()}")
            return call(self, *args, **kwargs)

        self._replaced.enter_context(mock.patch.object(HigherOrderOperator, "__call__", called))

    @property
    def is_on(self) -> bool:
        return self._device is not None


_REFUSAL = _Refusal()
_FETCH = "_dispatch_get_computed_kernel_for_dispatch_key"
_LOOKED_UP: dict[str, set[str]] = {}  # symbols, by the source files that were on the stack


def keep_refusing() -> None:
    """Keep operations refused between calls, in a process of candidates only.

    From now on this module also records the symbols that are looked up, which can't be undone, and
    the kernels that are fetched from the dispatcher, because these compute even after their
    replacement.
    """
    _REFUSAL.is_kept = True
    sys.addaudithook(_heard)
    fetch = getattr(torch._C, _FETCH, None)  # noqa: SLF001  (torch.library.get_kernel calls it)
    if fetch is None:
        return

    def fetched(name: str, key: Any) -> Any:
        if _library(name.replace("::", ".")) is not None:
            _note_lookup(name.replace("::", "."))
        return fetch(name, key)

    setattr(torch._C, _FETCH, fetched)  # noqa: SLF001


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    """Handle an audit event: record the lookup of a library's symbol, and refuse it in a call."""
    if event not in ("ctypes.dlsym", "ctypes.dlsym/handle"):
        return
    symbol = str(arguments[1])
    if _SYMBOL.search(symbol):
        _note_lookup(symbol)


def _note_lookup(symbol: str) -> None:
    frame: FrameType | None = _frame(1)
    while frame is not None:
        _LOOKED_UP.setdefault(frame.f_code.co_filename, set()).add(symbol)
        frame = frame.f_back
    if _REFUSAL.is_on:
        _refused_operation(symbol)


def symbols_looked_up(kernel: Kernel) -> frozenset[str]:
    """Return the symbols that the kernel's file looked up, also at import.

    Return none if one of the file's kernels wraps a library.
    """
    symbols = frozenset(_LOOKED_UP.get(kernel.path, ()))
    if not symbols:  # the usual case; going through all kernels takes time
        return symbols
    wraps = any(other.wraps for other in all_kernels() if other.path == kernel.path)
    return frozenset() if wraps else symbols


@contextmanager
def libraries_refused(kernel: Kernel, device: torch.device) -> Iterator[None]:
    """Refuse PyTorch operations that compute an op, unless the kernel may call them."""
    _REFUSAL.set(None if may_be_a_library(kernel) else device.type)
    try:
        yield
    finally:
        if not _REFUSAL.is_kept:
            _REFUSAL.set(None)


@cache
def _kernels_of_libraries(device: str) -> tuple[tuple[str, str], ...]:
    """Return the names and dispatch keys of operations that compute an op on the device."""
    keys = device.upper(), "CompositeImplicitAutograd", "CompositeExplicitAutograd"
    names = torch._C._dispatch_get_all_op_names()  # noqa: SLF001  (no public function lists them)
    has = torch._C._dispatch_has_kernel_for_dispatch_key  # noqa: SLF001
    mine = [
        name for name in names if name.startswith(tuple(f"aten::{prefix}" for prefix in _LIBRARY))
    ]
    return tuple((name, key) for name in mine for key in keys if has(name, key))


def _refused_operation(name: str, *_: object, **__: object) -> None:
    _STATE.seen.library.add(name.replace("::", "."))
    raise RuntimeError(f"{name} is a library's: it isn't to be called here")


def note_operation(operation: object) -> None:
    """Record a call of a PyTorch operation."""
    _STATE.seen.operations += 1
    name = _library(operation)
    if name is not None:
        _STATE.seen.library.add(name)


@cache
def _library(operation: object) -> str | None:
    namespace, _, name = str(operation).partition(".")
    return f"{namespace}.{name}" if name.startswith(_LIBRARY) else None


def watch_launches(*, interpreted: bool) -> None:
    """Count every Triton launch of this process from now on, and replace launches on request.

    Compiled kernels in Gluon are launched as Triton's own are; interpreted ones have their own
    launcher.
    """
    if interpreted:
        from triton.experimental.gluon._runtime import GluonJITFunction  # noqa: PLC0415
        from triton.runtime.interpreter import GridExecutor  # noqa: PLC0415

        _watch_launcher(GridExecutor, "__call__")
        _watch_launcher(GluonJITFunction, "run")
    else:
        from triton.runtime.jit import JITFunction  # noqa: PLC0415

        _watch_launcher(JITFunction, "run")
    _watch_tuning()


def _watch_launcher(launcher: type, method: str) -> None:
    launch = getattr(launcher, method)
    if getattr(launch, "watched", False):
        return

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        _STATE.seen.launches += 1
        if _STATE.stub == "raising":
            raise StubbedError("the launch was made to fail")
        if _STATE.stub == "silent":
            return None
        if _STATE.stub in ("scrambled", "handed"):
            launched = id(getattr(self, "fn", None))
            with scrambled((*args, *kwargs.values()), _STATE.handed, launched):
                return launch(self, *args, **kwargs)
        return launch(self, *args, **kwargs)

    watched.watched = True  # type: ignore[attr-defined]
    setattr(launcher, method, watched)


def _watch_tuning() -> None:
    from triton.runtime.autotuner import Autotuner  # noqa: PLC0415

    tune = Autotuner.run
    if getattr(tune, "watched", False):
        return

    def tuned(self: Any, *args: Any, **kwargs: Any) -> Any:
        every = self.configs
        _STATE.seen.configurations = max(_STATE.seen.configurations, len(every))
        if _STATE.configuration is None:
            return tune(self, *args, **kwargs)
        # A single configuration isn't timed: it is launched once.
        self.configs = [every[min(_STATE.configuration, len(every) - 1)]]
        try:
            return tune(self, *args, **kwargs)
        finally:
            self.configs = every

    tuned.watched = True  # type: ignore[attr-defined]
    Autotuner.run = tuned


def watch_oracles() -> None:
    """Refuse every call of functions that compute truth or bounds: a worker needs none of them."""
    for op in OPS.values():
        for function in (op.oracle, op.bound, op.emulate):
            plain = inspect.unwrap(function)  # without torch.no_grad
            if isinstance(plain, FunctionType) and plain.__closure__ is None:
                # In place, so that earlier imports of the function are watched too.
                plain.__code__ = _refused.__code__
    for name, module in tuple(sys.modules.items()):
        computes = name.rpartition(".")[2].startswith(_COMPUTE) or name.startswith(_ANALYSIS)
        if name.startswith("kernel_workbench.oracles.") and computes:
            for value in vars(module).values():
                plain = isinstance(value, FunctionType) and value.__closure__ is None
                plain = plain and value.__name__ != _MARK
                if plain and value.__module__ == name:
                    value.__code__ = _refused.__code__


def _refused(*_: object, **__: object) -> None:
    """Replace an oracle. The code runs among that module's globals, so it imports its own names."""
    import sys  # noqa: PLC0415

    sys.modules["kernel_workbench.suites.sandbox.worker_side.watch"].note_oracle()
    raise RuntimeError("an oracle was called by a kernel")


def note_oracle() -> None:
    """Record a call of the oracle."""
    _STATE.seen.library.add(_ORACLES)
