"""The plainest failing case, and what failing cases share that passing ones lack."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from kernel_workbench.reports.record import AccuracyRow, CaseInfo, read
from kernel_workbench.reports.report import print_report
from kernel_workbench.reports.views.accuracy import failures
from kernel_workbench.reports.views.failing_cases import plainness, shared_facts
from tests.builders.accuracy_records import example_row, write_example


def _case(m: int = 1, n: int = 64, **changes: object) -> CaseInfo:
    plain = example_row(m=m).case
    return plain.model_copy(update={"sizes": {"m": m, "n": n}, **changes})


@pytest.mark.parametrize(
    ("failing", "passing", "needs"),
    [
        ([_case(options=("residual",)), _case(4, options=("residual",))], [_case()], ("residual",)),
        ([_case(dtype="float16"), _case(4, dtype="float16")], [_case(), _case(4)], ("float16",)),
        ([_case(layout="rowpad"), _case(2, layout="offset1")], [_case()], ("a layout that",)),
        ([_case(n=65), _case(n=1000)], [_case(n=64), _case(n=1)], ("n of 65 or more",)),
        ([_case(n=3), _case(n=97)], [_case(n=2), _case(n=96), _case(n=128)], ("n no multiple",)),
        (
            [_case(m, dtype="float16", options=("residual",)) for m in (1, 4)],
            [_case(dtype="float16"), _case(options=("residual",))],
            ("residual", "float16"),
        ),
        # Zeros hide what is lost, of many columns too.
        (
            [_case(m, 4099) for m in (3, 12)],
            [_case(1, 8193, distribution="zeros"), _case(1), _case(12)],
            ("n of 4,099",),
        ),
        (
            [_case(options=("cap=60",)), _case(4, options=("cap=60",))],
            [_case(9, distribution="zeros", options=("cap=60",)), _case(), _case(9)],
            ("cap=60",),
        ),
        ([_case(), _case(4)], [_case()], ()),
        ([_case(), _case(4)], [], ()),
        ([_case(4, dtype="float16")], [_case()], ()),
    ],
)
def test_shared_facts_are_the_fewest_that_no_passing_case_has(
    failing: list[CaseInfo], passing: list[CaseInfo], needs: tuple[str, ...]
) -> None:
    """One fact where one is enough; none where a passing case has it, or one case alone fails."""
    found = shared_facts(failing, passing)
    assert len(found) == len(needs)
    assert all(fact.startswith(start) for fact, start in zip(found, needs, strict=True))


def test_plainest_case_has_fewest_options_then_ordinary_values_then_small_sizes() -> None:
    """An empty case is none of the plainest: it is an edge."""
    in_order = [
        _case(1, 1),
        _case(2, 1),
        _case(1, 1, dtype="float16"),
        _case(0, 8),
        _case(1, 1, layout="rowpad"),
        _case(1, 1, distribution="cancelling"),
        _case(1, 1, options=("residual",)),
    ]
    in_disorder = [*in_order[3:], *in_order[:3]]
    assert sorted(in_disorder, key=plainness) == in_order


def _of_output(row: AccuracyRow, output: str, ratio: float) -> AccuracyRow:
    error = row.outputs[0].model_copy(update={"output": output, "worst_deterministic": ratio})
    return row.model_copy(update={"outputs": (error,)})


def test_defect_of_one_output_does_not_hide_that_of_another(tmp_path: Path) -> None:
    """Each output and rule has its plainest case, whatever fails by more."""
    failed = [example_row(m=m, ratio=2.0, rule="deterministic bound") for m in (9, 3, 5, 4)]
    outputs = [("dx", 900.0), ("dx", 2.0), ("dbias", 5.0), ("dbias", 7.0)]
    rows = [_of_output(row, *output) for row, output in zip(failed, outputs, strict=True)]
    record = read(write_example(tmp_path / "run.jsonl", [*rows, example_row(m=1)]))
    plainest = {each.output: each.rows[0].case.sizes["m"] for each in failures(record)}
    assert plainest == {"dx": 3, "dbias": 4}
    assert {each.output: each.largest for each in failures(record)} == {"dx": 900.0, "dbias": 7.0}
    for width in (80, 200):
        file = io.StringIO()
        print_report(record, Console(file=file, width=width))
        shown = " ".join(file.getvalue().split())
        assert shown.count("all need: m of ") == 2
        assert all(rows[place].reproduce in shown for place in (1, 3))
