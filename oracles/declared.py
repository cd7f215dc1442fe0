"""Checks of the names that a kernel's or an op's declaration lists: each mistake is one sentence.

A check returns the sentence, or None where nothing is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

SEVERAL = (tuple, list, AbstractSet)


def quoted(value: object) -> str:
    """Return a value as it was written, in short."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def wrong_strings(name: str, value: object) -> str | None:
    """Check several strings: a single one would be taken letter by letter."""
    if isinstance(value, str):
        return f"{name} is the string {value!r}; write ({value!r},)"
    if not isinstance(value, SEVERAL) or not all(isinstance(item, str) for item in value):
        return f"{name} is {quoted(value)}; write a tuple of strings"
    return None


def wrong_names(name: str, value: object) -> str | None:
    """Check several names: none is blank, and none comes twice."""
    problem = wrong_strings(name, value)
    if problem is not None:
        return problem
    assert isinstance(value, SEVERAL)
    blank = next((item for item in value if not item.strip()), None)
    if blank is not None:
        return f"{name} has {blank!r}, which names nothing; leave it out"
    return wrong_repetition(name, value)


def wrong_repetition(name: str, values: Iterable[object]) -> str | None:
    """Check that no value comes twice."""
    seen: set[object] = set()
    for value in values:
        if value in seen:
            text = str(value) if not isinstance(value, str) else repr(value)
            return f"{name} has {text} twice; write it once"
        seen.add(value)
    return None
