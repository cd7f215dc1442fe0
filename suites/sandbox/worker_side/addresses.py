"""Read the references that objects hold from their memory, thousands in a tenth of a millisecond.

`gc.get_referents` lists the references of objects too, but counts each reference up and down, and
so touches the memory of every object that is referred to. This module finds once where an object
keeps its references (in its own memory, or in the table of a dictionary), and then reads these
places alone. It assumes no layout that it doesn't verify: an object whose references aren't all
found is read by `gc.get_referents`.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

_WORD = 8
_HEADER = object.__basicsize__  # a reference count and a type
_MOST = 512  # bytes of an object whose memory is read
_ON_HEAP = 1 << 9  # the flag of a class that is written in Python
# Of a dictionary: the number of entries, the address of its table, and that of values that lie
# apart, where a class has the table.
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


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads the references of some objects.

    own     the places in the objects' own memory
    before  the content of these places
    tables  the places in the tables of dictionaries, which move only if `before` changes
    unread  the objects that are left to `gc.get_referents`
    """

    own: Addresses
    before: bytes
    tables: Addresses
    unread: tuple[object, ...]

    @classmethod
    def of(cls, objects: Iterable[tuple[object, list[object]]]) -> Reader:
        """Find the places of references.

        Args:
            objects: each object, which has to stay alive as long as the reader, and the references
                that it had first, which nothing may replace.

        Returns:
            The reader.
        """
        own: list[int] = []
        tables: list[int] = []
        unread: list[object] = []
        for item, references in objects:
            places = _places(item, references)
            if places is None:
                unread.append(item)
            else:
                own += places[0]
                tables += places[1]
        indices = _indices(own)
        return cls(indices, _take(indices).tobytes(), _indices(tables), tuple(unread))

    def read(self) -> tuple[bytes, list[int]] | None:
        """Return the references as they are now; None if an object's own memory has changed."""
        if _take(self.own).tobytes() != self.before:
            return None
        listed = list(map(id, gc.get_referents(*self.unread)))
        return _take(self.tables).tobytes(), listed


def _places(item: object, references: list[object]) -> tuple[list[int], list[int]] | None:
    """Return the addresses of references: in the object, and in its table; None if any is missing.

    A place without a reference counts as well: one may be written there.
    """
    start, wanted = id(item), set(map(id, references))
    if isinstance(item, FunctionType):
        return ([start + offset for offset in _IN_FUNCTION], []) if _IN_FUNCTION else None
    if type(item) is dict:
        return _places_in_table(item, wanted)
    of = type(item)
    is_type = isinstance(item, type)
    if isinstance(item, type):
        if not item.__flags__ & _ON_HEAP:  # smaller than its type says
            return None
    elif of.__itemsize__ or of.__basicsize__ > _MOST:
        return None
    words = _words(start, of.__basicsize__ // _WORD).tolist()
    if not wanted <= set(words):
        return None
    places = range(start, start + len(words) * _WORD, _WORD)
    if is_type or isinstance(item, ModuleType):  # they have words that count and cache
        return [place for place, word in zip(places, words, strict=True) if word in wanted], []
    return list(places[_HEADER // _WORD :]), []


def _places_in_table(item: dict[Any, Any], wanted: set[int]) -> tuple[list[int], list[int]] | None:
    own = [id(item) + offset for offset in _OF_DICTIONARY]
    if not wanted:
        return own, []
    _, table, apart = (int(_words(address, 1)[0]) for address in own)
    count = (dict.__sizeof__(item) - dict.__basicsize__) // _WORD
    if apart or not table or count <= 0:
        return None
    words = _words(table, count)
    is_wanted = np.isin(words, np.fromiter(wanted, dtype=np.uint64, count=len(wanted)))
    if not wanted <= set(words[is_wanted].tolist()):
        return None
    return own, (table + np.flatnonzero(is_wanted) * _WORD).tolist()
