"""Mutants over several processes, each with a judge and workers of its own."""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from tests.mutants.bench import Bench, Outcome
from tests.mutants.mutant import Mutant

_bench: Bench | None = None


def _on_a_cpu() -> Bench:
    return Bench(torch.device("cpu"))


def outcomes_of(
    mutants: Sequence[Mutant],
    jobs: int,
    make: Callable[[], Bench] = _on_a_cpu,
) -> Iterator[Outcome]:
    """Yield the outcome of each mutant, as it is known.

    Args:
        mutants: the mutants.
        jobs: the number of processes.
        make: returns what a process tries its mutants on.
    """
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for done in pool.imap_unordered(partial(_try, make), _groups(mutants)):
            yield from done


def _groups(mutants: Sequence[Mutant]) -> list[tuple[Mutant, ...]]:
    """Mutants whose first case is the same, together: its truth is then computed once."""

    def first(mutant: Mutant) -> tuple[str, str]:
        return mutant.op, mutant.case_ids[0]

    ordered = sorted(mutants, key=first)
    return [tuple(each) for _, each in itertools.groupby(ordered, first)]


def _try(make: Callable[[], Bench], group: tuple[Mutant, ...]) -> list[Outcome]:
    global _bench  # noqa: PLW0603 (a process has one, whatever it is given to do)
    if _bench is None:
        torch.set_num_threads(1)
        _bench = make()
    return [_bench(each) for each in group]
