"""The values of a size that cases try: small levels that an interpreter runs, and large ones.

A size is a row's length, or how many rows there are, or another count that cases differ in. Its
levels are a factor (factors.py): cases meet each of them, with each level of every other factor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kernel_workbench.oracles.op import Case, Factor, Part


@dataclass(frozen=True, slots=True)
class Sizes:
    """One size of an op.

    name     of the factor, as a report shows it
    levels   name -> values; of the first level the first value is the plain one
    level    (value) -> the name of its level
    large    values for a GPU, in tier `full`; by default the largest of the levels
    timed    values for a GPU, in the order of the op's timed cases; by default none
    multiple what every value is a multiple of
    once     values of `ci` that one case each has, beside the smallest of the other sizes; by
             default the one before the largest of the levels
    """

    name: str
    levels: Mapping[str, tuple[int, ...]]
    level: Callable[[int], str]
    large: tuple[int, ...] = ()
    timed: tuple[int, ...] = ()
    multiple: int = 1
    once: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Take the largest value of the levels for the large one where there is none.

        Raises ValueError where the levels hold no size of an op.
        """
        values = [value for values in self.levels.values() for value in values]
        wrong = [value for value in values if value < 0]
        if wrong or not any(values) or not all(self.levels.values()):
            what = f"a size of {wrong[0]}" if wrong else "a level without a value above 0"
            raise ValueError(
                f"Sizes({self.name!r}): its levels have {what}; give each level one value or more"
            )
        if not self.large:
            object.__setattr__(self, "large", (max(values),))
        if self.once is None:
            before = max(values) - self.multiple
            is_new = before > 1 and before >= min(values) and before not in values
            object.__setattr__(self, "once", (before,) if is_new else ())

    def factor(self, size: str, name: str | None = None) -> Factor:
        """The levels as a factor of the op's size called `size`; name: another for the factor."""

        def level(case: Case) -> str:
            return self.level(case.size(size))

        parts = {
            name: tuple(Part(sizes={size: value}) for value in values)
            for name, values in self.levels.items()
        }
        return Factor(name or self.name, parts, level)

    @property
    def plain(self) -> int:
        """The plainest value."""
        return next(iter(self.levels.values()))[0]

    @property
    def smallest(self) -> int:
        """The smallest value above 0."""
        return min(value for values in self.levels.values() for value in values if value)

    @property
    def several(self) -> tuple[int, ...]:
        """The values above 1, rising; of a size that is always 1, or 0, that 1 alone."""
        values = {value for values in self.levels.values() for value in values if value > 1}
        return tuple(sorted(values)) or (1,)

    @property
    def least(self) -> int:
        """The smallest value: a smaller one is no size of the op."""
        return min(min(level) for level in self.levels.values())


def _level_of_rows(m: int) -> str:
    return "none" if not m else "one" if m == 1 else "few" if m < 30 else "many"


def _level_of_columns(n: int) -> str:
    if n < 8:
        return "under 8"
    if n > 8192:
        return "over 8192"
    if n > 1024:
        return "over 1024, whole" if n % 8 == 0 else "over 1024, odd"
    if n & (n - 1) == 0:
        return "a power of two"
    return "a multiple of 8" if n % 8 == 0 else "no multiple of 8"


# COLUMNS' levels that WIDTHS hasn't.
_WIDER = {"over 1024, whole": "a multiple of 8", "over 1024, odd": "no multiple of 8"}

ROWS = Sizes(
    "rows",
    {
        "few": (12, 3, 9, 15),
        "one": (1,),
        # One past a tile, and whole tiles, which kernels may take another way.
        "many": (33, 65, 64, 50, 66, 132),
        "none": (0,),
    },
    _level_of_rows,
    large=(1, 17, 133, 1151),
    timed=(4096, 16384, 2048, 262144),
    once=(259,),
)
COLUMNS = Sizes(
    "columns",
    {
        "a multiple of 8": (264, 24, 760, 520),
        "a power of two": (64, 128, 256, 512, 1024),
        "no multiple of 8": (77, 127, 129, 229, 513, 1023),
        "under 8": (1, 3, 5),
        "over 1024, whole": (2056, 3000, 1536, 2048),
        "over 1024, odd": (1027, 2047, 1025, 1537, 3001),
        "over 8192": (8193, 8200),
    },
    _level_of_columns,
    once=(4099,),
    large=(64, 1023, 4096, 8193, 65536),
    timed=(4096, 1024, 65536, 256),
)
# Widths for which no kernel here changes its way: fewer levels than COLUMNS has.
WIDTHS = Sizes(
    "columns",
    {
        "a multiple of 8": (264, 24, 760, 2056),
        "a power of two": (64, 128, 512, 2048),
        "no multiple of 8": (77, 1027, 2047, 129, 1025, 3001),
        "under 8": (3, 1, 5),
        "over 8192": (8193, 8200),
    },
    lambda n: _WIDER.get(_level_of_columns(n), _level_of_columns(n)),
    once=(4099,),
    large=COLUMNS.large,
    timed=COLUMNS.timed,
)
