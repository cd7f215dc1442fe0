"""Which function renders what: the forms that a record of each suite has."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from reports import accuracy, bench, profile, resources
from reports.accuracy_page import accuracy_part
from reports.bench_page import bench_part
from reports.bench_pictures import draw_roofline, roofline
from reports.markdown import render_markdown
from reports.page import Page
from reports.page_markdown import render_page_markdown
from reports.profile_page import profile_part
from reports.record import RecordError, shown
from reports.resources_markdown import render_resources_markdown
from reports.resources_page import resources_part
from reports.vector import standing_alone

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from reports.page import Part
    from reports.record import Record


@dataclass(frozen=True, slots=True)
class Forms:
    """A suite's reports: on a terminal whole, and its head alone; as Markdown; in a page."""

    terminal: Callable[[Record, Console], None]
    outline: Callable[[Record, Console], None]
    markdown: Callable[[Record], str]
    part: Callable[[Record], Part]


def forms_of(
    record: Record, *, against: Record | None = None, baseline: str | None = None
) -> Forms:
    """The forms of the record's suite; its options are held to it. Raises RecordError."""
    suite = record.header.suite
    if baseline is not None and suite != "bench":
        raise RecordError(
            f"{shown(record.path)}: a record of nox -s {suite}; --baseline takes one of nox -s "
            "bench"
        )
    if suite == "accuracy":
        return Forms(accuracy.render, accuracy.render_outline, render_markdown, accuracy_part)
    if suite == "compile":
        return Forms(
            partial(resources.render, against=against),
            resources.render_outline,
            render_resources_markdown,
            resources_part,
        )
    if suite == "profile":
        return Forms(
            profile.render,
            profile.render_outline,
            lambda each: render_page_markdown(Page("", (profile_part(each),))),
            profile_part,
        )
    return Forms(
        partial(bench.render, baseline=baseline),
        partial(bench.render_outline, baseline=baseline),
        lambda each: render_page_markdown(Page("", (bench_part(each, baseline),))),
        partial(bench_part, baseline=baseline),
    )


def page_of(parts: Sequence[Part]) -> Page:
    """Parts as one page."""
    return Page("Kernel workbench", parts)


def roofline_svg(record: Record) -> str:
    """The roofline as a file of its own. Raises RecordError where the record has none."""
    if roofline(record) is None:
        raise RecordError(
            f"{shown(record.path)}: no row is timed with its flops and bytes, so there is no "
            "roofline; --roofline takes a record of nox -s bench"
        )
    return standing_alone(draw_roofline(record, "roofline-"))
