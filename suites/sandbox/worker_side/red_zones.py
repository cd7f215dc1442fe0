"""Guards behind memory that a call allocates through torch, which reveal writes past its end.

Compiled code, in CUDA C++ or in C, writes past the end of a tensor without an error: an allocator
rounds sizes up, and another tensor follows. So memory that a call requests from torch gets a tail
with a pattern: bytes that form NaN in floating-point types, so that a read of them shows, too.
After the call the patterns of all memory that still exists are checked, outputs included.

A tensor keeps its shape, strides, alignment and offset 0; its storage has GUARD more bytes. If a
kernel resizes a storage, or makes another tensor of a whole storage, its guard is dropped. The
guards miss writes before the beginning of a tensor, writes further than GUARD bytes past its end,
writes to memory that is freed when the call ends, and writes to memory allocated while a CUDA graph
is captured.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, UntypedStorage

GUARD = 512  # bytes
_REAL, _WHOLE = 0xFF, 0xA5  # bytes of guards behind floating-point numbers and behind other numbers
_ATEN = torch.ops.aten
UNINITIALISED = {
    _ATEN.empty.memory_format,
    _ATEN.empty_strided.default,
    _ATEN.empty_like.default,
    _ATEN.empty_permuted.default,
    _ATEN.new_empty.default,
    _ATEN.new_empty_strided.default,
}
# Operations that fill a new tensor with one number: the number, or its position among the
# arguments, which the dispatcher passes in the schema's order.
_FILLED: dict[Any, tuple[float, int | None]] = {
    **{getattr(_ATEN, name).default: (0.0, None) for name in ("zeros", "zeros_like", "new_zeros")},
    **{getattr(_ATEN, name).default: (1.0, None) for name in ("ones", "ones_like", "new_ones")},
    _ATEN.full.default: (0.0, 1),
    _ATEN.full_like.default: (0.0, 1),
    _ATEN.new_full.default: (0.0, 2),
}
_RESIZING = {_ATEN.resize_.default, _ATEN.resize_as_.default}
_SHARING = {_ATEN.set_.source_Storage, _ATEN.set_.source_Storage_storage_offset}


@dataclass(frozen=True, slots=True)
class _Guard:
    """The guard of one storage.

    nbytes  the requested bytes
    shape   the shape of the requested tensor
    byte    the byte that the pattern repeats
    """

    storage: weakref.ref[UntypedStorage]
    address: int
    nbytes: int
    shape: tuple[int, ...]
    byte: int

    def tail(self) -> Tensor | None:
        """Return the guard's bytes, or None if the storage is gone or was replaced."""
        storage = self.storage()
        if storage is None or storage.data_ptr() != self.address:
            return None
        if storage.nbytes() != self.nbytes + GUARD:
            return None
        memory = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        return memory[self.nbytes :]


@dataclass(slots=True)
class Guards:
    """The guards of one call."""

    _guards: dict[int, _Guard] = field(default_factory=dict)  # by the storage's identity
    live: int = 0  # bytes
    most: int = 0  # bytes at one time
    every: ClassVar[int] = 0  # bytes, of all calls

    def allocate(
        self,
        func: Callable[..., Any],
        args: Sequence[object],
        kwargs: Mapping[str, object],
    ) -> Tensor | None:
        """Do the work of `func` with a guard; None: it creates no plain memory of a device."""
        fills = _FILLED.get(func)
        if fills is None and func not in UNINITIALISED:
            return None
        form = _form(func, args, kwargs)
        device = _device(args, kwargs)
        nbytes = 0 if form is None else form.untyped_storage().nbytes()
        if form is None or device is None or not nbytes or _is_captured(device):
            return None
        pinned = bool(kwargs.get("pin_memory"))
        memory = torch.empty(nbytes + GUARD, dtype=torch.uint8, device=device, pin_memory=pinned)
        byte = _REAL if form.is_floating_point() else _WHOLE
        memory[nbytes:].fill_(byte)
        tensor = torch.empty(0, dtype=form.dtype, device=device)
        tensor.set_(memory.untyped_storage(), 0, form.shape, form.stride())
        if fills is not None:
            value, place = fills
            tensor.fill_(value if place is None else cast("float", args[place]))
        self._note(tensor, nbytes, byte)
        return tensor

    def _note(self, tensor: Tensor, nbytes: int, byte: int) -> None:
        storage = tensor.untyped_storage()
        identity = storage._cdata  # noqa: SLF001
        guard = _Guard(weakref.ref(storage), storage.data_ptr(), nbytes, tuple(tensor.shape), byte)
        self._guards[identity] = guard
        self.live += GUARD
        Guards.every += GUARD
        self.most = max(self.most, self.live)
        weakref.finalize(storage, self._freed, identity).atexit = False

    def _freed(self, identity: int) -> None:
        self._guards.pop(identity, None)
        self.live -= GUARD
        Guards.every -= GUARD

    def forget_resized(self, func: object, args: Sequence[object]) -> None:
        """Drop the guard of a storage that a kernel resizes or makes another tensor of."""
        if func in _RESIZING and isinstance(args[0], Tensor):
            self._guards.pop(args[0].untyped_storage()._cdata, None)  # noqa: SLF001
        elif func in _SHARING and isinstance(args[1], UntypedStorage):
            self._guards.pop(args[1]._cdata, None)  # noqa: SLF001

    def nbytes(self, identity: int, storage: UntypedStorage) -> int:
        """Return the requested bytes of a storage, with or without a guard."""
        return storage.nbytes() - (GUARD if identity in self._guards else 0)

    def broken(self) -> str | None:
        """Return a sentence about the first tensor with a write past its end, or None."""
        for guard in tuple(self._guards.values()):
            tail = guard.tail()
            places = [] if tail is None else (tail != guard.byte).nonzero().flatten().tolist()
            if places:
                return (
                    f"it wrote past the end of a tensor of shape {guard.shape} that it allocated: "
                    f"{len(places)} of the {GUARD} bytes behind the tensor have changed, the last "
                    f"of them {places[-1] + 1} bytes past the end"
                )
        return None


def _is_captured(device: torch.device) -> bool:
    """Return True while a CUDA graph is captured: no kernel runs and no pattern can be written."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _form(
    func: Callable[..., Any], args: Sequence[object], kwargs: Mapping[str, object]
) -> Tensor | None:
    """Return the tensor that `func` would create, without memory; None: not a plain tensor."""
    if kwargs.get("layout") not in (None, torch.strided):
        return None
    passed = {name: value for name, value in kwargs.items() if name != "pin_memory"}
    tensor = func(*args, **{**passed, "device": torch.device("meta")})
    is_plain = type(tensor) is Tensor and tensor.layout == torch.strided and not tensor.is_quantized
    return tensor if is_plain else None


def _device(args: Sequence[object], kwargs: Mapping[str, object]) -> torch.device | None:
    """Return the device of the requested memory; None: neither a host's nor a GPU's."""
    place = kwargs.get("device")
    if place is None:
        place = args[0].device if args and isinstance(args[0], Tensor) else "cpu"
    device = torch.device(cast("torch.device", place))
    return device if device.type in {"cpu", "cuda"} else None
