"""The head of a report as an SVG picture, with no font or file from outside."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import TerminalTheme

from reports.accuracy import render_outline
from reports.record import shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from reports.record import Record

_COLUMNS = 120
# rich's own theme has red, and what is dim, at under 4.5 to 1 of its background.
_THEME = TerminalTheme(
    background=(24, 26, 31),
    foreground=(226, 229, 233),
    normal=[
        *((110, 115, 125), (255, 123, 128), (152, 190, 90), (216, 188, 80)),
        *((121, 170, 220), (200, 150, 210), (104, 180, 190), (226, 229, 233)),
    ],
)
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
    return console.export_svg(title=shown(record.header.command), theme=_THEME, code_format=_FORMAT)
