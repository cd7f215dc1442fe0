"""A suite's command line taken apart: options left out, values changed, paths made short."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from kernel_workbench.root import start_folder

# noxfile.py sets it: where nox was called, which is where paths begin that are typed after `--`.
FOLDER = "WORKBENCH_FOLDER"


def path_in_command(path: Path) -> str:
    """Return a path as a command names it: relative where the user's folder holds it, or whole."""
    here = Path(os.environ.get(FOLDER, start_folder()))
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def without(arguments: Sequence[str], options: Mapping[str, bool]) -> list[str]:
    """Return the arguments less some options.

    Args:
        arguments: a command line.
        options: for each option to leave out, True if the option takes a value.
    """
    kept = []
    skip = False
    for word in arguments:
        if skip:
            skip = False
        elif word in options:
            skip = options[word]
        elif word.partition("=")[0] not in options:
            kept.append(word)
    return kept


def with_values(
    arguments: Sequence[str], options: Collection[str], change: Callable[[str, str], str]
) -> list[str]:
    """Return the arguments with other values of some options.

    Args:
        arguments: a command line.
        options: the options whose values change.
        change: returns the new value for an option and its value.
    """
    changed = []
    before = ""
    for word in arguments:
        option, equals, value = word.partition("=")
        if equals and option in options:
            changed.append(f"{option}={change(option, value)}")
        else:
            changed.append(change(before, word) if before in options else word)
        before = word
    return changed
