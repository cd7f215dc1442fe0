"""A report as one HTML page: closed to the network, escaped, sortable, in a real browser too."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel_workbench.reports.__main__ import main
from kernel_workbench.reports.document.html import render_html
from kernel_workbench.reports.document.model import (
    Cell,
    Column,
    Document,
    Figure,
    ReportPart,
    Table,
    trend_heights,
)
from kernel_workbench.reports.document.svg import drawn, label, standing_alone
from kernel_workbench.reports.record import BenchRow, Roof
from tests.builders.accuracy_records import attention_rows, example_rows, write_example
from tests.builders.bench_records import (
    bench_row,
    bench_rows,
    example_bench_header,
    many_bench_rows,
    norm_case,
    write_bench,
)
from tests.builders.browser import NAMES, Tab, browser
from tests.builders.compiled_records import record_of as compiled
from tests.builders.compiled_records import row as compiled_row
from tests.builders.pages import checked
from tests.builders.profile_records import profile_rows, write_profile

HOSTILE = (
    "[red]k[/red] $x^2 _y <script>alert(1)</script><img src=x onerror=alert(2)> \x1b[31m\n\u202e"
)


def example(path: Path, suite: str) -> Path:
    """Write an example record of the suite."""
    if suite == "bench":
        return write_bench(path, bench_rows())
    if suite == "profile":
        return write_profile(path, profile_rows())
    return write_example(path, [*example_rows(), *attention_rows()])


def hostile_row(text: str = HOSTILE) -> BenchRow:
    """Return a timed row, every text of which is `text`."""
    row = bench_row("row_persistent_aligned", norm_case(8, 64), 10.0, weight=2.0)
    case = row.case.model_copy(update=dict.fromkeys(("id", "op", "dtype", "layout"), text))
    return row.model_copy(
        update={"case": case, **dict.fromkeys(("op", "kernel", "reason", "reproduce"), text)}
    )


@pytest.mark.parametrize("suite", ["accuracy", "bench", "profile"])
def test_page_of_each_suite_is_whole_and_closed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], suite: str
) -> None:
    """Elements end, ids differ, tables have heads, nothing loads: checked without a browser."""
    record, page = example(tmp_path / "run.jsonl", suite), tmp_path / "page.html"
    assert main([str(record), "--html", str(page)]) == 0
    read = checked(page.read_text())
    assert read.tables
    assert "FAILED" in read.texts
    assert f"wrote {page}, " in capsys.readouterr().err


def test_page_of_compiled_code_is_whole_and_closed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The suite compile has a page too."""
    record = compiled(tmp_path / "run.jsonl", [compiled_row(), compiled_row(sm=100)])
    page = tmp_path / "page.html"
    assert main([str(record.path), "--html", str(page)]) == 0
    assert checked(page.read_text()).tables
    capsys.readouterr()


def test_page_holds_several_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Parts follow one another, the same record twice too, and their pictures' ids differ."""
    paths = [
        str(example(tmp_path / f"{number}.jsonl", suite))
        for number, suite in enumerate(("accuracy", "bench", "bench", "profile"))
    ]
    page = tmp_path / "page.html"
    assert main([*paths, "--html", str(page)]) == 0
    text = page.read_text()
    checked(text)
    assert text.count("<section id=") == 4
    assert all(f'<a href="#part{number}">' in text for number in range(4))
    capsys.readouterr()


def test_page_obeys_no_text_of_a_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tags, markup and escapes in every name are shown, and run nowhere."""
    rows = [hostile_row(), hostile_row("_" + "A" * 100_000)]
    header = example_bench_header(len(rows))
    roof = Roof(name=HOSTILE, value=math.inf, unit="GB/s", measured=True, source=HOSTILE)
    machine = header.environment.model_copy(update={"device_name": HOSTILE})
    header = header.model_copy(
        update={"roofs": (*header.roofs, roof), "environment": machine, "command": HOSTILE}
    )
    record = write_bench(tmp_path / "run.jsonl", rows, header=header, problems=[HOSTILE])
    page = tmp_path / "page.html"
    assert main([str(record), "--html", str(page)]) == 0
    text = page.read_text()
    read = checked(text)
    assert len(read.blocks["script"]) == 1
    assert not {"\x1b", "\u202e"} & set(text)
    assert len(text) < 200_000
    assert any("more characters)" in each for each in read.texts)
    capsys.readouterr()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0, -1.0, 1e308, 1e-320])
def test_page_draws_figures_that_are_no_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], value: float
) -> None:
    """A record may hold any number; none breaks a table or a picture."""
    fields = (
        *("median_us", "low_us", "high_us", "clock_mhz", "tflops", "gb_s", "share_of_peak"),
        *("share_of_ceiling", "share_of_clocked_peak", "host_us", "first_call_s", "weight"),
    )
    row = bench_row("row_persistent_aligned", norm_case(8, 64), 10.0)
    rows = [row.model_copy(update={name: value}) for name in fields]
    rows.append(row.model_copy(update=dict.fromkeys(fields, value)))
    record = write_bench(tmp_path / "run.jsonl", rows)
    measured = profile_rows()[0]
    names = (
        *("energy_j", "energy_error_j", "power_w", "power_limit_w", "device_us", "tflops_per_w"),
        "weight",
    )
    other = write_profile(
        tmp_path / "power.jsonl",
        [measured.model_copy(update=dict.fromkeys(names, value))],
    )
    page = tmp_path / "page.html"
    assert main([str(record), str(other), "--html", str(page)]) == 0
    checked(page.read_text())
    capsys.readouterr()


def test_picture_takes_names_as_they_are() -> None:
    """No name is mathematics or left out of a legend, and none leaves its element."""
    names = ("_hidden", "$x^2", "a < b & c", "\u4e2d")

    def draw(figure: object) -> None:
        axes = figure.subplots()  # type: ignore[attr-defined]
        for number, name in enumerate(names):
            axes.plot((0, 1), (number, number), label=label(name))
        axes.legend()

    svg = drawn(draw, "x-", "names", inches=(4, 3))
    for name in ("_hidden", "$x^2", "a &lt; b &amp; c", "\u4e2d"):
        assert name in svg
    assert "style=" not in svg
    assert "<style" not in svg
    assert standing_alone(svg).startswith("<?xml")


def sorting_page(path: Path, rows: int) -> Path:
    """Write a page with one table, whose numbers have no order, and one number missing."""
    numbers = [(37 * number) % 1009 for number in range(rows)]
    cells = [[Cell(f"case-m{each}"), Cell(f"{each:,} us", float(each))] for each in numbers]
    cells[1][1] = Cell("-")
    columns = (Column("case"), Column("us", "number"))
    figure = Figure("nothing", lambda prefix: f'<svg id="{prefix}a" role="img"></svg>')
    part = ReportPart("one", "TIMED", "good", "all", items=(Table("Rows", columns, cells), figure))
    path.write_text(render_html(Document("Sorting", (part,))))
    return path


@pytest.fixture
def tab(tmp_path: Path) -> Iterator[Tab]:
    """A tab of a headless browser; without a browser, a reason to skip."""
    program = browser()
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is on the PATH, CHROMIUM isn't set")
    with Tab(program, tmp_path / "profile") as opened:
        yield opened


def column(tab: Tab, number: int) -> list[str]:
    """The texts of a column of the rows that are shown."""
    rows = "[...document.querySelectorAll('tbody:not([hidden]) tr')]"
    cells = tab.value(f"{rows}.map(row => row.cells[{number}].textContent)")
    return [str(each) for each in cells]


def test_page_sorts_in_a_browser(tmp_path: Path, tab: Tab) -> None:
    """A click sorts figures down, another up; what is missing stays last; the order is told."""
    tab.open(sorting_page(tmp_path / "page.html", 30))
    click = "document.querySelectorAll('th button')[1].click()"
    tab.value(click)
    up = [(37 * number) % 1009 for number in range(30) if number != 1]
    assert column(tab, 1) == [*(f"{each:,} us" for each in sorted(up, reverse=True)), "-"]
    order = "[...document.querySelectorAll('th')].map(head => head.getAttribute('aria-sort'))"
    assert tab.value(order) == [None, "descending"]
    tab.value(click)
    assert column(tab, 1) == [*(f"{each:,} us" for each in sorted(up)), "-"]
    assert tab.value(order) == [None, "ascending"]
    tab.value("document.querySelectorAll('th button')[0].click()")
    # As numbers: case-m37 before case-m111.
    assert column(tab, 0) == [f"case-m{each}" for each in sorted([*up, 37])]
    assert tab.complaints() == []


def test_page_sorts_by_the_keyboard(tmp_path: Path, tab: Tab) -> None:
    """The first head is reached by Tab from the one before, and Enter sorts."""
    tab.open(sorting_page(tmp_path / "page.html", 5))
    tab.value("document.querySelectorAll('th button')[0].focus()")
    for key, code in (("Tab", 9), ("Enter", 13)):
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            tab.call(
                "Input.dispatchKeyEvent",
                type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text,
            )  # fmt: skip
    assert column(tab, 1) == ["148 us", "111 us", "74 us", "0 us", "-"]


def test_page_searches_and_shows_more_in_a_browser(tmp_path: Path, tab: Tab) -> None:
    """A long table shows its first rows, sorts all of them, finds any, and shows all if asked."""
    tab.open(sorting_page(tmp_path / "page.html", 1000))
    assert len(column(tab, 1)) == 300
    tab.value("document.querySelectorAll('th button')[1].click()")
    numbers = [(37 * number) % 1009 for number in range(1000) if number != 1]
    numbers.sort(reverse=True)
    assert column(tab, 1) == [f"{each:,} us" for each in numbers[:300]]
    search = (
        "field = document.querySelector('input'); field.value = 'm1008';"
        "field.dispatchEvent(new Event('input'))"
    )
    found = [each for each in numbers if f"m{each}".startswith("m1008")]
    tab.value(search)
    assert column(tab, 0) == [f"case-m{each}" for each in found]
    tab.value(search.replace("m1008", ""))
    tab.value("document.querySelector('.search button').click()")
    assert len(column(tab, 1)) == 1000


@pytest.mark.parametrize("suite", ["accuracy", "bench", "profile"])
def test_page_opens_without_an_error_or_a_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tab: Tab, suite: str
) -> None:
    """Nothing is asked of a network, nothing on the console, and tables sort in the real page."""
    record, page = example(tmp_path / "run.jsonl", suite), tmp_path / "page.html"
    assert main([str(record), "--html", str(page)]) == 0
    tab.open(page)
    tab.value("document.querySelectorAll('th button').forEach(button => button.click())")
    # A phone's width: tables scroll in their own frames, and the page doesn't.
    tab.picture(tmp_path / "phone.png", 400, 800, dark=True)
    assert tab.value("document.documentElement.scrollWidth") == 400
    assert tab.requests() == [page.as_uri()]
    assert tab.complaints() == []
    capsys.readouterr()


def test_page_on_a_phone_has_a_card_for_each_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tab: Tab
) -> None:
    """A cell says its column there; a command can be copied; a link opens what is folded."""
    page = tmp_path / "page.html"
    record = example(tmp_path / "run.jsonl", "accuracy")
    assert main([str(record), "--html", str(page)]) == 0
    tab.open(page)
    cell = "document.querySelector('tbody td')"
    shown = f"getComputedStyle({cell}, '::before').content"
    assert tab.value(shown) == "none"
    tab.picture(tmp_path / "phone.png", 420, 800)
    assert tab.value(shown) == '"op"'
    assert tab.value(f"getComputedStyle({cell}.parentNode).display") == "block"
    assert tab.value("document.querySelector('td code').nextSibling.textContent") == "copy"
    folded = "document.querySelector('section details[id]:not([open])')"
    name = tab.value(f"{folded}.id")
    tab.value(f"document.querySelector('nav a[href=\"#{name}\"]').click()")
    assert tab.value(
        f"new Promise(done => setTimeout(() => done(1), 0)) && {folded}.id != '{name}'"
    )
    capsys.readouterr()


def test_picture_on_a_phone_scrolls_in_its_frame(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tab: Tab
) -> None:
    """It is wider than its frame, which scrolls to its end, and the page doesn't scroll."""
    page = tmp_path / "page.html"
    assert main([str(example(tmp_path / "run.jsonl", "bench")), "--html", str(page)]) == 0
    tab.open(page)
    tab.picture(tmp_path / "phone.png", 420, 800)
    frame = "document.querySelector('.picture')"
    width, inside = (tab.value(f"{frame}.{name}") for name in ("clientWidth", "scrollWidth"))
    assert inside > width
    assert tab.value(f"({frame}.scrollLeft = 9999, {frame}.scrollLeft)") == inside - width
    assert tab.value("document.documentElement.scrollWidth") == 420
    capsys.readouterr()


def test_page_makes_a_closed_table_ready_when_it_is_opened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tab: Tab
) -> None:
    """Every row of a record would keep a browser busy for seconds before it shows anything."""
    page = tmp_path / "page.html"
    assert main([str(example(tmp_path / "run.jsonl", "accuracy")), "--html", str(page)]) == 0
    tab.open(page)
    fold = "[...document.querySelectorAll('section details:has(table)')].at(-1)"
    heads = f"{fold}.querySelectorAll('th button').length"
    assert tab.value(f"{fold}.querySelector('h3').textContent").startswith("Every row")
    assert (tab.value(f"{fold}.open"), tab.value(heads)) == (False, 0)
    tab.value(f"new Promise(done => {{ {fold}.open = true; setTimeout(() => done(1), 100) }})")
    assert tab.value(heads) > 5
    capsys.readouterr()


def test_page_opens_its_first_table_where_none_is_of_the_summary() -> None:
    """A history without a change has its series alone, and they are not behind a click."""
    tables = [Table("Series", [Column("case")], [[Cell(name)]], level="details") for name in "ab"]
    page = render_html(Document("", [ReportPart("", "STEADY", "good", "", items=tables)]))
    assert page.count("<details id=") == 2
    assert page.count(" open><summary><h3>") == 1


def test_line_over_time_that_hardly_moves_is_level() -> None:
    """By a tenth of the highest value or more it reaches from bottom to top."""
    assert trend_heights([100.0, None, 200.0, math.nan]) == [0.0, None, 1.0, None]
    level = [height for height in trend_heights([1000.0, 1001.0]) if height is not None]
    assert max(level) - min(level) < 0.02
    assert trend_heights([0.0, 0.0]) == [0.5, 0.5]
    assert trend_heights([math.inf]) == [None]


def test_page_of_hostile_records_runs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tab: Tab
) -> None:
    """Names that would be tags or scripts are texts in a browser too."""
    page = tmp_path / "page.html"
    record = write_bench(tmp_path / "run.jsonl", [hostile_row()], problems=[HOSTILE])
    assert main([str(record), "--html", str(page)]) == 0
    tab.open(page)
    assert tab.value("document.querySelectorAll('img').length") == 0
    assert tab.value("document.querySelectorAll('script').length") == 1
    assert tab.requests() == [page.as_uri()]
    assert tab.complaints() == []
    capsys.readouterr()


def test_page_policy_stops_what_slips_in(tmp_path: Path, tab: Tab) -> None:
    """Were a tag to slip in, the policy would refuse to run or load it: the browser says so."""
    page = sorting_page(tmp_path / "page.html", 3)
    slipped = '<script>window.ran = 1</script><img src="https://example.invalid/x.png"></main>'
    page.write_text(page.read_text().replace("</main>", slipped))
    tab.open(page)
    assert tab.value("window.ran") is None
    refused = " ".join(str(each) for each in tab.complaints())
    assert refused.count("Content Security Policy") >= 2


def test_page_of_5000_rows_opens_and_sorts_in_a_browser(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tab: Tab
) -> None:
    """All rows are there to be sorted, though a browser lays out the first of them only."""
    page = tmp_path / "page.html"
    record = write_bench(tmp_path / "run.jsonl", many_bench_rows(5000, samples=2))
    assert main([str(record), "--html", str(page)]) == 0
    tab.open(page)
    assert tab.value("document.querySelector('table.searched').rows.length") == 5001
    tab.value("document.querySelectorAll('table.searched th button')[2].click()")
    cells = "[...document.querySelectorAll('table.searched tbody td:nth-child(3)')]"
    times = tab.value(f"{cells}.map(cell => parseFloat(cell.dataset.v))")
    assert times == sorted(times, reverse=True)
    assert len(times) == 5000
    capsys.readouterr()
