"""Functions that corrupt a record: they take its bytes and a generator, and return other bytes.

The damage is that of an attacker or of a disk. The reader itself refuses a file that is no record,
or that lacks lines (tests/reports/test_record.py).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

Json: TypeAlias = Any  # a value that json reads; the program under test checks it
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
    """Yield the places of the values in a line's object."""
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
    """Replace one to three values of a kind, on any lines."""
    lines = [json.loads(each) for each in data.splitlines()]
    for _ in range(draw.choice((1, 1, 3))):
        line = draw.choice(lines)
        places = [at for at in _places(line) if isinstance(_within(line, at), kind)]
        if places:
            at = draw.choice(places)
            _within(line, at[:-1])[at[-1]] = draw.choice(values)
    return b"".join(_dumped(each) for each in lines)


def _dumped(line: Json) -> bytes:
    # In ASCII a lone surrogate stays an escape, as in a hostile file.
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
    """Replace every name, reason and source by one hostile text."""
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
    """Add a key to all free tables of the schema: sizes, packages, tiles, reasons."""
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
    """Yield `number` corrupted forms of a record with their names, by each function in turn."""
    for index in range(number):
        damage = DAMAGES[index % len(DAMAGES)]
        name = f"{damage.__name__.strip('_')}-{index}"
        yield name, damage(data, random.Random(f"{seed} {name}"))
