"""What a candidate's fresh memory holds: NaN at one call, a finite sentinel at the next.

Memory that comes from the allocator may still hold zeros, an earlier result or the truth. Inside
`fresh_memory(value)` every uninitialised tensor that Python code asks torch for is filled first, so
that an element which a kernel never writes, or reads before it is written, shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from oracles.inputs import LARGEST_POISONED_BUFFER

SENTINEL = -12345.0  # rounded to the dtype; far from any value of the cases

_EMPTY = torch.ops.aten
_ALLOCATIONS = {
    _EMPTY.empty.memory_format,
    _EMPTY.empty_strided.default,
    _EMPTY.empty_like.default,
    _EMPTY.empty_permuted.default,
    _EMPTY.new_empty.default,
    _EMPTY.new_empty_strided.default,
}


class _Filled(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Without this the first operation imports torch's compiler, for two seconds."""
        return False

    def __init__(self, value: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.value = value

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        made = func(*args, **(kwargs or {}))
        if func in _ALLOCATIONS and isinstance(made, Tensor) and made.is_floating_point():
            untouched = made.device.type == "cpu" and made.nbytes > LARGEST_POISONED_BUFFER
            if not untouched:
                made.fill_(self.value)
        return made


@contextmanager
def fresh_memory(value: float) -> Iterator[None]:
    """Uninitialised floating-point tensors made inside hold `value` everywhere."""
    with _Filled(value):
        yield
