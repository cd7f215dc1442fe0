"""Ways to corrupt a record, for tests: each takes its bytes and a generator, and gives other bytes.

What somebody who means harm could make of a file, and a disk. What is no record at all, or lacks
lines, is refused by the reader alone (tests/reports/test_record.py).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

Json: TypeAlias = Any  # what json reads: checking it is what the program under test does
Damage = Callable[[bytes, random.Random], bytes]

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "]]></style><script src=//example.org/x.js></script>",
    "\x1b[31mred\x1b[0m\x1b]0;title\x07",
    "\x9b2J\x85\x00\x08\x7f",
    "[bold red]markup[/] [link=javascript:alert(1)]x[/link]",
    "[x](javascript:alert(1)) ![x](http://example.org/x.png)",
    "a|b\n| c `d` \\ <!-- e",
    "\r\x1b[1A\x1b[2Kover",
    "\u202eright to left\u2066",
    "{{7*7}} ${7*7} %s %n {0}",
    "../../../../etc/passwd",
    "\ud800 alone",
    "&lt;script&gt; &amp; &#x3c;",
    "",
    " ",
    "x" * 200_000,
    "\U0001f600" * 3000,
    "a\u0301" * 500,
)
_FREE = ("sizes", "packages", "missing", "numerics", "tile", "tools", "reasons_s", "slopes")
_NUMBERS: tuple[Any, ...] = (
    *(0, -1, 2**31, 2**63, 2**64, -(2**63) - 1, 10**30, 10**400),
    *(1e308, -1e308, 5e-324, "NaN", "Infinity", "-Infinity", "1e999"),
)


def _places(value: Json, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where in a line's object there is a value."""
    if at:
        yield at
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _places(each, (*at, key))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _places(each, (*at, index))


def _within(line: Json, at: tuple[Any, ...]) -> Json:
    for key in at:
        line = line[key]
    return line


def _changed(
    data: bytes, draw: random.Random, kind: type | tuple[type, ...], values: tuple[Any, ...]
) -> bytes:
    """One to three values of a kind, on any lines, become others."""
    lines = [json.loads(each) for each in data.splitlines()]
    for _ in range(draw.choice((1, 1, 3))):
        line = draw.choice(lines)
        places = [at for at in _places(line) if isinstance(_within(line, at), kind)]
        if places:
            at = draw.choice(places)
            _within(line, at[:-1])[at[-1]] = draw.choice(values)
    return b"".join(_dumped(each) for each in lines)


def _dumped(line: Json) -> bytes:
    # ASCII: a lone surrogate stays the escape that a hostile file would have.
    return json.dumps(line).encode() + b"\n"


def _bits(data: bytes, draw: random.Random) -> bytes:
    made = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 8, 100))):
        made[draw.randrange(len(made))] ^= 1 << draw.randrange(8)
    return bytes(made)


def _wrong_number(data: bytes, draw: random.Random) -> bytes:
    return _changed(data, draw, (int, float), _NUMBERS)


def _hostile(data: bytes, draw: random.Random) -> bytes:
    return _changed(data, draw, str, HOSTILE)


def _hostile_everywhere(data: bytes, draw: random.Random) -> bytes:
    """Every name, reason and source of every line is the same hostile text."""
    text = draw.choice(HOSTILE[:14])
    lines = [json.loads(each) for each in data.splitlines()]
    closed = {"kind", "suite", "status", "accuracy", "rule", "device", "origin", "figures", "unit"}
    closed |= {"cache", "stopped", "limit", "validity", "tier"}
    for line in lines:
        for at in list(_places(line)):
            value = _within(line, at)
            if isinstance(value, str) and at[-1] not in closed and value not in _NUMBERS:
                _within(line, at[:-1])[at[-1]] = text
    return b"".join(_dumped(each) for each in lines)


def _hostile_keys(data: bytes, draw: random.Random) -> bytes:
    """One key more in all that a schema leaves free: sizes, packages, tiles, reasons."""
    text = draw.choice(HOSTILE)
    lines = [json.loads(each) for each in data.splitlines()]
    for line in lines:
        for at in list(_places(line)):
            held = _within(line, at)
            if at[-1] in _FREE and held:
                held[text] = next(iter(held.values()))
    return b"".join(_dumped(each) for each in lines)


DAMAGES: tuple[Damage, ...] = (_bits, _wrong_number, _hostile, _hostile_everywhere, _hostile_keys)


def variants(data: bytes, number: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """`number` corrupted forms of a record, each with a name; every way in turn."""
    for index in range(number):
        damage = DAMAGES[index % len(DAMAGES)]
        name = f"{damage.__name__.strip('_')}-{index}"
        yield name, damage(data, random.Random(f"{seed} {name}"))
