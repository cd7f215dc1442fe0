"""docs/reference/options.md, made of the options as the sessions take them.

python -m tests.docs.option_reference --write docs/reference/options.md
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kernel_workbench.reports.__main__ import _parser as of_report
from kernel_workbench.reports.arguments import CommandLine
from kernel_workbench.reports.comparison.__main__ import _parser as of_compare
from kernel_workbench.suites.fleet.__main__ import _parser as of_fleet
from kernel_workbench.suites.run.options import SuiteOptions

_HEAD = """# Options of every session

Made by `python -m tests.docs.option_reference --write docs/reference/options.md`.

Options go after two dashes: `nox -s accuracy -- --op attention_forward --tier full`.
`nox -s NAME -- --help` shows the same. An option that a session doesn't serve is refused, and so is
a shortened one. A path begins in the folder where nox is called. `bench` takes pytest-benchmark's
options too.
"""
SUITES = ("accuracy", "search", "bench", "profile", "sanitize", "compile")


def parsers() -> dict[str, CommandLine]:
    """What reads the options of each session, by its name."""
    others = {"fleet": of_fleet(), "compare": of_compare(), "report": of_report()}
    return {name: SuiteOptions(name) for name in SUITES} | others


def text() -> str:
    """The page: a table for each session, an option a row."""
    return "\n".join([_HEAD, *(_section(*each) for each in parsers().items())])


def _section(name: str, parser: CommandLine) -> str:
    rows = [
        f"| {_names(each)} | {_cell(each.help)} |"
        for each in parser._actions
        if each.help is not argparse.SUPPRESS and each.dest != "help"
    ]
    return "\n".join([f"## {name}", "", "| option | what it does |", "|---|---|", *rows, ""])


def _names(action: argparse.Action) -> str:
    word = action.metavar or "|".join(action.choices or ())
    value = "" if action.nargs == 0 or not action.option_strings else f" {word}"
    names = action.option_strings or [str(action.metavar)]
    return ", ".join(f"`{each}{value}`".replace("|", "\\|") for each in names)


def _cell(text: str | None) -> str:
    # The home folder is the reader's.
    return (text or "").replace(str(Path.home()), "~").replace("|", "\\|").replace("%%", "%")


def main() -> int:
    """Write the page where --write says."""
    options = CommandLine(prog="python -m tests.docs.option_reference")
    options.add_argument("--write", type=Path, metavar="FILE", required=True)
    options.read().write.write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
