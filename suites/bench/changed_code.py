"""`bench --against REF --changed`: compare compiled code first, and time only what differs.

Each side's tree hashes what its calls run on a GPU (suites/compile/same_code.py). A pair with the
same hash on both sides takes the same time on the GPU, so neither side times it. The time of the
host may differ: a function that prepares the launches more slowly isn't seen.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from kernel_workbench.suites.bench.rounds import BenchSide
from kernel_workbench.suites.run.attempt import write_pairs
from kernel_workbench.suites.run.commands import with_values
from kernel_workbench.suites.run.suite import Pair
from kernel_workbench.suites.sandbox.wire import spelled

_SAME_CODE = "kernel_workbench.suites.compile.same_code"
# In the order in which they are loaded, whatever order they are typed in: kernels come last.
_FILES_OF_KERNELS = ("--definition", "--problem", "--ops", "--kernels")


def leave_out_same_code(
    sides: tuple[BenchSide, BenchSide], pairs: Sequence[Pair], sm: int, scratch: Path
) -> tuple[BenchSide, BenchSide] | None:
    """Return the sides without the pairs that run the same compiled code on both.

    Args:
        sides: the sides.
        pairs: kernels and cases.
        sm: the GPU generation, for example 90.
        scratch: a folder for a file that the sides read.

    Returns:
        The sides, or None if no pair is left.
    """
    same = same_code(sides, pairs, sm)
    if len(same) == len(pairs):
        return None
    sentence = f"{len(same)} of {len(pairs)} rows run the same compiled code on both sides"
    print(f"bench: {sentence}, and aren't timed", file=sys.stderr, flush=True)
    skipped = scratch / "same-code.jsonl"
    write_pairs(skipped, [(kernel.name, case.id()) for kernel, case in same])

    def without_same(side: BenchSide) -> BenchSide:
        return replace(side, arguments=(*side.arguments, "--done", str(skipped)))

    return without_same(sides[0]), without_same(sides[1])


def same_code(sides: Sequence[BenchSide], pairs: Sequence[Pair], sm: int) -> list[Pair]:
    """Return the pairs that make the same launches of the same machine code on all sides.

    A side that can't tell, because its tree is older than this option, shares none.

    Args:
        sides: the sides.
        pairs: kernels and cases.
        sm: the GPU generation, for example 90.
    """
    calls = json.dumps(
        [
            {"op": kernel.op.name, "kernel": kernel.name, "case": spelled(case)}
            for kernel, case in pairs
        ]
    )
    hashes = [_hashes(side, calls, sm) or [None] * len(pairs) for side in sides]
    return [
        pair
        for pair, *of_pair in zip(pairs, *hashes, strict=True)
        if None not in of_pair and len(set(of_pair)) == 1
    ]


def _hashes(side: BenchSide, calls: str, sm: int) -> list[str | None] | None:
    """Return the hashes of the calls in a side's tree, or None where the tree can't tell them."""
    files: dict[str, list[str]] = {option: [] for option in _FILES_OF_KERNELS}

    def keep(option: str, file: str) -> str:
        files[option].append(file)
        return file

    with_values(side.arguments, _FILES_OF_KERNELS, keep)
    print(f"bench: {side.letter}: {side.name}: compiled code", file=sys.stderr, flush=True)
    done = subprocess.run(
        [sys.executable, "-m", _SAME_CODE, str(sm), *chain.from_iterable(files.values())],
        cwd=side.tree,
        input=calls,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        return None
    answers: list[str | None] = json.loads(done.stdout)
    return answers
