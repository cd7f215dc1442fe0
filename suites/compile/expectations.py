"""Load the expectations beside kernels, and say which of them a compiled row breaks, and why."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType

from kernel_workbench import kernels
from kernel_workbench.kernels.expectation import (
    Claim,
    Expectation,
    Fits,
    Loads,
    Spills,
    Stores,
    Unfit,
    Uses,
    kind_of,
)
from kernel_workbench.kernels.registry import Kernel, KernelError
from kernel_workbench.reports.record import CodeMix, CompileRow
from kernel_workbench.reports.views.compile_figures import share_of_width
from kernel_workbench.suites.compile.sass import Instruction

_WHOLE = 16
_KIB = 1024
_HOME = Path(kernels.__file__).resolve().parent


def expectations_of(kernel: Kernel) -> tuple[Expectation, ...]:
    """Return the expectations for a kernel's code. Raises KernelError if a file's are malformed."""
    return tuple(item for module in _modules(Path(kernel.path)) for item in _in_module(module))


def _modules(path: Path) -> Iterable[ModuleType]:
    if not path.is_relative_to(_HOME):
        return [module for module in list(sys.modules.values()) if _file_of(module) == path]
    folder = path.parent
    package = ".".join(["kernel_workbench.kernels", *folder.relative_to(_HOME).parts])
    names = [module.name for module in pkgutil.iter_modules([str(folder)])]
    return [
        importlib.import_module(f"{package}.{name}")
        for name in names
        if name.startswith("expectations")
    ]


def _file_of(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return None if file is None else Path(file).resolve()


def _in_module(module: ModuleType) -> tuple[Expectation, ...]:
    items = getattr(module, "EXPECTATIONS", ())
    if not isinstance(items, tuple | list) or not all(
        isinstance(item, Expectation) for item in items
    ):
        raise KernelError(
            f"EXPECTATIONS in {module.__file__} must be a tuple of kernel_workbench.Expectation"
        )
    return tuple(items)


def is_about(expectation: Expectation, row: CompileRow) -> bool:
    """Return True if an expectation applies to a row's variant."""
    low, high = expectation.sm
    functions = {row.function, row.function.partition(" ")[0]}  # `key_gradients 2` matches both
    sizes = row.case.sizes
    return (
        low <= row.sm <= high
        and any(fnmatchcase(row.kernel, glob) for glob in expectation.kernels)
        and any(fnmatchcase(name, glob) for name in functions for glob in expectation.functions)
        and (not expectation.dtypes or row.case.dtype in expectation.dtypes)
        and expectation.aligned in (None, row.alignment_bytes == _WHOLE)
        and (expectation.options is None or expectation.options.issuperset(row.case.options))
        and all(
            name in sizes and least <= sizes[name] <= most
            for name, (least, most) in expectation.sizes.items()
        )
    )


def counting(expectations: Iterable[Expectation], row: CompileRow) -> list[Expectation]:
    """Return the expectations that apply to a row: the last one for each kind of claim."""
    last = {kind_of(item.claim): item for item in expectations if is_about(item, row)}
    return list(last.values())


def broken(claim: Claim, row: CompileRow) -> str | None:
    """Return why a compiled row breaks a claim, in one sentence; None if it doesn't.

    A claim about an unreadable figure isn't broken: the row's `unread` names the figure.
    """
    match claim:
        case Loads():
            return _narrow("loads", None if row.mix is None else row.mix.loads, claim)
        case Stores():
            return _narrow("stores", None if row.mix is None else row.mix.stores, claim)
        case Spills():
            spilled = row.spill_store_bytes
            if spilled is None or spilled <= claim.most_bytes:
                return None
            allowed = f"at most {claim.most_bytes:,}" if claim.most_bytes else "none"
            return f"{spilled:,} bytes a thread are spilled, expected {allowed}"
        case Uses():
            return None if row.mix is None else _unused(claim.instruction, row.mix)
        case Fits():
            shared, limit = row.shared_bytes, row.shared_limit_bytes
            if shared is None or shared <= limit:
                return None
            return (
                f"a block asks for {shared:,} bytes of shared memory, {shared / _KIB:.1f} KiB, and "
                f"sm {row.sm} gives it {limit:,}: it can't be launched"
            )
        case Unfit():
            if row.shared_bytes is None or row.shared_bytes > row.shared_limit_bytes:
                return None
            return "it fits by now: remove this expectation"


def _narrow(what: str, histogram: dict[int, int] | None, claim: Loads | Stores) -> str | None:
    if histogram is None:
        return None
    share = share_of_width(histogram, claim.width)
    if share >= claim.share:
        return None
    widths = ", ".join(f"{count} of {width}" for width, count in sorted(histogram.items())[::-1])
    return (
        f"{share:.0%} of the bytes of its {what} come {claim.width} at a time, expected "
        f"{claim.share:.0%} "
        f"({what} by bytes: {widths})"
    )


def _unused(instruction: str, mix: CodeMix) -> str | None:
    names = [*mix.matrix, *mix.bulk, *mix.atomics, *mix.local]
    if any(name == instruction or name.startswith(f"{instruction}.") for name in names):
        return None
    instead = ", ".join(mix.matrix) or "no matrix instruction at all"
    return f"no {instruction} is in its code, which has {instead}"


def offender(claim: Claim, code: Sequence[Instruction]) -> Instruction | None:
    """Return an instruction that breaks a claim; None if no single instruction does."""
    match claim:
        case Loads():
            return _narrowest(code, {"LDG", "LD", "LDGSTS"}, claim.width)
        case Stores():
            return _narrowest(code, {"STG", "ST"}, claim.width)
        case Spills():
            return _first(code, lambda instruction: instruction.root == "STL")
        case Uses():
            fmas = {"HFMA2", "FFMA", "DFMA"}
            return _first(code, lambda instruction: instruction.root.endswith("MMA")) or _first(
                code, lambda each: each.root in fmas
            )
        case Fits() | Unfit():
            return None


def _narrowest(code: Iterable[Instruction], roots: set[str], width: int) -> Instruction | None:
    narrow = [one for one in code if one.root in roots and one.width < width]
    return min(narrow, key=lambda one: (one.width, one.address), default=None)


def _first(code: Iterable[Instruction], holds: Callable[[Instruction], bool]) -> Instruction | None:
    return next(filter(holds, code), None)
