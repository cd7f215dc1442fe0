"""How errors go through convolutions, pools and upsampling: functions of windows of an input.

A convolution is a sum of K products, and a bias, in any order: with G(n) as sums have it,

    convolution    conv(ea, |w| + ew) + conv(|a|, ew) + G(K) conv(|a| + ea, |w| + ew) + 2 K eta
    with a bias    the same with G(K + 1), and eb + G(K) |b|
    average pool   pool(ea) + G(n - 1) pool(|a| + ea), and a division by the count
    max pool       max(pool(a + ea) - pool(a), pool(a) - pool(a - ea))

A convolution by transformed operands (Winograd, FFT) isn't such a sum: no bound here is for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from itertools import product as every
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # as everywhere
from torch import Tensor

from kernel_workbench.oracles.analysis.arithmetic import LARGEST, Arithmetic
from kernel_workbench.oracles.analysis.lowered import LEAD, along
from kernel_workbench.oracles.analysis.quantities import Combination, Quantity, magnitude
from kernel_workbench.oracles.analysis.rules import EPS_DIVISION, UnknownError, monotone, rule
from kernel_workbench.oracles.analysis.sums import EQUAL
from kernel_workbench.oracles.rounding import NEAREST

_aten = torch.ops.aten
_POSITION = 8 * NEAREST  # relative: how far off a kernel's position in an input may be


def addends_of(
    weight: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    *,
    transposed: bool,
) -> int:
    """Count the products that one number of a convolution adds up, at most.

    Args:
        weight: shape of the weight.
        stride: of the convolution, for each axis of space.
        dilation: likewise.
        groups: of channels.
        transposed: True if the convolution is transposed: then a number takes in only the taps
            that the stride brings to its place.

    """
    taps = weight[LEAD:]
    if not transposed:
        return weight[1] * math.prod(taps)
    return weight[0] // groups * _windows_at(taps, stride, dilation)


def _windows_at(kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> int:
    """Count the windows that one number is in, at most."""
    steps = along(stride, len(kernel)), along(dilation, len(kernel))
    parts = zip(kernel, *steps, strict=True)
    return math.prod(-(-k // (s // math.gcd(s, d))) for k, s, d in parts)


def flat_filters(weight: Tensor, groups: int, *, transposed: bool) -> Tensor:
    """Return for each output channel whether all products at a tap may have factors alike.

    One input channel is taken for alike: taps at a border may be.
    """
    if transposed:
        inputs, outputs = weight.shape[:LEAD]
        weight = weight.unflatten(0, (groups, inputs // groups)).transpose(1, 2)
        weight = weight.reshape(groups * outputs, inputs // groups, *weight.shape[3:])
    if not weight.numel():
        return weight.new_zeros(len(weight), dtype=torch.bool)
    high, low = weight.amax(1), weight.amin(1)
    alike = high - low <= EQUAL * torch.maximum(high, -low)
    return alike.flatten(1).any(1)


@rule("convolution", sums=True)
def _convolution(  # noqa: PLR0913,PLR0917  # aten's own
    arithmetic: Arithmetic,
    out: Quantity,
    a: Quantity,
    w: Quantity,
    bias: Quantity | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,  # noqa: FBT001  # aten's own
    output_padding: Sequence[int],
    groups: int,
) -> Tensor:
    geometry = stride, padding, dilation, transposed, output_padding, groups

    def convolved(x: Tensor, y: Tensor) -> Tensor:
        result: Tensor = _aten.convolution(x, y, None, *geometry)
        return result

    k = addends_of(w.value.shape, stride, dilation, groups, transposed=transposed)
    ea, ew = arithmetic.operand(a), arithmetic.operand(w)
    size_a = a.size if ea is None else a.size + ea
    size_w = w.size if ew is None else w.size + ew
    if ea is None and ew is None:
        size = a.once(("convolution", id(w)), lambda: convolved(size_a, size_w))
    else:
        size = convolved(size_a, size_w)
    n = k if bias is None else k + 1
    result = size * _of_channels(arithmetic, n, w, groups, out.value, transposed=transposed)
    if ea is not None:
        result += convolved(ea, size_w)
    if ew is not None:
        result += convolved(a.size, ew)
    result += 2 * k * arithmetic.eta
    if bias is not None:
        growth = arithmetic.sure.growth(k)
        own = bias.size * growth
        own = own if bias.error is None else own.add_(bias.error, alpha=1 + growth)
        result += by_channel(own, out.value)
        result += arithmetic.eta
    return _without_overflow(result, size)


def _without_overflow(error: Tensor, size: Tensor) -> Tensor:
    """Return the error, infinite where some order of addends of this total size overflows."""
    if not size.numel() or float(size.amax()) < LARGEST:
        return error
    return error.masked_fill(~(size < LARGEST), torch.inf)


def _of_channels(
    arithmetic: Arithmetic, n: int, w: Quantity, groups: int, out: Tensor, *, transposed: bool
) -> Tensor | float:
    """G(n), the deterministic one where all addends may be alike."""
    factor = arithmetic.growth(n)
    if factor >= arithmetic.sure.growth(n):
        return factor
    flat = w.once_of_value(
        ("filters", groups), lambda: flat_filters(w.value, groups, transposed=transposed)
    )
    if not bool(flat.any()):
        return factor
    return by_channel(torch.where(flat, arithmetic.sure.growth(n), factor), out)


def by_channel(x: Tensor, out: Tensor) -> Tensor:
    """Numbers of channels, in a shape that goes with a result of convolution."""
    space = out.dim() - LEAD
    return x.view(-1, *[1] * space)


def _registered(*names: str) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Register a rule that is given the operation first, for each operation of these names."""

    def register(function: Callable[..., object]) -> Callable[..., object]:
        for name in names:
            rule(name)(partial(function, getattr(_aten, name)))
        return function

    return register


@_registered(
    *("max_pool2d_with_indices", "max_pool3d_with_indices"),
    *("adaptive_max_pool2d", "adaptive_max_pool3d"),
)
def _max_pool(
    operation: Any,  # noqa: ANN401
    _: Arithmetic,
    out: Sequence[Quantity],
    a: Quantity,
    *geometry: object,
) -> tuple[Tensor | None, Tensor | None]:
    if a.error is None:
        return None, None
    error = monotone(out[0], lambda x: operation(x, *geometry)[0], a)
    return error, error  # that of the indices: whoever uses them is told


@_registered("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward")
def _max_pool_gradient(  # noqa: PLR0913,PLR0917  # aten's own
    operation: Any,  # noqa: ANN401
    arithmetic: Arithmetic,
    out: Quantity,
    dy: Quantity,
    a: Quantity,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,  # noqa: FBT001  # aten's own
    indices: Quantity,
) -> Combination:
    """The gradients of all windows in which a number may be the largest."""
    geometry = kernel, stride, padding, dilation, ceil_mode
    space = len(kernel)
    steps, dilations = along(stride or kernel, space), along(dilation, space)
    n = _windows_at(kernel, steps, dilations)
    growth = arithmetic.sure.growth(n - 1)
    size = dy.reach
    through = None if dy.error is None else operation(dy.error, a.value, *geometry, indices.value)
    if a.error is None:
        result = operation(size, a.value, *geometry, indices.value).mul_(growth)
        result = result if through is None else result.add_(through)
        return arithmetic.rounded(out, result.add_(n * arithmetic.eta), 0)
    pool = _aten.max_pool3d_with_indices if space == 3 else _aten.max_pool2d_with_indices
    least = pool(a.value - a.error, *geometry)[0]
    most = a.value + a.error
    ends = [
        d * (k - 1) + s * (n - 1) + 1
        for n, k, s, d in zip(least.shape[-space:], kernel, steps, dilations, strict=True)
    ]
    before = along(padding, space)
    pads: list[int] = []
    for size_, end, p in zip(most.shape[-space:], ends, before, strict=True):
        pads = [p, max(end - size_ - p, 0), *pads]
    wide = F.pad(most, pads, value=-torch.inf)
    total = torch.zeros_like(wide)
    taps = list(every(*(range(k) for k in kernel)))
    several = torch.zeros_like(least)
    for tap in taps:
        several += (wide[_places_of(tap, dilations, steps, least.shape)] >= least).double()
    for tap in taps:
        place = _places_of(tap, dilations, steps, least.shape)
        open_ = (wide[place] >= least) & (several > 1)
        total[place] += torch.where(open_, size, 0.0)
    inside = zip(before, a.value.shape[-space:], strict=True)
    inner: Any = (..., *(slice(p, p + n) for p, n in inside))
    whole = total[inner] + operation(size, a.value, *geometry, indices.value)
    result = whole * growth + total[inner]
    result = result if through is None else result.add_(through)
    result = _without_overflow(result.add_(n * arithmetic.eta), whole)
    return arithmetic.rounded(out, result, 0)


def _places_of(
    tap: Sequence[int], dilation: Sequence[int], stride: Sequence[int], shape: torch.Size
) -> tuple[Any, ...]:
    """Index what a tap reads of all windows."""
    ends = shape[-len(tap) :]
    parts = zip(tap, dilation, stride, ends, strict=True)
    return (..., *(slice(t * d, t * d + s * (n - 1) + 1, s) for t, d, s, n in parts))


def _averaged(
    arithmetic: Arithmetic,
    out: Quantity,
    a: Quantity,
    linear: Callable[[Tensor], Tensor],
    n: int,
    *,
    relative: float,
) -> Combination:
    """Add up n numbers at most, of which each is multiplied by one that isn't below 0.

    Args:
        arithmetic: of the kernel.
        out: the result.
        a: the argument.
        linear: the operation, as a function of the argument alone.
        n: how many numbers it adds up.
        relative: how far a kernel's factors, and products with them, may be off.

    """
    total = linear(a.reach)
    result = total * (arithmetic.sure.growth(max(n - 1, 0)) * (1 + relative) + relative)
    if a.error is not None:
        result.add_(linear(a.error))
    result.add_(2 * n * arithmetic.eta)
    # A kernel may divide after it has added up.
    return Combination(out, [(1.0, magnitude(_without_overflow(result, total * n)))], 0.0)


def _numbers_of_average(
    space: int,
    _: Tensor,
    kernel: Sequence[int],
    *rest: Any,  # noqa: ANN401
) -> int:
    """Count the numbers of an average; rest: the operation's arguments after the kernel.

    Raises UnknownError for a divisor below 0.
    """
    if len(rest) > 4 and rest[4] is not None and rest[4] < 0:
        raise UnknownError("divides by a number below 0")
    return math.prod(along(kernel, space))


def _most_shared(ends: Sequence[int], sizes: Sequence[int]) -> int:
    """Count the numbers along `ends`, at most, that one of `sizes` parts of them takes in."""
    return math.prod(
        -(-end // size) + 1 if size else 1 for end, size in zip(ends, sizes, strict=True)
    )


def _averages(name: str, count: Callable[..., int]) -> None:
    """Register the rule of an average or of its gradient, linear in the first argument.

    count: (the arguments, tensors as their values) -> how many numbers are added up, at most.
    """
    operation = getattr(_aten, name)

    def bound(
        arithmetic: Arithmetic,
        out: Quantity,
        a: Quantity,
        *rest: Any,  # noqa: ANN401
    ) -> Combination:
        values = [x.value if isinstance(x, Quantity) else x for x in rest]
        n, relative = count(a.value, *values), EPS_DIVISION + 2 * arithmetic.u
        return _averaged(arithmetic, out, a, lambda x: operation(x, *values), n, relative=relative)

    rule(name)(bound)


def _averages_in(space: int) -> None:
    of_average = partial(_numbers_of_average, space)
    _averages(f"avg_pool{space}d", of_average)
    _averages(f"avg_pool{space}d_backward", lambda _, *rest: of_average(*rest))
    _averages(
        f"_adaptive_avg_pool{space}d",
        lambda a, sizes: _most_shared(a.shape[-len(sizes) :], sizes),
    )
    _averages(
        f"_adaptive_avg_pool{space}d_backward",
        lambda dy, a: _most_shared(dy.shape[-space:], a.shape[-space:]),
    )


_averages_in(2)
_averages_in(3)


@_registered("adaptive_max_pool2d_backward", "adaptive_max_pool3d_backward")
def _adaptive_max_gradient(
    operation: Any,  # noqa: ANN401
    arithmetic: Arithmetic,
    out: Quantity,
    dy: Quantity,
    a: Quantity,
    indices: Quantity,
) -> Combination:
    if a.error is not None:
        raise UnknownError("goes by which of several rounded numbers is the largest")
    space = 2 if operation is _aten.adaptive_max_pool2d_backward else 3
    n = _most_shared(dy.value.shape[-space:], a.value.shape[-space:])
    return _averaged(
        *(arithmetic, out, dy, lambda x: operation(x, a.value, indices.value), n), relative=0.0
    )


@rule("col2im")
def _of_columns(
    arithmetic: Arithmetic,
    out: Quantity,
    a: Quantity,
    sizes: Sequence[int],
    kernel: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Combination:
    def folded(x: Tensor) -> Tensor:
        result: Tensor = _aten.col2im(x, sizes, kernel, dilation, padding, stride)
        return result

    n = _windows_at(kernel, stride, dilation)
    return _averaged(arithmetic, out, a, folded, n, relative=0.0)


@_registered("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d")
@_registered("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")
def _nearest(
    operation: Any,  # noqa: ANN401
    _: Arithmetic,
    out: Quantity,
    a: Quantity,
    sizes: Sequence[int],
    *scales: float | None,
) -> Tensor | None:
    """Moved as values are, where the position doesn't depend on how it is rounded."""
    del out
    _refuse_open_positions(operation, a.value.shape[-len(sizes) :], sizes, scales)
    return None if a.error is None else operation(a.error, sizes, *scales)


def _refuse_open_positions(
    operation: Any,  # noqa: ANN401
    ends: Sequence[int],
    sizes: Sequence[int],
    scales: Sequence[float | None],
) -> None:
    """Raise UnknownError if a number's position in an input is near to a whole one, or is another.

    It is floor(place ratio) by exact arithmetic, or floor((place + 1/2) ratio) of the operations
    that are called exact; torch's own is by a ratio in fp32.
    """
    is_exact = "exact" in str(operation)
    line_by = _aten._upsample_nearest_exact1d if is_exact else _aten.upsample_nearest1d  # noqa: SLF001
    shift = Fraction(1, 2) if is_exact else 0
    scales = (*scales, *[None] * (len(sizes) - len(scales)))
    for end, size, scale in zip(ends, sizes, scales, strict=True):
        ratio = Fraction(end, size) if scale is None else 1 / Fraction(scale)
        places = [(place + shift) * ratio for place in range(size)]
        gaps = ((abs(place - round(place)), place) for place in places)
        is_open = any(gap and gap <= _POSITION * (place + 1) for gap, place in gaps)
        line = torch.arange(end, dtype=torch.float64).view(1, 1, -1)
        numbers = line_by(line, [size], scale).flatten().tolist()
        if is_open or numbers != [min(math.floor(place), end - 1) for place in places]:
            raise UnknownError("takes numbers whose places depend on how a ratio is rounded")


@_registered("_upsample_nearest_exact1d_backward", "_upsample_nearest_exact2d_backward")
@_registered("_upsample_nearest_exact3d_backward")
@_registered("upsample_nearest1d_backward", "upsample_nearest2d_backward")
@_registered("upsample_nearest3d_backward")
def _nearest_gradient(
    operation: Any,  # noqa: ANN401
    arithmetic: Arithmetic,
    out: Quantity,
    dy: Quantity,
    sizes: Sequence[int],
    shape: Sequence[int],
    *scales: float | None,
) -> Combination:
    ends = shape[LEAD:]
    _refuse_open_positions(operation, ends, sizes, scales)
    n = _most_shared(sizes, ends)
    return _averaged(
        *(arithmetic, out, dy, lambda x: operation(x, sizes, shape, *scales), n), relative=0.0
    )


_LINEAR = {
    _aten.upsample_linear1d: 1,
    _aten.upsample_bilinear2d: 2,
    _aten.upsample_trilinear3d: 3,
    _aten.upsample_linear1d_backward: 1,
    _aten.upsample_bilinear2d_backward: 2,
    _aten.upsample_trilinear3d_backward: 3,
}
_NEAR = 5  # numbers of an axis, within two of either of those that a position lies between


@_registered("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d")
def _linear(
    operation: Any,  # noqa: ANN401
    arithmetic: Arithmetic,
    out: Quantity,
    a: Quantity,
    sizes: Sequence[int],
    align: bool,  # noqa: FBT001  # aten's own
    *scales: float | None,
) -> Combination:
    """A position that is off by d moves a result by d times the steepest slope nearby."""
    space = _LINEAR[operation]

    def upsampled(x: Tensor) -> Tensor:
        result: Tensor = operation(x, sizes, align, *scales)
        return result

    result = _averaged(arithmetic, out, a, upsampled, 2 * space + 1, relative=3 * space * NEAREST)
    pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[space - 1]
    nearby = upsampled(pool(a.reach, _NEAR, stride=1, padding=_NEAR // 2))
    return result.plus(nearby, moves(a.value.shape[-space:]))


def moves(ends: Sequence[int]) -> float:
    """Return how far a result moves, in units of twice what is nearby, by all axes' positions."""
    return sum(2 * _POSITION * (end + 1) for end in ends)


@_registered("upsample_linear1d_backward", "upsample_bilinear2d_backward")
@_registered("upsample_trilinear3d_backward")
def _linear_gradient(
    operation: Any,  # noqa: ANN401
    arithmetic: Arithmetic,
    out: Quantity,
    dy: Quantity,
    sizes: Sequence[int],
    shape: Sequence[int],
    align: bool,  # noqa: FBT001  # aten's own
    *scales: float | None,
) -> Combination:
    """The share of a number in a result moves by d where it is near to the position."""
    space, ends = _LINEAR[operation], shape[LEAD:]

    def spread(x: Tensor) -> Tensor:
        result: Tensor = operation(x, sizes, shape, align, *scales)
        return result

    n = math.prod(2 * -(-size // end) + 2 for size, end in zip(sizes, ends, strict=True))
    result = _averaged(arithmetic, out, dy, spread, n, relative=3 * space * NEAREST)
    pool = (_aten.avg_pool1d, _aten.avg_pool2d, _aten.avg_pool3d)[space - 1]
    nearby = pool(spread(dy.reach), [_NEAR] * space, [1] * space, [_NEAR // 2] * space)
    return result.plus(nearby, _NEAR**space * moves(ends))
