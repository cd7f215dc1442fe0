"""Blocks of values and addresses of a Gluon kernel: torch tensors with Triton's rules."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
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
    """A kernel in Gluon does something undefined on a GPU; the message is one sentence."""


class Product:
    """An asynchronous product of matrices; its value exists after the wait for it."""

    def __init__(self, compute: Callable[[], GluonBlock]) -> None:
        self._compute = compute
        self._value: GluonBlock | None = None

    def finish(self) -> None:
        """Compute the product."""
        self._value = self._compute()

    @property
    def value(self) -> GluonBlock:
        """The product. Raises MachineError if it isn't finished."""
        if self._value is None:
            raise MachineError("a product is passed on by a wait that doesn't wait for it")
        return self._value

    def __getattr__(self, name: str) -> Any:
        raise MachineError(f"a product is used ({name}) before it was waited for")


class GluonBlock:
    """A block of values, or one value in a block without axes."""

    def __init__(self, value: Any) -> None:
        self.value = value if isinstance(value, Tensor) else _scalar(value)

    @property
    def shape(self) -> list[int]:
        """The block's extents."""
        return list(self.value.shape)

    @property
    def dtype(self) -> gl.dtype:
        """The block's dtype in Triton."""
        return GLUON_OF[self.value.dtype]

    @property
    def type(self) -> SimpleNamespace:
        """The block's type, whose layout means nothing here."""
        return SimpleNamespace(layout=None)

    def to(self, dtype: gl.dtype, *, bitcast: bool = False) -> GluonBlock:
        """Return the block in another dtype: with the same values, or the same bits."""
        there = TORCH_OF[dtype]
        return GluonBlock(self.value.view(there) if bitcast else self.value.to(there))

    def reshape(self, shape: Sequence[int]) -> GluonBlock:
        """Return the block in another shape."""
        return GluonBlock(self.value.reshape(tuple(shape)))

    def __getitem__(self, key: Any) -> GluonBlock:
        return GluonBlock(self.value[key])

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
    """Return the values of a block or a number. Raises MachineError for an unfinished product."""
    if isinstance(value, Product):
        value = value.value
    return value.value if isinstance(value, GluonBlock) else GluonBlock(value).value


def joined(first: Any, second: Any) -> tuple[Tensor, Tensor]:
    """Return both in the dtype that Triton computes in; a number takes the block's if possible."""
    left, right = tensor_of(first), tensor_of(second)
    is_floating = left.is_floating_point()
    if not isinstance(first, GluonBlock) and is_floating <= right.is_floating_point():
        left = left.to(right.dtype)
    elif not isinstance(second, GluonBlock) and right.is_floating_point() <= is_floating:
        right = right.to(left.dtype)
    # torch itself would take the narrower dtype for blocks without axes.
    dtype = torch.promote_types(left.dtype, right.dtype)
    return left.to(dtype), right.to(dtype)


def elementwise(compute: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Any, Any], GluonBlock]:
    """Return `compute` as a function of two blocks or numbers."""
    return lambda first, second: GluonBlock(compute(*joined(first, second)))


_ARITHMETIC: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "truediv": operator.truediv,
    "floordiv": partial(torch.div, rounding_mode="trunc"), "mod": torch.fmod,
    "and": operator.and_, "or": operator.or_, "xor": operator.xor,
    "rshift": operator.rshift, "lshift": operator.lshift,
}  # fmt: skip
_COMPARISONS = {name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")}


def _swapped(compute: Callable[[Any, Any], GluonBlock]) -> Callable[[Any, Any], GluonBlock]:
    return lambda block, other: compute(other, block)


for _name, _compute in {**_ARITHMETIC, **_COMPARISONS}.items():
    setattr(GluonBlock, f"__{_name}__", elementwise(_compute))
for _name, _compute in _ARITHMETIC.items():
    setattr(GluonBlock, f"__r{_name}__", _swapped(elementwise(_compute)))


class Pointer:
    """Addresses in an argument, as elements from its first one."""

    def __init__(
        self, tensor: Tensor, name: str, written: Written, places: GluonBlock | None = None
    ) -> None:
        self._tensor, self._name, self._written = tensor, name, written
        self._places = GluonBlock(0) if places is None else places
        reached = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
        self._count = 1 + reached if tensor.numel() else 0
        self._elements = tensor.as_strided((self._count,), (1,))

    @property
    def dtype(self) -> gl.dtype:
        """The pointer's type in Triton; its `element_ty` is the type of the elements."""
        return gl.pointer_type(GLUON_OF[self._tensor.dtype])

    def __add__(self, other: Any) -> Pointer:
        return Pointer(self._tensor, self._name, self._written, self._places + other)

    def to(self, _: gl.dtype) -> Pointer:
        """Return itself, for assembly that takes an address as a number."""
        return self

    def _kept(self, mask: Any, does: str) -> tuple[Tensor, Tensor]:
        """Return the mask's lanes, and their places. Raises IllegalAccessError."""
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

    def load(self, mask: Any, other: Any) -> GluonBlock:
        """Return the elements there, and `other` where the mask is False."""
        kept, at = self._kept(mask, "reads")
        check_written(self._elements[:0], at.numpy(), self._name)
        there = tensor_of(other).to(self._tensor.dtype).expand(kept.shape).clone()
        there[kept] = self._elements[at]
        return GluonBlock(there)

    def store(self, value: Any, mask: Any) -> None:
        """Store `value` where the mask is True."""
        kept, at = self._kept(mask, "writes")
        values = tensor_of(value).to(self._tensor.dtype).expand(kept.shape)[kept]
        same = torch.equal(self._elements[at], values)
        self._written.add(self._elements, at.numpy(), self._name, same=same)
        self._elements[at] = values

    def add(self, value: GluonBlock) -> None:
        """Add `value` to the elements there."""
        _, at = self._kept(True, "adds to")  # noqa: FBT003
        check_written(self._elements[:0], at.numpy(), self._name)
        self._elements.index_add_(0, at.flatten(), value.value.flatten())


def _fresh(tensor: Tensor) -> Fresh | None:
    return fresh_at(tensor.untyped_storage().data_ptr())


def check_written(tensor: Tensor, places: Array, name: str) -> None:
    """Raise IllegalAccessError if an element at `places`, counted from `tensor`, is unwritten."""
    fresh = _fresh(tensor)
    if fresh is None or not places.size:
        return
    size = tensor.element_size()
    missing = fresh.unwritten(places.reshape(-1) + tensor.storage_offset(), size)
    if missing is not None:
        count = np.unique(missing // size).size
        STATE.refuse(f"{count:,} elements of {name} are read that nothing has written, at {line()}")


class Written:
    """The stores of a launch by program: two programs that store to one element have no order.

    `program` is the number of the running program.
    """

    def __init__(self) -> None:
        self.program = 0
        self._owners: dict[int, Array] = {}  # the owner of each element, by a storage's address

    def add(self, tensor: Tensor, places: Array, name: str, *, same: bool) -> None:
        """Note that the program writes the elements at `places`, counted from `tensor`.

        `same` is True if the elements have the stored values already, which a kernel may declare.
        Raises IllegalAccessError.
        """
        storage, size = tensor.untyped_storage(), tensor.element_size()
        at = places.reshape(-1) + tensor.storage_offset()
        if not at.size:
            return
        owners = self._owners.setdefault(
            storage.data_ptr(), np.full(storage.nbytes() // size, -1, np.int32)
        )
        owners_there = owners[at]
        meant = same and STATE.same_stores
        if not meant and bool(((owners_there >= 0) & (owners_there != self.program)).any()):
            STATE.refuse(f"two programs store to one element of {name}, at {line()}")
        owners[at] = self.program
        fresh = _fresh(tensor)
        if fresh is not None:
            fresh.wrote(at, size)
