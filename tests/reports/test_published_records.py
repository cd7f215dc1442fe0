"""Figures of other GPU generations, taken from publications: docs/gallery/published-*.jsonl."""

from __future__ import annotations

import pytest
import torch

from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.op import Case
from kernel_workbench.profiles.peaks import PEAKS
from kernel_workbench.reports.record import BenchRow, Record, read
from kernel_workbench.suites.run.user_cases import read_cases
from tests import ROOT

_GALLERY = ROOT / "docs" / "gallery"
_CASES = _GALLERY / "published-cases.jsonl"
_FILES = sorted(set(_GALLERY.glob("published-*.jsonl")) - {_CASES})
_RECORDS = pytest.mark.parametrize(
    "record", [read(each) for each in _FILES], ids=lambda r: r.path.stem
)


def _case(row: BenchRow) -> Case:
    dtype = getattr(torch, row.case.dtype)
    return Case(
        op=row.op,
        sizes=tuple(row.case.sizes.items()),
        dtype=dtype,
        weight_dtype=dtype,
        options=frozenset(row.case.options),
        tier="full",
    )


def test_generations_stand_beside_each_other() -> None:
    """Ampere, Hopper and Blackwell, a record of each, with cases that all three have.

    And an A100's, whose cases are its own: `nox -s bench` times them by the file of cases.
    """
    records = {each.header.environment.sm or 0: each for each in map(read, _FILES)}
    assert sorted(records) == [80, 86, 90, 100]
    common = set.intersection(
        *(
            {(row.op, row.kernel, row.case.id) for row in records[sm].benches}
            for sm in (86, 90, 100)
        )
    )
    assert len(common) >= 4


@_RECORDS
def test_published_record_is_whole_and_marked(record: Record) -> None:
    """It reads without a problem, and nothing in it passes for measured here."""
    assert record.problem is None
    assert record.header.figures == "published"
    assert record.benches
    assert not any(each.measured for each in record.header.roofs)
    for row in record.benches:
        assert row.accuracy is None
        assert row.reason is not None
        assert not row.processes
        assert not row.gates


@_RECORDS
def test_published_figure_has_its_source_and_follows_from_it(record: Record) -> None:
    """The time is the flops that the publication counts over its TFLOP/s, and fits the GPU."""
    peaks = {each.name: each.half_tflops for each in PEAKS}
    roofs = {each.name: each.value for each in record.header.roofs}
    peak = roofs.get("half")
    assert peak == peaks.get(record.header.environment.device_name, peak)
    for row in record.benches:
        assert row.source is not None
        assert any(word in row.source for word in ("chart", "issue", "pull request")), row.source
        sizes = row.case.sizes
        flops = 4 * sizes["b"] * sizes["h_q"] * sizes["s_q"] * sizes["s_kv"] * sizes["d"]
        flops //= 2 if "causal" in row.case.options else 1
        flops = flops * 5 // 2 if row.op == "attention_backward" else flops
        assert row.flops == flops
        assert row.tflops is not None
        assert row.median_us == pytest.approx(flops / row.tflops * 1e-6)
        assert row.share_of_peak == (None if peak is None else pytest.approx(row.tflops / peak))
        assert row.share_of_peak is None or row.share_of_peak < 1


@_RECORDS
def test_published_case_is_one_that_the_op_could_have(record: Record) -> None:
    """With the id that a run here gives it, so that the two are compared."""
    for row in record.benches:
        case, allowed = _case(row), OPS[row.op].allowed
        assert case.id() == row.case.id
        assert row.bytes == OPS[row.op].bytes(case)
        assert allowed is not None
        assert allowed.objection(case) is None


def test_file_of_cases_has_what_was_published() -> None:
    """So that `nox -s bench -- --cases FILE` times on a GPU at hand what the records hold."""
    published = {row.case.id for each in _FILES for row in read(each).benches}
    assert {case.id() for case in read_cases([_CASES], 2**37)} == published
