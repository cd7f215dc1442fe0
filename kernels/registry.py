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
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from kernels.domain import Domain
from oracles.op import Case, Numerics, Op

__all__ = [
    "Absent",
    "Domain",
    "Kernel",
    "KernelError",
    "NoKernelError",
    "Origin",
    "absent",
    "all_absent",
    "all_kernels",
    "choose",
    "kernel",
    "load_file",
    "resolved",
]

Origin = Literal["ours", "baseline", "user"]
Function = TypeVar("Function", bound=Callable[..., object])


class KernelError(Exception):
    """A kernel's file or registration is wrong; the message is one sentence for the user."""


class NoKernelError(LookupError):
    """No registered kernel serves a case; the message lists each refusal."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A registered kernel: what it computes, where it is right, how it counts, and the callable.

    function   takes the op's arguments by keyword and returns its outputs as a tuple, in order
    variant    (case, sm) -> the name of the variant that dispatch takes for the case; several
               names with spaces between where a kernel runs several passes
    variants   (sm) -> the names of all variants that there are on that sm
    workspace  (case) -> the most bytes that a call takes beyond its inputs and outputs
    wraps      the library that it is a way of calling

    The last four are None where the kernel doesn't say.
    """

    op: Op
    name: str
    domain: Domain
    numerics: Numerics
    priority: int
    function: Callable[..., object]
    origin: Origin
    path: str
    variant: Callable[[Case, int], str] | None = None
    variants: Callable[[int], tuple[str, ...]] | None = None
    workspace: Callable[[Case], int] | None = None
    wraps: str | None = None


@dataclass(frozen=True, slots=True)
class Absent:
    """A peer that there is no kernel of here, and why, with what to do."""

    op: Op
    name: str
    reason: str


_registered: dict[tuple[str, str], Kernel] = {}
_absent: dict[tuple[str, str], Absent] = {}
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
    variant: Callable[[Case, int], str] | None = None,
    variants: Callable[[int], tuple[str, ...]] | None = None,
    workspace: Callable[[Case], int] | None = None,
    wraps: str | None = None,
) -> Callable[[Function], Function]:
    """Register the decorated function as a kernel of `op`, under its own name or `name`.

    variant, variants and workspace say what a case runs and how much memory it takes, wraps which
    library computes it: see `Kernel`.
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
            variant=variant,
            variants=variants,
            workspace=workspace,
            wraps=wraps,
        )
        return function

    return register


def absent(op: Op, name: str, reason: str) -> None:
    """Say that `op` would have a kernel `name` too, and why it hasn't, as `not installed: ...`."""
    _absent[op.name, name] = Absent(op, name, reason)


def all_absent() -> tuple[Absent, ...]:
    """Every peer that is absent here, in the order of ops and names."""
    all_kernels()
    return tuple(_absent[key] for key in sorted(_absent))


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
