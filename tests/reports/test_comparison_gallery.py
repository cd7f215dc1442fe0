"""The rule on real records: one H200 timed three times, nothing changed between, and another."""

from __future__ import annotations

import io
import itertools

import pytest
from rich.cells import cell_len
from rich.console import Console

from kernel_workbench.reports.comparison.report import compare
from kernel_workbench.reports.comparison.rule import FLOOR_APART, LAUNCH_APART_US, SpeedVerdict
from kernel_workbench.reports.comparison.side import read_sides
from kernel_workbench.reports.comparison.speed import ComparedRow, compare_speeds
from kernel_workbench.reports.document.terminal import print_document
from tests import ROOT

_GALLERY = ROOT / "docs" / "gallery"
_RUNS = ("bench-h200-first", "bench-h200-again-1", "bench-h200-again-2")
_OTHER = "bench-h200-other-board"
_ALONE, _OF_TWO = "bench-h200-quick-alone", "bench-h200-quick-of-two"  # the machine's H200s
_PAIRS = tuple(itertools.combinations((*_RUNS, _OTHER), 2))


@pytest.fixture(scope="module")
def held() -> dict[tuple[str, str], tuple[ComparedRow, ...]]:
    """Each pair of the runs, by their names."""
    sides = {}
    for letter, name in zip("ABCD", (*_RUNS, _OTHER), strict=True):
        (sides[name],) = read_sides(_GALLERY / f"{name}.jsonl.gz")
        sides[name].letter = letter
    return {(one, other): compare_speeds(sides[one], sides[other]).rows for one, other in _PAIRS}


@pytest.mark.parametrize("pair", _PAIRS)
def test_runs_of_the_same_kernels_are_the_same(
    held: dict[tuple[str, str], tuple[ComparedRow, ...]], pair: tuple[str, str]
) -> None:
    """95 rows in a hundred and more; none is FASTER or SLOWER, the rest AMBIGUOUS."""
    verdicts = [each.judgement.verdict for each in held[pair]]
    assert len(verdicts) == 361
    assert verdicts.count(SpeedVerdict.SAME) >= 0.95 * len(verdicts)
    assert not {SpeedVerdict.FASTER, SpeedVerdict.SLOWER} & set(verdicts)


@pytest.mark.parametrize("width", [80, 100, 200])
def test_report_of_two_runs_fits_a_screen(width: int) -> None:
    """The verdict first and last, what can't be told between, and a line of what isn't there."""
    paths = (_GALLERY / f"{name}.jsonl.gz" for name in (_OF_TWO, _ALONE))
    document = compare([side for path in paths for side in read_sides(path)]).document
    console = Console(file=io.StringIO(), width=width)
    with console.capture() as captured:
        print_document(document, console)
    lines = captured.get().rstrip().splitlines()
    assert len(lines) <= 42
    assert lines[0].startswith(" SAME  2 records")
    assert lines[-1].startswith(" SAME  2 records")
    assert any(line.startswith("By --details: SAME") for line in lines)
    assert max(map(cell_len, lines)) <= width


def test_machines_whose_empty_calls_differ_are_the_same() -> None:
    """1.28 and 2.94 us: by as much as that calls differ, which are the same without it alone."""
    (alone,), (of_two,) = (read_sides(_GALLERY / f"{name}.jsonl.gz") for name in (_ALONE, _OF_TWO))
    assert alone.empty_call_us == pytest.approx(1.28, abs=0.005)
    assert of_two.empty_call_us == pytest.approx(2.944, abs=0.005)
    found = [each.judgement.verdict for each in compare_speeds(of_two, alone).rows]
    assert len(found) == 96
    assert found.count(SpeedVerdict.SAME) >= 0.95 * len(found)
    assert not {SpeedVerdict.FASTER, SpeedVerdict.SLOWER} & set(found)
    alone.header = alone.header.model_copy(update={"empty_call_us": of_two.empty_call_us})
    unmended = [each.judgement.verdict for each in compare_speeds(of_two, alone).rows]
    assert SpeedVerdict.FASTER in unmended
    alone.header = alone.header.model_copy(update={"empty_call_us": None})
    untold = [each.judgement.verdict for each in compare_speeds(of_two, alone).rows]
    assert not {SpeedVerdict.FASTER, SpeedVerdict.SLOWER} & set(untold)


def test_a_process_has_a_time_of_its_own(
    held: dict[tuple[str, str], tuple[ComparedRow, ...]],
) -> None:
    """Which is why one a side tells less: tight intervals miss one another by more than floors."""

    def missed(each: ComparedRow) -> bool:
        one, other = each.pair.base.evidence, each.pair.other.evidence
        assert one is not None and other is not None
        gap = max(one.time_us.low - other.time_us.high, other.time_us.low - one.time_us.high)
        floor = max(FLOOR_APART * one.time_us.centre, LAUNCH_APART_US * one.launches)
        return gap > floor

    numbers = [sum(map(missed, rows)) for pair, rows in held.items() if _OTHER not in pair]
    assert sum(numbers) == 13
