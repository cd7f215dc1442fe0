"""A run that is an attempt of a larger one: what it needn't try, and what it tries at the moment.

`fleet` starts such runs. A file of --done has a JSON object a line, {"kernel", "case"}, of
pairs that have their rows; with "crashed" of pairs that ended their process, time and again.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

# Names a file that is to hold the pair that is tried: who started the run sees what ended it.
PAIR_NOTE = "WORKBENCH_PAIR_NOTE"
CRASHED = "its process ended twice while it was tried, and it isn't tried again"


@dataclass(frozen=True, slots=True)
class KnownPairs:
    """Pairs, by kernel and case, that aren't tried; `done` get no row, `crashed` one each."""

    done: frozenset[tuple[str, str]] = field(default_factory=frozenset)
    crashed: frozenset[tuple[str, str]] = field(default_factory=frozenset)


def known_pairs(file: str | None) -> KnownPairs:
    """What the file of --done says; nothing without one."""
    lines = [] if file is None else Path(file).read_text(encoding="utf-8").splitlines()
    read = [json.loads(line) for line in lines]
    named = [((each["kernel"], each["case"]), "crashed" in each) for each in read]
    return KnownPairs(
        frozenset(pair for pair, crashed in named if not crashed),
        frozenset(pair for pair, crashed in named if crashed),
    )


def note_pair(kernel: str, case: str) -> None:
    """Tell who started the run, if it wants to know, what is tried now."""
    if note := os.environ.get(PAIR_NOTE):
        Path(note).write_text(json.dumps([kernel, case]), encoding="utf-8")
