"""The head of a report as an SVG picture, with no font or file from outside."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from reports.accuracy import render_outline
from reports.record import shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from reports.record import Record

_COLUMNS = 120
# rich's format fetches its font from a network; a reader's own monospaced font does as well.
_FORMAT = re.sub(r"@font-face\s*\{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL).replace(
    "Fira Code, monospace", "ui-monospace, Menlo, Consolas, DejaVu Sans Mono, monospace"
)


def render_svg(record: Record, outline: Callable[[Record, Console], None] = render_outline) -> str:
    """The head of a record's report, as its suite prints it, as an SVG document."""
    console = Console(
        record=True,
        width=_COLUMNS,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
    )
    outline(record, console)
    return console.export_svg(title=shown(record.header.command), code_format=_FORMAT)
