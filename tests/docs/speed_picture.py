"""docs/pictures/speed.svg, made of the tables of docs/reference/speed.md.

python -m tests.docs.speed_picture --write docs/pictures/speed.svg
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path

from kernel_workbench.reports.arguments import CommandLine
from tests import ROOT

PICTURE = ROOT / "docs" / "pictures" / "speed.svg"
_PAGE = ROOT / "docs" / "reference" / "speed.md"
_TITLES = (
    "Attention forward by head size and length, bf16, TFLOP/s",
    "Attention backward by head size and length, bf16, TFLOP/s",
    "Layer norm backward, GB/s of the least traffic",
)
# Column of a table: its shape, and its colour in light and in dark.
_MARKS = {
    "ours": ("circle", "#0550ae", "#58a6ff"),
    "ours, no order": ("ring", "#0550ae", "#58a6ff"),
    "FlashAttention-4": ("square", "#bc4c00", "#f0883e"),
    "quack": ("square", "#bc4c00", "#f0883e"),
    "cuDNN": ("diamond", "#1a7f37", "#3fb950"),
    "inductor": ("diamond", "#1a7f37", "#3fb950"),
    "flash": ("cross", "#6e7781", "#8b949e"),
    "torch": ("cross", "#6e7781", "#8b949e"),
}
_WIDTH, _LEFT, _RIGHT, _ROW, _TOP = 860, 190, 40, 21, 62
_STYLE = """    .page { fill: #ffffff; stroke: #d0d7de; }
    .title { fill: #1f2328; font-size: 16px; font-weight: 600; }
    .text { fill: #424a53; font-size: 13px; }
    .row { text-anchor: end; }
    .tick { text-anchor: middle; }
    .grid { stroke: #d8dee4; }"""
_DARK = """      .page { fill: #0d1117; stroke: #30363d; }
      .title { fill: #e6edf3; }
      .text { fill: #adb6c0; }
      .grid { stroke: #2b323b; }"""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the page: names of its rows, and the figures of each column that is drawn."""

    rows: tuple[str, ...]
    columns: dict[str, tuple[float, ...]]


def tables() -> list[Table]:
    """Return the page's tables of figures, in order."""
    blocks = re.findall(r"(?:^\|.*\n)+", _PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return [_table(block.splitlines()) for block in blocks]


def _table(lines: list[str]) -> Table:
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    first = head.index("ours")
    columns = {
        name: tuple(float(row[place].replace(",", "")) for row in rows)
        for place, name in enumerate(head)
        if name in _MARKS
    }
    return Table(tuple(", ".join(row[:first]) for row in rows), columns)


def svg() -> str:
    """Return the picture: a panel for each table, a line for each row, a mark for each kernel."""
    parts: list[str] = []
    top = 12
    for title, table in zip(_TITLES, tables(), strict=True):
        parts += _panel(title, table, top)
        top += _TOP + _ROW * len(table.rows) + 40
    colours = "\n".join(
        f"    .m{number} {{ fill: {light}; stroke: {light}; }}"
        for number, (_, light, _) in enumerate(_MARKS.values())
    )
    dark = "\n".join(
        f"      .m{number} {{ fill: {colour}; stroke: {colour}; }}"
        for number, (_, _, colour) in enumerate(_MARKS.values())
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top}" role="img"',
            "     font-family=\"system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif\">",
            "  <title>Speed of kernels on an H200: the tables of docs/reference/speed.md</title>",
            "  <style>",
            _STYLE,
            colours,
            "    .ring { fill: none; stroke-width: 2; }",
            "    @media (prefers-color-scheme: dark) {",
            _DARK,
            dark,
            "      .ring { fill: none; }",
            "    }",
            "  </style>",
            f'  <rect class="page" x="1" y="1" width="{_WIDTH - 2}" height="{top - 2}" rx="10"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


def _panel(title: str, table: Table, top: int) -> list[str]:
    most = max(max(figures) for figures in table.columns.values())
    step = 100 if most < 1000 else 1000
    bottom = top + _TOP + _ROW * len(table.rows)

    def across(figure: float) -> float:
        return round(_LEFT + (_WIDTH - _LEFT - _RIGHT) * figure / most, 1)

    parts = [f'  <text class="title" x="20" y="{top + 18}">{title}</text>']
    left = 26
    for name in table.columns:
        parts += [_mark(name, left, top + 36), _text(name, left + 11, top + 41)]
        left += 30 + 8 * len(name)
    for figure in range(0, int(most) + 1, step):
        x = across(figure)
        parts.append(
            f'  <line class="grid" x1="{x}" x2="{x}" y1="{top + _TOP - 8}" y2="{bottom}"/>'
        )
        parts.append(_text(f"{figure:,}", x, bottom + 16, "tick"))
    for number, row in enumerate(table.rows):
        y = top + _TOP + _ROW * number + 4
        parts.append(_text(row, _LEFT - 12, y + 5, "row"))
        # The first column last, so that ours lies above the others.
        parts += [
            _mark(name, across(figures[number]), y)
            for name, figures in reversed(table.columns.items())
        ]
    return parts


def _text(words: str, x: float, y: float, kind: str = "") -> str:
    return f'  <text class="text {kind}" x="{x}" y="{y}">{escape(words)}</text>'


def _mark(name: str, x: float, y: float) -> str:
    shape, number = _MARKS[name][0], list(_MARKS).index(name)
    kind = f'class="m{number}"'
    if shape == "circle":
        return f'  <circle {kind} cx="{x}" cy="{y}" r="5.5"/>'
    if shape == "ring":
        return f'  <circle class="m{number} ring" cx="{x}" cy="{y}" r="4.5"/>'
    if shape == "square":
        return f'  <rect {kind} x="{x - 4:.1f}" y="{y - 4}" width="8" height="8"/>'
    if shape == "diamond":
        return f'  <path {kind} d="M{x},{y - 5.5} l5.5,5.5 l-5.5,5.5 l-5.5,-5.5 z"/>'
    return f'  <path {kind} stroke-width="2" d="M{x - 4:.1f},{y - 4} l8,8 m0,-8 l-8,8"/>'


def main() -> int:
    """Write the picture where --write says."""
    options = CommandLine(prog="python -m tests.docs.speed_picture")
    options.add_argument("--write", type=Path, metavar="FILE", required=True)
    options.read().write.write_text(svg(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
