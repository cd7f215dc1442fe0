"""A record of the suite `accuracy` as Markdown for a GitHub step summary, which holds 1 MiB.

What doesn't fit the budget is left out from the end of the least needed list, and the last
sentence says so. Texts of the record are escaped: none of them can be markup.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reports.coverage import kernel_variants, variants_counted, workspaces
from reports.headline import environment_lines, headline, total_duration
from reports.invariance import HEAD, table_rows
from reports.phrases import count, duration, memory, ratio
from reports.record import shown
from reports.summary import (
    failing_output,
    failures,
    kernel_summaries,
    matrices,
    nearest_passes,
    refusals,
    several_ops,
    short_case,
    slowest,
)
from reports.ulps import HEAD as ULP_HEAD
from reports.ulps import TITLE, ulp_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from reports.record import Record
    from reports.schema import AccuracyRow
    from reports.summary import KernelSummary, Matrix, Worst

# An underscore inside a word, as in row_persistent, means nothing to GitHub and stays readable.
_SPECIAL = re.compile(r"[\\`*{}\[\]<>#|~@&$!]|:(?=//)|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_COUNTED = ("ran", "passed", "failed", "no power", "refused")
_CLOSING_BYTES = 600  # the sentence that says what was left out, at most


@dataclass(frozen=True, slots=True)
class _Section:
    """Items between an opening and a closing text; `noun` says what an item left out is."""

    opening: str
    items: tuple[str, ...]
    closing: str
    noun: str


def render_markdown(record: Record, budget_bytes: int = 1_000_000) -> str:
    """Render the record in at most `budget_bytes` bytes of UTF-8."""
    line = headline(record)
    head = f"## {line.verdict}: {escaped(line.sentence)}\n\n"
    head += "".join(f"- {escaped(note)}\n" for note in line.notes) + "\n"
    parts = [head]
    left = budget_bytes - len(head.encode()) - _CLOSING_BYTES
    omitted = []
    for section in _sections(record):
        frame = len(section.opening.encode()) + len(section.closing.encode())
        kept: list[str] = []
        left -= frame
        for item in section.items:
            if len(item.encode()) > left:
                break
            kept.append(item)
            left -= len(item.encode())
        if len(kept) < len(section.items):
            missing = f"{len(section.items) - len(kept):,} of {len(section.items):,}"
            omitted.append(f"{missing} {section.noun}")
        if kept:
            parts += [section.opening, *kept, section.closing]
        else:
            left += frame
    if omitted:
        parts.append(
            f"\nLeft out, to stay within {budget_bytes:,} bytes: {', '.join(omitted)}. "
            "The record has them all.\n"
        )
    # A budget below the headline's own size still holds.
    return "".join(parts).encode()[: max(budget_bytes, 0)].decode(errors="ignore")


def _sections(record: Record) -> Iterator[_Section]:
    """The sections, the most needed first."""
    yield _environment(record)
    summaries = kernel_summaries(record)
    several = several_ops(record)
    yield _table(
        "### Kernels",
        ("kernel", "origin", "judged", *_COUNTED, "declares"),
        [_kernel_cells(each, several=several) for each in summaries],
        "kernels",
    )
    yield _failures(record)
    for matrix in matrices(record):
        yield _matrix(matrix)
    yield _table(
        "### Largest error / bound of each kernel, and block / what an emulation allows",
        ("kernel", "deterministic", "probabilistic", "emulation"),
        [
            (
                _named(each.op, each.name, several=several),
                _worst(each.deterministic),
                _worst(each.probabilistic),
                _worst(each.emulation),
            )
            for each in summaries
            if each.deterministic is not None
        ],
        "kernels' largest errors",
    )
    yield _table(f"### {TITLE}", ULP_HEAD, ulp_rows(record), "kernels' errors")
    yield from _variants(record, several=several)
    yield from _workspaces(record, several=several)
    yield _table(
        "### What bits depend on, measured", HEAD, table_rows(record), "kernels' properties"
    )
    yield _refusals(record, several=several)
    yield _nearest(record)
    yield _table(
        f"### Time taken: {total_duration(record)}",
        ("time", "kernel", "slowest cases"),
        [
            (
                duration(row.duration_s),
                _named(row.case.op, row.kernel, several=several),
                short_case(row),
            )
            for row in slowest(record)
        ],
        "slowest cases",
    )


def _environment(record: Record) -> _Section:
    lines = environment_lines(record)
    return _table("", ("run", ""), lines, "lines on the environment")


def _named(op: str, kernel: str, *, several: bool) -> str:
    """The kernel's name, and before it its op's where a run tried several: two may have it."""
    return f"{op} {kernel}" if several else kernel


def _variants(record: Record, *, several: bool) -> Iterator[_Section]:
    kernels = kernel_variants(record)
    items = [
        (_named(of.op, of.kernel, several=several), each.name, f"{each.ran:,}", f"{each.failed:,}")
        for of in kernels
        for each in of.ran
    ] + [
        (_named(of.op, of.kernel, several=several), name, "0", "0")
        for of in kernels
        for name in of.not_taken
    ]
    if items:
        table = _table("", ("kernel", "variant", "cases", "failed"), items, "")
        title = variants_counted(record) or "Variants that ran"
        yield _details(title, table.items, "variants", table.opening)


def _workspaces(record: Record, *, several: bool) -> Iterator[_Section]:
    found = workspaces(record)
    if found:
        yield _table(
            "### Most memory beyond inputs and outputs, of kernels that declare it",
            ("kernel", "taken", "declared", "case"),
            [
                (
                    _named(each.op, each.kernel, several=several),
                    memory(each.taken),
                    memory(each.declared),
                    short_case(each.row),
                )
                for each in found
            ],
            "kernels' memory",
        )


def _kernel_cells(each: KernelSummary, *, several: bool) -> tuple[str, ...]:
    origin = each.origin if each.gates or not each.ran else f"{each.origin}, not gating"
    counts = (each.ran, each.passed, each.failed, each.powerless, each.refused)
    name = _named(each.op, each.name, several=several)
    return name, origin, each.judged, *(f"{number:,}" for number in counts), each.declares


def _worst(found: Worst | None) -> str:
    if found is None:
        return "-"
    return f"{ratio(found.ratio)}, {found.output} of {short_case(found.row)}"


def _matrix(matrix: Matrix) -> _Section:
    alone = all(dtypes == ("",) for _, dtypes in matrix.kernels)
    rows = [
        (
            *((name,) if alone else (name, dtype)),
            *(
                "-" if cell is None else cell.text
                for cell in (matrix.cells.get((name, dtype, each)) for each in matrix.families)
            ),
        )
        for name, dtypes in matrix.kernels
        for dtype in dtypes
    ]
    return _table(
        f"### {escaped(matrix.op)}: largest {matrix.title}",
        (*(("kernel",) if alone else ("kernel", "dtype")), *matrix.families),
        rows,
        "rows of the matrix",
    )


def _failures(record: Record) -> _Section:
    every = len(record.rows)
    groups = failures(record, every, every)
    items = tuple(_failure(row) for group in groups for row in group.rows)
    return _details(f"{count(len(items), 'failure')}", items, "failures")


def _failure(row: AccuracyRow) -> str:
    title = f"**{escaped(row.kernel)}**, {escaped(row.rule or 'no rule given')}"
    gating = "" if row.gates else " (not gating)"
    text = row.reason or failing_output(row)
    lines = "" if text is None else f"  {escaped(text)}  \n"
    lines += "".join(f"  printed: {escaped(each)}  \n" for each in row.printed)
    return f"- {title}{gating}: {escaped(row.case.id)}  \n{lines}\n{_fenced(row.reproduce)}\n"


def _refusals(record: Record, *, several: bool) -> _Section:
    groups = refusals(record)
    total = sum(group.count for group in groups)
    table = _table(
        "",
        ("kernel", "rows", "reason (N: a number that varies)", "one case"),
        [
            (
                _named(each.op, each.kernel, several=several),
                f"{each.count:,}",
                each.reason,
                short_case(each.example),
            )
            for each in groups
        ],
        "",
    )
    return _details(
        f"{count(total, 'row')} refused", table.items, "reasons of refusal", table.opening
    )


def _nearest(record: Record) -> _Section:
    items = tuple(
        f"- {ratio(each.ratio)} of the {bound}, {escaped(each.output)} of "
        f"**{escaped(row.kernel)}** on {escaped(row.case.id)}\n\n{_fenced(row.reproduce)}\n"
        for row, bound, each in nearest_passes(record)
    )
    return _details("The worst cases that pass", items, "worst cases that pass")


def _details(title: str, items: tuple[str, ...], noun: str, opening: str = "") -> _Section:
    return _Section(
        f"<details><summary>{title}</summary>\n\n{opening}", items, "\n</details>\n\n", noun
    )


def _table(
    title: str, head: tuple[str, ...], rows: Iterable[tuple[str, ...]], noun: str
) -> _Section:
    opening = f"{title}\n\n" if title else ""
    opening += _cells(head) + "|" + " --- |" * len(head) + "\n"
    return _Section(opening, tuple(map(_cells, rows)), "\n", noun)


def _cells(texts: Iterable[str]) -> str:
    return "| " + " | ".join(map(escaped, texts)) + " |\n"


def _fenced(command: str) -> str:
    """A code block that can be copied, fenced by more backticks than the command has in a row."""
    text = shown(command)
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"  {fence}sh\n  {text}\n  {fence}\n"


def escaped(text: str) -> str:
    """`text` with each character that Markdown or HTML gives a meaning as an entity."""
    return _SPECIAL.sub(lambda found: f"&#{ord(found[0])};", shown(text))
