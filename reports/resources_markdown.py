"""A record of the suite `compile` as Markdown for a GitHub step summary, which holds 1 MiB.

Texts of the record are escaped: none of them can be markup. Where the tables would pass the budget,
variants are left out from the end, and the last sentence says how many.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reports.markdown import escaped
from reports.resources import environment_of, summary_of, verdict_of
from reports.resources_figures import (
    code_text,
    resources_text,
    short_label,
    variant_of,
    variants_in_order,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reports.record import Record
    from reports.schema import ResourceRow


def render_resources_markdown(record: Record, budget_bytes: int = 1_000_000) -> str:
    """Render the record in at most about `budget_bytes` bytes of UTF-8."""
    head = "".join(_head(record))
    lines = list(_table(record))
    left = budget_bytes - len(head.encode())
    kept = 0
    for line in lines:
        left -= len(line.encode())
        if left < 0:
            break
        kept += 1
    text = head + "".join(lines[:kept])
    if kept < len(lines):
        missing = len(lines) - kept
        text += f"\nLeft out, to stay within {budget_bytes:,} bytes: {missing:,} variants.\n"
    return text


def _head(record: Record) -> Iterator[str]:
    yield f"## {verdict_of(record)}: {escaped(summary_of(record))}\n\n"
    problems = () if record.end is None else record.end.problems
    for note in (*([record.problem] if record.problem else []), *problems):
        yield f"- {escaped(note)}\n"
    yield "\n"
    for label, text in environment_of(record):
        yield f"- {label}: {escaped(text)}\n"
    for row in record.resources:
        if row.status == "failed":
            yield f"\n{_name(row)}: {escaped(row.reason or 'failed')}\n"
        for each in row.broken:
            yield f"\n{_name(row)}: **{escaped(each.says)}**: {escaped(each.reason)}\n"
            if each.sass is not None:
                yield f"\n<pre>{escaped(each.sass)}</pre>\n"


def _name(row: ResourceRow) -> str:
    return escaped(f"{row.kernel}, {short_label(row.label, row.function)}, sm {row.sm}")


def _table(record: Record) -> Iterator[str]:
    rows = {(variant_of(row), row.sm): row for row in record.resources}
    sms = sorted({sm for _, sm in rows})
    if not rows:
        return
    yield "\nRegisters + bytes spilled, shared memory, occupancy; loads and instructions.\n\n"
    yield "| kernel | variant |" + "".join(f" sm {sm} |" for sm in sms) + "\n"
    yield "|---|---|" + "---|" * len(sms) + "\n"
    for variant in variants_in_order(record):
        _, kernel, label, function = variant
        cells = []
        for sm in sms:
            row = rows.get((variant, sm))
            text = "-" if row is None else f"{resources_text(row)}; {code_text(row)}"
            cells.append(escaped(text))
        told = escaped(short_label(label, function))
        yield f"| {escaped(kernel)} | {told} | " + " | ".join(cells) + " |\n"
