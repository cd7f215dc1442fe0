"""How figures are put into words, alike in the terminal, in Markdown and in JUnit."""

from __future__ import annotations

import math
import re

_COUNTED = 1e10  # a figure above it is shown by its power of ten
_DEFAULT_DIGITS = 7  # a float32 has 7.2 decimal digits
LONGEST = 600  # characters of a text: a name is whole, a damaged record's megabyte is cut


def count(number: int, noun: str) -> str:
    """Return `1,234 rows`, `1 row`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def whole(value: float) -> str:
    """Return `1,234`."""
    return f"{value:,.0f}"


def duration(seconds: float) -> str:
    """Return `0.42 s`, `12.3 s`, `2 min 31 s`, `1 h 02 min`; `unknown` for NaN."""
    if not math.isfinite(seconds) or seconds < 0:
        return "unknown"
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds > _COUNTED:
        return f"{number(seconds)} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60:02} min"


def memory(number: int) -> str:
    """Return `0 B`, `512 B`, `64.0 KiB`, `1.2 GiB`."""
    size, units = float(number), iter(("B", "KiB", "MiB", "GiB"))
    unit = next(units)
    while size >= 1024 and (larger := next(units, None)) is not None:
        size, unit = size / 1024, larger
    return f"{number:,} B" if unit == "B" else f"{size:,.1f} {unit}"


def ratio(value: float) -> str:
    """Return an error over its bound in about three digits, never rounded across 0 or across 1."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{value:.0f}"
    if value in (0, 1):
        return f"{value:.0f}"
    for low, high, words in ((0, 0.005, "<0.01"), (0.995, 1, ">0.99"), (1, 1.005, ">1.00")):
        if low < value < high:
            return words
    if 100 <= abs(value) < 100_000:
        return f"{value:.0f}"  # 1234, which .3g has as 1.23e+03
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.3g}"


def share(value: float) -> str:
    """Return a share in per cent, never rounded to nothing or to all of it.

    One of a roof that was measured may well be above all of it: `104.0 %`, `1250 %`.
    """
    if not math.isfinite(value):
        return number(value)
    if value in (0, 1):
        return f"{100 * value:.0f} %"
    if value > 1:
        if value < 1.001:
            return ">100 %"
        return f"{100 * value:.1f} %" if value < 10 else f"{number(100 * value)} %"
    return "<0.1 %" if value < 0.001 else ">99.9 %" if value > 0.999 else f"{100 * value:.1f} %"


def number(value: float) -> str:
    """Return a float in the digits that float32 holds."""
    return "NaN" if math.isnan(value) else f"{value:.{_DEFAULT_DIGITS}g}"


def numerics_value(name: str, value: object) -> str:
    """Return `name` where it is true, else `name 2^-11`, `name 3`, `no name`."""
    if isinstance(value, bool):
        return name if value else f"no {name}"
    if isinstance(value, float) and math.isfinite(value) and value != 0:
        mantissa, exponent = math.frexp(value)
        if mantissa == 0.5:
            return f"{name} 2^{exponent - 1}"
        return f"{name} {number(value)}"
    return f"{name} {value}"


def microseconds(value: float) -> str:
    """Return a time in about four digits: `4.312`, `47.31`, `146.2`, `2,225.7`, `12,114`."""
    if not abs(value) < _COUNTED:
        return number(value)
    digits = 3 if abs(value) < 10 else 2 if abs(value) < 100 else 1 if abs(value) < 10_000 else 0
    return f"{value:,.{digits}f}"


def milliseconds(time_us: float) -> str:
    """Return a time given in microseconds, of many calls: `3.474 ms`."""
    return f"{figure(time_us / 1e3, 4)} ms"


def figure(value: float, digits: int = 3) -> str:
    """Return a figure in so many digits, never cut before its point: `4,390`, `512`, `0.0213`."""
    if not 0 < abs(value) < _COUNTED:
        return number(value)
    after = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{after}f}" if after <= 6 else f"{value:.{digits}g}"


def four_digits(value: float) -> str:
    """Return `4,390`, `51.23`, `0.02130`."""
    return figure(value, 4)


def energy(joules: float) -> str:
    """Return `26.7 mJ`, `1.21 J`, `812 uJ`."""
    for unit, size in (("J", 1.0), ("mJ", 1e-3)):
        if abs(joules) >= size:
            return f"{four_digits(joules / size)} {unit}"
    return f"{four_digits(joules * 1e6)} uJ"


def times(value: float) -> str:
    """Return how many times as long, as fast, as much: `0.952 x`, `1.00 x`, `12.3 x`, `1234 x`."""
    if value >= 100:
        return f"{ratio(value)} x"
    return f"{value:.{3 if value < 1 else 2 if value < 10 else 1}f} x"


def shown(text: object) -> str:
    """Return a text on one line, with escapes and direction marks spelled out."""
    line = str(text)
    if line.isprintable():
        return line
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in line
    )


def cut(text: str, longest: int = LONGEST) -> str:
    """Return `text` shown literally, cut where no name is as long.

    A text that is longer by up to a quarter is whole: what it loses may be the advice at its end.

    >>> cut("a sentence", 8), cut("a sentence", 4)
    ('a sentence', 'a se... (6 more characters)')
    """
    if len(text) <= longest + longest // 4:
        return shown(text)
    return f"{shown(text[:longest])}... ({len(text) - longest:,} more characters)"


# Notes of a row that --accepted names.
ACCEPTED = "accepted: --accepted names this failure, which doesn't fail the run"
ACCEPTED_PASSES = "accepted as a failure by --accepted, and passes"
VALUES_NOT_FINITE = "values not finite"
_NOT_FINITE = frozenset({"nan", "inf"})  # words of a distribution's name


def alike_word(word: str) -> str:
    """Return a property of a case as that of the defect: of NaN and infinity one, of offsets one.

    A user calls finds that differ in what isn't finite, or by how far a row is padded, one defect.
    """
    what, _, name = word.partition(" ")
    if what == "values" and not _NOT_FINITE.isdisjoint(name.split("_")):
        return VALUES_NOT_FINITE
    return re.sub(r"\d+$", "", word) if what == "layout" else word
