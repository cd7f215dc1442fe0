"""`python -m studies.op_info [NAME ...]`: torch's own list of operations, judged from a plain test.

PyTorch tests its operations by a list (`op_db`) with samples of arguments. The study computes each
sample's result in fp32 and calls `assert_matches(result, reference=operation, ...)`, which derives
a bound for it. The first two samples of an operation are tried, each in a process of its own.

The study prints a line for each operation that isn't whole, and the counts: an operation is whole
where each of its samples is judged and none fails. Operations without a dense floating-point result
of fp32 arguments on a CPU are left out. Results go to FILE, from which a run goes on.

--limit S: seconds that a sample may take (default 30).
--results FILE: the results, a JSON object a line (default results/op_info.jsonl).
"""

from __future__ import annotations

import fnmatch
import json
import sys
import warnings
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from kernel_workbench.oracles.analysis import NoRuleError
from kernel_workbench.oracles.op import ArgumentsError
from kernel_workbench.oracles.reference import OpError
from kernel_workbench.reports.arguments import CommandLine, number
from kernel_workbench.testing import assert_matches
from studies.any_op import answered_apart

_SAMPLES = 2
_WHOLE, _FAILED, _REFUSED, _LATE, _CRASHED = "whole", "failed", "refused", "out of time", "crashed"
_NO_FIGURE = "left out"


def _judged(operation: Any, place: int) -> dict[str, str]:  # noqa: ANN401 (an OpInfo has no type)
    """Judge an operation's result on one of its samples."""
    samples = list(operation.sample_inputs("cpu", torch.float32, requires_grad=False))
    if not samples:
        return {"state": _NO_FIGURE}
    sample = samples[min(place, len(samples) - 1)]
    leaves, form = tree_flatten((sample.input, sample.args, sample.kwargs))
    inputs: dict[str, Any] = {
        f"x{at}": leaf for at, leaf in enumerate(leaves) if isinstance(leaf, Tensor)
    }

    def reference(**arguments: Tensor) -> tuple[Tensor, ...]:
        filled = [arguments.get(f"x{at}", leaf) for at, leaf in enumerate(leaves)]
        first, positional, named = tree_unflatten(filled, form)
        results = tree_leaves(operation.op(first, *positional, **named))
        return tuple(result for result in results if isinstance(result, Tensor))

    reference.__name__ = operation.name.replace(".", "_")
    try:
        with torch.no_grad():
            outputs = reference(**{name: leaf.clone() for name, leaf in inputs.items()})
    except (NotImplementedError, RuntimeError, TypeError, AssertionError):
        return {"state": _NO_FIGURE}  # it takes whole or complex numbers alone, or a GPU
    dense = all(output.layout == torch.strided for output in outputs)
    if not dense or not any(output.is_floating_point() for output in outputs):
        return {"state": _NO_FIGURE}
    try:
        assert_matches(outputs, reference=reference, **inputs)
    except AssertionError as error:
        return {"state": _FAILED, "told": str(error)}
    except (ArgumentsError, OpError, NoRuleError) as error:
        return {"state": _REFUSED, "told": str(error)}
    return {"state": _WHOLE}


def _answer(operation: Any, place: int) -> dict[str, str]:  # noqa: ANN401 (as above)
    """Judge a sample, and tell an error that isn't the study's own."""
    try:
        return _judged(operation, place)
    except Exception as error:  # noqa: BLE001 (whatever a list of others holds)
        return {"state": _CRASHED, "told": f"{type(error).__name__}: {error}"}


def main() -> int:
    """Print the operations that aren't whole, and the counts."""
    options = CommandLine(prog="python -m studies.op_info", description=__doc__)
    options.add_argument("names", nargs="*", metavar="NAME", help="only these, or a pattern")
    options.add_argument("--limit", type=number(1, 3600), default=30.0, metavar="S")
    options.add_argument(
        "--results", type=Path, default=Path("results/op_info.jsonl"), metavar="FILE"
    )
    read = options.read()
    try:  # it imports a package that PyTorch's tests alone need
        from torch.testing._internal.common_methods_invocations import op_db  # noqa: PLC0415
    except ImportError as error:
        sys.exit(f"{error}: PyTorch's list of operations needs it; pip install expecttest")
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    lines = read.results.read_text().splitlines() if read.results.exists() else []
    existing = {(row["name"], row["sample"]): row for row in map(json.loads, lines)}
    read.results.parent.mkdir(parents=True, exist_ok=True)
    assert_matches(torch.ones(1).sigmoid(), reference=torch.sigmoid, input=torch.ones(1))  # imports
    counts: Counter[str] = Counter()
    for name, operation in {f"{one.name} {one.variant_test_name}": one for one in op_db}.items():
        shown = name.strip()
        if read.names and not any(fnmatch.fnmatch(shown, pattern) for pattern in read.names):
            continue
        rows = []
        for place in range(_SAMPLES):
            if (shown, place) not in existing:
                answer = answered_apart(partial(_answer, operation, place), read.limit)
                existing[shown, place] = {
                    "name": shown,
                    "sample": place,
                    "state": _LATE,
                    **answer,
                }
                with read.results.open("a") as file:
                    file.write(json.dumps(existing[shown, place]) + "\n")
            rows.append(existing[shown, place])
        states = {row["state"] for row in rows}
        order = (_FAILED, _CRASHED, _LATE, _REFUSED, _WHOLE, _NO_FIGURE)
        worst = next(state for state in order if state in states)
        counts[worst] += 1
        if worst not in (_WHOLE, _NO_FIGURE):
            why = next((row.get("told", "") for row in rows if row["state"] == worst), "")
            print(f"{shown}: {worst}: {' '.join(why.split())[:160]}", flush=True)
    print(", ".join(f"{state}: {counts[state]}" for state in order if counts[state]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
