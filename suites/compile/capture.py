"""The launches that a kernel's call makes, taken down where Triton would compile them.

`JITFunction.run` binds the arguments, looks up what of them a compiled kernel depends on (types,
whether a pointer or an integer is divisible by 16, integers that are 1, constants, warps, stages)
and hands that to `triton.compiler.compile`. In the place of that function stands a note-taker: what
it is handed is what a driver's process would compile, by Triton's own rules of the version at hand,
and what another process compiles later. Its stand-in for a compiled kernel takes down the grid.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from kernels.registry import Kernel
from oracles.op import Case
from suites.compile.keys import key_of
from suites.compile.stand_in import Placing, on_paper

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


@dataclass(slots=True)
class Launch:
    """One launch of a compiled kernel.

    source, target, options  what `triton.compile` takes
    function                 the jit function's own name
    grid                     programs in x, y and z
    """

    source: Source
    target: object
    options: dict[str, Any]
    function: str
    grid: tuple[int, ...] = ()
    key: str = field(default="", init=False)

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


class _Noted:
    """Stands for a compiled kernel that is launched."""

    function = None
    packed_metadata = None

    def __init__(self, launch: Launch, launches: list[Launch]) -> None:
        self._launch, self._launches = launch, launches

    def launch_metadata(self, *_: object) -> None:
        """None: nobody is told of a launch."""

    def run(self, *arguments: object) -> None:
        """Take down the launch with its grid."""
        grid = tuple(each for each in arguments[:3] if isinstance(each, int))
        again = Launch(
            self._launch.source,
            self._launch.target,
            self._launch.options,
            self._launch.function,
            grid,
        )
        self._launches.append(again)

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

    @contextmanager
    def launches(self) -> Iterator[list[Launch]]:
        """The list that launches made inside are added to."""
        self._launches.clear()
        yield self._launches

    def of_call(self, kernel: Kernel, case: Case) -> tuple[Launch, ...]:
        """The launches of one call of `kernel` on the inputs of `case`, each kind of launch once.

        Raises CaptureError.
        """
        inputs = kernel.op.inputs(case, torch.device("cpu"))
        arguments = {name: on_paper(value) for name, value in inputs.items()}
        try:
            with self.launches() as made, Placing():
                kernel.function(**arguments)
        except Exception as error:
            raise CaptureError(_told(error, kernel, case)) from error
        found: dict[str, Launch] = {}
        for each in made:
            each.key = key_of(each)
            found.setdefault(each.key, each)
        return tuple(found.values())


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
