"""Capture the launches of a kernel's call at the point where Triton would compile them.

`JITFunction.run` binds the arguments, finds the properties that a compiled kernel depends on
(types, divisibility by 16, integers that are 1, constants, warps, stages), and passes them to
`triton.compiler.compile`. A note-taker replaces that function and keeps its arguments: a process
with a GPU would compile exactly these, by the rules of the installed Triton, and another process
compiles them later.

A launch has a key, a hash that is the same in every process. Triton's own key of a jit function
(`cache_key`) differs: it contains the constants of a called function or not, depending on which
function's key is computed first. So this module walks the sources: a function's text and line, and
the same of everything that it names, through modules too, with constants. Line numbers belong to
the key, because findings in machine code name source lines.
"""

from __future__ import annotations

import hashlib
import json
import traceback
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernel_workbench.kernels.registry import Kernel
from kernel_workbench.oracles.op import Case
from kernel_workbench.suites.compile.stand_in import Placing, on_paper

# Prefixes of the constants that say how a jit function is tiled; a report shows these.
_TILE_WORDS = ("BLOCK", "TILE", "STAGES", "SPLIT", "CHUNK", "GROUP")


class CaptureError(Exception):
    """A call's launches can't be captured; the message is one sentence for the user."""


class Source(Protocol):
    """The attributes of Triton's `ASTSource` that this module reads; Gluon has its own class."""

    fn: Any
    signature: dict[str, object]
    constants: dict[object, object]
    attrs: dict[object, object]


@dataclass(frozen=True)
class CapturedLaunch:
    """One launch of a compiled kernel.

    source, target, options  the arguments of `triton.compile`
    function                 the jit function's own name
    """

    source: Source
    target: object
    options: dict[str, Any]
    function: str

    def tile(self) -> dict[str, int]:
        """Return the function's tile constants and its stages, for example {"BLOCK_M": 64}."""
        names = self.source.fn.arg_names
        constants = {
            names[path[0]] if isinstance(path, tuple) else str(path): value
            for path, value in self.source.constants.items()
            if not isinstance(path, tuple) or len(path) == 1
        }
        cut = {
            name: int(value)
            for name, value in constants.items()
            if isinstance(value, int) and name.startswith(_TILE_WORDS)
        }
        return cut | {"num_stages": int(self.options.get("num_stages", 0))}

    @cached_property
    def key(self) -> str:
        """The hash of all that the machine code depends on, besides the versions of the tools."""
        source = self.source
        functions: dict[str, str] = {}
        _walk(source.fn, functions)
        constants = {
            str(path): _spelled(value, functions) for path, value in source.constants.items()
        }
        described = {
            "function": _name(source.fn),
            "sources": functions,
            "signature": {name: str(kind) for name, kind in source.signature.items()},
            "constants": constants,
            "known": {str(path): str(value) for path, value in source.attrs.items() if value},
            "target": str(self.target),
            "options": {name: repr(value) for name, value in sorted(self.options.items())},
        }
        return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Step:
    """One thing that a call does on the GPU: a launch, or an operation of PyTorch.

    name       the operation's name; "" for a launch
    arguments  what it is given, as text: the grid and numbers, and the places of tensors
    launch     the launch; None for an operation
    """

    name: str
    arguments: tuple[str, ...]
    launch: CapturedLaunch | None = None


class _LaunchNoter:
    """Replaces a compiled kernel, and keeps its launch instead of running it."""

    function = None
    packed_metadata = None

    def __init__(self, launch: CapturedLaunch, steps: list[Step]) -> None:
        self._launch, self._steps = launch, steps

    def launch_metadata(self, *_: object) -> None:
        """Return None: no hook hears of a launch."""

    def run(self, *arguments: object) -> None:
        """Keep the launch."""
        self._steps.append(Step("", tuple(map(_described, arguments)), self._launch))

    def result(self) -> _LaunchNoter:
        """Return itself: some versions wrap a kernel that is compiled in the background."""
        return self


class NoteTaker:
    """Captures launches for the rest of this process, in their order."""

    def __init__(self) -> None:
        import triton.compiler  # noqa: PLC0415  (the process decides first how it is to be imported)

        self._steps: list[Step] = []
        self.compile = triton.compiler.compile
        triton.compiler.compile = self._note

    def _note(
        self,
        src: Source,
        target: object = None,
        options: dict[str, object] | None = None,
        **_: object,
    ) -> _LaunchNoter:
        launch = CapturedLaunch(src, target, dict(options or {}), src.fn.__name__.strip("_"))
        return _LaunchNoter(launch, self._steps)

    def of_call(self, kernel: Kernel, case: Case) -> tuple[CapturedLaunch, ...]:
        """Return the distinct launches of one call of `kernel` on the inputs of `case`.

        Raises CaptureError.
        """
        launches = (step.launch for step in self._call(kernel, case, nullcontext()))
        return tuple({launch.key: launch for launch in launches if launch is not None}.values())

    def steps(self, kernel: Kernel, case: Case) -> tuple[Step, ...]:
        """Return what one call does on the GPU, in order. Raises CaptureError."""
        return self._call(kernel, case, _OperationNoter(self._steps))

    def _call(
        self, kernel: Kernel, case: Case, mode: AbstractContextManager[object]
    ) -> tuple[Step, ...]:
        inputs = kernel.op.inputs(case, torch.device("cpu"))
        arguments = {name: on_paper(value) for name, value in inputs.items()}
        self._steps.clear()
        try:
            with Placing(), mode:
                kernel.function(**arguments)
        except Exception as error:
            raise CaptureError(_message(error, kernel, case)) from error
        return tuple(self._steps)


class _OperationNoter(TorchDispatchMode):
    """A mode that keeps each operation of PyTorch as a step."""

    def __init__(self, steps: list[Step]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._steps = steps

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 (an operation has no public type)
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Keep the operation, and do it."""
        del types
        named = kwargs or {}
        described = [*map(_described, args), *(f"{k}={_described(v)}" for k, v in named.items())]
        self._steps.append(Step(str(func), tuple(described)))
        return func(*args, **named)


def _described(value: object) -> str:
    """Return an argument as text that is the same in every process.

    >>> _described(torch.zeros(2, 3)[:, :2]), _described((1, None))
    ('float32[2, 2] by [3, 1]', '(1, None)')
    """
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return f"{dtype}{list(value.shape)} by {list(value.stride())}"
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(_described, value))})"
    if value is None or isinstance(value, (bool, int, float, str, torch.dtype, torch.device)):
        return str(value)
    return type(value).__name__


def _message(error: Exception, kernel: Kernel, case: Case) -> str:
    text = " ".join(str(error).split())[:300]
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == kernel.path
    ]
    where = f" at line {lines[-1]} of {kernel.path}" if lines else ""
    return (
        f"{kernel.name}: its launches for {case.id()} can't be captured: it raised "
        f"{type(error).__name__}{where}: {text}"
    )


def _name(function: Any) -> str:  # noqa: ANN401 (a jit function has no public type)
    """Return the file's and function's name: a user's module has another name in every process."""
    return f"{Path(function.fn.__code__.co_filename).name} {function.fn.__qualname__}"


def _is_jit(value: object) -> bool:
    """Return True for a jit function of Triton or Gluon, also one that only such functions call."""
    return callable(getattr(value, "parse", None)) and hasattr(value, "fn")


def _walk(function: Any, sources: dict[str, str]) -> None:  # noqa: ANN401 (as above)
    name = _name(function)
    if name in sources:
        return
    sources[name] = f"line {function.starting_line_number}\n{function.src}"
    for used, value in _named(function.fn):
        if _is_jit(value):
            _walk(value, sources)
        elif type(value).__name__ == "constexpr":
            sources[f"{name} {used}"] = repr(value)


def _named(function: Any) -> Iterator[tuple[str, object]]:  # noqa: ANN401 (as above)
    """Yield the names in a function's code with their values, and attributes of named modules."""
    names = set(_code_names(function.__code__))
    cells = function.__closure__ or ()
    closed = dict(
        zip(function.__code__.co_freevars, (cell.cell_contents for cell in cells), strict=True)
    )
    for name in sorted(names | set(closed)):
        value = closed.get(name, function.__globals__.get(name))
        yield name, value
        # Triton's version identifies its own functions.
        if isinstance(value, ModuleType) and not value.__name__.startswith("triton"):
            for attribute in sorted(names):
                yield f"{name}.{attribute}", getattr(value, attribute, None)


def _code_names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code_names(constant)


def _spelled(value: object, functions: dict[str, str]) -> str:
    """Return a launch's constant as text; a jit function counts by its source."""
    if _is_jit(value):
        _walk(value, functions)
        return _name(value)
    return repr(value)
