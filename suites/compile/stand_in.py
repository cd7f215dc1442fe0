"""A simulated GPU: host code of a kernel runs as if it had a GPU, and no kernel runs.

A kernel's host code asks its tensors and torch for the device, allocates outputs and launches. Here
its tensors lie in the CPU's memory and claim to be on `cuda:0`; torch.cuda describes the model that
represents a generation (profiles/peaks.py); and Triton's driver names the target and never
launches. So a call makes the launches that it would make on a GPU: the same addresses modulo 16
bytes, the same tiles, the same grids. Values are real, so code that reads a tensor works too.

A process is for one generation and does nothing else, so that host code may cache its device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from kernel_workbench.profiles.peaks import LIMITS, peaks_of_sm

_CPU = torch.device("cpu")
_DEVICE = torch.device("cuda", 0)
_MEMORY = 2**34  # bytes; no launch depends on this figure
_TO_CPU = {torch.Tensor.cpu, torch.Tensor.tolist, torch.Tensor.numpy}
_TO_GPU = {torch.Tensor.cuda}


class OnPaper(torch.Tensor):
    """A tensor in the CPU's memory that claims to be on the GPU."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device, `cuda:0`."""
        return _DEVICE

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        """True, as on a GPU."""
        return True

    def get_device(self) -> int:
        """Return 0, the device's index."""
        return 0


def _properties(sm: int) -> SimpleNamespace:
    """Return torch.cuda.get_device_properties of the model that represents a generation."""
    card, limits = peaks_of_sm(sm)[0], LIMITS[sm]
    return SimpleNamespace(
        name=card.name,
        major=sm // 10,
        minor=sm % 10,
        multi_processor_count=card.multiprocessors,
        total_memory=_MEMORY,
        warp_size=32,
        max_threads_per_multi_processor=32 * limits.warps,
        regs_per_multiprocessor=limits.registers,
        shared_memory_per_block=48 * 1024,
        shared_memory_per_block_optin=limits.shared_block_bytes,
        shared_memory_per_multiprocessor=limits.shared_bytes,
        L2_cache_size=int(card.l2_mb * 2**20),
    )


class Placing(TorchFunctionMode):
    """A mode in which tensors made on `cuda` lie in the CPU's memory, as `OnPaper`."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Call `func` with the CPU in place of the GPU."""
        del types
        kinds: list[str] = []

        def placed(value: object) -> object:
            if isinstance(value, str) and value.partition(":")[0] in ("cpu", "cuda"):
                value = torch.device(value)
            if not isinstance(value, torch.device):
                return value
            kinds.append(value.type)
            return _CPU if value.type == "cuda" else value

        there = tuple(map(placed, args))
        named = {name: placed(value) for name, value in (kwargs or {}).items()}
        if func in _TO_GPU:
            return on_paper(there[0])
        result = func(*there, **named)
        if "cpu" in kinds or func in _TO_CPU:
            return _plain(result)
        return on_paper(result) if kinds else result


def on_paper(value: object) -> object:
    """Return a tensor as `OnPaper`, which claims to be on the GPU; other values unchanged."""
    if isinstance(value, torch.Tensor) and not isinstance(value, OnPaper):
        return value.as_subclass(OnPaper)
    return value


def _plain(value: object) -> object:
    return value.as_subclass(torch.Tensor) if isinstance(value, OnPaper) else value


class _Driver:
    """The methods of a driver that Triton calls up to a launch."""

    def __init__(self, target: object) -> None:
        self._target = target

    def get_current_target(self) -> object:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return device

    def get_active_torch_device(self) -> torch.device:
        return _DEVICE

    def get_device_interface(self) -> object:
        return torch.cuda

    def get_benchmarker(self) -> Callable[..., list[float]]:
        """Return an autotuner's clock, which launches a configuration once and reports no time."""

        def run_once(call: Callable[[], object], **_: object) -> list[float]:
            call()
            return [0.0, 0.0, 0.0]

        return run_once


def _inside(*_: object, **__: object) -> AbstractContextManager[object]:
    return nullcontext()


@contextmanager
def tuned_anew() -> Iterator[None]:
    """Have every call of an autotuned function launch each of its configurations.

    Triton launches only the fastest one once it has tried all, and no launch takes time here.
    """
    from triton.runtime.autotuner import Autotuner  # noqa: PLC0415  (as in `install`)

    run = Autotuner.run

    def run_all(self: Any, *args: object, **named: object) -> object:  # noqa: ANN401
        self.cache.clear()
        return run(self, *args, **named)

    Autotuner.run = run_all
    try:
        yield
    finally:
        Autotuner.run = run


def install(sm: int) -> None:
    """Describe the GPU of a generation to torch and to Triton, for the rest of this process."""
    import triton  # noqa: PLC0415  (the process decides first how it is to be imported)
    from triton.backends.compiler import GPUTarget  # noqa: PLC0415

    card = _properties(sm)
    answers: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": lambda: None,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda *_: None,
        "get_device_capability": lambda *_, **__: divmod(sm, 10),
        "get_device_properties": lambda *_, **__: card,
        "get_device_name": lambda *_, **__: card.name,
        "synchronize": lambda *_, **__: None,
        "current_stream": lambda *_, **__: SimpleNamespace(cuda_stream=0, stream_id=0),
        "is_current_stream_capturing": lambda: False,
        "is_bf16_supported": lambda *_, **__: sm >= 80,
        "device": _inside,
        "device_of": _inside,
        "stream": _inside,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    triton.runtime.driver.set_active(_Driver(GPUTarget("cuda", sm, 32)))
