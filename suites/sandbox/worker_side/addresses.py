"""Read the references that objects hold from their memory, thousands in a sixth of a millisecond.

`gc.get_referents` lists the references of objects too, but counts each reference up and down, and
so touches the memory of every object that is referred to. This module finds once where an object
keeps its references (in its own memory, or in the table of a dictionary), and then reads these
places alone. The references have to be found there: else `gc.get_referents` reads the object.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from types import FunctionType, ModuleType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

_WORD = 8
_HEADER = object.__basicsize__  # a reference count and a type
_MOST = 512  # bytes of an object whose memory is read
_ON_HEAP = 1 << 9  # the flag of a class that is written in Python
# Words of a dictionary: the number of entries, the address of its table, and the address of values
# that lie apart because a class has the table.
_OF_DICTIONARY = (16, 32, 40)

Addresses = NDArray[np.intp]


class _AllMemory:
    """All of this process's memory, as NumPy sees it; only valid addresses may be read."""

    __array_interface__: ClassVar = {
        "data": (_WORD, True),  # NumPy takes no address 0
        "shape": (2**60 - 1,),
        "typestr": f"<u{_WORD}",
        "version": 3,
    }


_take: Callable[[Addresses], NDArray[np.uint64]] = np.asarray(_AllMemory()).take


def _words(address: int, count: int) -> NDArray[np.uint64]:
    """Return `count` words of memory."""
    return np.frombuffer(ctypes.string_at(address, count * _WORD), dtype=np.uint64)


def _word(address: int) -> int:
    return int(_words(address, 1)[0])


def _indices(addresses: Iterable[int]) -> Addresses:
    """Return the indices of addresses within `_AllMemory`, in an array that nobody can change."""
    return np.frombuffer(
        (np.fromiter(addresses, dtype=np.intp) // _WORD - 1).tobytes(), dtype=np.intp
    )


def _offsets_in_function() -> tuple[int, ...]:
    """Return where a function keeps its code, defaults and closure; empty if that isn't found."""
    bound = 0.5

    def probe(positional: float = 1.5, *, keyword: float = 2.5) -> float:
        return positional + keyword + bound

    words = _words(id(probe), FunctionType.__basicsize__ // _WORD).tolist()
    values = (probe.__code__, probe.__defaults__, probe.__kwdefaults__, probe.__closure__)
    if any(words.count(id(value)) != 1 for value in values):
        return ()
    return tuple(words.index(id(value)) * _WORD for value in values)


_IN_FUNCTION = _offsets_in_function()


@dataclass(slots=True)
class _Places:
    """Places of references, each with the word that it held when it was found.

    own      in the memory of objects
    tables   in the tables of dictionaries, which move only if a word of `own` changes
    unread   the objects whose references weren't found
    keys     the keys of dictionaries, kept alive so that no other object gets an address of theirs
    """

    own: dict[int, int] = field(default_factory=dict)
    tables: dict[int, int] = field(default_factory=dict)
    unread: list[object] = field(default_factory=list)
    keys: list[object] = field(default_factory=list)

    def add(self, item: object, references: list[object]) -> None:
        """Add the places of an object, also empty ones, which may get a reference."""
        wanted = set(map(id, references))
        if type(item) is dict:
            is_found = self._add_table(item, wanted)
        elif isinstance(item, FunctionType):
            is_found = bool(_IN_FUNCTION)
            self.own |= {(at := id(item) + offset): _word(at) for offset in _IN_FUNCTION}
        else:
            is_found = self._add_object(item, wanted)
        if not is_found:
            self.unread.append(item)

    def _add_object(self, item: object, wanted: set[int]) -> bool:
        of = type(item)
        if isinstance(item, type):
            if not item.__flags__ & _ON_HEAP:  # smaller than its type says
                return False
        elif of.__itemsize__ or of.__basicsize__ > _MOST:
            return False
        words = _words(id(item), of.__basicsize__ // _WORD).tolist()
        if not wanted <= set(words):
            return False
        counts = isinstance(item, type | ModuleType)  # words of these change with each use
        self.own |= {
            id(item) + place * _WORD: word
            for place, word in enumerate(words)
            if (word in wanted if counts else place * _WORD >= _HEADER)
        }
        return True

    def _add_table(self, item: dict[Any, Any], wanted: set[int]) -> bool:
        """Add the place of each key, and of each wanted value, which follows its key."""
        own = {(at := id(item) + offset): _word(at) for offset in _OF_DICTIONARY}
        _, table, apart = own.values()
        count = (dict.__sizeof__(item) - dict.__basicsize__) // _WORD
        if apart or not table or count <= 0:
            return False
        words = _words(table, count).tolist()
        values = {id(key): id(value) for key, value in item.items()}
        entries = {
            place: value
            for place, (key, value) in enumerate(pairwise(words))
            if values.get(key) == value
        }
        if len(entries) != len(item) or not wanted <= set(entries.values()):
            return False
        self.own |= own
        self.keys += item
        for place, value in entries.items():
            at = table + place * _WORD
            self.tables[at] = words[place]
            if value in wanted:
                self.tables[at + _WORD] = value
        return True


class Reader:
    """Compares the references of some objects with those at its creation.

    Args:
        objects: the objects, which have to live as long as the reader, each with references that
            nothing may replace.
    """

    def __init__(self, objects: Iterable[tuple[object, list[object]]]) -> None:
        places = _Places()
        for item, references in objects:
            places.add(item, references)
        self._own, self._tables = _indices(places.own), _indices(places.tables)
        self._own_before, self._tables_before = (
            np.fromiter(words.values(), dtype=np.uint64).tobytes()
            for words in (places.own, places.tables)
        )
        self._keys = places.keys
        self.unread = tuple(places.unread)
        self._unread_before = self._of_unread()

    def _of_unread(self) -> list[int]:
        return list(map(id, gc.get_referents(*self.unread)))

    def is_same(self) -> bool:
        """Return True if no reference was replaced, added or removed since the reader was made."""
        return (
            _take(self._own).tobytes() == self._own_before  # else a table may be elsewhere
            and _take(self._tables).tobytes() == self._tables_before
            and self._of_unread() == self._unread_before
        )
