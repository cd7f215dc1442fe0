"""Fill a candidate's fresh memory, and measure how much memory a call takes.

Memory from the allocator may still contain zeros, an earlier result or the truth. So within
`fresh_memory(value)` every uninitialised tensor that Python code requests from torch is filled:
with NaN in one call, with a finite sentinel in the next; whole numbers with the smallest, then with
the largest. An element that a kernel never writes, or reads before it is written, then shows.

The peak counts the bytes requested from torch beyond the bytes requested before: on a GPU by the
allocator's own count of requested bytes (it rounds blocks up); on a CPU by following the storages
that operations create, until they are freed. The CPU count misses memory that one operation
allocates and frees. The same counts give the bytes that a call leaves allocated beside its outputs.
The guards behind fresh memory (red_zones.py) don't count; on a GPU their own peak is subtracted.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode

from kernel_workbench.oracles.cases.layouts import LARGEST_POISONED_BUFFER
from kernel_workbench.suites.interpreter.strict import initialisation
from kernel_workbench.suites.sandbox.call import stored
from kernel_workbench.suites.sandbox.worker_side import watch
from kernel_workbench.suites.sandbox.worker_side.red_zones import GUARD, UNINITIALISED, Guards


@dataclass(slots=True)
class CallMemory:
    """The memory of one call.

    guards      the guards behind memory that the call allocated (red_zones.py); no count includes
                them
    peak_bytes  the most bytes allocated at one time; None: not counted
    count       a function that returns the bytes allocated now
    before      its value at the start
    """

    guards: Guards
    peak_bytes: int | None = None
    count: Callable[[], int] | None = None
    before: int = 0

    def kept_bytes(self, beside: Iterable[Tensor]) -> int | None:
        """Return the bytes still allocated, without the tensors `beside`, created after the call.

        None: not counted.
        """
        if self.count is None:
            return None
        ours = sum(tensor.untyped_storage().nbytes() for tensor in beside if tensor.is_cuda)
        if self.count() - self.before - ours > 0:
            gc.collect()  # frees objects that only refer to each other
        return self.count() - self.before - ours


class _Filled(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: otherwise the first operation imports torch's compiler for two seconds."""
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True, so that torch.compile compiles under this mode."""
        return True

    def __init__(self, value: float, guards: Guards) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.value, self.guards = value, guards

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        watch.note_operation(func)
        self.guards.forget_resized(func, args)
        guarded = self.guards.allocate(func, args, kwargs or {})
        result = func(*args, **(kwargs or {})) if guarded is None else guarded
        fresh = result if func in UNINITIALISED and isinstance(result, Tensor) else None
        if fresh is None:
            initialisation.operated(func, args, kwargs or {})
            return result
        guard = 0 if guarded is None else GUARD
        initialisation.allocated(fresh, fresh.untyped_storage().nbytes() - guard)
        untouched = fresh.device.type == "cpu" and fresh.nbytes > LARGEST_POISONED_BUFFER
        if not (fresh.is_complex() or untouched):
            fresh.fill_(stored(self.value, fresh.dtype))
        return result


class _Counted(_Filled):
    """Fill fresh memory, and follow each storage that an operation creates until it is freed."""

    live: ClassVar[int] = 0  # bytes, of all calls

    def __init__(self, value: float, guards: Guards) -> None:
        super().__init__(value, guards)
        self.bytes_of: dict[int, int] = {}  # storages created within, by identity
        # Arguments of operations, kept alive: a new storage could otherwise get the identity of a
        # freed one.
        self.before: dict[int, UntypedStorage] = {}
        self.now = self.peak = 0

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        for identity, storage in _storages((*args, *(kwargs or {}).values())):
            if identity not in self.bytes_of:
                self.before[identity] = storage
        result = super().__torch_dispatch__(func, types, args, kwargs)
        for identity, storage in _storages(result):
            if identity in self.bytes_of or identity in self.before:
                continue
            nbytes = self.guards.nbytes(identity, storage)
            self.bytes_of[identity] = nbytes
            self.now += nbytes
            _Counted.live += nbytes
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self.freed, identity).atexit = False
        return result

    def freed(self, identity: int) -> None:
        """Subtract a freed storage."""
        nbytes = self.bytes_of.pop(identity)
        self.now -= nbytes
        _Counted.live -= nbytes


def _storages(values: object) -> Iterator[tuple[int, UntypedStorage]]:
    """Yield the storages among `values`, each with an identity that all of its tensors share."""
    if isinstance(values, tuple | list):
        for value in values:
            yield from _storages(value)
        return
    storage = values.untyped_storage() if isinstance(values, Tensor) else values
    if isinstance(storage, UntypedStorage):
        # Empty storages share an address.
        yield storage._cdata, storage  # noqa: SLF001


@contextmanager
def fresh_memory(value: float, device: torch.device) -> Iterator[CallMemory]:
    """Fill uninitialised tensors created within the context with `value`, as the dtype stores it.

    Yields:
        The call's memory; its counts are complete after the context.
    """
    guards = Guards()
    if device.type == "cpu":
        memory = CallMemory(guards, count=lambda: _Counted.live, before=_Counted.live)
        with _Counted(value, guards) as counted:
            yield memory
        memory.peak_bytes = counted.peak
        return
    memory, requested = CallMemory(guards), 0
    torch.cuda.reset_peak_memory_stats(device)
    if torch.cuda.get_allocator_backend() == "native":  # the other allocator doesn't count requests
        memory.count = lambda: _requested(device)["current"] - Guards.every
        memory.before = memory.count()
        requested = _requested(device)["current"]
    with _Filled(value, guards):
        yield memory
    if memory.count is not None:
        memory.peak_bytes = _requested(device)["peak"] - requested - guards.most


def see_compiled_code() -> None:
    """Let code from torch.compile request memory through the dispatcher, where modes see it."""
    guards = torch._C._dynamo.guards  # noqa: SLF001  (compiled code takes its functions from here)
    for kind in ("cpu", "cuda"):
        if hasattr(guards, f"_empty_strided_{kind}"):
            setattr(guards, f"_empty_strided_{kind}", partial(_empty_strided, torch.device(kind)))


def _empty_strided(
    device: torch.device, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype
) -> Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device=device)


def _requested(device: torch.device) -> dict[str, int]:
    counts: dict[str, int] = torch.cuda.memory_stats_as_nested_dict(device)["requested_bytes"][
        "all"
    ]
    return counts
