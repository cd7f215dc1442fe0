"""A user's own cases: files of `--cases`, a JSON object a line, each held to what its op allows.

    {"op": "layer_norm_backward", "sizes": {"m": 4096, "n": 8192}, "dtype": "bfloat16"}

A record of search is such a file, too; its cases are those that broke a kernel.

A line may also have weight (how often a model makes the call), weight_dtype, options, layout (by
its name in the op's own cases), distribution and seed. Every wrong line is told of, up to ten.

A recording of a model's calls is such a file, too. Its lines have the calls of each case, which
nothing here reads, and those with the key "skipped" say which calls have no case, and why.
"""

from __future__ import annotations

import difflib
import json
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import pytest
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kernel_workbench.kernels.declarations import hint
from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.cases.names import case_named, layout_named, objection
from kernel_workbench.oracles.op import CONTIGUOUS, Allowed, Case, Op
from kernel_workbench.reports.phrases import shown
from kernel_workbench.reports.record import RecordError, read
from kernel_workbench.suites.run.option_table import JudgedOptions

DTYPES = ("float32", "float16", "bfloat16")
_MOST_BYTES_OF_A_LINE = 2**16
_MOST_BYTES_OF_A_FILE = 2**26
_MOST_TOLD = 10
_LARGEST_SIZE = 2**31 - 1
_LARGEST_GPU_BYTES = 2**38  # more than one has: a file for a GPU still reads where there is none
TIMES_ITS_BYTES = 10  # what a case takes with its truth and bounds in float64
_QUOTED = 80

Name = Annotated[str, Field(max_length=200)]


class CasesError(Exception):
    """What is wrong with the files, a sentence for each line that can't be used."""


class _Line(BaseModel):
    """A line, as far as it can be checked without knowing its op."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    op: Name
    sizes: dict[Name, int]
    dtype: Name
    weight_dtype: Name | None = None
    options: tuple[Name, ...] = ()
    layout: Name = CONTIGUOUS.name
    distribution: Name = "normal"
    seed: int = Field(default=0, ge=0, le=2**31 - 1)
    weight: float | None = Field(default=None, gt=0, lt=math.inf)
    calls: tuple[dict[str, object], ...] = ()


class _Skipped(BaseModel):
    """A line of a recording: calls that no op expresses, or that couldn't be seen."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    skipped: Annotated[str, Field(max_length=2000)]
    weight: int | None = Field(default=None, gt=0)
    calls: tuple[dict[str, object], ...] = ()


def user_cases(options: JudgedOptions, device: torch.device) -> tuple[Case, ...] | None:
    """The cases of --cases' files, in their order; None where there are no files.

    Raises pytest.UsageError, which names each line that is wrong, up to ten.
    """
    files = _files(options)
    if not files:
        return None
    most = _LARGEST_GPU_BYTES
    if device.type == "cuda":
        most = int(torch.cuda.get_device_properties(device).total_memory)
    try:
        cases = read_cases(files, most)
    except CasesError as error:
        raise pytest.UsageError(str(error)) from error
    for sentence in skipped_calls(files):
        if sentence not in _printed:
            _printed.add(sentence)
            print(sentence, file=sys.stderr)
    return cases


_printed: set[str] = set()  # by this process: a suite may ask for its cases more than once


def skipped_calls(files: Sequence[Path]) -> tuple[str, ...]:
    """Return a sentence for each file whose recorded calls have not all a case.

    Raises CasesError where a file can't be read.
    """
    sentences = []
    for file in files:
        lines = _lines(file)
        skipped = [found for line in lines if (found := _skipped(line)) is not None]
        if not skipped:
            continue
        calls = sum(line.weight or 0 for line in skipped)
        reasons = [shown(line.skipped) for line in skipped]
        more = len(reasons) - _MOST_TOLD
        listed = "; ".join(reasons[:_MOST_TOLD]) + (f"; and {more:,} more" if more > 0 else "")
        sentences.append(f"{shown(file.name)}: {calls:,} recorded calls aren't tried: {listed}")
    return tuple(sentences)


def _skipped(line: bytes) -> _Skipped | None:
    """Return what a line says of calls without a case; None for any other line."""
    if b'"skipped"' not in line or len(line) > _MOST_BYTES_OF_A_LINE:
        return None
    try:
        return _Skipped.model_validate_json(line)
    except ValidationError:
        return None


def _files(options: JudgedOptions) -> tuple[Path, ...]:
    return tuple(dict.fromkeys(Path(case) for case in options.cases))


def read_cases(files: Sequence[Path], most_bytes: int) -> tuple[Case, ...]:
    """The cases of several files; most_bytes: of memory, which a case has to fit into.

    Raises CasesError, with a sentence for each wrong line.
    """
    cases: dict[str, Case] = {}
    lines: dict[str, str] = {}
    wrong: list[str] = []
    for file in files:
        if (found := _finds(file)) is not None:
            cases |= {case.id(): case for case in found}
            continue
        written = [
            (number, line)
            for number, line in enumerate(_lines(file), 1)
            if line.strip() and _skipped(line) is None
        ]
        if not written:
            why = "; ".join(skipped_calls([file])) or "write one JSON object a line"
            raise CasesError(f"--cases {shown(file)}: there is no case in it; {why}")
        for number, line in written:
            where = f"{shown(file)}, line {number}"
            try:
                case = _case(line, most_bytes, why=f"a user's: line {number} of {shown(file.name)}")
            except CasesError as error:
                wrong.append(f"{where}: {error}")
                continue
            earlier = lines.setdefault(case.id(), where)
            if earlier != where:
                wrong.append(
                    f"{where}: the same case as {earlier}; leave one of them out, and add up "
                    "their weights"
                )
            cases[case.id()] = case
    if wrong:
        more = len(wrong) - _MOST_TOLD
        told = wrong[:_MOST_TOLD] + ([f"and {more:,} more lines"] if more > 0 else [])
        raise CasesError("\n".join(told))
    return tuple(cases.values())


def _finds(file: Path) -> list[Case] | None:
    """The shrunk cases of a record of `search`; None where the file is no record."""
    try:
        with file.expanduser().open("rb") as opened:
            if not opened.read(20).startswith(b'{"kind":"run"'):
                return None
        finds = read(file.expanduser()).finds
    except (OSError, ValueError, RuntimeError):
        return None  # said by whoever reads it as cases
    except RecordError as error:
        raise CasesError(f"--cases {error}") from error
    if not finds:
        raise CasesError(
            f"--cases {shown(file)}: a record in which nothing was found; give one of search that "
            "found something, or a file of JSON lines"
        )
    named = (case_named(OPS[find.op], find.case.id) for find in finds if find.op in OPS)
    return [replace(case, why="found by a search") for case in named if case is not None]


def _lines(file: Path) -> list[bytes]:
    try:
        path = file.expanduser()
        if not path.is_file():
            why = "it is no file" if path.exists() else "there is no such file"
            raise CasesError(f"--cases {shown(file)}: {why}; give a file of JSON lines")
        if path.stat().st_size > _MOST_BYTES_OF_A_FILE:
            raise CasesError(
                f"--cases {shown(file)}: larger than {_MOST_BYTES_OF_A_FILE >> 20} MiB, so no file "
                "of cases; give a file of JSON lines"
            )
        data = path.read_bytes()
    except (OSError, ValueError, RuntimeError) as error:  # a NUL in the name; nobody's ~home
        cause = shown(getattr(error, "strerror", None) or error)
        raise CasesError(f"--cases {shown(file)}: it can't be read ({cause})") from error
    # Editors of Windows begin a file with a byte order mark, which JSON doesn't know.
    return data.removeprefix(b"\xef\xbb\xbf").split(b"\n")


def _case(line: bytes, most_bytes: int, why: str) -> Case:
    """The case that a line describes. Raises CasesError with what is wrong, what to do."""
    said = _parsed(line)
    op = OPS.get(said.op)
    if op is None:
        raise CasesError(f"there is no op {_quoted(said.op)}; {hint(said.op, OPS)}")
    if op.allowed is None:
        raise CasesError(f"{op.name} takes no cases but its own; leave the line out")
    sizes = _sizes(said, op.allowed)
    for name in (said.dtype, said.weight_dtype):
        if name is not None and name not in DTYPES:
            raise CasesError(f"there is no dtype {_quoted(name)} here; {hint(name, DTYPES)}")
    if said.weight_dtype is not None and "weight" not in op.arguments:
        raise CasesError(f"{op.name} has no weight; leave weight_dtype out")
    _options(said, op)
    layout = layout_named(op, said.layout)
    if layout is None:
        near = _near(said.layout, op.allowed.layouts)
        raise CasesError(f"{op.name} has no layout {_quoted(said.layout)}; {near}")
    if said.distribution not in op.allowed.distributions:
        raise CasesError(
            f"{op.name} has no distribution {_quoted(said.distribution)}; "
            f"{hint(said.distribution, op.allowed.distributions)}"
        )
    dtype = getattr(torch, said.dtype)
    case = Case(
        op=op.name,
        sizes=sizes,
        dtype=dtype,
        weight_dtype=getattr(torch, said.weight_dtype or said.dtype),
        layout=layout,
        distribution=said.distribution,
        options=frozenset(said.options) | op.allowed.implied(dict(sizes)),
        seed=said.seed,
        why=why,
        weight=said.weight,
    )
    problem = objection(op, case) or too_large(op, case, most_bytes)
    if problem is not None:
        raise CasesError(problem)
    return case


def _parsed(line: bytes) -> _Line:
    if len(line) > _MOST_BYTES_OF_A_LINE:
        raise CasesError(
            f"{len(line):,} bytes long, and a case takes a few hundred; is it one object a line?"
        )
    try:
        text = line.decode()
        json.loads(text, object_pairs_hook=_once)
    except UnicodeDecodeError as error:
        raise CasesError(
            f"not UTF-8 at byte {error.start:,} of the line; save the file as UTF-8"
        ) from error
    except json.JSONDecodeError as error:
        raise CasesError(
            f"not JSON at column {error.colno:,} ({error.msg}); write one object a line, as "
            '{"op": ..., "sizes": {...}, "dtype": ...}'
        ) from error
    except (ValueError, RecursionError) as error:  # digits by the thousand, brackets likewise
        raise CasesError(f"not JSON that can be read ({str(error)[:_QUOTED]})") from error
    try:
        return _Line.model_validate_json(text)
    except ValidationError as error:
        first, *others = error.errors(include_url=False, include_context=False)
        more = f" (and {len(others):,} more mistakes)" if others else ""
        raise CasesError(f"{_mistake(first['type'], first['loc'], first)}{more}") from error


def _once(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise CasesError(f"{_quoted(twice)} is there twice; leave one of them out")
    return result


def _mistake(kind: str, place: tuple[int | str, ...], error: object) -> str:
    """What pydantic found, in words."""
    assert isinstance(error, dict)
    name = shown(".".join(map(str, place)))[:_QUOTED] or "the line"
    if kind == "missing":
        return f"{name} is missing; every case has op, sizes and dtype"
    if kind == "extra_forbidden":
        return f"there is no key {_quoted(place[-1])}; {hint(str(place[-1]), _Line.model_fields)}"
    message = str(error["msg"])
    return f"{name}: {message[:1].lower()}{message[1:]}, got {_quoted(error['input'])}"


def _sizes(said: _Line, allowed: Allowed) -> tuple[tuple[str, int], ...]:
    known = (*allowed.sizes, *allowed.option_sizes)
    for name, size in said.sizes.items():
        if name not in known:
            raise CasesError(f"{said.op} has no size {_quoted(name)}; {hint(name, known)}")
        if not 0 <= size <= _LARGEST_SIZE:
            raise CasesError(
                f"{name} is {_quoted(size)}; give a whole number from 0 to {_LARGEST_SIZE:,}"
            )
    missing = [name for name in allowed.sizes if name not in said.sizes]
    if missing:
        raise CasesError(f"the sizes lack {', '.join(missing)}; {said.op} needs each of them")
    return tuple((name, said.sizes[name]) for name in known if name in said.sizes)


def _options(said: _Line, op: Op) -> None:
    for option in said.options:
        if option not in op.options:
            known = hint(option, op.options) if op.options else "it has none"
            raise CasesError(f"{op.name} has no option {_quoted(option)}; {known}")
        if said.options.count(option) > 1:
            raise CasesError(f"the option {option} is there twice; leave one of them out")


def _near(word: str, names: Iterable[str]) -> str:
    """A hint, of names that are too many to be listed."""
    close = difflib.get_close_matches(word, sorted(names), n=1)
    return f"did you mean {close[0]}?" if close else "leave it out for contiguous tensors"


def too_large(op: Op, case: Case, most_bytes: int) -> str | None:
    """Why the case can't be tried: its tensors, or their truth, take more memory than there is."""
    taken = 0
    for each in op.geometry(case).values():
        steps = zip(each.shape, each.strides, strict=True)
        reached = 1 + sum((size - 1) * stride for size, stride in steps)
        taken += max(reached if math.prod(each.shape) else 0, 0) * each.dtype.itemsize
    taken += sum(form.nbytes for form in op.forms(case).values())
    needed = max(taken, TIMES_ITS_BYTES * op.bytes(case))
    if needed <= most_bytes:
        return None
    return (
        f"its tensors and their truth in float64 take about {needed / 2**30:,.0f} GiB, and there "
        f"are {most_bytes / 2**30:,.0f}; make a size smaller"
    )


def _quoted(value: object) -> str:
    text = shown(json.dumps(value, ensure_ascii=False, default=str))
    return text if len(text) <= _QUOTED else f"{text[:_QUOTED]}..."
