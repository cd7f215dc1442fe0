"""An imitation of a second device: operations that mix it with the CPU fail as on a GPU.

Its tensors claim to be on `meta`, and keep their numbers on the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Self

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

ELSEWHERE = torch.device("meta")
# Operations that take a CPU's tensor without axes beside tensors of a GPU.
_TAKE_NUMBERS = frozenset(
    (
        *("add", "sub", "rsub", "mul", "div", "floor_divide", "pow", "fmod", "remainder"),
        *("copysign", "nextafter", "hypot", "maximum", "minimum", "fmax", "fmin", "atan2", "xlogy"),
        *("eq", "ne", "lt", "le", "gt", "ge", "where", "masked_fill", "fill"),
        *("logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor"),
    )
)
_TAKE_ALL = frozenset({"copy_", "_to_copy", "index", "index_put", "index_put_"})


class MixedDevicesError(RuntimeError):
    """An operation got tensors of both devices."""


class _Elsewhere(Tensor):
    """A tensor that claims to be elsewhere."""

    numbers: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __new__(cls, numbers: Tensor) -> Self:
        """Wrap numbers on the CPU."""
        made: Self = Tensor._make_wrapper_subclass(
            cls, numbers.size(), strides=numbers.stride(), dtype=numbers.dtype, device=ELSEWHERE,
            storage_offset=numbers.storage_offset(),
        )  # fmt: skip
        made.numbers = numbers
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: OpOverload[..., Any],
        _types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        return _run(func, args, kwargs or {})

    # These ask for the device's runtime before anything is dispatched.
    def __float__(self) -> float:
        return float(self.numbers)

    def __int__(self) -> int:
        return int(self.numbers)

    def __bool__(self) -> bool:
        return bool(self.numbers)

    def item(self) -> Any:  # noqa: ANN401
        return self.numbers.item()


class _Mode(TorchDispatchMode):
    """Creates tensors elsewhere."""

    def __torch_dispatch__(
        self,
        func: OpOverload[..., Any],
        _types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Run the operation on the numbers."""
        return _run(func, args, kwargs or {})


def elsewhere() -> AbstractContextManager[object]:
    """Within the context, tensors can be created elsewhere."""
    made: AbstractContextManager[object] = _Mode()  # type: ignore[no-untyped-call]
    return made


def placed(value: Any) -> Any:  # noqa: ANN401
    """Return a tensor elsewhere; another value stays as it is."""
    return _Elsewhere(value) if type(value) is Tensor else value


def brought_back(tensor: Tensor) -> Tensor:
    """Return the numbers on the CPU."""
    assert isinstance(tensor, _Elsewhere)
    return tensor.numbers


def _run(func: OpOverload[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """Run an operation on the numbers, on the CPU."""
    given, form = tree_flatten((args, kwargs))
    name = func._schema.name.split("::")[1]
    there = [each for each in given if isinstance(each, _Elsewhere)]
    here = [each for each in given if type(each) is Tensor]
    if there and name not in _TAKE_ALL:
        taken = name.removesuffix("_") in _TAKE_NUMBERS
        if any(each.dim() or not taken for each in here):
            raise MixedDevicesError(f"{func} has tensors of both devices")
    plain = [each.numbers if isinstance(each, _Elsewhere) else each for each in given]
    plain_args, plain_kwargs = tree_unflatten(plain, form)
    device = kwargs.get("device")
    if device is not None:
        plain_kwargs["device"] = torch.device("cpu")
    made = func(*plain_args, **plain_kwargs)
    if name.endswith("_"):
        return args[0]
    is_there = bool(there) if device is None else torch.device(device) == ELSEWHERE
    return tree_map(placed, made) if is_there else made
