"""All mutants and cheats, and which of them a command line means."""

from __future__ import annotations

import difflib
import zlib
from collections.abc import Sequence

from kernel_workbench.oracles.op import Case
from tests.mutants import (
    attention_backward,
    attention_backward_pairs,
    attention_delta,
    attention_forward,
    attention_forward_pairs,
    attention_split,
    cheats,
    declared,
    host,
    layer_norm,
    layer_norm_pairs,
    layer_norm_steps,
    own_ops,
    plain,
)
from tests.mutants.mutant import Mutant, ci_cases

_FILES = (
    layer_norm,
    layer_norm_steps,
    attention_forward,
    attention_split,
    attention_delta,
    attention_backward,
    layer_norm_pairs,
    attention_forward_pairs,
    attention_backward_pairs,
    host,
    plain,
    own_ops,
    declared,
    cheats,
)
MUTANTS: tuple[Mutant, ...] = tuple(each for file in _FILES for each in file.MUTANTS)


class UnknownMutantError(LookupError):
    """A name that no mutant has; the message says which one is like it."""


def cases_of(mutant: Mutant) -> dict[str, Case]:
    """Return the cases that a mutant is tried on, by id: its own as they are, and `ci`."""
    return mutant.own_cases | ci_cases(mutant.op)


def chosen(names: Sequence[str], sample: int | None) -> tuple[Mutant, ...]:
    """The mutants of these names, all where there are none; `sample`: so many, always the same.

    Raises UnknownMutantError.
    """
    known = {each.name: each for each in MUTANTS}
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise UnknownMutantError(f"there is no mutant called {name}{hint}")
    meant = [known[name] for name in names] if names else list(MUTANTS)
    if sample is not None:
        # By a hash of their names: spread over the files, whatever is added to them.
        meant = sorted(meant, key=lambda each: zlib.crc32(each.name.encode()))[:sample]
    return tuple(meant)
