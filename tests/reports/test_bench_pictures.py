"""Pictures of timed kernels: whose each mark is, and which case each line is of."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from kernel_workbench.reports.record import Record, read
from kernel_workbench.reports.views.bench_cases import cases_of
from kernel_workbench.reports.views.bench_pictures import MOST_POINTS, roofline, shares
from tests import ROOT

_GALLERY = ROOT / "docs" / "gallery"


@pytest.fixture(scope="module")
def measured() -> Record:
    """A run on an H200: four ops, several kernels of which serve two and three of them."""
    return read(_GALLERY / "bench-h200.jsonl.gz")


def _roofline(record: Record) -> str:
    figure = roofline(record)
    assert figure is not None
    return figure.draw("x")


def _texts(svg: str) -> list[str]:
    found = [each.text or "" for each in ET.fromstring(svg).iter() if each.tag.endswith("text")]
    return [each.strip() for each in found]


def _marks(svg: str) -> set[tuple[str, str]]:
    """(shape, colour) of points, in the picture and beside the names."""
    shapes: dict[str, str] = {}
    found = set()
    for each in ET.fromstring(svg).iter():
        if each.tag.endswith("path") and "id" in each.attrib:
            shapes[each.attrib["id"]] = _of_any_size(each.attrib["d"])
        elif each.tag.endswith("use"):
            # A baseline's is hollow.
            colours = (each.attrib.get(name, "") for name in ("fill", "stroke"))
            colour = next((colour for colour in colours if colour.startswith("#")), None)
            if colour is not None:
                found.add((shapes[each.attrib["href"].removeprefix("#")], colour))
    return found


def _of_any_size(path: str) -> str:
    most = max(abs(float(each)) for each in re.findall(r"-?[\d.]+", path))
    return re.sub(r"-?[\d.]+", lambda found: f"{float(found[0]) / most + 0.0:.1f}", path)


def test_each_kernel_of_a_roofline_has_one_name_and_a_look_of_its_own(measured: Record) -> None:
    """Also one that serves several ops, and the fifteenth of them."""
    drawn = _roofline(measured)
    kernels = {row.kernel for row in measured.benches if row.median_us}
    assert len(kernels) == 15
    texts = _texts(drawn)
    assert [texts.count(kernel) for kernel in kernels] == [1] * 15
    assert len(_marks(drawn)) == 15
    assert sum(bool(row.median_us) for row in measured.benches) < MOST_POINTS


def test_a_kernel_looks_the_same_in_all_pictures(measured: Record) -> None:
    """Each op's shares have marks that the roofline has, all of them named."""
    of_roofline = _marks(_roofline(measured))
    for figure in shares(measured, cases_of(measured)):
        drawn = figure.draw("x")
        timed = {
            row.kernel
            for row in measured.benches
            if row.median_us and figure.title.startswith(row.op)
        }
        assert timed <= set(_texts(drawn))
        assert len(_marks(drawn)) == len(timed)
        assert _marks(drawn) <= of_roofline


def test_cases_of_a_picture_are_told_apart(measured: Record) -> None:
    """Parts that all have are shown once, so that no name is cut where the difference begins."""
    forward = shares(measured, cases_of(measured))[1]
    assert forward.note.endswith("All cases are bfloat16-contiguous.")
    names = [text for text in _texts(forward.draw("x")) if "-d_v" in text]
    assert "b16-h_q32-h_kv32-s_q1024-s_kv1024-d64-d_v64-causal" in names
    assert len(set(names)) == len(names) == 23
    assert not any("..." in name for name in names)


def test_a_case_that_has_nothing_besides_keeps_its_name(measured: Record) -> None:
    """As one alone does, and one whose parts another one has too."""
    op = "attention_forward"
    plain, causal = (
        next(
            row
            for row in measured.benches
            if row.op == op and row.median_us and row.case.id.endswith(end)
        )
        for end in ("d_v64-bfloat16-contiguous", "d_v64-bfloat16-contiguous-causal")
    )
    renamed = causal.case.model_copy(update={"id": f"{plain.case.id}-causal"})
    alike = causal.model_copy(update={"case": renamed})
    for rows in ([plain], [plain, alike]):
        record = Record(measured.path, measured.header, (), None, None, benches=tuple(rows))
        (figure,) = shares(record, cases_of(record))
        assert "All cases" not in figure.note
        for row in rows:
            title = row.case.id.removeprefix(f"{op}-")
            assert any(text[:50] == title[:50] for text in _texts(figure.draw("x")))


def test_a_kernel_that_the_header_does_not_list_is_hollow(measured: Record) -> None:
    """It may be anyone's, so that its marks are those of other people's kernels."""

    def filled(record: Record) -> int:
        uses = [
            each for each in ET.fromstring(_roofline(record)).iter() if each.tag.endswith("use")
        ]
        return sum(each.attrib.get("fill", "none").startswith("#") for each in uses)

    header = measured.header.model_copy(update={"kernels": ()})
    assert filled(measured) > filled(replace(measured, header=header))
