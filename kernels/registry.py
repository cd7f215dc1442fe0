"""Which kernels exist, what each serves, and which one a case gets.

A kernel registers itself by decorator when its file is imported, so a new file under `kernels/`
is a new kernel with no other edit; `load_file` does the same for a user's file from anywhere.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

import torch

from oracles.op import Case, Numerics, Op, dtype_name

Origin = Literal["ours", "baseline", "user"]
Strides = Literal["any", "rows", "contiguous"]
Function = TypeVar("Function", bound=Callable[..., object])

_MATRIX_ARGUMENTS = ("dy", "x", "dresidual")


class KernelError(Exception):
    """A kernel's file or registration is wrong; the message is one sentence for the user."""


class NoKernelError(LookupError):
    """No registered kernel serves a case; the message lists each refusal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """What a kernel serves. A kernel is right on all of it and refuses the rest.

    dtypes         activations
    weight_dtypes  weights; None: the activations' own
    alignment      bytes that every pointer and row must be a multiple of
    strides        "any": every rank and stride; "rows": rank 2, columns adjacent, any row
                   stride; "contiguous": rank 2, packed (an element offset is still possible)
    sm             compute capabilities served, as 10 * major + minor, both ends included
    sizes          for each size, the smallest and largest served; None: no limit
    features       the op's options served
    devices        device types it can run on
    interpretable  it runs under Triton's interpreter (no Gluon, inline assembly or extern)
    """

    dtypes: tuple[torch.dtype, ...]
    weight_dtypes: tuple[torch.dtype, ...] | None = None
    alignment: int = 1
    strides: Strides = "any"
    sm: tuple[int, int] = (0, 999)
    sizes: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    features: frozenset[str] = frozenset()
    devices: tuple[str, ...] = ("cpu", "cuda")
    interpretable: bool = True

    def reject(self, case: Case, sm: int, device: str = "cuda") -> str | None:
        """Why this domain doesn't hold `case` on a GPU of capability `sm`; None where it does."""
        if device not in self.devices:
            return f"runs on {' and '.join(self.devices)}, got {device}"
        if device == "cpu" and not self.interpretable:
            return "can't run under Triton's interpreter"
        if not self.sm[0] <= sm <= self.sm[1]:
            return f"serves sm {self.sm[0]} to {self.sm[1]}, got sm {sm}"
        return (
            self._reject_dtypes(case)
            or self._reject_features(case)
            or self._reject_sizes(case)
            or self._reject_strides(case)
            or self._reject_alignment(case)
        )

    def _reject_dtypes(self, case: Case) -> str | None:
        if case.dtype not in self.dtypes:
            served = ", ".join(map(dtype_name, self.dtypes))
            return f"serves {served}, got {dtype_name(case.dtype)}"
        weights = (case.dtype,) if self.weight_dtypes is None else self.weight_dtypes
        if "no_weight" not in case.options and case.weight_dtype not in weights:
            served = ", ".join(map(dtype_name, weights))
            return (
                f"serves {served} weights with {dtype_name(case.dtype)} activations, "
                f"got {dtype_name(case.weight_dtype)}"
            )
        return None

    def _reject_features(self, case: Case) -> str | None:
        missing = sorted(case.options - self.features)
        return f"doesn't serve {', '.join(missing)}" if missing else None

    def _reject_sizes(self, case: Case) -> str | None:
        for name, (least, most) in self.sizes.items():
            value = case.size(name)
            if value < least or (most is not None and value > most):
                limit = f"{least} or more" if most is None else f"{least} to {most}"
                return f"serves {name} of {limit}, got {value}"
        return None

    def _reject_strides(self, case: Case) -> str | None:
        if self.strides == "any":
            return None
        if case.layout.batches is not None:
            return "needs inputs of rank 2, got rank 3"
        m, n = case.size("m"), case.size("n")
        for name in _MATRIX_ARGUMENTS:
            row, column = case.layout.of(name).strides(m, n)
            if column != 1 and n > 1:
                return f"needs adjacent columns, got a column stride of {column} in {name}"
            if self.strides == "contiguous" and row != n and m > 1:
                return f"needs packed rows of {n} elements, got a row stride of {row} in {name}"
        return None

    def _reject_alignment(self, case: Case) -> str | None:
        if self.alignment == 1:
            return None
        m, n = case.size("m"), case.size("n")
        activation, weight = case.dtype.itemsize, case.weight_dtype.itemsize
        width = self.alignment
        if n * activation % width:
            return (
                f"needs rows of whole {width} bytes, got n = {n} {dtype_name(case.dtype)} elements"
            )
        for name in _MATRIX_ARGUMENTS:
            layout = case.layout.of(name)
            if layout.offset * activation % width:
                return f"needs {width}-byte pointers, got {name} offset by {layout.offset} elements"
            row, column = layout.strides(m, n)
            if column != 1:
                return f"needs adjacent columns, got a column stride of {column} in {name}"
            if row * activation % width:
                kind = dtype_name(case.dtype)
                return (
                    f"needs {width}-byte rows, got a row stride of {row} {kind} elements in {name}"
                )
        if case.layout.batch_padding * activation % width:
            return (
                f"needs {width}-byte rows, got batches {case.layout.batch_padding} elements apart"
            )
        for name in ("weight", "dweight", "dbias"):
            offset = case.layout.of(name).offset
            if offset * weight % width:
                return f"needs {width}-byte pointers, got {name} offset by {offset} elements"
        return None


@dataclass(frozen=True, slots=True)
class Kernel:
    """A registered kernel: what it computes, where it is right, how it counts, and the callable.

    function takes the op's arguments by keyword and returns its outputs as a tuple, in order.
    """

    op: Op
    name: str
    domain: Domain
    numerics: Numerics
    priority: int
    function: Callable[..., object]
    origin: Origin
    path: str


_registered: dict[tuple[str, str], Kernel] = {}
_loading: list[Path] = []  # the user's file that is being imported
_HOME = Path(__file__).resolve().parent


def _origin(path: Path) -> Origin:
    if _loading:
        return "user"
    return "baseline" if path.is_relative_to(_HOME / "baselines") else "ours"


def kernel(
    op: Op,
    domain: Domain,
    *,
    numerics: Numerics | None = None,
    priority: int = 0,
    name: str | None = None,
) -> Callable[[Function], Function]:
    """Register the decorated function as a kernel of `op`, under its own name or `name`.

    Raises KernelError where the op already has a kernel of that name, or where the domain lists
    an option that the op doesn't have. The function itself is returned unchanged.
    """

    def register(function: Function) -> Function:
        # A wrapped function's own file may be the wrapper's; the file that registers it is known.
        path = _loading[-1] if _loading else Path(inspect.getfile(function)).resolve()
        called = name or function.__name__
        unknown = sorted(domain.features - set(op.options))
        if unknown:
            raise KernelError(
                f"kernel {called} in {path} lists features that {op.name} doesn't have: "
                f"{', '.join(unknown)}; it has {', '.join(sorted(op.options))}"
            )
        earlier = _registered.get((op.name, called))
        if earlier is not None:
            raise KernelError(
                f"two kernels of {op.name} are called {called}: one in {earlier.path}, "
                f"one in {path}; give the second another name"
            )
        _registered[op.name, called] = Kernel(
            op=op,
            name=called,
            domain=domain,
            numerics=numerics or Numerics(),
            priority=priority,
            function=function,
            origin=_origin(path),
            path=str(path),
        )
        return function

    return register


def all_kernels() -> tuple[Kernel, ...]:
    """Every kernel under `kernels/` and every one loaded from a file, highest priority first.

    Kernels of equal priority are in the order of their names, so the order is the same everywhere.
    """
    package = importlib.import_module("kernels")
    for module in pkgutil.walk_packages(package.__path__, "kernels."):
        importlib.import_module(module.name)
    return tuple(
        sorted(_registered.values(), key=lambda each: (each.op.name, -each.priority, each.name))
    )


def resolved(path: Path) -> Path:
    """The absolute path of a user's file. Raises KernelError where there is no such file."""
    try:
        file = path.expanduser().resolve()
        exists = file.is_file()
    except (OSError, RuntimeError) as error:  # a name too long, nobody's ~home, a circle of links
        raise KernelError(f"--kernels {path}: there is no such file ({error})") from error
    if not exists:
        raise KernelError(f"--kernels {path}: there is no such file")
    return file


def load_file(path: Path) -> tuple[Kernel, ...]:
    """Import a user's file and return the kernels it registers.

    Raises KernelError, in one sentence, where the file doesn't exist, isn't Python, fails to
    import, registers nothing, or registers a name that is taken.
    """
    file = resolved(path)
    if file.suffix != ".py":
        raise KernelError(f"--kernels {path}: not a Python file (its name must end in .py)")
    all_kernels()
    before = set(_registered)
    module_name = f"user_kernels_{abs(hash(str(file))):x}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    assert spec is not None and spec.loader is not None  # a .py file always has both
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    _loading.append(file)
    try:
        spec.loader.exec_module(module)
    except KernelError as error:
        raise KernelError(f"--kernels {path}: {error}") from error
    except (Exception, SystemExit) as error:
        raise KernelError(f"--kernels {path}: importing it raised {_where(error, file)}") from error
    finally:
        _loading.pop()
    added = tuple(value for key, value in _registered.items() if key not in before)
    if not added:
        raise KernelError(
            f"--kernels {path}: it registers no kernel; decorate a function with "
            "@kernel(LAYER_NORM_BACKWARD, Domain(...)) from the package `kernels`"
        )
    return added


def _where(error: BaseException, file: Path) -> str:
    """The error on one line, and the last line of `file` that it passed through."""
    message = " ".join(str(error).split())
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    if isinstance(error, SyntaxError):
        return text  # it names its own file and line
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == str(file)
    ]
    return f"{text} (line {lines[-1]})" if lines else text


def choose(
    op: Op, case: Case, sm: int, *, device: str = "cuda", among: Iterable[Kernel] | None = None
) -> Kernel:
    """The first kernel of ours, in priority order, whose domain holds `case`.

    among: the kernels to choose from; by default all of ours. Raises NoKernelError with each
    refusal where none serves the case.
    """
    candidates = (
        [each for each in all_kernels() if each.origin == "ours"] if among is None else list(among)
    )
    refusals = []
    for candidate in sorted(candidates, key=lambda each: (-each.priority, each.name)):
        if candidate.op.name != op.name:
            continue
        reason = candidate.domain.reject(case, sm, device)
        if reason is None:
            return candidate
        refusals.append(f"{candidate.name}: {reason}")
    listed = "; ".join(refusals) or "no kernel of this op is registered"
    raise NoKernelError(f"no kernel of {op.name} serves {case.id()}: {listed}")
