"""Other orders of addition than torch's: what an emulation comes to that adds up in one of them.

No order of summation breaks a rule, and errors follow the order: a sum in turn of numbers that
recur is off to one side, where torch's tree is nearly exact. Inside of `summed_in` sums over axes
are made of so many lanes, each of which adds up in turn, as threads or a loop do; what is added to
what was added before, as a + b + c, begins with the largest, so that partial sums are as large as
any order makes them.

A compiler contracts a product and a sum to a fused multiply-add, which doesn't round the product:
a b - c leaves the rounding of a b where c is that product, rounded. Inside of `summed_in(FUSED)` an
emulation does that, too.

A softmax subtracts any number near a row's maximum, and casts exponentials that are a factor
larger or smaller. All exponentials of a nearly flat row are cast to the same side, by up to twice
as much above a power of two as below it. Inside of `summed_in(LATE)` `subtracted` has another
number for each row.

A factor comes before a cast or after it, so that other numbers are cast. Where few elements of a
block are large, the errors of one kernel say nothing of another's, whose factors stand elsewhere.
Inside of `summed_in(MOVED)` they stand on the other side.

A GPU's exponential is off by up to 2^-22, by its argument, so that equal scores have the same
error. Inside of `summed_in(COARSE)` exponentials are as far off.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch._decomp import get_decompositions
from torch.utils._python_dispatch import TorchDispatchMode

_LARGEST_FIRST = 0
FUSED = -1
"""In place of lanes: sums by 32 lanes, and products that are fused into the sums that take them."""
LATE = -2
"""In place of lanes: sums by 32 lanes, and maxima of rows as a kernel has them that is slow to
replace the maximum of earlier keys."""
MOVED = -3
"""In place of lanes: sums by 32 lanes, and factors on the other side of a cast."""
COARSE = -4
"""In place of lanes: sums by 32 lanes, and exponentials as a GPU's fast ones."""
LANES = (1, 2, 8, 32, _LARGEST_FIRST, FUSED, LATE, MOVED, COARSE)
"""How many lanes emulations are tried with: one is a loop over all of a row.

Where a row's largest number comes first, by chance or in a loop that runs backwards, small ones are
below half an ulp of what was added up, and are lost: 0 stands for one lane that adds the largest
numbers first.
"""
_LANES_OF_OTHERS = 32
_GOLDEN = (math.sqrt(5) - 1) / 2  # whose multiples spread evenly over 0 to 1

_order = ContextVar[int | None]("_order", default=None)  # the member of LANES

_aten = torch.ops.aten
_MOST_STEPS = 2**16  # that a lane takes; of longer sums a step adds up several numbers
_MOST_ADDENDS = 16  # of a chain
_MOST_NUMBERS = 2**22  # of a chain's result, so that its addends find room
_MOST_FUSED = 2**20  # numbers of a product, whose exact values take twice the room
_EXPONENTIALS = {_aten.exp.default, _aten.exp_.default, _aten.exp2.default, _aten.exp2_.default}
_EXPONENTIAL_ERROR = 2.0**-22  # relative, of ex2.approx by the PTX manual
_SUMS = {_aten.sum.dim_IntList, _aten.sum.default}
_MEANS = {_aten.mean.dim, _aten.mean.default}
_VARIANCES = {_aten.var.correction, _aten.var_mean.correction, _aten.std.correction}
_ADDS = {_aten.add.Tensor: 1, _aten.sub.Tensor: -1, _aten.add_.Tensor: 1, _aten.sub_.Tensor: -1}
_MOVES = {
    *(_aten.view.default, _aten._unsafe_view.default, _aten.expand.default),  # noqa: SLF001  # torch's own name
    *(_aten.permute.default, _aten.transpose.int, _aten.t.default, _aten.unsqueeze.default),
    *(_aten.squeeze.dim, _aten.slice.Tensor, _aten.select.int, _aten.clone.default),
    *(_aten.alias.default, _aten.detach.default, _aten.neg.default),
}
# Compositions with sums inside.
_LOWERED = get_decompositions(
    [
        *(_aten._softmax, _aten._log_softmax, _aten.logsumexp),  # noqa: SLF001
        *(_aten._softmax_backward_data, _aten._log_softmax_backward_data),  # noqa: SLF001
        *(_aten.native_layer_norm, _aten.native_layer_norm_backward, _aten.native_group_norm),
        *(_aten._fused_rms_norm, _aten._fused_rms_norm_backward),  # noqa: SLF001
    ]
)


@contextmanager
def summed_in(lanes: int) -> Iterator[None]:
    """Let sums in fp32 be made of so many lanes inside, and chains of additions in another order.

    Args:
        lanes: a member of `LANES`.
    """
    before = _order.set(lanes)
    try:
        with _Order(lanes):
            yield
    finally:
        _order.reset(before)


def subtracted(maxima: Tensor) -> Tensor:
    """Return what a softmax subtracts from each row: its maximum, or a number below it.

    Args:
        maxima: one for each row, in fp32.

    Returns:
        The maxima, but inside of `summed_in(LATE)`. There they are up to log 2 less, so that
        exponentials have any place between two powers of two.
    """
    if _order.get() != LATE:
        return maxima
    rows = torch.arange(maxima.numel(), dtype=torch.float64, device=maxima.device)
    return maxima - (rows * _GOLDEN % 1).mul(math.log(2)).float().view(maxima.shape)


def sides(before: float, after: float) -> tuple[float, float]:
    """Return the factors before and after a cast, exchanged inside of `summed_in(MOVED)`."""
    return (after, before) if _order.get() == MOVED else (before, after)


class _Order(TorchDispatchMode):
    def __init__(self, lanes: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.fuses, self.is_coarse = lanes == FUSED, lanes == COARSE
        self.lanes = lanes if lanes >= 0 else _LANES_OF_OTHERS
        # By where a product lies: the product, which stays there as long, and its exact value.
        self.products: dict[object, tuple[Tensor, Tensor]] = {}
        # By where a result lies: the result, which stays there as long, and what it adds up.
        self.chains: dict[object, tuple[Tensor, tuple[Tensor, ...]]] = {}

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401  # an operation of aten's
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        """Run an operation of aten's."""
        del types
        named = dict(kwargs or {})
        if not args or not isinstance(args[0], Tensor) or args[0].dtype != torch.float32:
            return func(*args, **named)
        if func in _SUMS | _MEANS:
            axes = args[1] if len(args) > 1 else None
            keep = args[2] if len(args) > 2 else named.get("keepdim", False)
            result = _in_lanes(args[0], axes, self.lanes, keep=keep)
            return result if func in _SUMS else result / (args[0].numel() / max(result.numel(), 1))
        if func == _aten.linalg_vector_norm.default and args[1:2] in {(), (2,)}:
            return self._norm(*args, **named)
        if func in _VARIANCES:
            return self._variance(func, args, named)
        if func in _LOWERED:
            with self:
                return _LOWERED[func](*args, **named)
        if func in _ADDS and isinstance(args[1], Tensor):
            fused = self._fused(func, args, named) if self.fuses else None
            return self._added(func, args, named) if fused is None else fused
        if self.is_coarse and func in _EXPONENTIALS:
            off = _off_by_argument(args[0])
            return func(*args, **named).mul_(off)
        result = func(*args, **named)
        if self.fuses and func == _aten.mul.Tensor and isinstance(args[1], Tensor):
            self._note_product(result, args[0], args[1])
        if func._schema.is_mutable:  # noqa: SLF001  # torch's own name
            self._forget(args[0], named.get("out"))
        elif func in _MOVES:
            self._moved(func, args, named, result)
        return result

    def _moved(self, func: Any, args: Sequence[Any], named: dict[str, Any], result: Tensor) -> None:  # noqa: ANN401  # an operation of aten's
        """Keep what a number is made of where it is moved."""
        x, *rest = args
        place = _place(x)
        if place in self.chains:
            addends = (_in_form_of(x, addend) for addend in self.chains[place][1])
            self._note(result, tuple(func(addend, *rest, **named) for addend in addends))
        if place in self.products:
            exact = self.products[place][1]
            self.products[_place(result)] = result, func(exact, *rest, **named)

    def _note_product(self, result: Tensor, a: Tensor, b: Tensor) -> None:
        single = result.dtype == torch.float32 and b.dtype == torch.float32
        if single and result.numel() <= _MOST_FUSED:
            self.products[_place(result)] = result, a.double() * b.double()

    def _fused(self, func: Any, args: Sequence[Any], named: dict[str, Any]) -> Tensor | None:  # noqa: ANN401  # an operation of aten's
        """Return the sum with one exact product in it, or None where no addend is a product."""
        first, second = args[:2]
        if func._schema.is_mutable or second.dtype != torch.float32:  # noqa: SLF001  # torch's own name
            return None
        factor = named.get("alpha", 1) * _ADDS[func]
        exact: Tensor
        if _place(first) in self.products:
            exact = self.products[_place(first)][1] + factor * second.double()
        elif _place(second) in self.products:
            exact = first.double() + factor * self.products[_place(second)][1]
        else:
            return None
        return exact.float()

    def _added(self, func: Any, args: Sequence[Any], named: dict[str, Any]) -> Any:  # noqa: ANN401
        a, b = args[:2]
        alpha = named.get("alpha", 1) * _ADDS[func]
        other_addends = self._addends(b)
        scaled = other_addends if alpha == 1 else tuple(addend * alpha for addend in other_addends)
        addends = (*self._addends(a), *scaled)
        in_place = func._schema.is_mutable  # noqa: SLF001  # torch's own name
        if in_place:
            addends = tuple(addend.clone() for addend in addends)
        result: Tensor = func(*args, **named)
        if in_place:
            self._forget(result)
        if result.dtype != torch.float32 or len(addends) > _MOST_ADDENDS:
            return result
        if len(addends) > 2:  # two have one order
            whole = torch.stack([addend.expand(result.shape) for addend in addends])
            total, *rest = whole.sort(0, descending=True).values.unbind()
            for item in rest:
                total = total + item
            result.copy_(total)
        self._note(result, addends)
        return result

    def _norm(
        self,
        x: Tensor,
        _order: float = 2,
        axes: Any = None,  # noqa: ANN401
        keepdim: bool = False,  # noqa: FBT001,FBT002  # aten's own
        **_: object,
    ) -> Tensor:
        return _in_lanes(x.square(), axes, self.lanes, keep=keepdim).sqrt()

    def _variance(self, func: Any, args: Sequence[Any], named: dict[str, Any]) -> Any:  # noqa: ANN401
        """mean((x - mean)^2), its root, or it and the mean."""
        x, *rest = args
        axes = rest[0] if rest else named.get("dim")
        keep, degrees = named.get("keepdim", False), named.get("correction")
        whole = _in_lanes(x, axes, self.lanes, keep=True)
        n = x.numel() / max(whole.numel(), 1)
        squares = (x - whole / n).square()
        result = _in_lanes(squares, axes, self.lanes, keep=keep)
        result = result / (n - (1 if degrees is None else degrees))
        if func == _aten.std.correction:
            return result.sqrt()
        with_mean = func == _aten.var_mean.correction
        return (result, (whole / n).reshape(result.shape)) if with_mean else result

    def _addends(self, x: Tensor) -> tuple[Tensor, ...]:
        chain = self.chains.get(_place(x))
        return (x,) if chain is None else chain[1]

    def _note(self, result: Tensor, addends: tuple[Tensor, ...]) -> None:
        if result.numel() <= _MOST_NUMBERS:
            self.chains[_place(result)] = result, addends

    def _forget(self, *changed: Tensor | None) -> None:
        """Let go of chains and products of which a part was written to."""
        storages = {_storage(item) for item in changed if item is not None}
        self.chains = {
            place: (result, addends)
            for place, (result, addends) in self.chains.items()
            if storages.isdisjoint(map(_storage, (result, *addends)))
        }
        self.products = {
            place: product
            for place, product in self.products.items()
            if _storage(product[0]) not in storages
        }


def _in_form_of(x: Tensor, addend: Tensor) -> Tensor:
    """Return an addend in the shape and the strides of its sum, which can be moved likewise."""
    same = addend.shape == x.shape and addend.stride() == x.stride()
    return addend if same else torch.empty_like(x).copy_(addend)


def _storage(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _place(x: Tensor) -> object:
    """Where a tensor lies, as a key: two views of the same numbers have one."""
    return x.device, x.data_ptr(), tuple(x.shape), tuple(x.stride())


def _off_by_argument(x: Tensor) -> Tensor:
    """Return factors of exponentials, 1 plus or minus up to 2^-22, by their argument; 1 at 0."""
    off = (x.double() * (_GOLDEN * 2**10)).remainder(2) - 1
    return (1 + _EXPONENTIAL_ERROR * off).where(x.isfinite() & (x != 0), 1).float()


def _in_lanes(x: Tensor, axes: Any, lanes: int, *, keep: bool) -> Tensor:  # noqa: ANN401
    """The sum over axes, all where there are none, of lanes that add up in turn."""
    rest = [axes] if isinstance(axes, int) else list(axes or ())
    along = sorted(item % x.dim() for item in rest) or list(range(x.dim()))
    n = math.prod(x.shape[item] for item in along)
    if n < 2 or not x.numel():
        return x.sum(along, keepdim=keep)
    kept_axes = [item for item in range(x.dim()) if item not in along]
    rest = [x.shape[item] for item in kept_axes]
    rows = x.permute(*along, *kept_axes).reshape(n, -1)
    if lanes == _LARGEST_FIRST:
        lanes, rows = 1, rows.sort(0, descending=True).values
    width = lanes * -(-n // (lanes * _MOST_STEPS))
    total = rows.new_zeros(width, rows.shape[1])
    for start in range(0, n, width):
        part = rows[start : start + width]
        total[: len(part)] += part
    while len(total) > 1:  # lanes are added in pairs
        half = -(-len(total) // 2)
        total[: len(total) - half] += total[half:]
        total = total[:half]
    if keep:
        rest = [1 if item in along else size for item, size in enumerate(x.shape)]
    return total[0].reshape(rest)
