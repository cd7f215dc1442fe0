"""The launches that a kernel's call makes, taken down where Triton would compile them.

`JITFunction.run` binds the arguments, looks up what of them a compiled kernel depends on (types,
whether a pointer or an integer is divisible by 16, integers that are 1, constants, warps, stages)
and hands that to `triton.compiler.compile`. In the place of that function stands a note-taker: what
it is handed is what a driver's process would compile, by Triton's own rules of the version at hand,
and what another process compiles later.

What a launch depends on is its key, one word that is the same in every process. Triton's own key of
a jit function (`cache_key`) isn't: whether it holds the constants that a called function uses
depends on which of the two was asked for its key first. So sources are walked here: a function's
text and line, and those of all that it names, through modules too, with constants. Line numbers
belong to it, because machine code is told by the lines it came from.
"""

from __future__ import annotations

import hashlib
import json
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Protocol

import torch

from kernel_workbench.kernels.registry import Kernel
from kernel_workbench.oracles.op import Case
from kernel_workbench.suites.compile.stand_in import Placing, on_paper

# Of a jit function's constants those that say how it is cut, shown beside its name.
_TILE_WORDS = ("BLOCK", "TILE", "STAGES", "SPLIT", "CHUNK", "GROUP")


class CaptureError(Exception):
    """A call's launches can't be taken down; the message is one sentence for the user."""


class Source(Protocol):
    """What of Triton's `ASTSource` is looked at; Gluon has one of its own."""

    fn: Any
    signature: dict[str, object]
    constants: dict[object, object]
    attrs: dict[object, object]


@dataclass(frozen=True)
class Launch:
    """One launch of a compiled kernel.

    source, target, options  what `triton.compile` takes
    function                 the jit function's own name
    """

    source: Source
    target: object
    options: dict[str, Any]
    function: str

    @property
    def warps(self) -> int:
        """Warps of a program."""
        return int(self.options.get("num_warps", 0))

    def tile(self) -> dict[str, int]:
        """How the function is cut: its constants of that kind, and its stages."""
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
        """What it compiles to depends on this, and on the versions of the tools."""
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


class _Noted:
    """Stands for a compiled kernel that is launched."""

    function = None
    packed_metadata = None

    def __init__(self, launch: Launch, launches: list[Launch]) -> None:
        self._launch, self._launches = launch, launches

    def launch_metadata(self, *_: object) -> None:
        """None: nobody is told of a launch."""

    def run(self, *_: object) -> None:
        """Take down the launch."""
        self._launches.append(self._launch)

    def result(self) -> _Noted:
        """Itself: some versions wrap a kernel that is compiled in the background."""
        return self


class NoteTaker:
    """Takes down launches for the rest of this process, in the order they are made."""

    def __init__(self) -> None:
        import triton.compiler  # noqa: PLC0415  (the process decides first how it is to be imported)

        self._launches: list[Launch] = []
        self.compile = triton.compiler.compile
        triton.compiler.compile = self._note

    def _note(
        self,
        src: Source,
        target: object = None,
        options: dict[str, object] | None = None,
        **_: object,
    ) -> _Noted:
        launch = Launch(src, target, dict(options or {}), src.fn.__name__.strip("_"))
        return _Noted(launch, self._launches)

    def of_call(self, kernel: Kernel, case: Case) -> tuple[Launch, ...]:
        """The launches of one call of `kernel` on the inputs of `case`, each kind of launch once.

        Raises CaptureError.
        """
        inputs = kernel.op.inputs(case, torch.device("cpu"))
        arguments = {name: on_paper(value) for name, value in inputs.items()}
        self._launches.clear()
        try:
            with Placing():
                kernel.function(**arguments)
        except Exception as error:
            raise CaptureError(_told(error, kernel, case)) from error
        return tuple({each.key: each for each in self._launches}.values())


def _told(error: Exception, kernel: Kernel, case: Case) -> str:
    text = " ".join(str(error).split())[:300]
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == kernel.path
    ]
    where = f" at line {lines[-1]} of {kernel.path}" if lines else ""
    return (
        f"{kernel.name}: its launches for {case.id()} can't be taken down: it raised "
        f"{type(error).__name__}{where}: {text}"
    )


def _name(function: Any) -> str:  # noqa: ANN401 (a jit function has no public type)
    """By file: the module of a user's file has another name in every process."""
    return f"{Path(function.fn.__code__.co_filename).name} {function.fn.__qualname__}"


def _is_jit(value: object) -> bool:
    """Whether it is a jit function, of Triton or Gluon, or one that is only called by such."""
    return callable(getattr(value, "parse", None)) and hasattr(value, "fn")


def _walk(function: Any, found: dict[str, str]) -> None:  # noqa: ANN401 (as above)
    name = _name(function)
    if name in found:
        return
    found[name] = f"line {function.starting_line_number}\n{function.src}"
    for used, value in _named(function.fn):
        if _is_jit(value):
            _walk(value, found)
        elif type(value).__name__ == "constexpr":
            found[f"{name} {used}"] = repr(value)


def _named(function: Any) -> Iterator[tuple[str, object]]:  # noqa: ANN401 (as above)
    """What the names in a function's code stand for, and those of the modules that they name."""
    names = set(_code_names(function.__code__))
    cells = function.__closure__ or ()
    closed = dict(
        zip(function.__code__.co_freevars, (each.cell_contents for each in cells), strict=True)
    )
    for name in sorted(names | set(closed)):
        value = closed.get(name, function.__globals__.get(name))
        yield name, value
        # Triton's own functions are told by its version.
        if isinstance(value, ModuleType) and not value.__name__.startswith("triton"):
            for attribute in sorted(names):
                yield f"{name}.{attribute}", getattr(value, attribute, None)


def _code_names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code_names(constant)


def _spelled(value: object, functions: dict[str, str]) -> str:
    """A constant that a launch gives: a jit function by its source."""
    if _is_jit(value):
        _walk(value, functions)
        return _name(value)
    return repr(value)
