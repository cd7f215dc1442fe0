"""Corrupted records: each is refused in a sentence, or shown as what it says, and nothing acts.

Twenty forms of a record of each suite, through every form of the report. Nothing may raise; no
control character may reach a terminal or a file; what is markup in a name stays text.
"""

from __future__ import annotations

import html.parser
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from kernel_workbench.reports.__main__ import main
from kernel_workbench.reports.comparison.__main__ import main as compare
from kernel_workbench.reports.record import reader
from tests.builders import compiled_records
from tests.builders.accuracy_records import attention_rows, example_rows, write_example
from tests.builders.bench_records import bench_rows, write_bench
from tests.builders.corrupt_records import variants
from tests.builders.profile_records import profile_rows, write_profile

pytestmark = pytest.mark.long_run

_OF_A_SUITE = 20  # each way to corrupt one, four times
_CODE = re.compile(r"(`+).*?\1", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def _accuracy(path: Path) -> Path:
    return write_example(path, [*example_rows()[::9], *attention_rows()[::30]])


def _compile(path: Path) -> Path:
    rows = [compiled_records.row(), compiled_records.row(sm=80)]
    return compiled_records.record_of(path, rows, [compiled_records.prediction()]).path


def _bench(path: Path) -> Path:
    return write_bench(path, bench_rows()[::4])


def _profile(path: Path) -> Path:
    return write_profile(path, profile_rows()[:4])


_SUITES: dict[str, Callable[[Path], Path]] = {
    "accuracy": _accuracy,
    "compile": _compile,
    "bench": _bench,
    "profile": _profile,
}


@dataclass(frozen=True, slots=True)
class Form:
    """One way to call a program on a damaged record, and perhaps on the whole one beside it.

    files: what it writes, each named by its option.
    """

    program: Callable[[Sequence[str]], int]
    options: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    beside: bool = False

    def call(self, file: Path, folder: Path, whole: Path) -> int:
        """Its exit status; it must not raise."""
        written = [f"--{each.partition('.')[0]}={folder / each}" for each in self.files]
        records = [str(whole), str(file)] if self.beside else [str(file)]
        return self.program([*records, *self.options, *written])


_FORMS = {
    "terminal": Form(main, ("--width=80",), ("svg.svg", "markdown.md")),
    "page": Form(main, ("--width=200",), ("html.html",)),
    "comparison": Form(compare, ("--width=80",), ("markdown.md", "html.html"), beside=True),
}


class _Tags(html.parser.HTMLParser):
    """The parts of a page that would act: its elements, and their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.scripts += tag == "script"
        self.attributes += [(name, value or "") for name, value in attrs]


def _assert_inert(text: str, what: str) -> None:
    """Nothing in a page or picture but what the program put there acts or loads."""
    tags = _Tags()
    tags.feed(text)
    assert tags.scripts <= 1, what
    assert not tags.tags & {"img", "iframe", "object", "embed", "base", "form"}, what
    for name, value in tags.attributes:
        assert not name.startswith("on"), what
        if name in {"href", "src", "xlink:href", "action"}:
            assert not value.strip().lower().startswith(("javascript:", "http:", "//")), what


def _assert_plain(text: str, what: str) -> None:
    found = _CONTROL.search(text)
    assert found is None, f"{what} has {found.group()!r} in {text[: found.end() + 40]!r}"


def _assert_right(status: int, shown: tuple[str, str], folder: Path, what: str) -> None:
    out, err = shown
    _assert_plain(out, f"stdout of {what}")
    _assert_plain(err, f"stderr of {what}")
    assert "Traceback" not in out + err, what
    assert status in {0, 1, 2}, what
    written = {each.suffix: each.read_text(encoding="utf-8") for each in folder.iterdir()}
    problems = [line for line in err.splitlines() if not line.startswith("wrote ")]
    if status == 2:
        (line,) = problems
        assert len(line) < 700, what
        assert out == "", what
    else:
        assert out.strip(), what
        assert len(problems) == status, what
    for suffix, text in written.items():
        _assert_plain(text.replace("\t", " "), f"{suffix} of {what}")
        # Text in backticks is literal in Markdown.
        acting = _CODE.sub("", text) if suffix == ".md" else text
        assert "<script>alert" not in acting, what
        if suffix in {".html", ".svg"}:
            _assert_inert(text, f"{suffix} of {what}")
        if suffix == ".svg":
            ET.fromstring(text)


@pytest.mark.parametrize("form", _FORMS)
@pytest.mark.parametrize("suite", _SUITES)
def test_corrupted_record_is_refused_or_shown(
    suite: str, form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Some of each suite's twenty forms still read, and the rest are refused."""
    whole = _SUITES[suite](tmp_path / "whole.jsonl")
    data = whole.read_bytes()
    statuses = []
    for name, damaged in variants(data, _OF_A_SUITE, seed=7):
        folder = tmp_path / name
        folder.mkdir()
        file = tmp_path / f"{name}.jsonl"
        file.write_bytes(damaged)
        status = _FORMS[form].call(file, folder, whole)
        _assert_right(status, capsys.readouterr(), folder, f"{form} of {suite} {name}")
        statuses.append(status)
    refused = statuses.count(2)
    assert refused >= 3 and len(statuses) - refused >= 3


def test_device_that_never_ends_is_no_record(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is read as far as a record could be long, and no further."""
    monkeypatch.setattr(reader, "_MOST_BYTES", 2**20)
    assert main(["/dev/zero"]) == 2
    said = "/dev/zero: larger than 1 MiB, so it is no record; name another file\n"
    assert capsys.readouterr().err == said
