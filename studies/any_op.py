"""`python -m studies.any_op --write FILE [FOLDER ...]`: what is read, and how far that goes.

The page lists the operations that an op's reference may call. Each folder holds KernelBench
problems (.py) or definitions of flashinfer's trace format (.json); the page counts how many of them
become an op, and how far PyTorch's own result in fp32 is from its bound on the smallest case. A
scalar that a definition gives no value has one that is made up (`_made_up`). A file is read in a
process of its own. Results go to FILE.jsonl, from which a run goes on.

--limit S: seconds that a file may take (default 120).
--dtype NAME: problems in this dtype; PyTorch computes in fp32, and its result is rounded to it.
--device cuda: inputs, PyTorch's result, truths and bounds on a GPU, products without TF32.
--own-sizes: a problem at the sizes of its own example inputs, not at the smallest ones.
--part K/N: only every N-th file, from the K-th on: N processes share the work, each with its FILE.
--kept: write the page of the results that FILE.jsonl has, and read no file.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from kernel_workbench.kernels.registry import KernelError, load_ops
from kernel_workbench.oracles import analysis
from kernel_workbench.oracles.analysis.choices import READ_AS_SETS
from kernel_workbench.oracles.analysis.places import BY_INDEX, MADE, MOVES
from kernel_workbench.oracles.analysis.rules import RULES
from kernel_workbench.oracles.analysis.trace import LOWERED_PACKETS
from kernel_workbench.oracles.op import Numerics
from kernel_workbench.oracles.reference import (
    OpError,
    Reference,
    ReferenceOp,
    op_of_reference,
    small_sizes,
)
from kernel_workbench.oracles.reference.cases import case_of
from kernel_workbench.oracles.reference.definitions import read_definition
from kernel_workbench.oracles.reference.signature import Constant
from kernel_workbench.reports.arguments import CommandLine, number

HEAD = """# What an op may be made of

Made by `python -m studies.any_op --write docs/reference/any-op.md FOLDER ...`.
[How to write an op](../how-to/own-op.md) says what may be an argument and an output.

"""
_SMALLEST = (torch.float32, torch.float32)
_USEFUL = 1e-3  # the smallest ratio of error to bound at which the bound says something
_MOST_ELEMENTS = 2**27  # of inputs, above which a definition has smaller constants
_JOINED = """ Several runs are joined, with limits from 60 to 600 s, on
shared cores; only files that weren't bounded were read again."""
_NARROWER = "ratio to the narrower"  # of the deterministic and the probabilistic bound
_COLUMNS = (
    *("folder", "files", "bounded", "smaller", "useful", "exact", "above it"),
    *("refused", "out of time or memory", "other errors"),
)
_SCALARS = (("eps", 1e-5), ("scale", 0.1), ("k", 4), ("num", 4))  # by a part of their names


def _names(targets: object) -> str:
    """Return the sorted names of aten's operations, without duplicates."""
    names = sorted({str(target).split(".")[1] for target in targets})  # type: ignore[attr-defined]
    return ", ".join(f"`{name}`" for name in names)


def operations_text() -> str:
    """The operations that are read, by what becomes of an error in them."""
    whole = set(RULES) - MOVES - MADE
    lowered = sorted(str(item).removeprefix("aten.") for item in LOWERED_PACKETS)
    return "\n".join(
        [
            "## Operations of aten that are read",
            "",
            f"With a rule for their errors: {_names(whole)}.",
            "",
            f"Lowered to others: {', '.join(f'`{item}`' for item in lowered)}.",
            "",
            f"Moved together with their errors: {_names(MOVES)}.",
            "",
            f"Placed by whole numbers: {_names(BY_INDEX)}.",
            "",
            f"Made of constants: {_names(MADE)}.",
            "",
            f"With indices that an output may hold, judged as sets: {_names(READ_AS_SETS)}.",
            "",
        ]
    )


def _made_up(name: str, value: Constant) -> Constant:
    """Return a scalar's value, or one by its name where a definition gives it none."""
    if not (isinstance(value, float) and math.isnan(value)):
        return value
    return next((number for part, number in _SCALARS if part in name), 0.5)


def _op_of(file: Path) -> ReferenceOp:
    """Return the op of a problem or a definition, checked."""
    if file.suffix != ".json":
        op = load_ops(file, "--problem")[0]
        assert isinstance(op, ReferenceOp)
        return op
    reference = read_definition(file).reference
    signature = reference.signature
    numbers = {name: _made_up(name, value) for name, value in signature.numbers.items()}
    op = op_of_reference(replace(reference, signature=replace(signature, numbers=numbers)))
    op.check()
    return op


@dataclass(frozen=True, slots=True)
class _FileTrial:
    """The conditions under which a file's function is tried.

    Attributes:
        dtype: the dtype of a problem's floating-point tensors; None takes the file's own.
        device: where the inputs are, and everything that is computed from them.
        at_own_sizes: a problem is tried at the sizes of its example inputs.
    """

    dtype: torch.dtype | None
    device: torch.device
    at_own_sizes: bool


def _read(file: Path, trial: _FileTrial) -> dict[str, Any]:
    """Read a problem or a definition, and hold PyTorch's result to its bound."""
    dtype = trial.dtype
    try:
        op = _op_of(file)
        reference = op.reference
        sizes, dtypes = small_sizes(reference), (reference.dtypes or (_SMALLEST,))[0]
        if dtype is not None:
            dtypes = dtype, dtype
        arrays = reference.signature.arrays
        if trial.at_own_sizes:
            case = replace(op.workloads.anchors[0], dtype=dtypes[0], weight_dtype=dtypes[1])
        else:
            if sum(math.prod(array.shape(sizes)) for array in arrays) > _MOST_ELEMENTS:
                reference = reference.at_smaller_constants()
            case = case_of(op.name, sizes, dtypes, "ci")
        inputs = reference.inputs(case, trial.device)
        truth = reference.oracle(case, inputs)
        bound = reference.bound(case, inputs, truth, Numerics())
        if file.suffix == ".json":
            got = reference.emulate(case, inputs, Numerics())
        else:
            got = dict(zip(op.outputs, _in_fp32(reference, inputs, dtype), strict=True))
    except (KernelError, OpError, MemoryError, torch.OutOfMemoryError) as error:
        is_out = isinstance(error, MemoryError | torch.OutOfMemoryError)
        is_large = is_out or "allocate memory" in str(error)
        return {"state": "not done" if is_large else "refused", "told": str(error)}
    except Exception as error:  # noqa: BLE001  # of a file of others
        return {"state": "crashed", "told": f"{type(error).__name__}: {error}"}
    largest, narrowest, is_exact = 0.0, 0.0, bool(got)
    for name, result in got.items():
        exact, one = truth[name], bound[name]
        if exact is None or result is None:
            continue
        is_exact &= bool(((result.double() == exact) | exact.isnan()).all())
        if one.chosen is None and exact.numel():
            off = (result.double() - exact).abs()
            largest = max(largest, _ratio(off, one.deterministic))
            likely = one.deterministic if one.probabilistic is None else one.probabilistic
            narrowest = max(narrowest, _ratio(off, torch.minimum(one.deterministic, likely)))
    return {
        "state": "bounded",
        "ratio": largest,
        _NARROWER: narrowest,
        "exact": is_exact,
        "finite": {name: int(of.isfinite().sum()) for name, of in truth.items() if of is not None},
        "smaller": reference is not op.reference,
    }


def _in_fp32(
    reference: Reference, inputs: Mapping[str, Any], dtype: torch.dtype | None
) -> tuple[torch.Tensor, ...]:
    """Return PyTorch's result, computed in fp32 and rounded to `dtype` if that isn't None."""
    if dtype is None:
        return tuple(reference.function(**inputs))
    wide = {name: x.float() if _is_floating(x) else x for name, x in inputs.items()}
    results = reference.function(**wide)
    return tuple(x.to(dtype) if _is_floating(x) else x for x in results)


def _is_floating(x: object) -> bool:
    return isinstance(x, torch.Tensor) and x.is_floating_point()


def _ratio(off: torch.Tensor, bound: torch.Tensor) -> float:
    """Return the largest ratio of an error to its bound; 0 where the truth isn't finite."""
    return float(torch.where(off > 0, off / bound, 0.0).nan_to_num(0.0).max())


def answered_apart(work: Callable[[], Mapping[str, Any]], limit: float) -> dict[str, Any]:
    """Do work in a process of its own, which is ended at the limit.

    Args:
        work: returns an answer, for JSON.
        limit: the seconds that the process may take.

    Returns:
        The answer, and beside it "s", the seconds. The answer is empty if the process gave none.
    """
    reading, writing = os.pipe()
    started, child = time.perf_counter(), os.fork()
    if child == 0:
        try:  # no exception may reach the caller's code, which the child is a copy of
            signal.alarm(int(limit))
            with os.fdopen(writing, "wb") as answer:
                answer.write(json.dumps(work()).encode())
        except BaseException:  # noqa: BLE001 (Ctrl-C too)
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return {**(json.loads(text) if text else {}), "s": round(time.perf_counter() - started, 1)}


def _apart(file: Path, limit: float, trial: _FileTrial) -> dict[str, Any]:
    """Read a file in a process of its own, which is ended at the limit."""
    answer = answered_apart(partial(_read, file, trial), limit)
    return {"file": str(file), "state": "not done", **answer}


def _measured(
    folders: list[Path],
    kept: Path,
    limit: float,
    trial: _FileTrial,
    part: tuple[int, int],
    *,
    reads: bool,
) -> Iterator[dict[str, Any]]:
    """Yield a row of each file; where none is read, of those that have a result."""
    lines = kept.read_text().splitlines() if kept.exists() else []
    existing = {item["file"]: item for item in map(json.loads, lines)}
    own, parts = part
    for folder in folders:
        files = sorted((*folder.glob("*.py"), *folder.glob("*.json")))[own - 1 :: parts]
        for place, file in enumerate(files, 1):
            if str(file) not in existing and not reads:
                continue
            if str(file) not in existing:
                existing[str(file)] = _apart(file, limit, trial)
                with kept.open("a") as results:
                    results.write(json.dumps(existing[str(file)]) + "\n")
                print(f"{place} of {len(files)}: {file.name}: {existing[str(file)]['state']}")
            yield {"folder": folder.name, "of": len(files), **existing[str(file)]}


def _table(rows: list[dict[str, Any]], *, joined: bool) -> str:
    """A line for each folder; joined: the rows are those of several runs."""
    slowest = max(row["s"] for row in rows)
    lines = [
        "## Problems and definitions that others wrote",
        "",
        "A problem or a definition is bounded where it becomes an op: it is read, checked, and has",
        "a bound on its smallest case.",
        "",
        f"It is useful where the largest ratio of error to bound is {_USEFUL:g} or more, by the",
        "probabilistic bound where there is one. An exact result has no error to compare. A file",
        "is above its bound where an error is above the deterministic one. The column *smaller*",
        "counts files whose inputs are too large at their own constants, and are read at smaller",
        "ones.",
        "",
        f"The slowest took {slowest:.0f} s, on one core of a CPU.{_JOINED if joined else ''}",
        "",
        f"| {' | '.join(_COLUMNS)} |",
        f"|{'---|' * len(_COLUMNS)}",
    ]
    for folder in dict.fromkeys(row["folder"] for row in rows):
        mine = [row for row in rows if row["folder"] == folder]
        count = Counter(row["state"] for row in mine)
        above = sum(row.get("ratio", 0.0) > 1 for row in mine)
        states = (count[item] for item in ("refused", "not done", "crashed"))
        narrow = (max(row.get("ratio", 0.0), row.get(_NARROWER, 0.0)) for row in mine)
        useful = sum(ratio >= _USEFUL for ratio in narrow)
        exact = sum(row.get("exact", False) for row in mine)
        smaller = sum(row.get("smaller", False) for row in mine)
        share = "" if len(mine) == mine[0]["of"] else f" of {mine[0]['of']}"
        files = f"{len(mine)}{share}"
        cells = (folder, files, count["bounded"], smaller, useful, exact, above, *states)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join([*lines, ""])


def _part(text: str) -> tuple[int, int]:
    """Return K and N of K/N. Raises ValueError."""
    own, parts = (int(number) for number in text.split("/"))
    if not 1 <= own <= parts:
        raise ValueError(text)
    return own, parts


def main() -> int:
    """Write the page."""
    options = CommandLine(prog="python -m studies.any_op", description=__doc__)
    options.add_argument("folders", nargs="*", type=Path, metavar="FOLDER")
    options.add_argument("--write", type=Path, required=True, metavar="FILE")
    options.add_argument("--limit", type=number(1, 3600), default=120.0, metavar="S")
    options.add_argument("--kept", action="store_true")
    options.add_argument("--dtype", choices=("float16", "bfloat16"), metavar="NAME")
    options.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options.add_argument("--own-sizes", action="store_true")
    options.add_argument("--part", type=_part, default=(1, 1), metavar="K/N")
    options_typed = options.read()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.backends.cudnn.allow_tf32 = False  # PyTorch's default for convolutions is True
    if options_typed.device == "cpu":  # a process that has met CUDA can't be forked
        # Errors are followed once, since torch loads much then: a file's process finds it loaded.
        analysis.bounds(torch.sigmoid, {"input": torch.ones(1)}, Numerics(), (torch.float32,))
    kept = options_typed.write.with_suffix(".jsonl")
    dtype = getattr(torch, options_typed.dtype) if options_typed.dtype else None
    trial = _FileTrial(dtype, torch.device(options_typed.device), options_typed.own_sizes)
    measured = partial(
        _measured, options_typed.folders, kept, options_typed.limit, trial, options_typed.part
    )
    rows = list(measured(reads=not options_typed.kept))
    parts = [HEAD, operations_text(), *([_table(rows, joined=options_typed.kept)] if rows else [])]
    options_typed.write.write_text("\n".join(parts), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
