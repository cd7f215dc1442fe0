"""Which cases stand for all that a kernel compiles to.

Cases that a kernel treats alike on every generation form a class. A kernel that says what dispatch
takes (`variant`) is asked; of one that doesn't, cases are alike if their dtypes, options,
alignment, configurations and the power of four that holds their widest row are. Of each class the
plainest case is taken: few options, packed, the widest heads or rows, no size of 1, then the least
memory.

All classes are the whole product. These stand for the rest:
- aligned cases without options that dispatch would give to the kernel, every class, in bfloat16 (in
  float16 on an sm that has none); in float32 of those that dispatch tells apart the narrowest;
- of those that aren't aligned, in a half, for each width of load the class with the most cases;
- in a half, of the options that dispatch tells from none the class that has most of them;
- of a kernel that dispatch never takes, because another one of ours serves all its cases first, the
  class with the most cases, but of one for whole float32 operands none. Where it launches nothing
  new, its case with the most work for each byte is tried, over which work may be split.
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
_LARGEST = 2**28  # bytes from a tensor's first element to its last that a process is given
_QUICK = 1e10  # flops of a case whose inputs are made in a fraction of a second
_WIDEST_CLASS = 7  # as a power of four: no program holds more columns at a time
_WHOLE = 16  # bytes of the widest load


@dataclass(frozen=True, slots=True)
class Standing:
    """One case of a kernel, on each generation that the kernel serves it on.

    label   what it is, alike on every generation: `bfloat16 d128 aligned`
    cases   by sm; on an sm without bfloat16 its float16 twin
    otherwise  what to try where the cases launch nothing that another kernel doesn't
    """

    kernel: Kernel
    label: str
    cases: dict[int, Case]
    otherwise: Case | None = None


def alignment_bytes(case: Case) -> int:
    """The widest load, at most 16 bytes, that the rows of all its matrices allow."""
    return min(map(_load_bytes, _matrices(case)), default=_WHOLE)


def _load_bytes(place: Geometry) -> int:
    size, last = place.dtype.itemsize, place.shape[-1]
    if place.strides[-1] != 1 and last > 1:
        return size
    outer = zip(place.strides[:-1], place.shape[:-1], strict=True)
    steps = (stride for stride, length in outer if length > 1)
    return math.gcd(_WHOLE, place.offset * size, size * math.gcd(last, *steps))


def standing(
    kernel: Kernel, sms: Sequence[int], *, before: Sequence[Kernel] = (), everything: bool = False
) -> tuple[Standing, ...]:
    """The cases that stand for what `kernel` compiles to; with `everything` one of each class.

    before: kernels of the same op that dispatch asks first. Raises KernelError where a user's
    kernel can't say which variant a case takes.
    """
    cases = kernel.op.cases()
    if everything:
        found = _classes(kernel, cases, sms)
    else:
        # A kernel may serve none of the usual ones.
        found = _classes(kernel, [each for each in cases if _usual(kernel, each)], sms)
        found = found or _classes(kernel, cases, sms)
        found = _standing_classes(kernel, found, sms, before) if found else []
    chosen: dict[str, Standing] = {}
    for each in found:
        one = _standing(kernel, each, sms, exact=everything)
        earlier = chosen.setdefault(one.label, one)
        kind = _kind(one)
        if kind != _kind(earlier):
            chosen.setdefault(f"{one.label} {kind}", replace(one, label=f"{one.label} {kind}"))
    return tuple(chosen.values())


def _kind(each: Standing) -> str:
    """The kind of its first variant, as the variant's name begins; "" where it has none."""
    if each.kernel.variant is None or not each.cases:
        return ""
    sm, case = next(iter(each.cases.items()))
    return each.kernel.variant(case, sm).partition("_")[0]


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
    """Whether the case may stand for others: plain values, no twin of another dtype, few options.

    Options are looked at where dispatch may tell them apart, in a half: two at most.
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
    kernel: Kernel, found: Sequence[_Class], sms: Sequence[int], before: Sequence[Kernel]
) -> list[_Class]:
    def taken(case: Case, plainest: Case) -> bool:
        return (case.options, case.layout) == (plainest.options, plainest.layout) and any(
            kernel.domain.reject(case, sm) is None
            and all(other.left_to_others(case, sm) is not None for other in before)
            for sm in sms
        )

    ranked = sorted(found, key=lambda each: -len(each.cases))
    plain = [each for each in ranked if not each.case.options]
    dispatched = [
        replace(each, case=min(cases, key=_plainness))
        for each in plain
        if (cases := [case for case in each.cases if taken(case, each.case)])
    ]
    if not dispatched:
        return _never_dispatched(kernel, plain or ranked)
    whole = [each for each in dispatched if each.width == _WHOLE]
    chosen = [each for each in whole if each.is_half or kernel.variant is None]
    single = [each for each in whole if not each.is_half and kernel.variant is not None]
    chosen += sorted(single, key=lambda each: max(_widths(each.case).values(), default=0))[:1]
    by_width: dict[tuple[torch.dtype, int], _Class] = {}
    for each in dispatched:
        if each.width < _WHOLE and (each.is_half or not whole):
            by_width.setdefault((each.case.dtype, each.width), each)
    optional = [
        each for each in ranked if each.case.options and each.is_half and each.width == _WHOLE
    ]
    if kernel.variant is not None and optional:
        chosen.append(max(optional, key=lambda each: (len(each.case.options), len(each.cases))))
    return chosen + list(by_width.values())


def _never_dispatched(kernel: Kernel, ranked: Sequence[_Class]) -> list[_Class]:
    """The class with the most cases, of what isn't for whole fp32 operands alone."""
    first = ranked[0]
    if not first.is_half and not kernel.numerics.tf32_operands:
        return []
    quick = [
        each for each in first.cases if not each.options and OPS[each.op].flops(each) <= _QUICK
    ]
    return [replace(first, otherwise=max(quick, key=_intensity, default=None))]


def _class(
    kernel: Kernel, case: Case, sms: Sequence[int], served: tuple[bool, ...]
) -> tuple[object, ...]:
    kind = (case.dtype, case.weight_dtype, served)
    asked = kernel.variant or kernel.configurations
    try:
        names = tuple(
            asked(case, sm) if serves and asked is not None else None
            for sm, serves in zip(sms, served, strict=True)
        )
    except Exception as error:
        told = f"{type(error).__name__}: {' '.join(str(error).split())}"
        which = "variant" if kernel.variant is not None else "configurations"
        raise KernelError(
            f"kernel {kernel.name} in {kernel.path}: its {which} for {case.id()} raised {told}"
        ) from error
    if kernel.variant is None:
        aligned = alignment_bytes(case) == _WHOLE
        return (*kind, names, case.options, aligned, _width_class(case))
    return (*kind, names)


def _width_class(case: Case) -> int:
    return width_class(max((1, *_widths(case).values())))


def width_class(widest: int) -> int:
    """The power of four that holds a row: 1 to 4, 5 to 16, ... and all above 4096."""
    return min(_WIDEST_CLASS, math.ceil(math.log2(widest) / 2))


def _widths(case: Case) -> dict[str, int]:
    """The sizes that a last axis has, by name."""
    lasts, widths = {place.shape[-1] for place in _matrices(case)}, OPS[case.op].widths
    return {name: size for name, size in case.sizes if name in widths and size in lasts}


def _matrices(case: Case) -> list[Geometry]:
    op = OPS[case.op]
    places, others = op.geometry(case).items(), op.statistics | op.unaligned
    return [place for name, place in places if name not in others and len(place.shape) > 1]


def _bytes(case: Case) -> int:
    """The most memory that one tensor reaches over."""
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
    """Flops for each byte: long sequences of few heads, over which work may be split."""
    return OPS[case.op].flops(case) / max(1, OPS[case.op].bytes(case))


def _plainness(case: Case) -> tuple[object, ...]:
    """The plainest first."""
    widths = sorted(_widths(case).values())
    return (
        len(case.options),
        case.layout.name != "contiguous",
        -(widths[0] if widths else 0),  # of unequal heads the narrower one
        -len(OPS[case.op].geometry(case)),  # an option that brings a tensor before one that doesn't
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
    """`bfloat16 d128 aligned`: dtypes, widths, how it is aligned, and options."""
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
