"""What a compiled kernel depends on, in one word that is the same in every process.

Triton's own key of a jit function (`cache_key`) isn't: whether it holds the constants that a called
function uses depends on which of the two was asked for its key first. So sources are walked here:
a function's text and line, and those of all that it names, through modules too, with constants.
Line numbers belong to it, because machine code is told by the lines it came from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from suites.compile.capture import Launch


def key_of(launch: Launch) -> str:
    """The key of what a launch compiles, but for the versions of the tools."""
    source = launch.source
    functions: dict[str, str] = {}
    _walk(source.fn, functions)
    constants = {str(path): _spelled(value, functions) for path, value in source.constants.items()}
    described = {
        "function": _name(source.fn),
        "sources": functions,
        "signature": {name: str(kind) for name, kind in source.signature.items()},
        "constants": constants,
        "known": {str(path): str(value) for path, value in source.attrs.items() if value},
        "target": str(launch.target),
        "options": {name: repr(value) for name, value in sorted(launch.options.items())},
    }
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


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
