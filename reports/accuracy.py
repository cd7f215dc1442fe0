"""A record of the suite `accuracy` on a terminal: the verdict first, then why to believe it.

Status words stand beside the colours, so that it reads without them. Where a run tried several
ops, a kernel stands under its op's name: two ops may have kernels of one name.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Group
from rich.padding import Padding
from rich.text import Text

from reports.coverage import kernel_variants, workspaces
from reports.headline import environment_lines, headline, total_duration
from reports.invariance import render_invariance
from reports.matrix import render_matrices
from reports.phrases import count, duration, memory, ratio
from reports.record import shown
from reports.summary import (
    failing_output,
    failures,
    kernel_summaries,
    nearest_passes,
    refusals,
    several_ops,
    short_case,
    slowest,
)
from reports.tables import (
    BAD,
    DOUBTFUL,
    GAP,
    GOOD,
    Folded,
    heading,
    indented,
    labelled,
    new_table,
    op_by_op,
)
from reports.ulps import render_ulps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.table import Table

    from reports.coverage import VariantRows
    from reports.headline import Verdict
    from reports.record import Record
    from reports.schema import AccuracyRow
    from reports.summary import KernelSummary, Worst

_VERDICT_STYLE: dict[Verdict, str] = {
    "PASSED": GOOD,
    "FAILED": BAD,
    "INCOMPLETE": DOUBTFUL,
    "NOT GATED": DOUBTFUL,
}


def render(record: Record, console: Console, *, most_failures: int = 10) -> None:
    """Print the report. Commands to reproduce a row are not wrapped, so that they can be copied."""
    summaries = kernel_summaries(record)
    _head(record, console, summaries)
    render_matrices(record, console, summaries)
    _variants(record, console)
    _margins(record, console, summaries)
    render_ulps(record, console)
    _workspaces(record, console)
    render_invariance(record, console)
    _refusals(record, console)
    _failures(record, console, most_failures)
    _nearest(record, console)
    _times(record, console)


def render_outline(record: Record, console: Console) -> None:
    """Print the report's head: the verdict, the environment, the kernels; of one op its matrices.

    Those of several ops are hundreds of lines, which no picture holds.
    """
    summaries = kernel_summaries(record)
    _head(record, console, summaries)
    if not several_ops(record):
        render_matrices(record, console, summaries)


def _head(record: Record, console: Console, summaries: Sequence[KernelSummary]) -> None:
    _headline(record, console)
    labelled(console, environment_lines(record))
    _kernels(record, console, summaries)


def _headline(record: Record, console: Console) -> None:
    line = headline(record)
    console.print(
        Text.assemble((f" {line.verdict} ", _VERDICT_STYLE[line.verdict]), f" {line.sentence}")
    )
    for note in line.notes:
        console.print(Padding(Text(shown(note), overflow="fold"), (0, 0, 0, 2)))
    console.print()


def _kernels(record: Record, console: Console, summaries: Sequence[KernelSummary]) -> None:
    if not summaries:
        return
    heading(console, "Kernels")
    table = new_table()
    table.add_column("kernel", overflow="fold")
    table.add_column("origin", overflow="fold")
    partly = any(each.judged != "all" for each in summaries)
    if partly:
        table.add_column("judged", overflow="fold")
    powerless = any(each.powerless for each in summaries)
    for title in ("ran", "passed", "failed", *["no power"] * powerless, "refused"):
        table.add_column(title, justify="right")
    for each, indent in op_by_op(summaries, table, several=several_ops(record)):
        failed = Text(f"{each.failed:,}")
        if each.failed:
            failed.stylize("bold red" if each.gates else "yellow")
        origin = each.origin if each.gates or not each.ran else f"{each.origin}, not gating"
        table.add_row(
            Text(indent + shown(each.name)),
            Text(shown(origin)),
            *[Text(shown(each.judged), style="" if each.judged == "all" else "yellow")] * partly,
            f"{each.ran:,}",
            f"{each.passed:,}",
            failed,
            *[f"{each.powerless:,}"] * powerless,
            f"{each.refused:,}",
        )
    console.print(table)
    # A line for all kernels that declare the same.
    declared: dict[str, dict[str, list[str]]] = {}
    for each in summaries:
        if each.declares:
            declared.setdefault(each.declares, {}).setdefault(each.op, []).append(each.name)
    if declared:
        console.print()
        console.print(Text("Declared arithmetic that differs from a plain kernel's:", style="dim"))
        for declares, by_op in declared.items():
            named = (
                f"{op} " * several_ops(record) + ", ".join(names) for op, names in by_op.items()
            )
            indented(console, shown(f"{'; '.join(named)}: {declares}"))


def _variants(record: Record, console: Console) -> None:
    kernels = kernel_variants(record)
    if not kernels:
        return
    heading(console, "Variants: the cases that ran each, and those that no case of this run took")
    for number, each in enumerate(kernels):
        if number:
            console.print()
        name = f"{shown(each.op)} {shown(each.kernel)}" if several_ops(record) else each.kernel
        console.print(Text.assemble((shown(name), "bold"), f": {each.sentence}"))
        if each.ran:
            console.print(_variant_table(each.ran, console.width))
        if each.not_taken:
            indented(console, f"not taken: {', '.join(map(shown, each.not_taken))}", style="dim")


def _variant_table(ran: Sequence[VariantRows], width: int) -> Table:
    """Down first, then across, in as many columns as the console has room for."""
    names = [f"  {shown(each.name)}{'' if each.listed else ' (not listed)'}" for each in ran]
    needed = sum(map(len, ("cases", "failed", ">0.99"))) + 4 * GAP
    needed += max(map(cell_len, names))
    beside = max(1, min(len(ran), width // needed))
    down = -(-len(ran) // beside)
    table = new_table()
    for _ in range(-(-len(ran) // down)):
        table.add_column("  variant", overflow="fold")
        for title in ("cases", "failed", "ratio"):
            table.add_column(title, justify="right", no_wrap=True)
    for first in range(down):
        cells: list[Text] = []
        for name, each in list(zip(names, ran, strict=True))[first::down]:
            failed = "bold red" if each.gates else "yellow"
            found = "-" if each.ratio is None else ratio(each.ratio)
            cells += [
                Text(name, style="" if each.listed else "bold red"),
                Text(f"{each.ran:,}"),
                Text(f"{each.failed:,}", style=failed if each.failed else ""),
                Text(found, style=failed if each.failed else "green"),
            ]
        table.add_row(*cells)
    return table


def _margins(record: Record, console: Console, summaries: Sequence[KernelSummary]) -> None:
    known = [each for each in summaries if each.deterministic or each.probabilistic]
    if not known:
        return
    heading(console, "Largest error / bound of each kernel, and block / what an emulation allows")
    table = new_table()
    table.add_column("kernel, rule", overflow="fold")
    table.add_column("ratio", justify="right", no_wrap=True)
    table.add_column("output", overflow="fold")
    table.add_column("case", overflow="fold")
    for each, indent in op_by_op(known, table, several=several_ops(record)):
        table.add_row(Text(indent + shown(each.name), style="" if indent else "bold"))
        previous = None
        for bound, found in (
            ("deterministic", each.deterministic),
            ("probabilistic", each.probabilistic),
            ("emulation", each.emulation),
        ):
            if found is None:
                continue
            case = Folded(shown(short_case(found.row)))
            if found.row is previous:
                case = Folded("the same", style="dim")
            output = Text(shown(found.output))
            table.add_row(Text(f"{indent}  {bound}"), _ratio_text(found), output, case)
            previous = found.row
    console.print(table)


def _workspaces(record: Record, console: Console) -> None:
    found = workspaces(record)
    if not found:
        return
    heading(console, "Most memory beyond inputs and outputs, of kernels that declare it")
    table = new_table()
    table.add_column("kernel", overflow="fold")
    for title in ("taken", "declared"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("case", overflow="fold")
    for each, indent in op_by_op(found, table, several=several_ops(record)):
        table.add_row(
            Text(indent + shown(each.kernel)),
            Text(memory(each.taken), style="green" if each.taken <= each.declared else "bold red"),
            memory(each.declared),
            Folded(shown(short_case(each.row))),
        )
    console.print(table)


def _ratio_text(found: Worst) -> Text:
    within = found.ratio <= 1  # false for NaN
    return Text(ratio(found.ratio), style="green" if within else "bold red")


def _refusals(record: Record, console: Console) -> None:
    groups = refusals(record)
    if not groups:
        return
    heading(console, "Refused: outside what a kernel says it serves (N: a number that varies)")
    table = new_table()
    table.add_column("kernel", overflow="fold")
    table.add_column("rows", justify="right", no_wrap=True)
    table.add_column("reason, and one case", overflow="fold")
    previous = None
    for group, indent in op_by_op(groups, table, several=several_ops(record)):
        example = Folded(shown(short_case(group.example)), style="dim")
        reason = Group(Text(shown(group.reason)), Padding(example, (0, 0, 0, 2)))
        name = "" if (group.op, group.kernel) == previous else indent + shown(group.kernel)
        table.add_row(Text(name), f"{group.count:,}", reason)
        previous = group.op, group.kernel
    console.print(table)


def _failures(record: Record, console: Console, most: int) -> None:
    groups = failures(record, most)
    if not groups:
        return
    heading(console, "Failures")
    for group in groups:
        op = f"{shown(group.op)} " if several_ops(record) else ""
        title = Text(f"{op}{shown(group.kernel)}: {shown(group.rule)}, ")
        title.append(count(len(group.rows), "row"))
        title.stylize("bold red" if group.gates else "yellow")
        title.append("" if group.gates else ", not gating")
        console.print(title)
        for row in group.rows[: group.shown]:
            _failure(row, console)
        hidden = len(group.rows) - group.shown
        if hidden:
            console.print(Text(f"  {count(hidden, 'more row')} not shown", style="dim"))


def _failure(row: AccuracyRow, console: Console) -> None:
    indented(console, shown(row.case.id))
    text = row.reason or failing_output(row)
    if text is not None:
        indented(console, shown(text), by=4)
    for line in row.printed:
        indented(console, shown(f"printed: {line}"), by=4)
    _command(console, row)


def _command(console: Console, row: AccuracyRow) -> None:
    console.print(Text(f"    {shown(row.reproduce)}", style="cyan"), soft_wrap=True)


def _nearest(record: Record, console: Console) -> None:
    found = nearest_passes(record)
    if not found:
        return
    heading(console, "The worst cases that pass")
    several = several_ops(record)
    for row, bound, each in found:
        indented(
            console,
            f"{ratio(each.ratio)} of the {bound}, {shown(each.output)} of "
            f"{shown(row.kernel)} on {shown(row.case.id if several else short_case(row))}",
        )
        _command(console, row)


def _times(record: Record, console: Console) -> None:
    heading(console, f"Time taken: {total_duration(record)}")
    rows = slowest(record)
    if not rows:
        return
    table = new_table()
    table.add_column("row", justify="right", no_wrap=True)
    table.add_column("first call", justify="right", no_wrap=True)
    table.add_column("kernel", overflow="fold")
    table.add_column("slowest cases", overflow="fold")
    for row in rows:
        call = "-" if row.call_s is None or math.isnan(row.call_s) else duration(row.call_s)
        table.add_row(
            duration(row.duration_s),
            call,
            Text(shown(row.kernel)),
            Folded(shown(row.case.id if several_ops(record) else short_case(row))),
        )
    console.print(table)
