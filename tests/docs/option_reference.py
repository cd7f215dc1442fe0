"""Write docs/reference/options.md from the options that the sessions take.

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
from studies.versions import parser as of_versions

_HEAD = """# Options of every session

Made by `python -m tests.docs.option_reference --write docs/reference/options.md`.

Options go after two dashes: `nox -s accuracy -- --op attention_forward --tier full`.
`nox -s NAME -- --help` shows all options of a session. A session refuses an option that it doesn't
serve, and a shortened one. A path begins in the folder where nox is called. `bench` takes
pytest-benchmark's options too.
"""
SUITES = ("accuracy", "search", "bench", "profile", "sanitize", "compile")


def parsers() -> dict[str, CommandLine]:
    """Return what reads the options of each session, by its name."""
    others = {"fleet": of_fleet(), "compare": of_compare(), "report": of_report()}
    others["versions"] = of_versions()
    return {name: SuiteOptions(name) for name in SUITES} | others


def text() -> str:
    """Return the page: the options of several sessions, then each session's own."""
    rows = {name: _rows(parser) for name, parser in parsers().items()}
    sessions: dict[str, list[str]] = {}
    for name, options in rows.items():
        for option in options:
            sessions.setdefault(option, []).append(name)
    shared = [
        f"{option}{'all suites' if tuple(names) == SUITES else ', '.join(names)}|"
        for option, names in sessions.items()
        if len(names) > 1
    ]
    sections = [_section("Several sessions", "|option|what it does|sessions|", shared)]
    for name, options in rows.items():
        own = [option for option in options if len(sessions[option]) == 1]
        if own:
            sections.append(_section(name, "|option|what it does|", own))
    return "\n".join([_HEAD, *sections])


def _rows(parser: CommandLine) -> list[str]:
    return [
        f"|{_names(action)}|{_cell(action.help)}|"
        for action in parser._actions
        if action.help is not argparse.SUPPRESS and action.dest != "help"
    ]


def _section(name: str, head: str, rows: list[str]) -> str:
    return "\n".join([f"## {name}", "", head, "|---" * (head.count("|") - 1) + "|", *rows, ""])


def _names(action: argparse.Action) -> str:
    word = action.metavar or "|".join(action.choices or ())
    value = "" if action.nargs == 0 or not action.option_strings else f" {word}"
    names = action.option_strings or [str(action.metavar)]
    return ", ".join(f"`{name}{value}`".replace("|", "\\|") for name in names)


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
