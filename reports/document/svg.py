"""Pictures as SVG: charts of matplotlib that a page can hold, and what a terminal shows.

A page's policy lets no `style` through, so matplotlib's styles become attributes of SVG; text stays
text in the reader's own font. Ids get a prefix, since a page holds several pictures. Lines
in INK take the colour of the text around them, dark or light.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeGuard
from xml.etree import ElementTree as ET

from rich.console import Console
from rich.terminal_theme import TerminalTheme

from kernel_workbench.reports.phrases import shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Draw = Callable[["Figure"], None]

INK = "#0a0b0c"  # as no other part of a picture is coloured
# Told apart on white and on black; with the marks also without colour.
COLOURS = (
    *("#4f7fc4", "#d0722a", "#3d9a50", "#c44e52", "#8a6fc0", "#a07a4a", "#c06aa8", "#3f8a8c"),
    *("#7a8594", "#948614"),
)
MARKS = "os^Dv<>PX*"
_LEGEND_INCHES = 3.3
_SVG = "http://www.w3.org/2000/svg"
_HREF = "{http://www.w3.org/1999/xlink}href"
_KEPT_OF_STYLE = re.compile(
    r"fill|stroke|opacity|fill-opacity|fill-rule|stroke-(?:width|linejoin|linecap|dasharray|"
    r"dashoffset|opacity|miterlimit)|font-size|text-anchor|clip-path"
)
_FONT_SIZE = re.compile(r"(\d+(?:\.\d+)?)px")
_REFERENCE = re.compile(r"url\(#([^)]+)\)")
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "kernel-workbench",  # ids are alike from run to run
    "text.parse_math": False,  # a name with $ in it is a name
    "axes.unicode_minus": False,
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": INK,
    "grid.alpha": 0.15,
    "grid.linewidth": 0.6,
}

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
_FONT_FACE = re.compile(r"@font-face\s*\{.*?\}", re.DOTALL)


def terminal_picture(show: Callable[[Console], None], title: str) -> str:
    """Return what `show` prints to a terminal as an SVG document.

    It names a reader's own monospaced fonts in place of the font that rich's pictures fetch.
    """
    console = Console(
        record=True,
        width=_COLUMNS,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
    )
    show(console)
    svg = _FONT_FACE.sub("", console.export_svg(title=shown(title), theme=_THEME))
    return svg.replace("Fira Code", "ui-monospace, Menlo, Consolas, DejaVu Sans Mono")


def drawn(draw: Draw, prefix: str, about: str, *, inches: tuple[float, float]) -> str:
    """Return a figure as an SVG element.

    Args:
        draw: draws into the figure that it is called with.
        prefix: begins the ids of the element, as a page holds several.
        about: says what the picture shows, for a reader who can't see it.
        inches: width and height.
    """
    import matplotlib as mpl  # noqa: PLC0415 (a report without pictures shouldn't wait for it)
    from matplotlib.figure import Figure  # noqa: PLC0415 (likewise)

    file = io.BytesIO()
    with mpl.rc_context(_SETTINGS), warnings.catch_warnings():
        # A name may have letters that no font here has; the reader's may.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = Figure(figsize=inches)
        draw(figure)
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    root = ET.fromstring(file.getvalue())  # noqa: S314 (matplotlib wrote it, a line before)
    _clean(root, prefix)
    root.attrib.pop("version", None)
    root.set("role", "img")
    root.set("aria-label", shown(about))
    ET.register_namespace("", _SVG)
    return ET.tostring(root, encoding="unicode")


def drawable(value: float | None, *, most: float = 1e9) -> TypeGuard[float]:
    """True if a picture can hold the value: a number above zero, and of a size that a GPU has.

    Past it matplotlib's arithmetic overflows, and all else would shrink to a dot.
    """
    return value is not None and 1 / most < value < most


def standing_alone(svg: str) -> str:
    """Return the picture as a file: dark on white, whatever it is shown on."""
    paper = '<rect width="100%" height="100%" fill="#ffffff"/>'
    head, _, rest = svg.partition(">")
    font = 'font-family="DejaVu Sans, Helvetica, Arial, sans-serif"'
    return f'<?xml version="1.0" encoding="utf-8"?>\n{head} color="#1c2330" {font}>{paper}{rest}\n'


def label(text: str, longest: int = 60) -> str:
    """Return a name of a record as a picture has it: on one line, and cut where it is endless."""
    name = shown(text)
    name = name if len(name) <= longest else f"{name[: longest - 3]}..."
    # matplotlib leaves out of a legend what begins so.
    return f"\u200a{name}" if name.startswith("_") else name


def placed(figure: Figure, rows: int = 1, *, left_inches: float = 0.8) -> list[Axes]:
    """Return axes one above another, with room for a legend to the right of them."""
    panels = figure.subplots(rows, 1, sharex=True, squeeze=False)
    width, height = figure.get_size_inches()
    figure.subplots_adjust(
        left=left_inches / width,
        right=1 - _LEGEND_INCHES / width,
        top=1 - 0.15 / height,
        bottom=0.55 / height,
        hspace=0.12,
    )
    return [panel_row[0] for panel_row in panels]


def legend(axes: Axes) -> None:
    """Put the legend beside the axes, where it hides nothing; none where nothing has a name."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize=8.5)


def _clean(root: ET.Element, prefix: str) -> None:
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in {f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"}:
                parent.remove(child)
    for element in root.iter():
        for name, value in _styles(element.attrib.pop("style", "")):
            element.set(name, value)
        if "id" in element.attrib:
            element.set("id", prefix + element.attrib["id"])
        target = element.attrib.pop(_HREF, None)
        if target is not None:
            element.set("href", f"#{prefix}{target.removeprefix('#')}")
        for name, value in element.attrib.items():
            if value == INK:
                element.set(name, "currentColor")
            elif "url(" in value:
                element.set(name, _REFERENCE.sub(rf"url(#{prefix}\1)", value))


def _styles(style: str) -> list[tuple[str, str]]:
    """Return the parts of a style that are attributes of SVG too, a font as its size."""
    result = []
    for part in style.split(";"):
        name, _, value = (word.strip() for word in part.partition(":"))
        if name == "font":
            size = _FONT_SIZE.search(value)
            result += [("font-size", f"{size[1]}")] if size else []
        elif _KEPT_OF_STYLE.fullmatch(name):
            result.append((name, value.removesuffix("px") if name == "font-size" else value))
    return result
