"""A table of the settings of a process that a call could change for the next one.

Reading all of them takes a tenth of a millisecond.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton
from torch.utils import _python_dispatch as dispatch
from triton.runtime import _allocation

UNSET = "unset"
# Variables that PyTorch's compiler and OpenMP set at their first use.
_COMPILERS = (
    "TORCHINDUCTOR_",
    "_TORCHINDUCTOR_",
    "TORCH_WARM_POOL",
    "TRITON_CACHE_DIR",
    "TRITON_LIBDEVICE_PATH",
    "TRITON_PTXAS_PATH",
    "KMP_",
)


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """A setting of the process; a sentence about a mapping names the first key that differs.

    read     return its value; None: it can't be read yet, as a GPU's before its first use
    write    set its value
    fails    a kernel that leaves it changed breaks a rule; otherwise the file keeps its value
    shown    show its values in sentences
    meaning  map a value to its meaning: values with equal meanings count as unchanged
    """

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]
    fails: bool = True
    shown: bool = True
    meaning: Callable[[Any], Any] = lambda value: value


def _torch(name: str) -> Callable[..., Any]:
    """Return a function of PyTorch that has no public name."""
    function: Callable[..., Any] = getattr(torch._C, f"_{name}")  # noqa: SLF001
    return function


# ---- PyTorch


def _default_device() -> torch.device | str:
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)  # noqa: SLF001
    return UNSET if context is None else context.device


def _set_default_device(value: torch.device | str) -> None:
    torch.set_default_device(None if value == UNSET else value)


def _pop_function_modes(depth: int) -> None:
    while _torch("len_torch_function_stack")() > depth:
        _torch("pop_torch_function_stack")()


def _pop_dispatch_modes(depth: int) -> None:
    while _torch("len_torch_dispatch_stack")() > depth:
        dispatch._pop_mode()  # noqa: SLF001


def _not_here(_: object) -> None:
    """Do nothing: only the code that set it can undo it."""


def _autocast() -> dict[str, object]:
    values: dict[str, object] = {"cached": torch.is_autocast_cache_enabled()}
    for device in ("cpu", "cuda"):
        values[f"on {device}"] = torch.is_autocast_enabled(device)
        values[f"dtype on {device}"] = torch.get_autocast_dtype(device)
    return values


def _set_autocast(value: dict[str, Any]) -> None:
    torch.set_autocast_cache_enabled(value["cached"])
    for device in ("cpu", "cuda"):
        torch.set_autocast_enabled(device, value[f"on {device}"])
        torch.set_autocast_dtype(device, value[f"dtype on {device}"])


def _deterministic() -> dict[str, bool]:
    return {
        "algorithms": torch.are_deterministic_algorithms_enabled(),
        "warnings in place of errors": torch.is_deterministic_algorithms_warn_only_enabled(),
        "fresh memory": _torch("get_deterministic_fill_uninitialized_memory")(),
    }


def _set_deterministic(value: dict[str, bool]) -> None:
    public = (
        "torch._inductor.config" in sys.modules
    )  # the public function imports this module, which takes seconds
    write = torch.use_deterministic_algorithms if public else _torch("set_deterministic_algorithms")
    write(value["algorithms"], warn_only=value["warnings in place of errors"])
    _torch("set_deterministic_fill_uninitialized_memory")(value["fresh memory"])


# In this order: values for all operations are written before values for one.
_FP32 = [
    (of, kind)
    for of in ("generic", "cuda", "mkldnn")
    for kind in ("all", "matmul", "conv", "rnn")
    if of != "generic" or kind == "all"
]
_fp32_precision = _torch("get_fp32_precision_getter")
_set_fp32_precision = _torch("set_fp32_precision_setter")


def _precision() -> dict[str, str]:
    values = {}
    with suppress(RuntimeError):  # torch refuses the old name after the new ones were used
        values["for all"] = torch.get_float32_matmul_precision()
    return values | {f"{of} {kind}": _fp32_precision(of, kind) for of, kind in _FP32}


def _meant(value: dict[str, str]) -> dict[str, str]:
    """Replace `none` by `ieee`: setting allow_tf32 = False turns one into the other."""
    return {key: "ieee" if precision == "none" else precision for key, precision in value.items()}


def _set_precision(value: dict[str, str]) -> None:
    if "for all" in value:
        torch.set_float32_matmul_precision(value["for all"])
    for of, kind in _FP32:
        _set_fp32_precision(of, kind, value[f"{of} {kind}"])


def _switch(get: str, put: str) -> tuple[Callable[[], Any], Callable[..., object]]:
    return _torch(f"get_{get}"), _torch(f"set_{put}")


_SWITCHES = {
    **{
        name: _switch(name, name)
        for name in (
            "cudnn_enabled",
            "cudnn_benchmark",
            "cudnn_deterministic",
            "mkldnn_enabled",
            "mkldnn_deterministic",
            "cublas_allow_fp16_accumulation",
            "cublas_allow_fp16_reduced_precision_reduction",  # two values, set by two arguments
            "cublas_allow_bf16_reduced_precision_reduction",
        )
    },
    **{
        f"{backend}_sdp": _switch(f"{backend}_sdp_enabled", f"sdp_use_{backend}")
        for backend in ("flash", "mem_efficient", "math", "cudnn")
    },
}


def _switches() -> dict[str, object]:
    return {name: get() for name, (get, _) in _SWITCHES.items()}


def _set_switches(value: dict[str, Any]) -> None:
    for name, (_, put) in _SWITCHES.items():
        put(*value[name]) if isinstance(value[name], tuple) else put(value[name])


# ---- random numbers


def _state_of(generator: torch.Generator) -> bytes:
    return generator.get_state().numpy().tobytes()


def _set_state_of(generator: torch.Generator, state: bytes) -> None:
    generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


def _cuda_states() -> dict[str, bytes] | None:
    """Return each GPU's state from the host's copy: nothing waits for the GPU."""
    if not torch.cuda.is_initialized():
        return None
    every = torch.cuda.default_generators
    return {f"cuda:{number}": _state_of(generator) for number, generator in enumerate(every)}


def _set_cuda_states(value: dict[str, bytes]) -> None:
    for generator, state in zip(torch.cuda.default_generators, value.values(), strict=True):
        _set_state_of(generator, state)


def _numpy_state() -> tuple[object, ...]:
    kind, words, *rest = np.random.get_state(legacy=True)  # noqa: NPY002
    return kind, np.asarray(words).tobytes(), *rest


def _set_numpy_state(value: tuple[Any, ...]) -> None:
    kind, words, *rest = value
    np.random.set_state((kind, np.frombuffer(words, np.uint32), *rest))  # noqa: NPY002


# ---- the GPU in use


def _stream() -> torch.cuda.Stream | None:
    return torch.cuda.current_stream() if torch.cuda.is_initialized() else None


def _gpu() -> int | None:
    return torch.cuda.current_device() if torch.cuda.is_initialized() else None


# ---- Triton


def _groups() -> dict[str, Any]:
    return {
        name: group
        for name, group in vars(triton.knobs).items()
        if isinstance(group, triton.knobs.base_knobs)
    }


_hooks = {
    name: chain
    for name, chain in vars(type(triton.knobs.runtime)).items()
    if isinstance(chain, triton.knobs.HookChain)
}


def _knobs() -> dict[str, object]:
    values: dict[str, object] = {
        f"{group}.{name}": value
        for group, knobs in _groups().items()
        for name, value in vars(knobs).items()
    }
    return values | {f"runtime.{name}": tuple(chain.calls) for name, chain in _hooks.items()}


def _set_knobs(value: dict[str, Any]) -> None:
    for name, group in _groups().items():
        vars(group).clear()  # setattr would also set environment variables
        for key in (key for key in value if key.startswith(f"{name}.")):
            if key.removeprefix(f"{name}.") not in _hooks:
                vars(group)[key.removeprefix(f"{name}.")] = value[key]
    for name, group in _hooks.items():
        group.calls[:] = value[f"runtime.{name}"]


# ---- the process


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(_COMPILERS)}


def _set_environment(value: dict[str, str]) -> None:
    for name in _environment().keys() - value.keys():
        del os.environ[name]
    os.environ.update(value)


_SIGNALS = {
    getattr(number, "name", f"signal {number}"): number
    for number in sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
}
_handler: Any = sys.modules["_signal"].getsignal  # signal.getsignal takes twenty times as long


def _handlers() -> dict[str, object]:
    handlers = {name: _handler(number) for name, number in _SIGNALS.items()}
    debugger = getattr(sys.modules.get("pdb"), "Pdb", None)
    handler = getattr(handlers["SIGINT"], "__func__", None)
    if debugger is not None and handler is debugger.sigint_handler:
        # pdb leaves its own handler when its user continues after a breakpoint.
        handlers["SIGINT"] = debugger._previous_sigint_handler  # noqa: SLF001
    return handlers


def _named_handlers(value: dict[str, Any]) -> dict[str, object]:
    return {
        name: signal.Handlers(handler).name if isinstance(handler, int) else handler
        for name, handler in value.items()
    }


def _set_handlers(value: dict[str, Any]) -> None:
    for name, number in _SIGNALS.items():
        if _handler(number) != value[name]:
            signal.signal(number, value[name])


def _timers() -> dict[str, bool]:
    return {
        name: signal.getitimer(getattr(signal, name))[0] > 0
        for name in ("ITIMER_REAL", "ITIMER_VIRTUAL", "ITIMER_PROF")
    }


def _stop_timers(value: dict[str, bool]) -> None:
    for name, runs in value.items():
        if not runs:
            signal.setitimer(getattr(signal, name), 0)


_TINY = np.float32(1e-40)


def _flushes_denormals() -> bool:
    return bool(_TINY * np.float32(1) == 0)


def _set_collector(value: tuple[bool, tuple[int, int, int]]) -> None:
    enabled, thresholds = value
    gc.set_threshold(*thresholds)
    if enabled:
        gc.enable()
    else:
        gc.disable()


_allocator = _allocation._allocator  # noqa: SLF001  (triton has no public function that reads it)

ENVIRONMENT = Setting("the environment variable", _environment, _set_environment)

# In the order of their restoration.
SETTINGS = (
    Setting("torch's default device", _default_device, _set_default_device),
    Setting(
        "the number of torch function modes",
        _torch("len_torch_function_stack"),
        _pop_function_modes,
    ),
    Setting(
        "the number of torch dispatch modes",
        _torch("len_torch_dispatch_stack"),
        _pop_dispatch_modes,
    ),
    Setting("torch's default dtype", torch.get_default_dtype, torch.set_default_dtype),
    Setting("torch's inference mode", torch.is_inference_mode_enabled, _not_here),
    Setting("torch's grad mode", torch.is_grad_enabled, _torch("set_grad_enabled")),
    Setting("autocast", _autocast, _set_autocast),
    Setting("torch's deterministic", _deterministic, _set_deterministic),
    Setting("the precision of float32 products", _precision, _set_precision, meaning=_meant),
    Setting("torch's", _switches, _set_switches),
    Setting("the number of torch's threads", torch.get_num_threads, torch.set_num_threads),
    Setting("flushing of denormals to zero", _flushes_denormals, torch.set_flush_denormal),
    Setting("the current GPU", _gpu, torch.cuda.set_device),
    Setting("the current stream", _stream, torch.cuda.set_stream),
    Setting(
        "torch's random state",
        lambda: _state_of(torch.default_generator),
        lambda value: _set_state_of(torch.default_generator, value),
        shown=False,
    ),
    Setting("torch's random state of", _cuda_states, _set_cuda_states, shown=False),
    Setting("NumPy's random state", _numpy_state, _set_numpy_state, shown=False),
    Setting("Python's random state", random.getstate, random.setstate, shown=False),
    Setting("Triton's", _knobs, _set_knobs),
    ENVIRONMENT,
    Setting("the working directory", os.getcwd, os.chdir),
    Setting("the handler of", _handlers, _set_handlers, meaning=_named_handlers),
    Setting("the timer", _timers, _stop_timers),
    Setting(
        "the CPUs to run on",
        lambda: os.sched_getaffinity(0),
        lambda value: os.sched_setaffinity(0, value),
    ),
    # Allowed: libraries set them at their first use, or a kernel has to.
    Setting("Triton's allocator", _allocator.get, triton.set_allocator, fails=False),
    Setting(
        "sys.path",
        lambda: list(sys.path),
        lambda value: sys.path.__setitem__(slice(None), value),
        fails=False,
    ),
    Setting("the recursion limit", sys.getrecursionlimit, sys.setrecursionlimit, fails=False),
    Setting("NumPy's errors", np.geterr, lambda value: np.seterr(**value), fails=False),
    Setting(
        "garbage collection",
        lambda: (gc.isenabled(), gc.get_threshold()),
        _set_collector,
        fails=False,
    ),
    Setting("the trace function", sys.gettrace, sys.settrace, fails=False),
    Setting("the profile function", sys.getprofile, sys.setprofile, fails=False),
)
