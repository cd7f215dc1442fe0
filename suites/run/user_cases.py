"""Read a user's own cases from the files of `--cases`, one JSON object a line.

    {"op": "layer_norm_backward", "sizes": {"m": 4096, "n": 8192}, "dtype": "bfloat16"}

A record of search is such a file, too; its cases are the ones that broke a kernel.

A line may also have weight (how often a model makes the call), weight_dtype, options, layout (by
its name in the op's own cases), distribution and seed. The error names every wrong line, up to ten.

A recording of a model's calls is such a file, too. Its lines have the calls of each case, which
nothing here reads. A line with the key "skipped" says which calls have no case, and why.
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
from kernel_workbench.suites.run.option_table import FileOfCasesOptions

DTYPES = ("float32", "float16", "bfloat16")
_MOST_BYTES_OF_A_LINE = 2**16
_MOST_BYTES_OF_A_FILE = 2**26
_MOST_MESSAGES = 10
_LARGEST_SIZE = 2**31 - 1
_LARGEST_GPU_BYTES = 2**38  # more than any GPU has: a machine without one reads a GPU's file too
TIMES_ITS_BYTES = 10  # a case with its truth and bounds in float64 takes this multiple
_QUOTED = 80

Name = Annotated[str, Field(max_length=200)]


class CasesError(Exception):
    """Files of cases are wrong; the message has a sentence for each wrong line."""


class _CaseLine(BaseModel):
    """A line, with the checks that don't depend on its op."""

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


def user_cases(options: FileOfCasesOptions, device: torch.device) -> tuple[Case, ...] | None:
    """Return the cases of the files of --cases, in their order; None without files.

    Args:
        options: the options.
        device: the device, whose memory each case has to fit.

    Raises:
        pytest.UsageError: a line is wrong; the message names each wrong line, up to ten.
    """
    files = tuple(dict.fromkeys(map(Path, options.cases)))
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
        skipped = [call for line in lines if (call := _skipped(line)) is not None]
        if not skipped:
            continue
        calls = sum(line.weight or 0 for line in skipped)
        reasons = [shown(line.skipped) for line in skipped]
        more = len(reasons) - _MOST_MESSAGES
        listed = "; ".join(reasons[:_MOST_MESSAGES]) + (f"; and {more:,} more" if more > 0 else "")
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


def read_cases(files: Sequence[Path], most_bytes: int) -> tuple[Case, ...]:
    """Read the cases of several files.

    Args:
        files: JSON lines, or records of search.
        most_bytes: the memory that each case has to fit.

    Raises:
        CasesError: a line is wrong; the message has a sentence for each wrong line, up to ten.
    """
    cases: dict[str, Case] = {}
    lines: dict[str, str] = {}
    wrong: list[str] = []
    for file in files:
        if (shrunk := _finds(file)) is not None:
            cases |= {case.id(): case for case in shrunk}
            continue
        written = [
            (number, line)
            for number, line in enumerate(_lines(file), 1)
            if line.strip() and _skipped(line) is None
        ]
        if not written:
            why = "; ".join(skipped_calls([file])) or "write one JSON object a line"
            raise CasesError(f"--cases {shown(file)}: the file has no case; {why}")
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
        more = len(wrong) - _MOST_MESSAGES
        messages = wrong[:_MOST_MESSAGES] + ([f"and {more:,} more lines"] if more > 0 else [])
        raise CasesError("\n".join(messages))
    return tuple(cases.values())


def _finds(file: Path) -> list[Case] | None:
    """Return the shrunk cases of a record of `search`; None if the file is no record.

    Raises:
        CasesError: the record can't be read, or has no finds.
    """
    try:
        with file.expanduser().open("rb") as opened:
            if not opened.read(20).startswith(b'{"kind":"run"'):
                return None
        finds = read(file.expanduser()).finds
    except (OSError, ValueError, RuntimeError):
        return None  # the reader of JSON lines raises the error
    except RecordError as error:
        raise CasesError(f"--cases {error}") from error
    if not finds:
        raise CasesError(
            f"--cases {shown(file)}: this record has no finds; give a record of search with finds, "
            "or a file of JSON lines"
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
                f"--cases {shown(file)}: it is larger than {_MOST_BYTES_OF_A_FILE >> 20} MiB; give "
                "a file of JSON lines"
            )
        data = path.read_bytes()
    except (OSError, ValueError, RuntimeError) as error:  # a NUL in the name; nobody's ~home
        cause = shown(getattr(error, "strerror", None) or error)
        raise CasesError(f"--cases {shown(file)}: it can't be read ({cause})") from error
    # Editors of Windows begin a file with a byte order mark, which JSON doesn't know.
    return data.removeprefix(b"\xef\xbb\xbf").split(b"\n")


def _case(line: bytes, most_bytes: int, why: str) -> Case:
    """Return the case that a line describes; raise CasesError with the mistake and its remedy."""
    parsed = _parsed(line)
    op = OPS.get(parsed.op)
    if op is None:
        raise CasesError(f"there is no op {_quoted(parsed.op)}; {hint(parsed.op, OPS)}")
    sizes = _sizes(parsed, op.allowed)
    for name in (parsed.dtype, parsed.weight_dtype):
        if name is not None and name not in DTYPES:
            raise CasesError(f"there is no dtype {_quoted(name)} here; {hint(name, DTYPES)}")
    if parsed.weight_dtype is not None and "weight" not in op.arguments:
        raise CasesError(f"{op.name} has no weight; leave weight_dtype out")
    _options(parsed, op)
    layout = layout_named(op, parsed.layout)
    if layout is None:
        near = _near(parsed.layout, op.allowed.layouts)
        raise CasesError(f"{op.name} has no layout {_quoted(parsed.layout)}; {near}")
    if parsed.distribution not in op.allowed.distributions:
        raise CasesError(
            f"{op.name} has no distribution {_quoted(parsed.distribution)}; "
            f"{hint(parsed.distribution, op.allowed.distributions)}"
        )
    dtype = getattr(torch, parsed.dtype)
    case = Case(
        op=op.name,
        sizes=sizes,
        dtype=dtype,
        weight_dtype=getattr(torch, parsed.weight_dtype or parsed.dtype),
        layout=layout,
        distribution=parsed.distribution,
        options=frozenset(parsed.options) | op.allowed.implied(dict(sizes)),
        seed=parsed.seed,
        why=why,
        weight=parsed.weight,
    )
    problem = objection(op, case) or too_large(op, case, most_bytes)
    if problem is not None:
        raise CasesError(problem)
    return case


def _parsed(line: bytes) -> _CaseLine:
    if len(line) > _MOST_BYTES_OF_A_LINE:
        raise CasesError(
            f"the line has {len(line):,} bytes, and a case has a few hundred; write one object a "
            "line"
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
        return _CaseLine.model_validate_json(text)
    except ValidationError as error:
        first, *further = error.errors(include_url=False, include_context=False)
        more = f" (and {len(further):,} more mistakes)" if further else ""
        raise CasesError(f"{_mistake(first['type'], first['loc'], first)}{more}") from error


def _once(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise CasesError(f"the key {_quoted(twice)} occurs twice; leave one of them out")
    return result


def _mistake(kind: str, place: tuple[int | str, ...], error: object) -> str:
    """Return pydantic's error in words."""
    assert isinstance(error, dict)
    name = shown(".".join(map(str, place)))[:_QUOTED] or "the line"
    if kind == "missing":
        return f"{name} is missing; every case has op, sizes and dtype"
    if kind == "extra_forbidden":
        return (
            f"there is no key {_quoted(place[-1])}; {hint(str(place[-1]), _CaseLine.model_fields)}"
        )
    message = str(error["msg"])
    return f"{name}: {message[:1].lower()}{message[1:]}, got {_quoted(error['input'])}"


def _sizes(parsed: _CaseLine, allowed: Allowed) -> tuple[tuple[str, int], ...]:
    names = (*allowed.sizes, *allowed.option_sizes)
    for name, size in parsed.sizes.items():
        if name not in names:
            raise CasesError(f"{parsed.op} has no size {_quoted(name)}; {hint(name, names)}")
        if not 0 <= size <= _LARGEST_SIZE:
            raise CasesError(
                f"{name} is {_quoted(size)}; give a whole number from 0 to {_LARGEST_SIZE:,}"
            )
    missing = [name for name in allowed.sizes if name not in parsed.sizes]
    if missing:
        raise CasesError(f"the sizes lack {', '.join(missing)}; {parsed.op} needs each of them")
    return tuple((name, parsed.sizes[name]) for name in names if name in parsed.sizes)


def _options(parsed: _CaseLine, op: Op) -> None:
    for option in parsed.options:
        if option not in op.options:
            remedy = hint(option, op.options) if op.options else "it has none"
            raise CasesError(f"{op.name} has no option {_quoted(option)}; {remedy}")
        if parsed.options.count(option) > 1:
            raise CasesError(f"the option {option} occurs twice; leave one of them out")


def _near(word: str, names: Iterable[str]) -> str:
    """Return a hint for a word whose alternatives are too many to list."""
    close = difflib.get_close_matches(word, sorted(names), n=1)
    return f"did you mean {close[0]}?" if close else "leave it out for contiguous tensors"


def too_large(op: Op, case: Case, most_bytes: int) -> str | None:
    """Return a sentence if the case's tensors, or their truth, don't fit the memory; else None.

    Args:
        op: the case's op.
        case: the case.
        most_bytes: the memory.
    """
    tensors = 0
    for form in op.geometry(case).values():
        steps = zip(form.shape, form.strides, strict=True)
        reached = 1 + sum((size - 1) * stride for size, stride in steps)
        tensors += max(reached if math.prod(form.shape) else 0, 0) * form.dtype.itemsize
    tensors += sum(form.nbytes for form in op.forms(case).values())
    needed = max(tensors, TIMES_ITS_BYTES * op.bytes(case))
    if needed <= most_bytes:
        return None
    return (
        f"its tensors and their truth in float64 take about {needed / 2**30:,.0f} GiB, and the "
        f"memory is {most_bytes / 2**30:,.0f} GiB; make a size smaller"
    )


def _quoted(value: object) -> str:
    text = shown(json.dumps(value, ensure_ascii=False, default=str))
    return text if len(text) <= _QUOTED else f"{text[:_QUOTED]}..."
