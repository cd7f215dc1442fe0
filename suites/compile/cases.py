"""Choose the cases that represent all that a kernel compiles to.

Cases that a kernel treats alike on every generation form a class. If the kernel has a `variant`
function, a class has one variant; else it has one dtype, one set of options, one alignment, one
configuration and one width class (the power of four that holds the widest row). The plainest case
represents its class: few options, packed, the widest heads or rows, no size of 1, least memory.

With --all, all classes are compiled, and with --cases all classes of those cases; by default only
these:
- the aligned classes without options that dispatch gives to the kernel, in bfloat16 (in float16 on
  an sm without bfloat16); in float32 only the narrowest class, if the kernel has variants;
- for each width of load, the unaligned class with the most cases, in a half;
- the class with the most options, in a half, if the kernel has variants;
- for a kernel that dispatch never takes, because another of our kernels serves its cases first, the
  class with the most cases, unless the kernel is for whole float32 operands. If that class launches
  nothing new, the case with the most work for each byte is tried: a kernel may split such work.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch

from kernel_workbench.kernels.registry import Kernel, KernelError
from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.op import Case, Geometry

GENERATIONS = (75, 80, 86, 89, 90, 100, 120)
_LARGEST = 2**28  # the most bytes from a tensor's first element to its last
_QUICK = 1e10  # flops of a case whose inputs take a fraction of a second to draw
_WIDEST_CLASS = 7  # as a power of four: no program holds more columns at a time
_WHOLE = 16  # bytes of the widest load


@dataclass(frozen=True, slots=True)
class Standing:
    """One case of a kernel, on each generation on which the kernel serves the case.

    label      the same on every generation, for example `bfloat16 d128 aligned`
    cases      the case by sm; on an sm without bfloat16 its float16 twin
    otherwise  the case to try if these launch nothing but other kernels' launches
    """

    kernel: Kernel
    label: str
    cases: dict[int, Case]
    otherwise: Case | None = None


def alignment_bytes(case: Case) -> int:
    """Return the widest load, at most 16 bytes, that the rows of all its matrices allow."""
    return min(map(_load_bytes, _matrices(case)), default=_WHOLE)


def _load_bytes(place: Geometry) -> int:
    size, last = place.dtype.itemsize, place.shape[-1]
    if place.strides[-1] != 1 and last > 1:
        return size
    outer = zip(place.strides[:-1], place.shape[:-1], strict=True)
    steps = (stride for stride, length in outer if length > 1)
    return math.gcd(_WHOLE, place.offset * size, size * math.gcd(last, *steps))


def standing(
    kernel: Kernel,
    sms: Sequence[int],
    *,
    before: Sequence[Kernel] = (),
    everything: bool = False,
    own: Iterable[Case] | None = None,
) -> tuple[Standing, ...]:
    """Return the cases that represent what `kernel` compiles to; `everything` takes all classes.

    `before` has the kernels of the same op that dispatch tries first, and `own` a user's cases, of
    which those of the op replace its own. Raises KernelError if a user's kernel can't tell the
    variant of a case.
    """
    op = kernel.op
    cases = op.cases() if own is None else [case for case in own if case.op == op.name]
    if everything:
        classes = _classes(kernel, cases, sms)
    else:
        # A kernel may serve no usual case.
        classes = _classes(kernel, [case for case in cases if _usual(kernel, case)], sms)
        classes = classes or _classes(kernel, cases, sms)
        classes = _standing_classes(kernel, classes, sms, before) if classes else []
    chosen: dict[str, Standing] = {}
    for alike in classes:
        one = _standing(kernel, alike, sms, exact=everything)
        earlier = chosen.setdefault(one.label, one)
        kind = _kind(one)
        if kind != _kind(earlier):
            chosen.setdefault(f"{one.label} {kind}", replace(one, label=f"{one.label} {kind}"))
    return tuple(chosen.values())


def _kind(entry: Standing) -> str:
    """Return the first word of the first variant's name; "" if the kernel has no variants."""
    if entry.kernel.variant is None or not entry.cases:
        return ""
    sm, case = next(iter(entry.cases.items()))
    return entry.kernel.variant(case, sm).partition("_")[0]


def _classes(kernel: Kernel, cases: Iterable[Case], sms: Sequence[int]) -> list[_Class]:
    classes: dict[tuple[object, ...], list[Case]] = {}
    for case in cases:
        served = tuple(kernel.domain.reject(case, sm) is None for sm in sms)
        if any(served) and _bytes(case) <= _LARGEST and not _is_empty(case):
            classes.setdefault(_class(kernel, case, sms, served), []).append(case)
    return [_Class(min(alike, key=_plainness), tuple(alike)) for alike in classes.values()]


@dataclass(frozen=True, slots=True)
class _Class:
    """Cases that a kernel treats alike, and the plainest of them."""

    case: Case
    cases: tuple[Case, ...]
    otherwise: Case | None = None

    @property
    def width(self) -> int:
        return alignment_bytes(self.case)

    @property
    def is_half(self) -> bool:
        return self.case.dtype.itemsize == 2


def _usual(kernel: Kernel, case: Case) -> bool:
    """Return True if the case may represent others: plain values, no twin dtype, few options.

    A case may have up to two options if it is in a half and the kernel has variants.
    """
    if case.distribution != "normal" or case.weight_dtype != case.dtype:
        return False
    if case.dtype == torch.float16 and torch.bfloat16 in kernel.domain.dtypes:
        return False
    if case.options:
        dispatched = kernel.variant is not None and case.dtype.itemsize == 2
        return dispatched and len(case.options) <= 2 and case.layout.name == "contiguous"
    return True


def _standing_classes(
    kernel: Kernel, classes: Sequence[_Class], sms: Sequence[int], before: Sequence[Kernel]
) -> list[_Class]:
    def is_dispatched(case: Case, plainest: Case) -> bool:
        return (case.options, case.layout) == (plainest.options, plainest.layout) and any(
            kernel.domain.reject(case, sm) is None
            and all(other.left_to_others(case, sm) is not None for other in before)
            for sm in sms
        )

    ranked = sorted(classes, key=lambda group: -len(group.cases))
    plain = [group for group in ranked if not group.case.options]
    dispatched = [
        replace(group, case=min(cases, key=_plainness))
        for group in plain
        if (cases := [case for case in group.cases if is_dispatched(case, group.case)])
    ]
    if not dispatched:
        return _never_dispatched(kernel, plain or ranked)
    whole = [group for group in dispatched if group.width == _WHOLE]
    chosen = [group for group in whole if group.is_half or kernel.variant is None]
    single = [group for group in whole if not group.is_half and kernel.variant is not None]
    chosen += sorted(single, key=lambda group: max(_widths(group.case).values(), default=0))[:1]
    by_width: dict[tuple[torch.dtype, int], _Class] = {}
    for group in dispatched:
        if group.width < _WHOLE and (group.is_half or not whole):
            by_width.setdefault((group.case.dtype, group.width), group)
    optional = [
        group for group in ranked if group.case.options and group.is_half and group.width == _WHOLE
    ]
    if kernel.variant is not None and optional:
        chosen.append(max(optional, key=lambda group: (len(group.case.options), len(group.cases))))
    return chosen + list(by_width.values())


def _never_dispatched(kernel: Kernel, ranked: Sequence[_Class]) -> list[_Class]:
    """Return the class with the most cases, or none if the kernel is for whole fp32 operands."""
    first = ranked[0]
    if not first.is_half and not kernel.numerics.tf32_operands:
        return []
    quick = [
        case for case in first.cases if not case.options and OPS[case.op].flops(case) <= _QUICK
    ]
    return [replace(first, otherwise=max(quick, key=_intensity, default=None))]


def _class(
    kernel: Kernel, case: Case, sms: Sequence[int], served: tuple[bool, ...]
) -> tuple[object, ...]:
    kind = (case.dtype, case.weight_dtype, served)
    classify = kernel.variant or kernel.configurations
    try:
        names = tuple(
            classify(case, sm) if serves and classify is not None else None
            for sm, serves in zip(sms, served, strict=True)
        )
    except Exception as error:
        problem = f"{type(error).__name__}: {' '.join(str(error).split())}"
        which = "variant" if kernel.variant is not None else "configurations"
        raise KernelError(
            f"kernel {kernel.name} in {kernel.path}: its {which} for {case.id()} raised {problem}"
        ) from error
    if kernel.variant is None:
        aligned = alignment_bytes(case) == _WHOLE
        width = width_class(max((1, *_widths(case).values())))
        return (*kind, names, case.options, aligned, width)
    return (*kind, names)


def width_class(widest: int) -> int:
    """Return the power of four that holds a row: 1 to 4, 5 to 16, ... and all above 4096.

    >>> width_class(4), width_class(5), width_class(10_000)
    (1, 2, 7)
    """
    return min(_WIDEST_CLASS, math.ceil(math.log2(widest) / 2))


def _widths(case: Case) -> dict[str, int]:
    """Return the sizes of last axes, by name."""
    lasts, widths = {place.shape[-1] for place in _matrices(case)}, OPS[case.op].widths
    return {name: size for name, size in case.sizes if name in widths and size in lasts}


def _matrices(case: Case) -> list[Geometry]:
    op = OPS[case.op]
    places, left_out = op.geometry(case).items(), op.statistics | op.unaligned
    return [place for name, place in places if name not in left_out and len(place.shape) > 1]


def _bytes(case: Case) -> int:
    """Return the most bytes that one tensor spans."""
    return max(
        (
            place.dtype.itemsize
            * sum(
                max(0, length - 1) * abs(step)
                for length, step in zip(place.shape, place.strides, strict=True)
            )
            for place in OPS[case.op].geometry(case).values()
        ),
        default=0,
    )


def _is_empty(case: Case) -> bool:
    return any(0 in place.shape for place in OPS[case.op].geometry(case).values())


def _intensity(case: Case) -> float:
    """Return flops a byte: they are many for long sequences of few heads, which may be split."""
    return OPS[case.op].flops(case) / max(1, OPS[case.op].bytes(case))


def _plainness(case: Case) -> tuple[object, ...]:
    """Return the key that sorts the plainest case first."""
    widths = sorted(_widths(case).values())
    return (
        len(case.options),
        case.layout.name != "contiguous",
        -(widths[0] if widths else 0),  # the narrower one of unequal heads
        -len(OPS[case.op].geometry(case)),  # an option that adds a tensor comes first
        sum(size == 1 for _, size in case.sizes),  # a jit function may take a 1 for a constant
        case.distribution != "normal",
        _bytes(case),
        case.id(),
    )


def _standing(kernel: Kernel, alike: _Class, sms: Sequence[int], *, exact: bool) -> Standing:
    case = alike.case
    cases = {}
    halves = case.dtype == torch.bfloat16
    twin = replace(case, dtype=torch.float16, weight_dtype=torch.float16) if halves else case
    for sm in sms:
        if kernel.domain.reject(case, sm) is None:
            cases[sm] = case
        elif not exact and kernel.domain.reject(twin, sm) is None:
            cases[sm] = twin
    return Standing(kernel, label_of(case), cases, alike.otherwise)


def label_of(case: Case) -> str:
    """Return dtypes, widths, alignment and options, for example `bfloat16 d128 aligned`."""
    widths = _widths(case)
    if len(set(widths.values())) == 1:
        widths = dict(list(widths.items())[:1])
    width = alignment_bytes(case)
    return " ".join(
        [
            case.dtype_label,
            *(f"{name}{size}" for name, size in widths.items()),
            "aligned" if width == _WHOLE else f"{width}-byte",
            *sorted(case.options),
        ]
    )
