"""Record the code that calls candidates, and compare it after each call.

A candidate shares a process with the code that calls it, and can replace parts of that code: a
function of a module, a method of a class, the code object of a function, an entry of a table, or a
function of PyTorch that the suites call. Before a candidate is imported, `take` records the
identity of all of these objects.

A comparison follows each call and takes a sixth of a millisecond: the addresses of all objects that
modules, functions, classes and tables refer to are read from memory (addresses.py) and compared as
bytes with the recorded ones. Only if the bytes differ are the objects compared in turn, to
distinguish changes by libraries and suites from replacements by a candidate.
"""

from __future__ import annotations

import builtins
import dis
import gc
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, cached_property, partial
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from kernel_workbench.suites.sandbox.worker_side.addresses import Reader

_OURS = "kernel_workbench"
# Names that this code looks up in other libraries, while it calls, judges and times, are recorded.
_CALLERS = tuple(
    f"{_OURS}.suites.{suite}" for suite in ("sandbox", "interpreter", "bench", "profile")
)
_WITH_TABLES = re.compile(
    rf"{_OURS}\.(suites\.|(kernels\.registry\._registered|oracles\.OPS)(\[[^.]*\])?$)"
)
# The interpreter replaces functions of this module for each launch.
_PATCHED = "triton.language"
# Tables and attributes of ours that calls change.
CHANGING = frozenset(
    {
        "kernel_workbench.kernels.builds._loaded",
        "kernel_workbench.kernels.configurations._requested",
        "kernel_workbench.kernels.device._reported",
        "kernel_workbench.kernels.registry._loading",
        "kernel_workbench.oracles.analysis.scales._READ",
        "kernel_workbench.oracles.analysis.scales._SCALES",
        "kernel_workbench.oracles.analysis.trace._by_values",
        "kernel_workbench.oracles.analysis.trace._kept",
        "kernel_workbench.oracles.reference._received",
        "kernel_workbench.suites.interpreter.gluon._launches",
        "kernel_workbench.suites.interpreter.strict.initialisation._FRESH",
        "kernel_workbench.suites.interpreter.strict.initialisation._WATCHING",
        "kernel_workbench.suites.interpreter.strict.overflow._TRACKING",
        "kernel_workbench.suites.run.user_cases._printed",
        "kernel_workbench.suites.sandbox.judge_side.waiting._waiting",
        "kernel_workbench.suites.sandbox.worker_side.allocations._Counted.live",
        "kernel_workbench.suites.sandbox.worker_side.red_zones.Guards.every",
        "kernel_workbench.suites.sandbox.worker_side.process_state._settings_of_file",
        "kernel_workbench.suites.sandbox.worker_side.watch._LOOKED_UP",
    }
)
# Classes of other libraries whose methods the suites call, or which the suites put hooks in.
_CLASSES = (
    "torch.Tensor",
    "torch.UntypedStorage",
    "torch.autograd.profiler.profile",
    "torch.cuda.CUDAGraph",
    "torch.cuda.Event",
    "torch.cuda.Stream",
    "torch.cuda.device",
    "torch.cuda.graph",
    "torch.utils._python_dispatch.TorchDispatchMode",
    "triton.runtime.autotuner.Autotuner",
    "triton.runtime.interpreter.GridExecutor",
    "triton.runtime.interpreter.InterpretedFunction",
    "triton.runtime.interpreter.InterpreterBuilder",
    "triton.runtime.interpreter.TensorHandle",
    "triton.runtime.jit.JITFunction",
    "triton.runtime.jit.KernelInterface",
    "contextlib.ExitStack",
    "contextlib._GeneratorContextManager",
    "json.decoder.JSONDecoder",
    "json.encoder.JSONEncoder",
    "socket.socket",
)
# Attributes that Python itself sets on a module or a class.
_PYTHONS = frozenset({"__annotations__", "__annotations_cache__", "__warningregistry__"})
_OF_FUNCTION = ("__code__", "__defaults__", "__kwdefaults__", "__closure__")
_WRAPPERS = (property, staticmethod, classmethod, cached_property, partial, MethodType)
_MOST_ENTRIES = 20_000  # of a table: larger ones are data
_UNSET = object()
_RULE = "a kernel leaves the code that calls it, and judges it, as it was"

_Table = dict[Any, Any] | list[Any] | set[Any]
_Look = Callable[[], Mapping[Any, object]]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A recorded state of the code.

    changed   return a sentence about a replaced object, or None
    set_back  restore every replaced object; return True if all are restored
    """

    changed: Callable[[], str | None]
    set_back: Callable[[], bool]


NONE = Fingerprint(lambda: None, lambda: True)
"""The fingerprint of a process whose code may change."""


@dataclass(frozen=True, slots=True)
class _RecordedObject:
    """An object that refers to others.

    owner    the object
    look     return the references that must stay, by name
    write    restore a reference; the value _UNSET removes it
    spelled  return an entry's name in a sentence
    before   the recorded references
    takes_place  True if a new entry would hide another object, which counts as a replacement
    grows    new entries are allowed
    loose    calls change and add references, so `look` has to be called every time
    """

    owner: object
    look: _Look
    write: Callable[[Any, object], object]
    spelled: Callable[[Any], str]
    before: Mapping[Any, object]
    takes_place: Callable[[Any], bool]
    grows: bool
    loose: bool

    def changes(self) -> Iterator[tuple[str, Any]]:
        """Yield the changed entries: "replaced", "removed" or "added", and the key."""
        now = self.look()
        for key, value in self.before.items():
            if now.get(key, _UNSET) is not value:
                yield ("replaced" if key in now else "removed"), key
        for key in now:
            if key not in self.before:
                if self.takes_place(key):
                    yield "replaced", key
                elif not self.grows:
                    yield "added", key

    def set_back(self) -> None:
        """Undo the changes."""
        for _, key in list(self.changes()):
            self.write(key, self.before.get(key, _UNSET))


class _Inventory:
    """Collects all objects that modules consist of."""

    def __init__(self) -> None:
        self.parts: list[_RecordedObject] = []
        self._seen: dict[int, object] = {}  # kept alive, so that no address is reused

    def module(self, module: ModuleType, name: str) -> None:
        """Add a module of ours: its class, its names, and their values."""
        content = vars(module)
        self._add(
            module,
            lambda: {"class": type(module)},
            lambda _, value: setattr(module, "__class__", value),
            lambda _: name,
        )
        self._add(
            content,
            lambda: _without(content, _PYTHONS),
            partial(_write_entry, content),
            lambda key: f"{name}.{key}",
            takes_place=lambda key: hasattr(builtins, key),
        )
        for key, value in tuple(content.items()):
            if not key.startswith("__"):
                self.value(value, f"{name}.{key}")

    def value(self, value: object, name: str) -> None:
        """Add the value of a name."""
        if name in CHANGING or id(value) in self._seen:
            return
        if isinstance(value, FunctionType):
            self._function(value)
        elif isinstance(value, type):
            if _is_ours(value.__module__):
                self.type(value, f"{value.__module__}.{value.__qualname__}")
        elif isinstance(value, CellType):
            self._add(
                value,
                lambda: {"value": _content(value)},
                lambda _, content: setattr(value, "cell_contents", content),
                lambda _: name,
            )
            self.value(_content(value), name)
        elif isinstance(value, _WRAPPERS):
            self._referents(value, name)
        elif hasattr(value, "cache_parameters"):  # of functools.cache
            self.value(getattr(value, "__wrapped__", None), name)
        elif _WITH_TABLES.match(name):  # a worker doesn't judge by other libraries' data
            self._data(value, name)

    def _data(self, value: object, name: str) -> None:
        of = type(value)
        if isinstance(value, tuple):  # immutable
            self._seen[id(value)] = value
            for item in value:
                self.value(item, name)
        elif isinstance(value, dict | list | set):
            self.table(value, name)
        elif not _is_ours(of.__module__):
            return
        elif is_dataclass(value) and getattr(of, "__dataclass_params__").frozen:  # noqa: B009
            names = [item.name for item in fields(value)]
            self._add(
                value,
                lambda: {item: getattr(value, item, _UNSET) for item in names},
                lambda key, field: object.__setattr__(value, key, field),
                lambda key: f"{name}.{key}",
            )
            for item in names:
                self.value(getattr(value, item, None), f"{name}.{item}")
        elif hasattr(value, "__dict__"):  # its attributes may change, but none may hide a method
            content = vars(value)
            self._add(
                content,
                lambda: {
                    key: item
                    for key, item in content.items()
                    if isinstance(getattr(of, key, None), FunctionType)
                },
                partial(_write_entry, content),
                lambda key: f"{name}.{key}",
                takes_place=lambda _: True,
                loose=True,
            )

    def type(self, of: type, name: str) -> None:
        """Add a class: its bases, attributes and their functions. A foreign class may get more."""
        content = _dictionary(of)
        ours = _is_ours(of.__module__)
        changing = frozenset(
            key
            for key, value in content.items()
            # Libraries set data at their first use, for example a stream of `torch.cuda.graph`.
            if f"{name}.{key}" in CHANGING or not (ours or _is_method(value))
        )
        self._add(
            of,
            lambda: {"bases": of.__bases__, "order": of.__mro__},
            lambda _, __: setattr(of, "__bases__", bases),
            lambda key: f"the {key} of {name}",
        )
        bases = of.__bases__
        self._add(
            content,
            lambda: _without(content, _PYTHONS | changing),
            partial(_write_attribute, of),
            lambda key: f"{name}.{key}",
            takes_place=lambda key: any(key in vars(item) for item in of.__mro__[1:]),
        )
        for key, value in tuple(content.items()):
            if key not in _PYTHONS:
                self.value(value, f"{name}.{key}")
        if not ours:
            for item in of.__mro__[1:-1]:
                if id(item) not in self._seen:
                    self.type(item, f"{item.__module__}.{item.__qualname__}")

    def table(self, value: _Table, name: str) -> None:
        """Add a dictionary, list or set. A table that users' files add to may grow."""
        if len(value) > _MOST_ENTRIES:
            return
        keyed = isinstance(value, dict)

        def look() -> Mapping[Any, object]:
            if isinstance(value, dict):
                return dict(value)
            return (
                {item: item for item in value} if isinstance(value, set) else dict(enumerate(value))
            )

        def write(_: object, __: object) -> None:
            _refill(value, before)

        before = look()
        self._add(
            value,
            look,
            write,
            lambda key: f"entry {key!r} of {name}" if keyed else f"an entry of {name}",
            grows=not name.startswith(("kernel_workbench.suites.", "the worker")),
        )
        for key, item in before.items():
            self.value(item, f"{name}[{key!r}]")

    def looked_up(self, name: str, content: dict[str, Any], keys: tuple[str, ...]) -> None:
        """Add some names of a foreign module, and the functions that they refer to."""
        self._add(
            keys,
            lambda: {key: content.get(key, _UNSET) for key in keys},
            partial(_write_entry, content),
            lambda key: f"{name}.{key}",
        )
        for key in keys:
            if isinstance(content[key], FunctionType):
                self._function(content[key])

    def _function(self, value: FunctionType) -> None:
        name = f"{value.__module__}.{value.__qualname__}"
        self._add(
            value,
            lambda: {item: getattr(value, item) for item in _OF_FUNCTION},
            partial(setattr, value),
            lambda key: name if key == "__code__" else f"{key} of {name}",
        )
        ours = _is_ours(str(value.__module__)) or hasattr(value, "__wrapped__")
        if not ours:
            return
        for item in (*(value.__closure__ or ()), *(value.__defaults__ or ())):
            self.value(item, f"what {name} refers to")
        if value.__kwdefaults__:
            self.table(value.__kwdefaults__, f"the defaults of {name}")

    def _referents(self, value: object, name: str) -> None:
        def look() -> Mapping[Any, object]:
            return {
                item: getattr(value, item, _UNSET)
                for item in ("fget", "fset", "fdel", "__func__", "func", "args", "keywords")
            }

        self._add(value, look, lambda _, __: None, lambda _: name)
        for item in look().values():
            self.value(item, name)

    def _add(
        self,
        value: object,
        look: _Look,
        write: Callable[[Any, object], object],
        spelled: Callable[[Any], str],
        takes_place: Callable[[Any], bool] = lambda _: False,
        *,
        grows: bool = True,
        loose: bool = False,
    ) -> None:
        if id(value) not in self._seen:
            self._seen[id(value)] = value
            part = _RecordedObject(value, look, write, spelled, look(), takes_place, grows, loose)
            self.parts.append(part)


def take(tables: Mapping[str, dict[Any, Any]] | None = None) -> Fingerprint:
    """Record all loaded code.

    Args:
        tables: further tables, by name, that must not change.

    Returns:
        The fingerprint. It uses objects that are bound here, before a candidate is imported.
    """
    inventory = _Inventory()
    ours = tuple(item for item in sys.modules if _is_ours(item))
    looked_up = (*looked_up_names(), ("sys.modules", sys.modules, ours))
    for item in looked_up:  # including builtins, which `changes` itself uses
        inventory.looked_up(*item)
    for name, module in tuple(sys.modules.items()):
        if _is_ours(name) and isinstance(module, ModuleType):
            inventory.module(module, name)
    for name in _CLASSES:
        names_of = _value_of(name)
        if isinstance(names_of, type):
            inventory.type(names_of, name)
    for name, table in (tables or {}).items():
        inventory.table(table, name)
    parts = tuple(inventory.parts)
    loose = tuple(item for item in parts if item.loose)
    objects = tuple(
        (part.owner, [value for value in part.before.values() if value is not _UNSET])
        for part in parts
        if not (part.loose or isinstance(part.owner, tuple))
    )
    names = tuple((content.get, key) for _, content, keys in looked_up for key in keys)
    address, new = id, Reader

    def addresses() -> list[int]:
        return [address(get(key)) for get, key in names]

    reader, baseline = new(objects), addresses()

    def changed() -> str | None:
        nonlocal baseline, reader
        is_same = reader.is_same() and addresses() == baseline
        # Read before the parts are compared: a later change differs from it.
        latest = (reader, baseline) if is_same else (new(objects), addresses())
        for part in loose if is_same else parts:
            try:
                for what, key in part.changes():
                    return f"it {what} {part.spelled(key)}: {_RULE}"
            except Exception as error:  # noqa: BLE001  (replaced code may raise anything)
                return f"it replaced code by code that raised {type(error).__name__}: {_RULE}"
        reader, baseline = latest
        return None

    def set_back() -> bool:
        for part in parts:
            with suppress(Exception):
                part.set_back()
        return changed() is None

    return Fingerprint(changed, set_back)


@cache
def looked_up_names() -> tuple[tuple[str, dict[str, Any], tuple[str, ...]], ...]:
    """List the modules that our callers' functions look names up in: name, content, and keys.

    No candidate changes the list: the fork server makes it once for all workers.
    """
    names_of: dict[str, tuple[dict[str, Any], set[str]]] = {}

    def note(module: ModuleType, key: str) -> object:
        value = vars(module).get(key)
        if callable(value) or isinstance(value, ModuleType):
            names_of.setdefault(module.__name__, (vars(module), set()))[1].add(key)
        return value

    for name, module in tuple(sys.modules.items()):
        loader: Any = getattr(module, "__loader__", None)
        if not name.startswith(_CALLERS) or not hasattr(loader, "get_code"):
            continue
        for code in _functions_of(loader.get_code(name)):
            at: object = None
            for item in dis.get_instructions(code):
                if item.opname == "LOAD_GLOBAL":
                    own = item.argval in vars(module)
                    at = vars(module)[item.argval] if own else note(builtins, item.argval)
                elif item.opname in ("LOAD_ATTR", "LOAD_METHOD") and isinstance(at, ModuleType):
                    foreign = not _is_ours(at.__name__) and not at.__name__.startswith(_PATCHED)
                    at = note(at, item.argval) if foreign else None
                else:
                    at = None
    return tuple((name, content, tuple(sorted(keys))) for name, (content, keys) in names_of.items())


def _functions_of(code: CodeType | None) -> Iterator[CodeType]:
    for item in () if code is None else code.co_consts:
        if isinstance(item, CodeType):
            yield item
            yield from _functions_of(item)


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] == _OURS


def _is_method(value: object) -> bool:
    """Return True for a function or a descriptor, which decide what an attribute does."""
    return callable(value) or hasattr(type(value), "__get__")


def _value_of(name: str) -> object:
    """Return the value of a dotted name, or None where its module isn't loaded."""
    home, _, last = name.rpartition(".")
    return getattr(sys.modules.get(home), last, None)


def _dictionary(of: type) -> dict[str, Any]:
    """Return the dictionary of a class; empty for a class written in C, which nobody can change."""
    names = vars(of).keys()
    listed = (item for item in gc.get_referents(of) if type(item) is dict)
    return next((item for item in listed if item.keys() == names), {})


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # the cell is empty
        return _UNSET


def _without(content: Mapping[str, object], names: frozenset[str]) -> dict[str, object]:
    return {key: value for key, value in content.items() if key not in names}


def _write_entry(content: dict[Any, object], key: object, value: object) -> None:
    if value is _UNSET:
        del content[key]
    else:
        content[key] = value


def _write_attribute(of: type, key: str, value: object) -> None:
    if value is _UNSET:
        type.__delattr__(of, key)
    else:
        type.__setattr__(of, key, value)


def _refill(table: _Table, entries: Mapping[Any, object]) -> None:
    if isinstance(table, list):
        table[:] = entries.values()
        return
    table.clear()
    table.update(entries)
