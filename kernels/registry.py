"""The registered kernels, their domains, and the choice of a kernel for a case.

A kernel registers itself by a decorator when its file is imported, so a new file under `kernels/`
is a new kernel without another edit; `load_file` does the same for a user's file anywhere.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import pkgutil
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar

import torch

from kernel_workbench.kernels.causes import kernels_named_in, with_cause
from kernel_workbench.kernels.declarations import (
    KernelError,
    hint,
    wrong_function,
    wrong_int,
    wrong_kind,
    wrong_name,
    wrong_outputs,
)
from kernel_workbench.kernels.domain import Domain
from kernel_workbench.kernels.size_relations import parsed
from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.declared import quoted
from kernel_workbench.oracles.op import Case, Numerics, Op
from kernel_workbench.oracles.reference import OpError, ReferenceOp
from kernel_workbench.oracles.reference.definitions import read_definition, unsaid
from kernel_workbench.oracles.reference.modules import (
    ModuleOp,
    is_problem,
    op_of_problem,
    solution_of,
)

__all__ = [
    "Absent",
    "Domain",
    "FileRaisedError",
    "Kernel",
    "KernelError",
    "NoKernelError",
    "Origin",
    "absent",
    "all_absent",
    "all_kernels",
    "choose",
    "home_of",
    "kernel",
    "load_definition",
    "load_file",
    "load_ops",
    "resolved",
]

Origin = Literal["ours", "baseline", "user"]
Function = TypeVar("Function", bound=Callable[..., object])
Check = Callable[[str, object], str | None]
_OURS = {"ours": True}


class NoKernelError(LookupError):
    """No registered kernel serves a case; the message lists each refusal."""


class FileRaisedError(KernelError):
    """The import of a user's file raised an error, so that none of its kernels is registered."""


def _kind(kind: tuple[type, ...], wanted: str) -> dict[str, Check]:
    return {"check": lambda name, value: wrong_kind(name, value, kind, wanted)}


def _name(wanted: str) -> dict[str, Check]:
    return {"check": lambda name, value: wrong_name(name, value, wanted)}


_FUNCTION: dict[str, Check] = {"check": wrong_function}


@dataclass(frozen=True, slots=True)
class Declaration:
    """The declarations of a kernel's file: its op, its domain, its arithmetic.

    op         the op; the function takes the op's arguments by keyword and returns its outputs as a
               tuple, in order
    domain     the cases in which it is right
    returns    the outputs that it computes, in the op's order, if not all; the function then
               returns only these, and the others aren't judged
    variant    (case, sm) -> the name of the variant that dispatch takes for the case; several names
               separated by spaces for a kernel of several passes
    variants   (sm) -> the names of all variants on that sm
    workspace  (case) -> the most bytes that a call takes beyond its inputs and outputs
    wraps      the name of the library that it calls
    same_stores  several programs store the same value to one element on purpose
    profiled   `profile` runs it beside ours if no kernel is named
    same_code_as  the op's kernel whose Triton code it runs, if the two differ in numerics or
                  alignment; an interpreter needn't repeat that kernel's checks
    dispatched  (case) -> True if dispatch may take it for a served case, because it is fast there
    configurations  (case, sm) -> the names of the configurations for the case; the function asks
                    `kernel_workbench.kernels.configuration()` which one to take
    build      (folder) -> what the kernel needs built, which it gets by `built(build)`

    A declaration that the kernel leaves out is None.
    """

    op: Op
    domain: Domain
    _: KW_ONLY
    returns: tuple[str, ...] | None = None
    numerics: Numerics | None = field(
        default=None, metadata=_kind((Numerics, NoneType), "Numerics(...)")
    )
    priority: int = field(default=0, metadata={"check": wrong_int})
    name: str | None = field(default=None, metadata=_name("a string"))
    variant: Callable[[Case, int], str] | None = field(default=None, metadata=_FUNCTION)
    variants: Callable[[int], tuple[str, ...]] | None = field(default=None, metadata=_FUNCTION)
    workspace: Callable[[Case], int] | None = field(default=None, metadata=_FUNCTION)
    wraps: str | None = field(default=None, metadata=_name("the library's name"))
    same_stores: bool = field(default=False, metadata=_kind((bool,), "True or False"))
    profiled: bool = field(default=False, metadata=_kind((bool,), "True or False"))
    same_code_as: str | None = field(default=None, metadata=_OURS)
    dispatched: Callable[[Case], bool] | None = field(default=None, metadata=_OURS)
    configurations: Callable[[Case, int], tuple[str, ...]] | None = field(
        default=None, metadata=_FUNCTION
    )
    build: Callable[[Path], object] | None = field(default=None, metadata=_FUNCTION)


@dataclass(frozen=True, slots=True)
class kernel(Declaration):  # noqa: N801  # it is written as a decorator
    """Register the decorated function as a kernel of `op`, under its own name or `name`.

    The decorator takes the fields of `Declaration` and returns the function unchanged.

    Raises:
        KernelError: if the op already has a kernel of that name, or if an argument is wrong.

    Example:
        @kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float16,)))
        def mine(dy, x, weight, mean, rstd, **options): ...
    """

    def __call__(self, function: Function) -> Function:
        """Register a function. Raises KernelError."""
        # A wrapped function's file may be the wrapper's; the loading file is the right one.
        path = _loading[-1] if _loading else Path(inspect.getfile(function)).resolve()
        called = self.name or function.__name__
        problem = self._problem(_origin(path))
        if problem is not None:
            raise KernelError(f"kernel {called} in {path}: {problem}")
        op, domain = self.op, self.domain
        _adopt(op)
        earlier = _registered.get((op.name, called))
        if earlier is not None:
            raise KernelError(
                f"two kernels of {op.name} are called {called}: one in {earlier.path}, "
                f"one in {path}; give the second another name"
            )
        if self.returns is not None:
            op = op.part(tuple(self.returns))
            domain = _where_computed(domain, op)
        own = {item.name: getattr(self, item.name) for item in fields(self)}
        own |= {"op": op, "domain": domain, "name": called}
        own["numerics"] = op.numerics.of(self.numerics or Numerics())
        _registered[op.name, called] = Kernel(
            **own, function=op.caller_of(function), origin=_origin(path), path=str(path)
        )
        return function

    def _problem(self, origin: Origin) -> str | None:
        """Return a sentence about the first wrong argument, or None."""
        problem = _wrong_op(self.op) or _wrong_domain(self.op, self.domain)
        if problem is None and self.returns is not None:
            problem = wrong_outputs(self.returns, self.op.outputs)
        if problem is None and isinstance(self.numerics, Numerics):
            problem = _wrong_numerics(self.op, self.numerics)
        for item in fields(self):
            value, check = getattr(self, item.name), item.metadata.get("check")
            if problem is None and check is not None:
                problem = check(item.name, value)
            # Only our own kernels may declare fields that skip checks or change dispatch.
            foreign = origin != "ours" and item.metadata.get("ours", False)
            if problem is None and foreign and value is not None:
                problem = f"{item.name} is for the workbench's own kernels; leave it out"
        return problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel(Declaration):
    """A registered kernel: its declarations and its origin.

    op         the op, or the part of an op that it computes
    configuration  the name of the configuration that calls must take; None: its own choice
    """

    name: str
    numerics: Numerics
    priority: int
    function: Callable[..., object]
    origin: Origin
    path: str
    configuration: str | None = None

    def left_to_others(self, case: Case, sm: int, device: str = "cuda") -> str | None:
        """Return a sentence if dispatch doesn't take the kernel for `case`, else None."""
        reason = self.domain.reject(case, sm, device)
        if reason is None and self.dispatched is not None and not self.dispatched(case):
            return "serves it, and another kernel is quicker"
        return reason


@dataclass(frozen=True, slots=True)
class Absent:
    """A peer without a kernel here, and the reason with a remedy."""

    op: Op
    name: str
    reason: str


_registered: dict[tuple[str, str], Kernel] = {}
_absent: dict[tuple[str, str], Absent] = {}
_loading: list[Path] = []  # the user's file that is being imported
_homes: dict[str, Path] = {}  # the file that defines each op of a user
_HOME = Path(__file__).resolve().parent
_UNKNOWN_KEYWORD = re.compile(
    r"(\w+)(?:\.__init__)?\(\) got an unexpected keyword argument '(\w+)'"
)


def _origin(path: Path) -> Origin:
    if _loading:
        return "user"
    return "baseline" if path.is_relative_to(_HOME / "baselines") else "ours"


def wrong_promise(kernel: Kernel) -> str | None:
    """Return a sentence about a promise that nothing can test, or None.

    Call this where truth may be computed: the op's reference determines its axis of rows.
    """
    if not kernel.numerics.batch_invariant or kernel.op.has_batches():
        return None
    return (
        f"kernel {kernel.name} in {kernel.path}: it declares batch_invariant=True, and no output "
        f"of {kernel.op.name} has rows, as its first axis, that are the same alone; leave it out"
    )


def _adopt(op: Op) -> None:
    """Register an op of the imported file. Raises KernelError if its name is taken.

    A file that is imported a second time defines its ops anew.
    """
    present = OPS.get(op.name)
    if present is op or not _loading:
        return
    file = _loading[-1]
    if present is not None and _homes.get(op.name) != file:
        where = _homes.get(op.name, "the workbench")
        raise KernelError(
            f"two ops are called {op.name}: one of {where}, one of {file}; "
            "give the second another name"
        )
    OPS[op.name], _homes[op.name] = op, file


def home_of(op: str) -> Path | None:
    """Return the user's file that defines an op; None for the workbench's own ops."""
    return _homes.get(op)


def _wrong_op(op: object) -> str | None:
    if isinstance(op, Op):
        return None
    close = difflib.get_close_matches(str(op).lower(), OPS, n=1)
    meant = (
        f"did you mean {close[0].upper()}"
        if close
        else f"there are {', '.join(map(str.upper, OPS))}"
    )
    return f"its op is {quoted(op)}, and an op is imported from `kernel_workbench`; {meant}"


def _wrong_domain(op: Op, domain: object) -> str | None:
    """Return a sentence about a feature or size that the op doesn't have, or None."""
    if not isinstance(domain, Domain):
        return f"its domain is {quoted(domain)}; write Domain(dtypes=(...), ...)"
    for name in sorted(domain.features - set(op.options)):
        choices = hint(name, op.options) if op.options else "it has none"
        return f"its domain lists a feature that {op.name} doesn't have: {name}; {choices}"
    known_sizes = (*op.allowed.sizes, *op.allowed.option_sizes)
    related = (name for text in domain.relations for name in sorted(parsed(text).names))
    for name in (*domain.sizes, *related):
        if name not in known_sizes:
            meant = hint(name, known_sizes)
            return f"its domain names {name}, and {op.name} has no such size; {meant}"
    return None


def _wrong_numerics(op: Op, numerics: Numerics) -> str | None:
    """Return a sentence about numerics that the op doesn't have, or None."""
    if type(numerics) not in {Numerics, op.numerics}:
        wanted = " or ".join(dict.fromkeys(("Numerics(...)", f"{op.numerics.__name__}(...)")))
        return f"numerics is {type(numerics).__name__}(...), of another op; write {wanted}"
    for cast in numerics.casts.split():
        if op.casts is not None and cast not in op.casts:
            return f"its numerics name a cast that {op.name} doesn't have: {cast}; " + hint(
                cast, op.casts
            )
    return None


def _where_computed(domain: Domain, part: Op) -> Domain:
    """Return the domain without cases that have none of the outputs: nothing could be judged."""

    def also(case: Case) -> str | None:
        if not part.forms(case):
            return f"computes {' and '.join(part.outputs)} alone, which the case hasn't"
        return None if domain.also is None else domain.also(case)

    return replace(domain, also=also)


def absent(op: Op, name: str, reason: str) -> None:
    """Declare that `op` lacks a kernel `name`, and why, for example `not installed: ...`."""
    _absent[op.name, name] = Absent(op, name, reason)


def all_absent() -> tuple[Absent, ...]:
    """Return every peer that is absent here, in the order of ops and names."""
    all_kernels()
    return tuple(_absent[key] for key in sorted(_absent))


def all_kernels() -> tuple[Kernel, ...]:
    """Return every kernel under `kernels/` and of loaded files, highest priority first.

    Kernels of equal priority are in the order of their names, so the order is the same everywhere.
    """
    package = importlib.import_module("kernel_workbench.kernels")
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        try:
            importlib.import_module(module.name)
        except KernelError as error:
            raise KernelError(f"{module.name}: {error}") from error
    return tuple(
        sorted(_registered.values(), key=lambda item: (item.op.name, -item.priority, item.name))
    )


def resolved(path: Path, option: str = "--kernels") -> Path:
    """Return the absolute path of a user's file. Raises KernelError if there is no such file."""
    try:
        file = path.expanduser().resolve()
        exists = file.is_file()
    except (OSError, RuntimeError) as error:  # a name too long, nobody's ~home, a circle of links
        raise KernelError(f"{option} {path}: there is no such file ({error})") from error
    if not exists:
        kind = "JSON" if option in {"--definition", "--workloads"} else "Python"
        reason = f"it is a folder; name a {kind} file" if path.is_dir() else "there is no such file"
        raise KernelError(f"{option} {path}: {reason}")
    return file


def load_file(path: Path) -> tuple[Kernel, ...]:
    """Import a user's file and return the kernels that it registers; empty if it only defines ops.

    A JSON file is a definition, as for `load_definition`, here without workloads.

    Args:
        path: a file of Python or JSON.

    Raises:
        FileRaisedError: if the import of the file raises an error.
        KernelError: if the file doesn't exist, isn't Python, registers nothing, or registers a name
        that is taken; the message is one sentence. After an error nothing of the file is
        registered.
    """
    all_kernels()
    before = set(_registered)
    if path.suffix == ".json":  # the op, for a process that only calls its kernels
        _define(path, ())
        return ()
    file = _imported(path, "--kernels")
    added = tuple(value for key, value in _registered.items() if key not in before)
    if not added and file not in _homes.values():
        raise KernelError(
            f"--kernels {path}: it registers no kernel; decorate a function with "
            "@kernel(LAYER_NORM_BACKWARD, Domain(...)) from `kernel_workbench`"
        )
    return added


def load_ops(path: Path, option: str = "--ops") -> tuple[Op, ...]:
    """Import only the ops of a user's file, check them, and return them.

    Its kernels stay unregistered here, because other processes call them.

    Raises:
        KernelError: as `load_file` does, or if the file defines no op or an op with a wrong
        reference.
    """
    before = dict(_registered)
    file = _imported(path, option)
    _registered.clear()
    _registered.update(before)
    ops = tuple(OPS[name] for name, home in _homes.items() if home == file)
    if not ops:
        raise KernelError(
            f"{option} {path}: it defines no op; decorate a function with @op(sizes=...) from "
            "`kernel_workbench`"
        )
    for op in ops:
        if isinstance(op, ReferenceOp):
            try:
                op.check()
            except OpError as error:
                raise KernelError(f"{option} {path}: {op.name}: {error}") from error
    return ops


def load_definition(path: Path, workloads: Sequence[Path] = ()) -> ReferenceOp:
    """Register the op of a definition in flashinfer's trace format, check it, and return it.

    Its cases come from the workloads, and from generation. Raises KernelError, in one sentence.
    """
    op = _define(path, [resolved(workload, "--workloads") for workload in workloads])
    scalar = unsaid(op)
    if scalar is not None:
        raise KernelError(
            f"--definition {path}: inputs.{scalar}: nothing gives it a value; give one by "
            "--workloads, or as a default of the reference's run"
        )
    try:
        op.check()
    except OpError as error:
        raise KernelError(f"--definition: {error}") from error
    return op


def _define(path: Path, workloads: Sequence[Path]) -> ReferenceOp:
    """Return the op of a definition, which is read once."""
    file = resolved(path, "--definition")
    if file.suffix != ".json":
        raise KernelError(f"--definition {path}: its name must end in .json")
    for name, home in _homes.items():
        present = OPS[name]
        if home == file and isinstance(present, ReferenceOp):
            return present
    try:
        op = read_definition(file, workloads)
    except OpError as error:
        raise KernelError(f"--definition: {error}") from error
    _loading.append(file)
    try:
        _adopt(op)
    finally:
        _loading.pop()
    return op


def _imported(path: Path, option: str) -> Path:
    """Import a user's file and register its ops and kernels. Raises KernelError."""
    file = resolved(path, option)
    if file.suffix != ".py":
        raise KernelError(f"{option} {path}: not a Python file (its name must end in .py)")
    module_name = f"user_kernels_{abs(hash(str(file))):x}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    assert spec is not None and spec.loader is not None  # a .py file always has both
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    _loading.append(file)
    try:
        with _undone_on_error():
            spec.loader.exec_module(module)
            for value in tuple(vars(module).values()):
                if isinstance(value, Op):
                    _adopt(value)
            own = any(kernel.path == str(file) for kernel in _registered.values())
            if is_problem(vars(module)) and not own and file not in _homes.values():
                _adopt(op_of_problem(vars(module), file.stem))
            elif "ModelNew" in vars(module) and not own:
                _register_solution(vars(module))
    except OpError as error:
        raise KernelError(f"{option} {path}: {error}") from error
    except KernelError as error:
        raise KernelError(f"{option} {path}: {error}{_line(error, file)}") from error
    except SyntaxError as error:
        raise KernelError(f"{option} {path}: importing it raised {_where(error, file)}") from error
    except (Exception, SystemExit) as error:
        sentence = f"{option} {path}: importing it raised {_where(error, file)}"
        names = kernels_named_in(file)
        listed = f" (its kernels: {', '.join(names)})" if names else ""
        misspelt = bool(_meant_keyword(" ".join(str(error).split())))
        kind = KernelError if misspelt else FileRaisedError
        raise kind(with_cause(sentence, str(error)) + listed * (not misspelt)) from error
    finally:
        _loading.pop()
    return file


@contextmanager
def _undone_on_error() -> Iterator[None]:
    """Undo all registrations of the block if it raises: a mended file may register them again."""
    tables: tuple[dict[Any, Any], ...] = (_registered, OPS, _homes)
    before = [dict(table) for table in tables]
    try:
        yield
    except BaseException:
        for table, content in zip(tables, before, strict=True):
            table.clear()
            table.update(content)
        raise


def _register_solution(content: Mapping[str, Any]) -> None:
    """Register the ModelNew of a KernelBench solution as a kernel. Raises KernelError, OpError."""
    problems = [op for op in OPS.values() if isinstance(op, ModuleOp) and op.name in _homes]
    if len(problems) != 1:
        raise KernelError(
            "it has a class ModelNew, which solves a KernelBench problem; name one, as "
            "--problem=FILE"
        )
    (problem,) = problems
    domain = Domain(dtypes=(torch.float32,), strides="contiguous")
    register = kernel(problem, domain, returns=problem.computed, name="ModelNew")
    register(solution_of(problem, content))


def _where(error: BaseException, file: Path) -> str:
    """Return the error on one line, with the last line of `file` in its traceback."""
    message = " ".join(str(error).split())
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    if isinstance(error, SyntaxError):
        return text  # its text contains file and line
    return f"{text}{_meant_keyword(message)}{_line(error, file)}"


def _line(error: BaseException, file: Path) -> str:
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == str(file)
    ]
    return f" (line {lines[-1]})" if lines else ""


def _meant_keyword(message: str) -> str:
    """Return a hint at the intended keyword of a registration, or ""."""
    match = _UNKNOWN_KEYWORD.match(message)
    for numerics in {op.numerics for op in OPS.values()}:
        if match is not None and match[1] == "Numerics" and match[2] in _words(numerics):
            return f"; {numerics.__name__}(...) has it"
    for called in (kernel, Domain, Numerics, *{op.numerics for op in OPS.values()}):
        if match is not None and match[1] == called.__name__:
            return f"; {hint(match[2], inspect.signature(called).parameters)}"
    return ""


def _words(numerics: type[Numerics]) -> set[str]:
    return {item.name for item in fields(numerics)}


def choose(
    op: Op, case: Case, sm: int, *, device: str = "cuda", among: Iterable[Kernel] | None = None
) -> Kernel:
    """Return the first kernel of ours, in priority order, that computes all of `op` for `case`.

    Args:
        op: the op.
        case: the case.
        sm: the GPU generation, for example 90.
        device: "cuda" or "cpu".
        among: the kernels to choose from; None: all of ours.

    Raises:
        NoKernelError: if none serves the case; the message lists each refusal.
    """
    candidates = (
        [item for item in all_kernels() if item.origin == "ours"] if among is None else list(among)
    )
    refusals = []
    for candidate in sorted(candidates, key=lambda item: (-item.priority, item.name)):
        if candidate.op.name != op.name:
            continue
        if candidate.op.left_out:
            refusals.append(f"{candidate.name}: leaves {' and '.join(candidate.op.left_out)} out")
            continue
        reason = candidate.left_to_others(case, sm, device)
        if reason is None:
            return candidate
        refusals.append(f"{candidate.name}: {reason}")
    listed = "; ".join(refusals) or "no kernel of this op is registered"
    raise NoKernelError(f"no kernel of {op.name} serves {case.id()}: {listed}")
