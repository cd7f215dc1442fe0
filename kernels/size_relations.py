"""Relations of a case's sizes in domains: "s_kv >= s_q", "h_q % h_kv == 0"."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from kernel_workbench.kernels.declarations import KernelError
from kernel_workbench.oracles.declared import quoted

_COMPARED: dict[str, Callable[[int, int], bool]] = {
    "==": operator.eq,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_COMPARISON = re.compile(r"([a-z]\w*) *(==|>=|<=|>|<) *([a-z]\w*)")
_MULTIPLE = re.compile(r"([a-z]\w*) *% *([a-z]\w*|[1-9]\d*) *== *0")
_WRITTEN = "two sizes as 's_kv >= s_q' (or ==, <=, >, <), or 'h_q % h_kv == 0'"


@dataclass(frozen=True, slots=True)
class SizeRelation:
    """One relation.

    text    the relation as written
    names   the sizes in it
    holds   (sizes) -> True if the relation holds
    """

    text: str
    names: frozenset[str]
    holds: Callable[[Mapping[str, int]], bool]

    def got(self, sizes: Mapping[str, int]) -> str:
        """Return the values, for example `s_q 129 and s_kv 64`, in the order of the sizes."""
        return " and ".join(f"{name} {sizes[name]}" for name in sizes if name in self.names)


@cache
def parsed(text: str) -> SizeRelation:
    """Return the relation that `text` describes. Raises KernelError if it describes none.

    >>> parsed("s_kv >= s_q").holds({"s_q": 2, "s_kv": 3})
    True
    """
    compared, multiple = _COMPARISON.fullmatch(text), _MULTIPLE.fullmatch(text)
    if compared is not None:
        left, sign, right = compared.groups()
        compare = _COMPARED[sign]
        names = frozenset({left, right})
        return SizeRelation(text, names, lambda sizes: compare(sizes[left], sizes[right]))
    if multiple is None:
        raise KernelError(f"Domain: relations has {quoted(text)}; write {_WRITTEN}")
    size, of = multiple.groups()

    def divides(sizes: Mapping[str, int]) -> bool:
        by = int(of) if of.isdigit() else sizes[of]
        return sizes[size] % by == 0 if by else sizes[size] == 0

    return SizeRelation(text, frozenset({size} if of.isdigit() else {size, of}), divides)
