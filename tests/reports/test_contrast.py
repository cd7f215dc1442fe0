"""Pictures of reports can be read: WCAG's contrast of every text with what is behind it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kernel_workbench.reports.document.svg import COLOURS
from kernel_workbench.reports.record import Record, read
from kernel_workbench.reports.report import picture_of
from tests import ROOT
from tests.builders.accuracy_records import example_rows, write_example
from tests.builders.bench_records import many_bench_rows, write_bench
from tests.builders.compiled_records import record_of as write_compiled
from tests.builders.compiled_records import row as compiled_row
from tests.builders.profile_records import profile_rows, write_profile

_GALLERY = ROOT / "docs" / "gallery"
_PAGE = ROOT / "reports" / "document" / "page.css"
_LEAST = 4.5  # to 1: WCAG 2.2, level AA, of text that isn't large
_LEAST_OF_SHAPES = 3.0  # the same of what isn't text
_STYLE = re.compile(r"-(r\d+) \{ fill: (#[0-9a-f]{6})")
_RECTANGLE = re.compile(
    r'<rect fill="(#[0-9a-f]{6})"[^>]*? x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" '
    r'height="([\d.]+)"'
)
_TEXT = re.compile(r'<text class="[^"]*-(r\d+)" x="([\d.]+)" y="([\d.]+)"[^>]*>([^<]*)</text>')


@dataclass(frozen=True)
class _Rectangle:
    colour: str
    left: float
    top: float
    width: float
    height: float

    def holds(self, x: float, y: float) -> bool:
        return self.left <= x < self.left + self.width and self.top <= y <= self.top + self.height


def _luminance(colour: str) -> float:
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """WCAG's contrast of two colours, from 1 to 21."""
    dark, light = sorted((_luminance(one), _luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def _texts(svg: str) -> Iterator[tuple[str, float]]:
    """Each text of a picture, and its contrast with the last rectangle that it is drawn on."""
    colours = dict(_STYLE.findall(svg))
    paper = re.search(r'<rect fill="(#[0-9a-f]{6})"[^>]* rx=', svg)
    assert paper is not None
    behind = [_Rectangle(colour, *map(float, rest)) for colour, *rest in _RECTANGLE.findall(svg)]
    for name, x, y, text in _TEXT.findall(svg):
        # A text's y is its foot's; in the middle of the line is what it is read on.
        under = [each for each in behind if each.holds(float(x) + 1, float(y) - 8)]
        words = text.replace("&#160;", " ").strip()
        if words:
            yield words, contrast(colours[name], under[-1].colour if under else paper[1])


def _record(kind: str, path: Path) -> Record:
    if kind == "bench":
        return read(write_bench(path, many_bench_rows(1)))
    if kind == "profile":
        return read(write_profile(path, profile_rows()))
    if kind == "compile":
        write_compiled(path, [compiled_row(sm=90), compiled_row(sm=100)])
        return read(path)
    return read(write_example(path, example_rows(failing=kind == "failing"), whole=kind != "cut"))


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_of_a_page_stand_out(scheme: int) -> None:
    """Texts 4.5 to 1 on the page and on a table's head; a bar, and a picture's marks, 3 to 1."""
    style = _PAGE.read_text(encoding="utf-8")
    root = re.findall(r":root \{(.*?)\}", style, re.DOTALL)[scheme]
    colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", root))
    for name in ("ink", "soft", "good", "bad", "doubtful"):
        for behind in ("paper", "band"):
            assert contrast(colours[name], colours[behind]) >= _LEAST, (name, behind)
    assert contrast(colours["bar"], colours["line"]) >= _LEAST_OF_SHAPES
    for colour in COLOURS:
        assert contrast(colour, colours["paper"]) >= _LEAST_OF_SHAPES, colour


def test_contrast_is_wcags() -> None:
    """Black and white have 21, a colour with itself 1, and the earlier colours 1.55."""
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#c5c8c6", "#c5c8c6") == 1
    assert contrast("#c5c8c6", "#98a84b") == pytest.approx(1.55, abs=0.005)


@pytest.mark.parametrize(
    ("kind", "verdict"),
    [
        ("passing", "PASSED"),
        ("failing", "FAILED"),
        ("cut", "INCOMPLETE"),
        ("bench", "TIMED"),
        ("profile", "FAILED"),
        ("compile", "PASSED"),
    ],
)
def test_texts_of_a_picture_stand_out(kind: str, verdict: str, tmp_path: Path) -> None:
    """The verdict on its badge, figures in green and red, and what is dim: 4.5 to 1 or more."""
    record = _record(kind, tmp_path / "run.jsonl")
    texts = list(_texts(picture_of(record)))
    assert verdict in [text for text, _ in texts]
    assert {text: found for text, found in texts if found < _LEAST} == {}


@pytest.mark.parametrize("path", sorted(_GALLERY.glob("*.svg")), ids=lambda each: each.name)
def test_pictures_of_the_gallery_stand_out(path: Path) -> None:
    """The pictures that the README shows were made with the same colours."""
    texts = list(_texts(path.read_text(encoding="utf-8")))
    assert len(texts) > 30
    assert {text: found for text, found in texts if found < _LEAST} == {}
