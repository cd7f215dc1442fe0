"""A mutant is a change of our sources, or a function, and names where it must be found."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.op import Case, Op
from kernel_workbench.reports.record import Rule
from tests import ROOT

# Groups of rules that a mutant may be found by. An error beyond what rounding explains is seen by
# whichever of these comes first.
ERROR: tuple[Rule, ...] = ("deterministic bound", "probabilistic bound", "emulation")
NAN: tuple[Rule, ...] = ("non-finite values",)
ACCESS: tuple[Rule, ...] = ("illegal access",)
UNDEFINED: tuple[Rule, ...] = ("undefined load",)
UNWRITTEN: tuple[Rule, ...] = ("unwritten output",)


class EditError(Exception):
    """An edit no longer applies; the message names the mutant, the file and what to do."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of a file under kernels/: `old` must stand in it exactly `times` times."""

    file: str
    old: str
    new: str
    times: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A wrong kernel, and what must become of it.

    bugs      numbers of defects that shipped, in docs/bugs-covered.md; none where it is one of ours
    cheats    numbers of ways to deceive a harness that were seen, in tests/mutants/cheats.py
    edits     what makes it of the kernel called `kernel`
    file      or the user's file that registers it, as it is or with the edits
    cases     those expected to kill it, tried first, in this order: of `ci` by their ids, less the
              op's name; others as they are
    words     or the first few of `ci` that have these in their ids
    rules     any of which may kill it
    why       what it does wrong, in a sentence
    sound     the name of the kernel that it was made of, where that isn't its own
    alone     it ends what starts workers, which is then shared with no other mutant
    """

    name: str
    bugs: tuple[int, ...]
    op: str
    kernel: str
    cases: tuple[str | Case, ...]
    rules: tuple[Rule, ...]
    why: str
    edits: tuple[Edit, ...] = ()
    file: Path | None = None
    sound: str = ""
    cheats: tuple[int, ...] = ()
    alone: bool = False
    words: tuple[str, ...] | None = None

    @property
    def numbers(self) -> str:
        """The defects that it stands for, as a table shows them."""
        known = [*map(str, self.bugs), *(f"cheat {each}" for each in self.cheats)]
        return " ".join(known) or "-"

    @property
    def case_ids(self) -> tuple[str, ...]:
        """The ids of its cases in full."""
        if self.words is not None:
            return _first_cases(self.op, self.words)
        return tuple(
            each.id() if isinstance(each, Case) else f"{self.op}-{each}" for each in self.cases
        )

    @property
    def own_cases(self) -> dict[str, Case]:
        """The mutant's cases that are listed as they are, by id."""
        return {each.id(): each for each in self.cases if isinstance(each, Case)}

    @property
    def edited(self) -> dict[str, str]:
        """The files that its edits change, and their text after them.

        Raises EditError where an edit doesn't apply exactly as often as it says.
        """
        texts: dict[str, str] = {}
        for edit in self.edits:
            path = self.path_of(edit.file)
            text = texts.get(edit.file) or (path.read_text() if path.is_file() else "")
            found = text.count(edit.old)
            if found != edit.times:
                shown = " ".join(edit.old.split())[:80]
                raise EditError(
                    f"mutant {self.name}: its edit of {path.relative_to(ROOT)} applies {found} "
                    f"times, not {edit.times}: {shown!r}; make it fit the kernel as it is now"
                )
            texts[edit.file] = text.replace(edit.old, edit.new)
        return texts

    def path_of(self, file: str) -> Path:
        """Where a file that an edit names is: under kernels/, or the user's."""
        return ROOT / file if self.file is not None else ROOT / "kernels" / file

    def write_file(self, folder: Path) -> Path:
        """Write the user's file with the edits to `folder`. Raises EditError."""
        assert self.file is not None
        path = folder / self.file.name
        path.write_text(self.edited[str(self.file)])
        return path

    def write_overlay(self, folder: Path) -> None:
        """Write a copy of kernels/ with its edits to `folder`. Raises EditError."""
        texts = self.edited
        shutil.copytree(ROOT / "kernels", folder / "kernels")
        for file, text in texts.items():
            (folder / "kernels" / file).write_text(text)


@cache
def ci_cases(op: str) -> dict[str, Case]:
    """The cases of an op that are tried without a GPU, by id."""
    return {case.id(): case for case in OPS[op].cases() if case.tier == "ci"}


@cache
def _first_cases(op: str, words: tuple[str, ...]) -> tuple[str, ...]:
    """Return ids of `ci` cases with the words and no size of 0 or 1; of each dtype one at most.

    Cases with normal values come first.
    """
    found: dict[str, str] = {}
    for each, case in sorted(
        ci_cases(op).items(), key=lambda item: item[1].distribution != "normal"
    ):
        parts = each.split("-")
        if set(words) <= set(parts) and min(size for _, size in case.sizes) > 1:
            found.setdefault(case.dtype_label, each)
    return tuple(found.values())


@dataclass(frozen=True, slots=True)
class Family:
    """Makes mutants by source edits, with names that begin with `prefix`.

    kernel, file    what is wrong and the file that the first edit changes, unless a mutant says
                    otherwise
    """

    prefix: str
    op: Op
    kernel: str
    file: str

    def __call__(
        self,
        name: str,
        why: str,
        cases: tuple[str | Case, ...],
        old: str,
        new: str,
        *more: Edit,
        bugs: tuple[int, ...] = (),
        rules: tuple[Rule, ...] = ERROR,
        kernel: str = "",
        file: str = "",
        times: int = 1,
    ) -> Mutant:
        """A mutant by the edit of `old` to `new` and by `more` of them; see `Mutant` and `Edit`."""
        return Mutant(
            name=f"{self.prefix}_{name}",
            bugs=bugs,
            op=self.op.name,
            kernel=kernel or self.kernel,
            cases=cases,
            rules=rules,
            why=why,
            edits=(Edit(file or self.file, old, new, times), *more),
        )
