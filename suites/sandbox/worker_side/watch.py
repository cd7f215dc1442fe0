"""What a candidate does besides computing: Triton launches, calls of a library, threads it leaves.

An autotuned kernel can be held to one of its configurations: each has to be right, not the fastest
alone.

A launch can be stubbed, to do nothing, to raise or to read other numbers (sign_scrambler.py): a
kernel that is right all the same isn't what computed its outputs. A library is one that computes
the op itself, PyTorch's attention or norms, or the oracle; a kernel that calls one says so
(`wraps=`), or is no kernel of its own. Its calls are seen by a dispatch mode, which is the calling
thread's. And PyTorch's are refused to the whole process meanwhile, its other threads and the
children that it forks included; those that have no entry in the dispatcher, and symbols of its
libraries in C, too.
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

# Operations of PyTorch that compute an op of ours, by the beginnings of their names.
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
# Symbols of PyTorch's and cuDNN's libraries that compute one, as ctypes looks them up. A kernel's
# own functions in C may be called what they like.
_SYMBOL = re.compile(
    r"^(aoti_torch_|_ZNK?(2at|5torch)).*(attention|(layer|rms|batch|group|instance)_?norm)"
    r"|^cudnn(BatchNorm|Norm|MultiHeadAttn)",
    re.IGNORECASE,
)
_ORACLES = "the workbench's oracles"
_COMPUTE = ("scores", "emulation", "bounds")  # beginnings of the names of its modules
_ANALYSIS, _MARK = (
    "kernel_workbench.oracles.analysis",
    "rounds",
)  # which references are written with


class StubbedError(RuntimeError):
    """A launch that was to fail: what a kernel must not hide behind another way of computing."""


@dataclass(slots=True)
class Seen:
    """What was seen of one call."""

    launches: int = 0
    operations: int = 0  # of PyTorch's
    configurations: int = 0  # the most that an autotuned kernel has
    library: set[str] = field(default_factory=set)
    left: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _State:
    seen: Seen = field(default_factory=Seen)
    stub: Stub | None = None
    configuration: int | None = None
    handed: HandedTensors | None = None


_STATE = _State()
# Kept before a candidate is imported, which may replace them.
_frame: Callable[[int], FrameType] = sys._getframe  # noqa: SLF001


@contextmanager
def seen(
    stub: Stub | None = None,
    configuration: int | None = None,
    handed: HandedTensors | None = None,
) -> Iterator[Seen]:
    """Watch what is called inside.

    handed: keeps copies of what scrambled launches are handed.

    stub: what becomes of Triton launches. configuration: the number, from 0, of the configuration
    that autotuned kernels take, those with fewer the last; None: the one that they find fastest.
    """
    _STATE.seen, _STATE.stub, _STATE.configuration = Seen(), stub, configuration
    _STATE.handed = handed
    try:
        with threads.watched() as _STATE.seen.left:
            yield _STATE.seen
    finally:
        _STATE.stub = _STATE.configuration = _STATE.handed = None


def may_be_a_library(kernel: Kernel) -> bool:
    """Whether calling one is what it says of itself; a peer may be one too."""
    return kernel.origin == "baseline" or kernel.wraps is not None


# torch may have replaced an operation in Python itself, as it does rms_norm on some GPUs.
_OVERRIDE = (
    {"allow_override": True}
    if "allow_override" in inspect.signature(Library.impl).parameters
    else {}
)


class _Refusal:
    """PyTorch's operations that compute an op, replaced by ones that note the call and raise.

    In the dispatcher's table of kernels for a device, below modes and the same for all threads.
    Two milliseconds to replace: a worker leaves them so until a kernel that may call them comes.
    """

    def __init__(self) -> None:
        self._replaced = ExitStack()
        self._device: str | None = None
        self.is_kept = False

    def set(self, device: str | None) -> None:
        """Refuse them on `device`, or nowhere."""
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
    """In a process of candidates alone: what is refused to one stays so, until one may call it.

    From here on symbols that are looked up are heard of too, which can't be undone, and so is what
    is fetched from the dispatcher: that goes on to compute when it is replaced there.
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
    """Something that Python tells of; of a library's symbol: note it, and refuse it in a call."""
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
    """Those that the kernel's file looked up, while it was imported too, if none of it wraps."""
    found = frozenset(_LOOKED_UP.get(kernel.path, ()))
    if not found:  # as a rule: all kernels are looked through only where there is a symbol
        return found
    wraps = any(each.wraps for each in all_kernels() if each.path == kernel.path)
    return frozenset() if wraps else found


@contextmanager
def libraries_refused(kernel: Kernel, device: torch.device) -> Iterator[None]:
    """Inside, PyTorch's operations that compute an op fail, unless the kernel may be a library."""
    _REFUSAL.set(None if may_be_a_library(kernel) else device.type)
    try:
        yield
    finally:
        if not _REFUSAL.is_kept:
            _REFUSAL.set(None)


@cache
def _kernels_of_libraries(device: str) -> tuple[tuple[str, str], ...]:
    """Names and dispatch keys of what is registered for it."""
    keys = device.upper(), "CompositeImplicitAutograd", "CompositeExplicitAutograd"
    names = torch._C._dispatch_get_all_op_names()  # noqa: SLF001  (there is no other way to list them)
    has = torch._C._dispatch_has_kernel_for_dispatch_key  # noqa: SLF001
    mine = [each for each in names if each.startswith(tuple(f"aten::{it}" for it in _LIBRARY))]
    return tuple((name, key) for name in mine for key in keys if has(name, key))


def _refused_operation(name: str, *_: object, **__: object) -> None:
    _STATE.seen.library.add(name.replace("::", "."))
    raise RuntimeError(f"{name} is a library's: it isn't to be called here")


def note_operation(operation: object) -> None:
    """An operation of PyTorch was called."""
    _STATE.seen.operations += 1
    name = _library(operation)
    if name is not None:
        _STATE.seen.library.add(name)


@cache
def _library(operation: object) -> str | None:
    namespace, _, name = str(operation).partition(".")
    return f"{namespace}.{name}" if name.startswith(_LIBRARY) else None


def watch_launches(*, interpreted: bool) -> None:
    """Count, and where asked stub, every Triton launch of this process from here on.

    Of kernels in Gluon too: compiled, they are launched as Triton's own are.
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
        # With one configuration there is nothing to time: the launch is that one, once.
        self.configs = [every[min(_STATE.configuration, len(every) - 1)]]
        try:
            return tune(self, *args, **kwargs)
        finally:
            self.configs = every

    tuned.watched = True  # type: ignore[attr-defined]
    Autotuner.run = tuned


def watch_oracles() -> None:
    """Note every call of what computes truth or bounds, of which a worker needs none."""
    for op in OPS.values():
        for each in (op.oracle, op.bound, op.emulate):
            plain = inspect.unwrap(each) if each is not None else None  # of torch.no_grad
            if isinstance(plain, FunctionType) and plain.__closure__ is None:
                # In place, so that whoever imported it before meets the watched one.
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
    """Stands in an oracle's place, among that module's globals: so it imports what it needs."""
    import sys  # noqa: PLC0415

    sys.modules["kernel_workbench.suites.sandbox.worker_side.watch"].note_oracle()
    raise RuntimeError("an oracle was called by a kernel")


def note_oracle() -> None:
    """The oracle itself was called."""
    _STATE.seen.library.add(_ORACLES)
