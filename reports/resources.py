"""A record of the suite `compile` on a terminal: the verdict, what broke, variants by generation.

Status words stand beside the colours, so that it reads without them.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.padding import Padding
from rich.text import Text

from reports.headline import total_duration
from reports.phrases import count, duration
from reports.record import shown
from reports.resources_changes import WORSE, changes_between
from reports.resources_figures import (
    WHOLE,
    code_text,
    resources_text,
    share_of_width,
    short_label,
    variant_of,
    variants_in_order,
)
from reports.tables import BAD, DOUBTFUL, GAP, GOOD, Folded, heading, indented, labelled, new_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console
    from rich.table import Table

    from reports.record import Record
    from reports.resources_changes import Change
    from reports.resources_figures import Variant
    from reports.schema import PredictionRow, ResourceRow

_VERDICTS = {
    "PASSED": GOOD,
    "FAILED": BAD,
    "INCOMPLETE": DOUBTFUL,
}
_RESOURCES = (
    "Each cell: registers + bytes spilled of a thread, shared memory of a block, warps resident of "
    "those that an SM can hold; -: not served, or another call's launch there."
)
_CODE = (
    "Each cell: the widest loads of a thread, with the share of bytes that come so where it is "
    "below 90%; matrix instructions; local: registers spilled, or arrays, in local memory."
)
_MOST_OF_A_KIND = 12


def render(
    record: Record,
    console: Console,
    *,
    against: Record | None = None,
    notes: Sequence[str] = (),
) -> None:
    """Print the report, and what changed since another record."""
    render_outline(record, console, notes=notes)
    _table(record, console, "Loads and instructions", code_text, _code_style, _CODE)
    _predictions(record, console)
    _unread(record, console)
    if against is not None:
        _changes(against, record, console)


def render_outline(record: Record, console: Console, *, notes: Sequence[str] = ()) -> None:
    """Print the report's head: the verdict, what broke, and the resources of each variant."""
    _headline(record, console, notes)
    labelled(console, _environment(record))
    _broken(record, console)
    _failed(record, console)
    _table(
        record, console, "Registers, shared memory, occupancy", resources_text, _resources_style,
        _RESOURCES,
    )  # fmt: skip


def verdict_of(record: Record) -> str:
    """PASSED needs a whole record, a kernel that was compiled, and nothing against it."""
    if record.problem is not None:
        return "INCOMPLETE"
    rows = record.resources
    good = rows and not any(row.status == "failed" or row.broken for row in rows)
    status = 0 if record.end is None else record.end.exit_status
    return "PASSED" if good and not status else "FAILED"


def summary_of(record: Record) -> str:
    """What was compiled and held to expectations, in one sentence."""
    rows = record.resources
    variants, sms = {variant_of(row) for row in rows}, {row.sm for row in rows}
    failed = sum(row.status == "failed" for row in rows)
    broken = sum(len(row.broken) for row in rows)
    expected = sum(row.expected for row in rows)
    spilling = sum(bool(row.spill_store_bytes) for row in rows)
    unfit = sum(row.blocks_per_sm == 0 for row in rows)
    return (
        f"{count(len(rows), 'kernel')} ({count(len(variants), 'variant')} on "
        f"{count(len(sms), 'generation')}): {len(rows) - failed:,} compiled, {failed:,} failed to; "
        f"{broken:,} of {count(expected, 'expectation')} broken; {spilling:,} spill registers, "
        f"{unfit:,} don't fit, in {total_duration(record)}"
    )


def environment_of(record: Record) -> tuple[tuple[str, str], ...]:
    """What was compiled with, as (label, text)."""
    return _environment(record)


def _headline(record: Record, console: Console, notes: Sequence[str]) -> None:
    verdict = verdict_of(record)
    console.print(Text.assemble((f" {verdict} ", _VERDICTS[verdict]), f" {summary_of(record)}"))
    problems = () if record.end is None else record.end.problems
    for note in (*([record.problem] if record.problem else []), *problems, *notes):
        console.print(Padding(Text(shown(note), overflow="fold"), (0, 0, 0, 2)))
    console.print()


def _environment(record: Record) -> tuple[tuple[str, str], ...]:
    header, machine = record.header, record.header.environment
    tools = dict(
        pair for row in record.resources for pair in row.tools.items()
    )  # as they were when a row was compiled
    commit = machine.git_commit and machine.git_commit[:12] + (
        " and changes that are not committed" if machine.git_dirty else ""
    )
    fusion = {row.fp_fusion for row in record.resources if row.fp_fusion is not None}
    fused = {frozenset({True}): "on", frozenset({False}): "off"}.get(frozenset(fusion), "mixed")
    seconds = sum(row.compile_s for row in record.resources)
    lines = (
        ("command", header.command),
        ("compiler", ", ".join(f"{name} {version}" for name, version in tools.items())),
        ("fused", f"products with sums: {fused}" if fusion else ""),
        ("compiling", f"{duration(seconds)} of all kernels together, kept ones included"),
        ("host", f"{machine.hostname}, {machine.cpu}, {count(machine.cpu_count, 'core')}"),
        ("commit", commit or ""),
        ("started", header.started_at),
        ("record", str(record.path)),
    )
    return tuple((label, text) for label, text in lines if text)


def _broken(record: Record, console: Console) -> None:
    found = [(row, each) for row in record.resources for each in row.broken]
    if not found:
        return
    heading(console, "Broken expectations")
    for says, times in Counter(each.says for _, each in found).items():
        console.print(Text(f"{shown(says)}: {count(times, 'variant')}", style="bold red"))
        for row, each in found:
            if each.says != says:
                continue
            name = f"{row.kernel}, {short_label(row.label, row.function)}, sm {row.sm}"
            indented(console, shown(f"{name}: {each.reason}"))
            if each.sass is not None:
                indented(console, shown(each.sass), by=4, style="cyan")


def _failed(record: Record, console: Console) -> None:
    failed = [row for row in record.resources if row.status == "failed"]
    if not failed:
        return
    heading(console, "Not compiled")
    for row in failed:
        name = f"{row.kernel}, {short_label(row.label, row.function)}, sm {row.sm}"
        indented(console, shown(f"{name}: {row.reason}"), style="red")


def _resources_style(row: ResourceRow) -> str:
    if row.status == "failed" or row.blocks_per_sm == 0:
        return "bold red"
    return "yellow" if row.spill_store_bytes else ""


def _code_style(row: ResourceRow) -> str:
    if row.status == "failed":
        return "bold red"
    narrow = row.mix is not None and share_of_width(row.mix.loads, WHOLE) < 0.9
    return "yellow" if narrow and row.alignment_bytes == WHOLE else ""


def _table(
    record: Record,
    console: Console,
    title: str,
    text: Callable[[ResourceRow], str],
    style: Callable[[ResourceRow], str],
    legend: str,
) -> None:
    """Variants down, generations across, in as many tables as it takes for no word to be cut."""
    rows = {(variant_of(row), row.sm): row for row in record.resources}
    if not rows:
        return
    sms = sorted({sm for _, sm in rows})
    variants = variants_in_order(record)
    heading(console, title)
    names = max(cell_len(short_label(label, function)) for _, _, label, function in variants)
    room = console.width - min(names + 2, max(20, console.width // 2)) - GAP
    widths = {
        sm: GAP + max(cell_len(text(row)) for (_, at), row in rows.items() if at == sm)
        for sm in sms
    }
    for part, columns in enumerate(_parts(sms, widths, room)):
        if part:
            console.print()
        console.print(_part(variants, columns, rows, text, style))
    console.print()
    console.print(Text(legend, style="dim"))


def _parts(sms: Sequence[int], widths: dict[int, int], room: int) -> list[list[int]]:
    parts: list[list[int]] = [[]]
    used = 0
    for sm in sms:
        if parts[-1] and used + widths[sm] > room:
            parts.append([])
            used = 0
        parts[-1].append(sm)
        used += widths[sm]
    return parts


def _part(
    variants: Sequence[Variant],
    sms: Sequence[int],
    rows: dict[tuple[Variant, int], ResourceRow],
    text: Callable[[ResourceRow], str],
    style: Callable[[ResourceRow], str],
) -> Table:
    table = new_table()
    table.add_column("kernel, variant", overflow="fold")
    for sm in sms:
        table.add_column(f"sm {sm}", justify="right", no_wrap=True)
    previous = None
    for variant in variants:
        op, kernel, label, function = variant
        here = [rows.get((variant, sm)) for sm in sms]
        if not any(here):
            continue
        if (op, kernel) != previous:
            table.add_row(Text(f"{shown(op)} {shown(kernel)}", style="bold"))
            previous = op, kernel
        cells = [
            Text("-", style="dim") if row is None else Text(text(row), style=style(row))
            for row in here
        ]
        table.add_row(Text(f"  {shown(short_label(label, function))}"), *cells)
    return table


def _predictions(record: Record, console: Console) -> None:
    """The first GPU model of each generation, as the peak table has them."""
    if not record.predictions:
        return
    first: dict[int, str] = {}
    for each in sorted(record.predictions, key=lambda one: one.sm):
        first.setdefault(each.sm, each.gpu)
    heading(console, "Predicted, not measured: the least time of a case in us, and its limit")
    cells = {(each.op, each.kernel, each.case.id, each.gpu): each for each in record.predictions}
    keys = dict.fromkeys((op, kernel, case) for op, kernel, case, _ in cells)
    needed = GAP + 14  # a GPU's name folds; a figure and its letter don't
    room = console.width - console.width // 2
    for columns in _chunks(list(first.values()), max(1, room // needed)):
        table = new_table()
        table.add_column("case", overflow="fold")
        for name in columns:
            table.add_column(Text(shown(name.removeprefix("NVIDIA "))), justify="right")
        for op, kernel, case in keys:
            here = [cells.get((op, kernel, case, name)) for name in columns]
            if any(here):
                told = Folded(shown(case))
                table.add_row(told, *map(_predicted, here))
        console.print(table)
        console.print()
    console.print(
        Text(
            "m: memory, x: matrix instructions, a: fp32 arithmetic, i: instructions issued, "
            "s: exp2 and its like; ~: no variant of it was compiled in this run.",
            style="dim",
        )
    )


def _chunks(names: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    yield from (names[start : start + size] for start in range(0, len(names), size))


_LETTERS = {
    "memory": "m", "matrix": "x", "arithmetic": "a", "issue": "i", "special functions": "s",
}  # fmt: skip


def _predicted(each: PredictionRow | None) -> Text:
    if each is None:
        return Text("-", style="dim")
    if each.predicted_us is None or each.limit is None:
        return Text("none", style="red")
    figure = f"{each.predicted_us:,.1f}"
    return Text(f"{'' if each.from_code else '~'}{figure} {_LETTERS[each.limit]}")


def _unread(record: Record, console: Console) -> None:
    told = Counter(text for row in record.resources for text in row.unread)
    if not told:
        return
    heading(console, "What couldn't be read")
    for text, times in told.most_common():
        indented(console, f"{shown(text)} ({count(times, 'kernel')})", style="yellow")


def _changes(before: Record, after: Record, console: Console) -> None:
    found = changes_between(before, after)
    worse = sum(each.kind in WORSE for each in found.changes)
    heading(
        console,
        f"Since {shown(before.path.name)}: {count(len(found.changes), 'change')}, {worse:,} for "
        f"the worse, in {count(found.compared, 'kernel')} that both have",
    )
    for name, old, new in found.tools:
        indented(console, shown(f"{name}: {old} then, {new} now"))
    for kind, times in Counter(each.kind for each in found.changes).items():
        style = "bold red" if kind in WORSE else "bold green"
        console.print(Text(f"{kind}: {times:,}", style=style))
        of_kind = [each for each in found.changes if each.kind == kind]
        console.print(_change_table(of_kind[:_MOST_OF_A_KIND]))
        if times > _MOST_OF_A_KIND:
            console.print(Text(f"  {times - _MOST_OF_A_KIND:,} more not shown", style="dim"))
    for title, variants in (("new", found.new), ("not there any more", found.gone)):
        if variants:
            console.print(Text(f"{title}: {count(len(variants), 'variant')}", style="bold"))
            for (_, kernel, label, function), times in list(variants.items())[:_MOST_OF_A_KIND]:
                name = f"{kernel}, {short_label(label, function)}"
                indented(console, shown(f"{name}, on {count(times, 'generation')}"))


def _change_table(changes: Sequence[Change]) -> Table:
    table = new_table()
    for title in ("  variant", "sm", "then", "now"):
        table.add_column(title, overflow="fold")
    for each in changes:
        _, kernel, label, function = each.variant
        name = f"  {kernel}, {short_label(label, function)}"
        table.add_row(Text(shown(name)), f"{each.sm}", shown(each.before), shown(each.after))
    return table
