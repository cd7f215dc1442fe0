"""Expectations that stand beside kernels, and which of them a compiled row breaks, and why."""

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
    """What is expected of a kernel's code. Raises KernelError where a file's aren't any."""
    return tuple(each for module in _modules(Path(kernel.path)) for each in _held(module))


def _modules(path: Path) -> Iterable[ModuleType]:
    if not path.is_relative_to(_HOME):
        return [module for module in list(sys.modules.values()) if _file_of(module) == path]
    folder = path.parent
    package = ".".join(["kernel_workbench.kernels", *folder.relative_to(_HOME).parts])
    names = [each.name for each in pkgutil.iter_modules([str(folder)])]
    return [
        importlib.import_module(f"{package}.{name}")
        for name in names
        if name.startswith("expectations")
    ]


def _file_of(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return None if file is None else Path(file).resolve()


def _held(module: ModuleType) -> tuple[Expectation, ...]:
    held = getattr(module, "EXPECTATIONS", ())
    if not isinstance(held, tuple | list) or not all(
        isinstance(each, Expectation) for each in held
    ):
        raise KernelError(
            f"EXPECTATIONS in {module.__file__} must be a tuple of kernel_workbench.Expectation"
        )
    return tuple(held)


def is_about(expectation: Expectation, row: CompileRow) -> bool:
    """Whether an expectation means the variant of a row."""
    low, high = expectation.sm
    functions = {row.function, row.function.partition(" ")[0]}  # `key_gradients 2` is of both
    sizes = row.case.sizes
    return (
        low <= row.sm <= high
        and any(fnmatchcase(row.kernel, each) for each in expectation.kernels)
        and any(fnmatchcase(name, each) for name in functions for each in expectation.functions)
        and (not expectation.dtypes or row.case.dtype in expectation.dtypes)
        and expectation.aligned in (None, row.alignment_bytes == _WHOLE)
        and (expectation.options is None or expectation.options.issuperset(row.case.options))
        and all(
            name in sizes and least <= sizes[name] <= most
            for name, (least, most) in expectation.sizes.items()
        )
    )


def counting(expectations: Iterable[Expectation], row: CompileRow) -> list[Expectation]:
    """Those that are about a row, of each kind of claim the last."""
    last = {kind_of(each.claim): each for each in expectations if is_about(each, row)}
    return list(last.values())


def broken(claim: Claim, row: CompileRow) -> str | None:
    """Why a compiled row breaks a claim, in one sentence; None where it doesn't.

    A claim about what couldn't be read is neither kept nor broken: the row's `unread` tells.
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
            return "it fits by now, so that this expectation is to be taken out"


def _narrow(what: str, histogram: dict[int, int] | None, claim: Loads | Stores) -> str | None:
    if histogram is None:
        return None
    found = share_of_width(histogram, claim.width)
    if found >= claim.share:
        return None
    told = ", ".join(f"{count} of {each}" for each, count in sorted(histogram.items())[::-1])
    return (
        f"{found:.0%} of the bytes of its {what} come {claim.width} at a time, expected "
        f"{claim.share:.0%} "
        f"({what} by bytes: {told})"
    )


def _unused(instruction: str, mix: CodeMix) -> str | None:
    names = [*mix.matrix, *mix.bulk, *mix.atomics, *mix.local]
    if any(each == instruction or each.startswith(f"{instruction}.") for each in names):
        return None
    instead = ", ".join(mix.matrix) or "no matrix instruction at all"
    return f"no {instruction} is in its code, which has {instead}"


def offender(claim: Claim, code: Sequence[Instruction]) -> Instruction | None:
    """An instruction that breaks a claim; None where no single one does."""
    match claim:
        case Loads():
            return _narrowest(code, {"LDG", "LD", "LDGSTS"}, claim.width)
        case Stores():
            return _narrowest(code, {"STG", "ST"}, claim.width)
        case Spills():
            return _first(code, lambda each: each.root == "STL")
        case Uses():
            fmas = {"HFMA2", "FFMA", "DFMA"}
            return _first(code, lambda each: each.root.endswith("MMA")) or _first(
                code, lambda each: each.root in fmas
            )
        case Fits() | Unfit():
            return None


def _narrowest(code: Iterable[Instruction], roots: set[str], width: int) -> Instruction | None:
    narrow = [each for each in code if each.root in roots and each.width < width]
    return min(narrow, key=lambda each: (each.width, each.address), default=None)


def _first(code: Iterable[Instruction], holds: Callable[[Instruction], bool]) -> Instruction | None:
    return next(filter(holds, code), None)
