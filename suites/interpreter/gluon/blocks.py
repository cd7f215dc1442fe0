"""Blocks of values and addresses, as a Gluon kernel handles them: torch tensors, Triton's rules."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from triton.experimental.gluon import language as gl

from kernel_workbench.suites.interpreter.strict.initialisation import Array, Fresh, fresh_at
from kernel_workbench.suites.interpreter.strict.launch import STATE, line

TORCH_OF = {
    gl.bfloat16: torch.bfloat16,
    gl.float16: torch.float16,
    gl.float32: torch.float32,
    gl.int1: torch.bool,
    gl.float64: torch.float64,
    gl.float8e4nv: torch.float8_e4m3fn,
    gl.float8e5: torch.float8_e5m2,
    gl.int8: torch.int8,
    gl.uint8: torch.uint8,
    gl.int16: torch.int16,
    gl.int32: torch.int32,
    gl.int64: torch.int64,
}
GLUON_OF = {there: here for here, there in TORCH_OF.items()}


class MachineError(RuntimeError):
    """A kernel in Gluon does what a GPU can't be trusted with; one sentence."""


class Product:
    """What an asynchronous product of matrices will be, once it is waited for."""

    def __init__(self, compute: Callable[[], Block]) -> None:
        self._compute = compute
        self._value: Block | None = None

    def finish(self) -> None:
        """Compute it."""
        self._value = self._compute()

    @property
    def value(self) -> Block:
        """Raises MachineError where it isn't done."""
        if self._value is None:
            raise MachineError("a product is passed on by a wait that doesn't wait for it")
        return self._value

    def __getattr__(self, name: str) -> Any:
        raise MachineError(f"a product is used ({name}) before it was waited for")


class Block:
    """A block of values, or one value in a block without axes."""

    def __init__(self, value: Any) -> None:
        self.value = value if isinstance(value, Tensor) else _scalar(value)

    @property
    def shape(self) -> list[int]:
        """Its extents."""
        return list(self.value.shape)

    @property
    def dtype(self) -> gl.dtype:
        """Triton's name of its dtype."""
        return GLUON_OF[self.value.dtype]

    @property
    def type(self) -> SimpleNamespace:
        """What a kernel asks of its type: a layout, which means nothing here."""
        return SimpleNamespace(layout=None)

    def to(self, dtype: gl.dtype, *, bitcast: bool = False) -> Block:
        """In another dtype: the same values, or the same bits."""
        there = TORCH_OF[dtype]
        return Block(self.value.view(there) if bitcast else self.value.to(there))

    def reshape(self, shape: Sequence[int]) -> Block:
        """In another shape."""
        return Block(self.value.reshape(tuple(shape)))

    def __getitem__(self, key: Any) -> Block:
        return Block(self.value[key])

    def __bool__(self) -> bool:
        return bool(self.value)

    def __index__(self) -> int:
        return int(self.value)

    __hash__ = None  # type: ignore[assignment]


def _scalar(value: Any) -> Tensor:
    if isinstance(value, bool):
        return torch.tensor(value)
    return torch.tensor(value, dtype=torch.float32 if isinstance(value, float) else torch.int32)


def tensor_of(value: Any) -> Tensor:
    """The values of a block or a number. Raises MachineError for a product that isn't done."""
    if isinstance(value, Product):
        value = value.value
    return value.value if isinstance(value, Block) else Block(value).value


def joined(first: Any, second: Any) -> tuple[Tensor, Tensor]:
    """Both in the dtype that Triton computes in; a number takes the block's where it can."""
    left, right = tensor_of(first), tensor_of(second)
    if not isinstance(first, Block) and left.is_floating_point() <= right.is_floating_point():
        left = left.to(right.dtype)
    elif not isinstance(second, Block) and right.is_floating_point() <= left.is_floating_point():
        right = right.to(left.dtype)
    # Of blocks without axes torch would take the narrower dtype.
    dtype = torch.promote_types(left.dtype, right.dtype)
    return left.to(dtype), right.to(dtype)


def elementwise(compute: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Any, Any], Block]:
    """A function of two blocks or numbers."""
    return lambda first, second: Block(compute(*joined(first, second)))


def _quotient(left: Tensor, right: Tensor) -> Tensor:
    return torch.div(left, right, rounding_mode="trunc")


def _remainder(left: Tensor, right: Tensor) -> Tensor:
    return torch.fmod(left, right)


_ARITHMETIC = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "truediv": operator.truediv,
    "floordiv": _quotient, "mod": _remainder, "and": operator.and_, "or": operator.or_,
    "xor": operator.xor, "rshift": operator.rshift, "lshift": operator.lshift,
}  # fmt: skip
_COMPARISONS = {name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")}


def _method(compute: Callable[[Tensor, Tensor], Tensor], *, swapped: bool) -> Callable[..., Any]:
    def apply(self: Block, other: Any) -> Block:
        first, second = (other, self) if swapped else (self, other)
        return Block(compute(*joined(first, second)))

    return apply


for _name, _compute in {**_ARITHMETIC, **_COMPARISONS}.items():
    setattr(Block, f"__{_name}__", _method(_compute, swapped=False))
for _name, _compute in _ARITHMETIC.items():
    setattr(Block, f"__r{_name}__", _method(_compute, swapped=True))


class Pointer:
    """Addresses in an argument, as elements from its first one."""

    def __init__(
        self, tensor: Tensor, name: str, written: Written, places: Block | None = None
    ) -> None:
        self._tensor, self._name, self._written = tensor, name, written
        self._places = Block(0) if places is None else places
        reached = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
        self._count = 1 + reached if tensor.numel() else 0
        self._elements = tensor.as_strided((self._count,), (1,))

    @property
    def dtype(self) -> gl.dtype:
        """Triton's name of its type; `element_ty` is that of what lies there."""
        return gl.pointer_type(GLUON_OF[self._tensor.dtype])

    def __add__(self, other: Any) -> Pointer:
        return Pointer(self._tensor, self._name, self._written, self._places + other)

    def to(self, _: gl.dtype) -> Pointer:
        """Itself, for assembly that takes an address as a number."""
        return self

    def _kept(self, mask: Any, does: str) -> tuple[Tensor, Tensor]:
        """The lanes of the mask, and their places. Raises IllegalAccessError."""
        places = self._places.value.long()
        kept = tensor_of(mask).expand_as(places)
        at = places[kept]
        if at.numel() and (int(at.min()) < 0 or int(at.max()) >= self._count):
            worst = int(at.min()) if int(at.min()) < 0 else int(at.max())
            STATE.refuse(
                f"a lane {does} element {worst} of {self._name}, which has {self._count} of its "
                f"own, at {line()}"
            )
        return kept, at

    def load(self, mask: Any, other: Any) -> Block:
        """The elements there, `other` where the mask doesn't hold."""
        kept, at = self._kept(mask, "reads")
        check_written(self._elements[:0], at.numpy(), self._name)
        there = tensor_of(other).to(self._tensor.dtype).expand(kept.shape).clone()
        there[kept] = self._elements[at]
        return Block(there)

    def store(self, value: Any, mask: Any) -> None:
        """Store `value` where the mask holds."""
        kept, at = self._kept(mask, "writes")
        values = tensor_of(value).to(self._tensor.dtype).expand(kept.shape)[kept]
        same = torch.equal(self._elements[at], values)
        self._written.add(self._elements, at.numpy(), self._name, same=same)
        self._elements[at] = values

    def add(self, value: Block) -> None:
        """Add `value` to the elements there."""
        _, at = self._kept(True, "adds to")  # noqa: FBT003
        check_written(self._elements[:0], at.numpy(), self._name)
        self._elements.index_add_(0, at.flatten(), value.value.flatten())


def _fresh(tensor: Tensor) -> Fresh | None:
    return fresh_at(tensor.untyped_storage().data_ptr())


def check_written(tensor: Tensor, places: Array, name: str) -> None:
    """Raise IllegalAccessError where nothing has written one of the elements from `tensor` on."""
    fresh = _fresh(tensor)
    if fresh is None or not places.size:
        return
    missing = fresh.unwritten(places.reshape(-1) + tensor.storage_offset(), tensor.element_size())
    if missing is not None:
        STATE.refuse(
            f"{missing[0]:,} elements of {name} are read that nothing has written, at {line()}"
        )


class Written:
    """Who stored what in a launch: two programs that store to one element meet in no order.

    program: the one in turn, by its number.
    """

    def __init__(self) -> None:
        self.program = 0
        self._owners: dict[int, Array] = {}  # of each storage's elements, by its address

    def add(self, tensor: Tensor, places: Array, name: str, *, same: bool) -> None:
        """Take down that the program writes these elements from `tensor` on.

        same: what it writes is there already, which a kernel may say that it means to. Raises
        IllegalAccessError.
        """
        storage, size = tensor.untyped_storage(), tensor.element_size()
        at = places.reshape(-1) + tensor.storage_offset()
        if not at.size:
            return
        owners = self._owners.setdefault(
            storage.data_ptr(), np.full(storage.nbytes() // size, -1, np.int32)
        )
        others = owners[at]
        meant = same and STATE.same_stores
        if not meant and bool(((others >= 0) & (others != self.program)).any()):
            STATE.refuse(f"two programs store to one element of {name}, at {line()}")
        owners[at] = self.program
        fresh = _fresh(tensor)
        if fresh is not None:
            fresh.wrote(at, size)
