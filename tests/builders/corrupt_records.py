"""Ways to corrupt a record, for tests: each takes its bytes and a generator, and gives other bytes.

What a disk, a network, an editor or somebody who means harm could make of a file.
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
_OTHER_TYPES: tuple[Any, ...] = (None, True, -1, 0, 0.5, "x", [], {}, [[]], {"a": 1}, [None], "NaN")
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


def _cut(data: bytes, draw: random.Random) -> bytes:
    return data[: draw.randrange(len(data))]


def _wrong_type(data: bytes, draw: random.Random) -> bytes:
    return _changed(data, draw, (str, int, float, list, dict, type(None)), _OTHER_TYPES)


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
            if isinstance(_within(line, at), str) and at[-1] not in closed:
                _within(line, at[:-1])[at[-1]] = text
    return b"".join(_dumped(each) for each in lines)


def _hostile_keys(data: bytes, draw: random.Random) -> bytes:
    """Keys of sizes, packages, tiles and reasons, which a schema leaves free."""
    lines = [json.loads(each) for each in data.splitlines()]
    for line in lines:
        free = [at for at in _places(line) if isinstance(_within(line, at), dict)]
        for at in draw.sample(free, min(len(free), 2)):
            _within(line, at)[draw.choice(HOSTILE)] = draw.choice((1, "x", HOSTILE[0]))
    return b"".join(_dumped(each) for each in lines)


def _lost_key(data: bytes, draw: random.Random) -> bytes:
    lines = [json.loads(each) for each in data.splitlines()]
    line = draw.choice(lines)
    del line[draw.choice(list(line))]
    return b"".join(_dumped(each) for each in lines)


def _shuffled(data: bytes, draw: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    first = draw.choice((0, 1))  # with or without the header
    moved = lines[first:]
    draw.shuffle(moved)
    return b"".join(lines[:first] + moved)


def _dropped(data: bytes, draw: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    return b"".join(each for each in lines if draw.random() < 0.8)


def _nested(data: bytes, draw: random.Random) -> bytes:
    depth = draw.choice((500, 5_000, 200_000))
    deep = b"[" * depth + b"]" * draw.choice((0, depth))
    lines = data.splitlines(keepends=True)
    at = draw.randrange(len(lines))
    where = draw.choice((b'{"kind":"bench","case":%b}\n', b"%b\n", b'{"kind":"run","x":%b}\n'))
    lines[at] = where % deep
    return b"".join(lines)


def _other_file(data: bytes, draw: random.Random) -> bytes:
    del data
    return draw.choice(
        (
            b"",
            b"\n",
            b"{}\n",
            b"[]\n",
            b"null\n",
            b"\0" * 1000,
            b"\x7fELF\x02\x01\x01",
            b"<html><script>alert(1)</script></html>\n",
            draw.randbytes(5000),
            b'{"kind": "run"}\n',
            b"9" * 100_000 + b"\n",
        )
    )


DAMAGES: tuple[Damage, ...] = (
    *(_bits, _cut, _wrong_type, _wrong_number, _hostile, _hostile_everywhere, _hostile_keys),
    *(_lost_key, _shuffled, _dropped, _nested, _other_file),
)


def variants(data: bytes, number: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """`number` corrupted forms of a record, each with a name; every way in turn."""
    for index in range(number):
        damage = DAMAGES[index % len(DAMAGES)]
        name = f"{damage.__name__.strip('_')}-{index}"
        yield name, damage(data, random.Random(f"{seed} {name}"))
