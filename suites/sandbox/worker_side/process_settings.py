"""The settings of a process that a call could change for whoever comes next, as a table.

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
# Of the environment, what PyTorch's compiler and OpenMP set for themselves when first used.
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
    """Something of the process; a mapping is told of by the first of its keys that differs.

    read    its value; None where it can't be read yet, as a GPU's before its first use
    fails   a kernel that leaves it changed breaks a rule; otherwise it is the file's own
    shown   its values say something
    meaning of a value: two that mean the same are no change
    """

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]
    fails: bool = True
    shown: bool = True
    meaning: Callable[[Any], Any] = lambda value: value


def _torch(name: str) -> Callable[..., Any]:
    """A function of PyTorch's that has no public name."""
    found: Callable[..., Any] = getattr(torch._C, f"_{name}")  # noqa: SLF001
    return found


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
    """Of what only the one who set it can undo."""


def _autocast() -> dict[str, object]:
    made: dict[str, object] = {"cached": torch.is_autocast_cache_enabled()}
    for device in ("cpu", "cuda"):
        made[f"on {device}"] = torch.is_autocast_enabled(device)
        made[f"dtype on {device}"] = torch.get_autocast_dtype(device)
    return made


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
    public = "torch._inductor.config" in sys.modules  # which it tells, and imports for seconds
    write = torch.use_deterministic_algorithms if public else _torch("set_deterministic_algorithms")
    write(value["algorithms"], warn_only=value["warnings in place of errors"])
    _torch("set_deterministic_fill_uninitialized_memory")(value["fresh memory"])


# In this order: what stands for all is written before what stands for one.
_FP32 = [
    (of, kind)
    for of in ("generic", "cuda", "mkldnn")
    for kind in ("all", "matmul", "conv", "rnn")
    if of != "generic" or kind == "all"
]
_fp32_precision = _torch("get_fp32_precision_getter")
_set_fp32_precision = _torch("set_fp32_precision_setter")


def _precision() -> dict[str, str]:
    made = {}
    with suppress(RuntimeError):  # where it was set by the newer names, it refuses the older
        made["for all"] = torch.get_float32_matmul_precision()
    return made | {f"{of} {kind}": _fp32_precision(of, kind) for of, kind in _FP32}


def _meant(value: dict[str, str]) -> dict[str, str]:
    """With `ieee` for `none`, as which allow_tf32 = False leaves what was never set."""
    return {key: "ieee" if each == "none" else each for key, each in value.items()}


def _set_precision(value: dict[str, str]) -> None:
    if "for all" in value:
        torch.set_float32_matmul_precision(value["for all"])
    for of, kind in _FP32:
        _set_fp32_precision(of, kind, value[f"{of} {kind}"])


def _switch(get: str, put: str) -> tuple[Callable[[], Any], Callable[..., object]]:
    return _torch(f"get_{get}"), _torch(f"set_{put}")


_SWITCHES = {
    **{
        each: _switch(each, each)
        for each in (
            "cudnn_enabled",
            "cudnn_benchmark",
            "cudnn_deterministic",
            "mkldnn_enabled",
            "mkldnn_deterministic",
            "cublas_allow_fp16_accumulation",
            "cublas_allow_fp16_reduced_precision_reduction",  # two values, which are set by two
            "cublas_allow_bf16_reduced_precision_reduction",
        )
    },
    **{
        f"{each}_sdp": _switch(f"{each}_sdp_enabled", f"sdp_use_{each}")
        for each in ("flash", "mem_efficient", "math", "cudnn")
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
    """Of each GPU, from the host's copy of its seed and offset: nothing waits for the GPU."""
    if not torch.cuda.is_initialized():
        return None
    every = torch.cuda.default_generators
    return {f"cuda:{number}": _state_of(each) for number, each in enumerate(every)}


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
        name: each
        for name, each in vars(triton.knobs).items()
        if isinstance(each, triton.knobs.base_knobs)
    }


_hooks = {
    name: each
    for name, each in vars(type(triton.knobs.runtime)).items()
    if isinstance(each, triton.knobs.HookChain)
}


def _knobs() -> dict[str, object]:
    made: dict[str, object] = {
        f"{group}.{name}": value
        for group, each in _groups().items()
        for name, value in vars(each).items()
    }
    return made | {f"runtime.{name}": tuple(each.calls) for name, each in _hooks.items()}


def _set_knobs(value: dict[str, Any]) -> None:
    for name, each in _groups().items():
        vars(each).clear()  # and not by setattr, which sets variables of the environment
        for key in (key for key in value if key.startswith(f"{name}.")):
            if key.removeprefix(f"{name}.") not in _hooks:
                vars(each)[key.removeprefix(f"{name}.")] = value[key]
    for name, each in _hooks.items():
        each.calls[:] = value[f"runtime.{name}"]


# ---- the process


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(_COMPILERS)}


def _set_environment(value: dict[str, str]) -> None:
    for name in _environment().keys() - value.keys():
        del os.environ[name]
    os.environ.update(value)


_SIGNALS = {
    getattr(each, "name", f"signal {each}"): each
    for each in sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
}
_handler: Any = sys.modules["_signal"].getsignal  # signal's own takes twenty times as long


def _handlers() -> dict[str, object]:
    handlers = {name: _handler(each) for name, each in _SIGNALS.items()}
    debugger = getattr(sys.modules.get("pdb"), "Pdb", None)
    handler = getattr(handlers["SIGINT"], "__func__", None)
    if debugger is not None and handler is debugger.sigint_handler:
        # pdb leaves its own handler where its user goes on after a breakpoint.
        handlers["SIGINT"] = debugger._previous_sigint_handler  # noqa: SLF001
    return handlers


def _named_handlers(value: dict[str, Any]) -> dict[str, object]:
    return {
        name: signal.Handlers(each).name if isinstance(each, int) else each
        for name, each in value.items()
    }


def _set_handlers(value: dict[str, Any]) -> None:
    for name, each in _SIGNALS.items():
        if _handler(each) != value[name]:
            signal.signal(each, value[name])


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


_allocator = _allocation._allocator  # noqa: SLF001  (it is written by name, and read by none)

ENVIRONMENT = Setting("the environment variable", _environment, _set_environment)

# In the order in which they are set back.
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
    # Lawful: a library sets them when it is first used, or a kernel has to.
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
