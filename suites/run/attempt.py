"""A run that is an attempt of a larger one: the pairs that it skips, and its current pair.

`fleet` starts such runs. A file of --done has a JSON object a line, {"kernel", "case"}, for each
pair that has its rows; a line with "crashed" names a pair that ended its process twice.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

# The variable names a file for the current pair, so that `fleet` sees which pair ended the run.
PAIR_NOTE = "WORKBENCH_PAIR_NOTE"
CRASHED = "its process ended twice while it was tried, and it isn't tried again"


@dataclass(frozen=True, slots=True)
class KnownPairs:
    """Pairs, by kernel and case, that the run skips; `done` get no row, `crashed` one each."""

    done: frozenset[tuple[str, str]] = field(default_factory=frozenset)
    crashed: frozenset[tuple[str, str]] = field(default_factory=frozenset)


def known_pairs(file: str | None) -> KnownPairs:
    """Read the file of --done.

    Args:
        file: the file's path, or None for no pairs.
    """
    lines = [] if file is None else Path(file).read_text(encoding="utf-8").splitlines()
    pairs = [json.loads(line) for line in lines]
    named = [((pair["kernel"], pair["case"]), "crashed" in pair) for pair in pairs]
    return KnownPairs(
        frozenset(pair for pair, crashed in named if not crashed),
        frozenset(pair for pair, crashed in named if crashed),
    )


def write_pairs(
    file: Path, done: Iterable[tuple[str, str]], crashed: Iterable[tuple[str, str]] = ()
) -> None:
    """Write a file of --done.

    Args:
        file: the path.
        done: the name of a kernel and the id of a case, for each pair that gets no row.
        crashed: likewise, for each pair that gets a row which says that it crashed.
    """
    pairs: list[dict[str, object]] = [{"kernel": kernel, "case": case} for kernel, case in done]
    pairs += [{"kernel": kernel, "case": case, "crashed": True} for kernel, case in crashed]
    file.write_text("".join(f"{json.dumps(pair)}\n" for pair in pairs), encoding="utf-8")


def note_pair(kernel: str, case: str) -> None:
    """Write the current pair to the file that the environment names, if it names one."""
    if note := os.environ.get(PAIR_NOTE):
        Path(note).write_text(json.dumps([kernel, case]), encoding="utf-8")
