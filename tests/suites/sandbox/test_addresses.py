"""The reader of references notes each place where one is replaced, added or removed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import CellType, FunctionType, ModuleType
from typing import Any

import pytest

from kernel_workbench.suites.sandbox.worker_side.addresses import Reader


class _Slotted:
    __slots__ = ("first", "second")

    def __init__(self) -> None:
        self.first = object()


class _Parent:
    __slots__ = ()


@dataclass(frozen=True)
class _Open:
    first: object


def _function(addend: float = 2.5) -> float:
    return addend


def _bare() -> float:
    return 1.5


def _other() -> float:
    return 3.5


_DATA = {"one": object(), "two": object()}
_SHARED = {f"name{number}": object() for number in range(40)}


def _copied(function: Callable[..., float]) -> FunctionType:
    assert isinstance(function, FunctionType)
    return FunctionType(function.__code__, globals(), "copy", function.__defaults__)


def _moved(table: dict[str, object]) -> None:
    """Remove an entry and write it again, which puts it elsewhere."""
    table["one"] = table.pop("one")


def _references(item: object) -> list[object]:
    if isinstance(item, dict):
        return [value for value in item.values() if not isinstance(value, int)]
    if isinstance(item, FunctionType):
        return [item.__code__]
    if isinstance(item, CellType):
        return [item.cell_contents]
    if isinstance(item, type):
        return [item.__bases__, item.__mro__]
    if isinstance(item, ModuleType):
        return [type(item)]
    assert isinstance(item, _Slotted | _Open)
    return [item.first]


_CHANGES: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "code": (lambda: _copied(_function), lambda f: setattr(f, "__code__", _other.__code__)),
    "defaults": (lambda: _copied(_function), lambda f: setattr(f, "__defaults__", (9.5,))),
    "first defaults": (lambda: _copied(_bare), lambda f: setattr(f, "__defaults__", (9.5,))),
    "keyword defaults": (lambda: _copied(_bare), lambda f: setattr(f, "__kwdefaults__", {"a": 1})),
    "replaced entry": (lambda: dict(_DATA), lambda table: table.update(one=object())),
    "removed entry": (lambda: dict(_DATA), lambda table: table.pop("two")),
    "new entry": (lambda: dict(_DATA), lambda table: table.update(three=object())),
    "renamed entry": (lambda: dict(_DATA), lambda table: table.update(x=table.pop("two"))),
    "moved entry": (lambda: dict(_DATA), _moved),
    "entry of many": (lambda: dict(_SHARED), lambda table: table.update(name31=object())),
    "entry in another's place": (
        lambda: {**_DATA, "last": 1},
        lambda table: (table.popitem(), table.update(hides=1)),
    ),
    "unwanted entry replaced by another": (
        lambda: {**_DATA, "unwanted": 0},
        lambda table: (table.pop("unwanted"), table.update(hides=0)),
    ),
    "entry by a number": (lambda: {5: object()}, lambda table: table.update({5: object()})),
    "values apart": (lambda: vars(_Open(object())), lambda table: table.update(first=object())),
    "slot": (_Slotted, lambda item: setattr(item, "first", object())),
    "empty slot": (_Slotted, lambda item: setattr(item, "second", object())),
    "attribute": (
        lambda: _Open(object()),
        lambda item: object.__setattr__(item, "first", object()),
    ),
    "cell": (partial(CellType, object()), lambda cell: setattr(cell, "cell_contents", object())),
    "bases": (
        lambda: type("Child", (_Slotted,), {}),
        lambda of: setattr(of, "__bases__", (_Slotted, _Parent)),
    ),
    "class": (
        lambda: ModuleType("some"),
        lambda module: setattr(module, "__class__", type("Sub", (ModuleType,), {})),
    ),
}


@pytest.mark.parametrize("change", _CHANGES)
def test_change_is_noted(change: str) -> None:
    """Reading twice gives the same, and after the change something else."""
    make, do = _CHANGES[change]
    item = make()
    reader = Reader([(item, _references(item))])
    assert reader.is_same()
    do(item)
    assert not reader.is_same()


def test_table_that_has_moved_is_read_where_it_is() -> None:
    """A new reader of a table that grew sees the next change; the old one reads no freed memory."""
    table: dict[str, object] = dict(_DATA)
    old = Reader([(table, list(table.values()))])
    for number in range(10_000):
        table[f"more{number}"] = number
    assert not old.is_same()
    new = Reader([(table, [table["one"], table["two"]])])
    assert new.is_same()
    table["two"] = object()
    assert not new.is_same()


def test_most_objects_are_read_from_memory() -> None:
    """An object left to gc.get_referents costs the time that the reader saves."""
    modules = [
        module for name, module in sys.modules.items() if name.startswith("kernel_workbench")
    ]
    functions = [
        item for module in modules for item in vars(module).values() if type(item) is FunctionType
    ]
    objects = [*map(vars, modules), *functions]
    reader = Reader([(item, _references(item)) for item in objects])
    assert len(functions) > 100
    assert len(reader.unread) < 0.02 * len(objects)
