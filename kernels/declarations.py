"""Checks of a registration: each mistake is one sentence, with a guess at the intended word.

A check returns the sentence, or None if the value is right.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

import torch

from kernel_workbench.oracles.declared import SEVERAL, quoted, wrong_repetition, wrong_strings


class KernelError(Exception):
    """A kernel's file or registration is wrong; the message is one sentence for the user."""


def hint(word: str, names: Iterable[str]) -> str:
    """Return `did you mean X?`, or the list of names if none is similar.

    >>> hint("windw", ["window", "causal"])
    'did you mean window?'
    """
    listed = sorted(names)
    close = difflib.get_close_matches(word.lower(), listed, n=1)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(listed)}"


def is_int(value: object) -> bool:
    """Return True for a whole number, except True and False."""
    return isinstance(value, int) and not isinstance(value, bool)


def wrong_kind(name: str, value: object, kind: type | tuple[type, ...], wanted: str) -> str | None:
    """Check the type of a value; wanted: the expected text."""
    return None if isinstance(value, kind) else f"{name} is {quoted(value)}; write {wanted}"


def wrong_int(name: str, value: object) -> str | None:
    """Check a whole number."""
    return None if is_int(value) else f"{name} is {quoted(value)}; write an int"


def wrong_function(name: str, value: object) -> str | None:
    """Check a function that may be left out."""
    if value is None or callable(value):
        return None
    return f"{name} is {quoted(value)}; write a function, or leave it out"


def wrong_choice(name: str, value: object, words: Sequence[str]) -> str | None:
    """Check one of a few words."""
    return None if value in words else f"{name} is {quoted(value)}; {hint(str(value), words)}"


def wrong_name(name: str, value: object, wanted: str) -> str | None:
    """Check a name that may be left out as None; wanted: what to write."""
    if value is None or (isinstance(value, str) and value.strip()):
        return None
    return f"{name} is {quoted(value)}; write {wanted}"


def wrong_dtypes(name: str, value: object) -> str | None:
    """Check several dtypes: each is a dtype, and none occurs twice."""
    if isinstance(value, torch.dtype):
        return f"{name} is {value} alone; write ({value},)"
    for dtype in value if isinstance(value, SEVERAL) else (value,):
        if not isinstance(dtype, torch.dtype):
            return f"{name} has {quoted(dtype)}; {_meant_dtype(dtype)}"
    return wrong_repetition(name, value if isinstance(value, SEVERAL) else ())


def _meant_dtype(value: object) -> str:
    names = [name for name in dir(torch) if isinstance(getattr(torch, name), torch.dtype)]
    close = difflib.get_close_matches(str(value), names, n=1) if isinstance(value, str) else ()
    return f"did you mean torch.{close[0]}?" if close else "write dtypes, as (torch.float16,)"


def wrong_alignment(value: object) -> str | None:
    """Check a number of bytes: a power of two."""
    if isinstance(value, int) and is_int(value) and value >= 1 and value & (value - 1) == 0:
        return None
    return f"alignment is {quoted(value)}; write a power of two, in bytes"


def wrong_sm(value: object) -> str | None:
    """Check the smallest and the largest capability."""
    pair = isinstance(value, tuple | list) and len(value) == 2 and all(map(is_int, value))
    if isinstance(value, tuple | list) and pair and 0 <= value[0] <= value[1]:
        return None
    return f"sm is {quoted(value)}; write the least and the largest, as (80, 121)"


def wrong_since(value: object) -> str | None:
    """Check a mapping from dtypes to capabilities."""
    if not isinstance(value, Mapping):
        return f"since is {quoted(value)}; write a dict, as {{torch.bfloat16: 80}}"
    if not all(map(is_int, value.values())):
        return f"since is {quoted(dict(value))}; write whole numbers, as {{torch.bfloat16: 80}}"
    return wrong_dtypes("since", tuple(value))


def wrong_sizes(value: object) -> str | None:
    """Check the smallest and the largest value of each size."""
    if not isinstance(value, Mapping):
        return f"sizes is {quoted(value)}; write a dict, as {{'n': (1, 8192)}}"
    for name, limits in value.items():
        if not isinstance(name, str) or not name.strip():
            return f"sizes has {quoted(name)} for a name; write a string, as 'n'"
        if not isinstance(limits, tuple | list) or len(limits) != 2:
            return f"sizes[{name!r}] is {quoted(limits)}; write the least and the largest, or None"
        least, most = limits
        if not is_int(least) or not (most is None or is_int(most)):
            return f"sizes[{name!r}] is {quoted(limits)}; write whole numbers, or None for no limit"
        if least < 0 or (most is not None and most < least):
            return f"sizes[{name!r}] is {quoted(limits)}, which no size is within"
    return None


def wrong_outputs(value: object, outputs: Sequence[str]) -> str | None:
    """Check some outputs of an op, in the op's order."""
    problem = wrong_strings("returns", value)
    if problem is not None:
        return problem
    assert isinstance(value, SEVERAL)
    names = list(value)
    for name in names:
        if name not in outputs:
            return f"returns has {name!r}, which is no output of the op; {hint(name, outputs)}"
    if not names:
        return "returns is empty; name the outputs that it computes, or leave it out"
    ordered = tuple(name for name in outputs if name in names)
    if isinstance(value, AbstractSet) or names != list(ordered):
        return f"returns is {quoted(value)}; write each once, in the op's order: {ordered!r}"
    return None
