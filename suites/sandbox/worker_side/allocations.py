"""What a candidate's fresh memory holds, and how much of it a call takes.

Memory that comes from the allocator may still hold zeros, an earlier result or the truth. Inside
`fresh_memory(value)` every uninitialised tensor that Python code asks torch for is filled first, so
that an element which a kernel never writes, or reads before it is written, shows: NaN at one call,
a finite sentinel at the next; of whole numbers the smallest, and then the largest.

The peak is of what torch was asked for, in bytes, beyond what there was before: on a GPU by its
allocator's own count of requested bytes (not of blocks, which it rounds up and cuts from larger
ones); on a CPU by following the storages that operations inside make, until they are freed. What
an operation allocates and frees within itself isn't seen on a CPU. By the same counts it is known
what a call leaves allocated beside its outputs. The guards behind such memory (red_zones.py) don't
count; of a GPU's peak the most that there were at one time are taken off.
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
from kernel_workbench.suites.sandbox.call import held
from kernel_workbench.suites.sandbox.worker_side import watch
from kernel_workbench.suites.sandbox.worker_side.red_zones import GUARD, UNINITIALISED, Guards


@dataclass(slots=True)
class Memory:
    """The most bytes that were allocated at one time inside; None where nobody counts them.

    count: the bytes that are allocated now; before: as it was at the start. guards: those behind
    what was allocated inside (red_zones.py), which no count has.
    """

    guards: Guards
    peak_bytes: int | None = None
    count: Callable[[], int] | None = None
    before: int = 0

    def kept_bytes(self, beside: Iterable[Tensor]) -> int | None:
        """Bytes that are still allocated, `beside` them tensors that were made after the call."""
        if self.count is None:
            return None
        ours = sum(each.untyped_storage().nbytes() for each in beside if each.is_cuda)
        if self.count() - self.before - ours > 0:
            gc.collect()  # what refers to itself is kept by nobody
        return self.count() - self.before - ours


class _Filled(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Without this the first operation imports torch's compiler, for two seconds."""
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let torch.compile compile: under any other mode it runs its function as it is written."""
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
        made = func(*args, **(kwargs or {})) if guarded is None else guarded
        fresh = made if func in UNINITIALISED and isinstance(made, Tensor) else None
        if fresh is None:
            initialisation.operated(func, args, kwargs or {})
            return made
        guard = 0 if guarded is None else GUARD
        initialisation.allocated(fresh, fresh.untyped_storage().nbytes() - guard)
        untouched = fresh.device.type == "cpu" and fresh.nbytes > LARGEST_POISONED_BUFFER
        if not (fresh.is_complex() or untouched):
            fresh.fill_(held(self.value, fresh.dtype))
        return made


class _Counted(_Filled):
    """Filled, and followed: each storage that an operation inside makes, until it is freed."""

    live: ClassVar[int] = 0  # bytes, of all calls

    def __init__(self, value: float, guards: Guards) -> None:
        super().__init__(value, guards)
        self.bytes_of: dict[int, int] = {}  # of those that were made inside, by identity
        # Those that operations met as arguments, kept: where one were freed, another could have its
        # identity, and be taken for it.
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
        made = super().__torch_dispatch__(func, types, args, kwargs)
        for identity, storage in _storages(made):
            if identity in self.bytes_of or identity in self.before:
                continue
            nbytes = self.guards.nbytes(identity, storage)
            self.bytes_of[identity] = nbytes
            self.now += nbytes
            _Counted.live += nbytes
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self.freed, identity).atexit = False
        return made

    def freed(self, identity: int) -> None:
        """One storage less."""
        nbytes = self.bytes_of.pop(identity)
        self.now -= nbytes
        _Counted.live -= nbytes


def _storages(values: object) -> Iterator[tuple[int, UntypedStorage]]:
    """The storages among `values`, each with what tells it from others, whoever refers to it."""
    if isinstance(values, tuple | list):
        for each in values:
            yield from _storages(each)
        return
    storage = values.untyped_storage() if isinstance(values, Tensor) else values
    if isinstance(storage, UntypedStorage):
        # An address would be shared by empty ones.
        yield storage._cdata, storage  # noqa: SLF001


@contextmanager
def fresh_memory(value: float, device: torch.device) -> Iterator[Memory]:
    """Uninitialised tensors made inside hold `value` everywhere, whole numbers what `held` says.

    Yields what is known after it of the memory that was taken.
    """
    guards = Guards()
    if device.type == "cpu":
        memory = Memory(guards, count=lambda: _Counted.live, before=_Counted.live)
        with _Counted(value, guards) as counted:
            yield memory
        memory.peak_bytes = counted.peak
        return
    memory, requested = Memory(guards), 0
    torch.cuda.reset_peak_memory_stats(device)
    if torch.cuda.get_allocator_backend() == "native":  # the other counts no requests
        memory.count = lambda: _requested(device)["current"] - Guards.every
        memory.before = memory.count()
        requested = _requested(device)["current"]
    with _Filled(value, guards):
        yield memory
    if memory.count is not None:
        memory.peak_bytes = _requested(device)["peak"] - requested - guards.most


def see_compiled_code() -> None:
    """Have code that torch.compile makes ask the dispatcher for memory, where a mode sees it."""
    guards = torch._C._dynamo.guards  # noqa: SLF001  (whence the code takes its functions)
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
