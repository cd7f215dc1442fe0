"""Count, for docs/reference/kinds-of-questions.csv, the cases that ask each of its questions.

python -m tests.docs.kinds_of_questions --write docs/reference/kinds-of-questions.csv

A row is a kind of defect, an op, what asks the op about it, the numbers of its cases in `ci` and
that `full` adds, and a planted defect. The column `asked by` has FACTOR=LEVEL, `size n=1027`,
`distribution NAME`, or code that asks the question on cases of any kind, MODULE:NAME. A planted
defect is a mutant, or FILE:FUNCTION.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import re
from collections.abc import Callable
from functools import cache
from operator import attrgetter
from pathlib import Path

from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.op import Case, Op
from kernel_workbench.reports.arguments import CommandLine
from tests import ROOT
from tests.mutants.catalogue import MUTANTS

PAGE = ROOT / "docs/reference/kinds-of-questions.csv"
COLUMNS = ("kind", "op", "asked by", "ci", "full", "planted defect")


def rows(page: Path = PAGE) -> list[dict[str, str]]:
    """Return the table's rows by their columns."""
    with page.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def counted(row: dict[str, str]) -> dict[str, str]:
    """Return the row with its counts. Raises LookupError where nothing asks the question."""
    question, op = row["asked by"], OPS.get(row["op"])
    module, _, name = question.partition(":")
    if module.startswith("kernel_workbench."):
        try:
            attrgetter(name)(importlib.import_module(module))
        except AttributeError as error:
            raise LookupError(f"{module} has no {name}") from error
        return row | {"ci": "", "full": ""}
    if op is None:
        raise LookupError(f"there is no op {row['op']}")
    asks = _asks(op, question)
    counts = {
        tier: sum(asks(case) for case in _cases(row["op"]) if case.tier == tier)
        for tier in ("ci", "full")
    }
    if not counts["ci"]:
        raise LookupError(f"no case of {row['op']} in ci asks {question}")
    return row | {tier: str(count) for tier, count in counts.items()}


@cache
def _cases(op: str) -> tuple[Case, ...]:
    return OPS[op].cases()


def _asks(op: Op, question: str) -> Callable[[Case], bool]:
    """Return what tells whether a case asks the question."""
    if size := re.fullmatch(r"size (\w+)=(\d+)", question):
        return lambda case: dict(case.sizes).get(size[1]) == int(size[2])
    if question.startswith("distribution "):
        return lambda case: case.distribution == question.removeprefix("distribution ")
    name, _, level = question.partition("=")
    assert op.allowed is not None
    factor = next((one for one in op.allowed.factors if one.name == name), None)
    if factor is None:
        raise LookupError(f"{op.name} has no factor {name}")
    return lambda case: factor.level(case) == level


def is_planted(row: dict[str, str]) -> bool:
    """Return whether the row's planted defect exists, and is of the row's op."""
    file, _, function = row["planted defect"].rpartition(":")
    if not file:
        return any((one.name, one.op) == (function, row["op"]) for one in MUTANTS)
    text = (ROOT / file).read_text(encoding="utf-8")
    return bool(re.search(rf"^def {re.escape(function)}\(", text, re.MULTILINE))


def main() -> None:
    """Write the table with its counts as they are."""
    options = CommandLine(prog="python -m tests.docs.kinds_of_questions", description=__doc__)
    options.formatter_class = argparse.RawDescriptionHelpFormatter
    options.add_argument("--write", type=Path, metavar="FILE", required=True)
    page: Path = options.read().write
    listed = [counted(row) for row in rows(page)]
    with page.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(listed)


if __name__ == "__main__":
    main()
