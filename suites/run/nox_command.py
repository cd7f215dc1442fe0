"""Commands for nox that work where they are pasted: by the nox that runs, as its user calls it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from kernel_workbench.suites import ROOT

# Set by noxfile.py: the words before `-s`, quoted for a shell, as `.venv/bin/nox`.
VARIABLE = "WORKBENCH_NOX"
# Likewise: where nox was called, which is where paths begin that are typed after `--`.
FOLDER = "WORKBENCH_FOLDER"


def nox_command(session: str, own: Iterable[str]) -> str:
    """What runs a session; own: its arguments, `--` first, or none."""
    return f"{os.environ.get(VARIABLE, 'nox')} -s {shlex.join([session, *own])}"


def path_in_command(path: Path) -> str:
    """A whole path as a command names it: from where nox was called, where it lies below that."""
    here = Path(os.environ.get(FOLDER, ROOT))
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def without(arguments: Sequence[str], options: Mapping[str, bool]) -> list[str]:
    """The arguments less these options, and their values where they take one."""
    kept = []
    skip = False
    for each in arguments:
        if skip:
            skip = False
        elif each in options:
            skip = options[each]
        elif each.partition("=")[0] not in options:
            kept.append(each)
    return kept


def with_values(
    arguments: Sequence[str], options: Collection[str], change: Callable[[str, str], str]
) -> list[str]:
    """The arguments, with other values of these options; change: gives one for option and value."""
    changed = []
    before = ""
    for each in arguments:
        option, equals, value = each.partition("=")
        if equals and option in options:
            changed.append(f"{option}={change(option, value)}")
        else:
            changed.append(change(before, each) if before in options else each)
        before = each
    return changed
