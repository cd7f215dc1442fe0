"""Reports of a run over several ops: names that two of them have, variants, memory, long ids."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from rich.cells import cell_len

from kernel_workbench.reports.junit import render_junit
from kernel_workbench.reports.phrases import memory
from kernel_workbench.reports.record import AccuracyRow, Record, read
from kernel_workbench.reports.report import part_of
from kernel_workbench.reports.views.accuracy import (
    NO_OPTION,
    headline,
    kernel_variants,
    variants_counted,
    workspaces,
)
from tests.builders.accuracy_records import (
    VARIANTS,
    attention_rows,
    example_row,
    example_rows,
    write_example,
)
from tests.builders.documents import markdown_of, rows_of, tables_of, terminal

OPS = ("layer_norm_backward", "attention_forward", "attention_backward")


def record_of(tmp_path: Path, rows: list[AccuracyRow]) -> Record:
    """Write `rows` and read them back."""
    path = tmp_path / "run.jsonl"
    path.unlink(missing_ok=True)
    return read(write_example(path, rows))


@pytest.fixture
def several(tmp_path: Path) -> Record:
    """Return a record of three ops, two of which have kernels of the same names."""
    return record_of(tmp_path, attention_rows() + example_rows())


@pytest.mark.parametrize("width", [80, 120, 200])
def test_terminal_report_of_long_ids_fits_its_width(several: Record, width: int) -> None:
    """Ids of nine sizes fold between their parts: no part is cut, and no line is too wide."""
    text = terminal(several, width)
    wide = [line for line in text.splitlines() if cell_len(line) > width]
    assert all(
        re.match(r" *(nox -s accuracy -- --only|record: | FAILED .* to look)", line)
        for line in wide
    )
    assert "…" not in text
    parts = {part for row in several.rows[:1] for part in row.case.id.split("-")}
    shown = set(re.split(r"[\s-]+", text))
    assert shown >= parts
    assert shown >= {
        "bias_over_heads",
        "bottom_right",
        "interleaved",
        "bf16_aligned_64x128_rf_sm80",
    }


def test_kernels_of_one_name_stand_under_their_ops(several: Record) -> None:
    """Each op's kernels have rows of their own in every table, under the op's name."""
    text = terminal(several)
    kernels = text[text.index("\nKernels,") : text.index("\nFailures:")]
    lines = [line.split()[0] for line in kernels.splitlines()[5:] if line.strip()]
    assert (
        lines[:8]
        == [
            *(OPS[0], "row_persistent", "two_pass_split"),
            *(OPS[1], "flash", "flash_wide"),
            *(OPS[2], "flash", "flash_wide"),
        ][:8]
    )
    margins = text[text.index("\nLargest error") : text.index("\nDeclared arithmetic")]
    assert [line for line in margins.splitlines() if line.strip() in OPS] != []
    assert margins.count("  flash ") == 4  # of two ops, by two bounds each
    failed = text[text.index("\nFailures:") :].splitlines()
    place = failed.index("attention_forward")
    assert failed[place + 1].split()[:3] == ["flash", "workspace", "-"]


def test_report_of_one_op_doesnt_repeat_it(tmp_path: Path) -> None:
    """A kernel's name says enough where no other op was tried."""
    text = terminal(record_of(tmp_path, example_rows()))
    kernels = text[text.index("\nKernels,") : text.index("\nFailures:")]
    assert OPS[0] not in kernels


def test_headline_counts_ops_and_variants(several: Record) -> None:
    """A case is one of its op; the variants are those of the kernels that list theirs."""
    assert headline(several).sentence == (
        "360 rows (3 ops, 6 kernels and 3 baselines, 120 cases): 325 passed, 13 failed, "
        "22 refused, in 2 min 31 s; cases took 24 of the 36 code variants that kernels list"
    )


def test_matrix_by_option_takes_a_case_under_each_of_its_options(several: Record) -> None:
    """A cell is refused only where every case of that option is, whatever else those have."""
    part, title = part_of(several), "error / bound by option"
    ops = [table.split(":")[0] for table in tables_of(part) if table.endswith(title)]
    assert sorted(ops) == sorted(OPS[1:])  # the cases of the third op have no option
    lines = {line["kernel"]: line for line in rows_of(part, f"attention_forward: {title}")}
    wide = lines["flash_wide"]
    options = [name for name in wide if name not in ("kernel", "dtype")]
    assert options == [NO_OPTION, *sorted(set(options) - {NO_OPTION})]
    assert {wide[option] for option in ("sink", "softcap", "dropout")} == {"refused"}
    assert all(float(wide[option]) < 1 for option in ("causal", NO_OPTION))
    assert lines["flash"][NO_OPTION] == "FAIL workspace"


def test_variants_that_no_case_took_are_told(several: Record) -> None:
    """Every variant of a kernel is among those that ran or those that didn't, in its own order."""
    for each in kernel_variants(several):
        assert (each.kernel, each.listed) == ("flash", VARIANTS)
        assert list(each.rows_of) == [name for name in VARIANTS if "rf" in name]
        assert each.untaken == tuple(name for name in VARIANTS if "gmem" in name)
        assert sum(map(len, each.rows_of.values())) == 36
        assert each.sentence == "12 of 18 taken"
    assert variants_counted(several) == "cases took 24 of the 36 code variants that kernels list"
    for text in (terminal(several, 80), markdown_of(several)):
        assert all(name in text for name in VARIANTS)
    (counts,) = (title for title in tables_of(part_of(several)) if title.startswith("Variants: "))
    failed = [line for line in rows_of(part_of(several), counts) if line["failed"] != "0"]
    assert [line["variant"] for line in failed] == [VARIANTS[0]]


def test_variant_that_its_kernel_doesnt_list_is_told(tmp_path: Path) -> None:
    """It counts for none of those that the kernel lists, and stands out."""
    rows = attention_rows()[:2]
    rows[1] = rows[1].model_copy(update={"variant": "f32_unheard_of"})
    record = record_of(tmp_path, rows)
    found = next(each for each in kernel_variants(record) if each.op == "attention_forward")
    assert found.unlisted == ("f32_unheard_of",)
    assert found.sentence == "1 of 18 taken, and 1 that it doesn't list"
    assert "f32_unheard_of (not listed)" in terminal(record)


def test_variants_of_a_kernel_that_ran_nothing_arent_counted(tmp_path: Path) -> None:
    """On a device that it doesn't run on, each of its variants would be one that no case took."""
    rows = [each for each in attention_rows() if each.kernel == "flash"]
    refused = {"status": "refused", "reason": "runs on cuda, got cpu", "variant": None}
    rows = [
        each.model_copy(update=refused) if each.case.op == "attention_backward" else each
        for each in rows
    ]
    record = record_of(tmp_path, rows)
    assert [each.op for each in kernel_variants(record)] == ["attention_forward"]
    assert variants_counted(record) == "cases took 12 of the 18 code variants that kernels list"


def test_variants_of_a_kernel_that_lists_none_are_shown(tmp_path: Path) -> None:
    """A peer whose variant is told by the case alone has no list to be held against."""
    row = example_row("torch_native").model_copy(update={"variant": "cutlassF_rf"})
    record = record_of(tmp_path, [row])
    (found,) = kernel_variants(record)
    assert (found.sentence, found.unlisted, found.untaken) == ("1 taken", (), ())
    assert variants_counted(record) == ""
    assert "cutlassF_rf" in terminal(record)
    assert "variants" not in headline(record).sentence


def test_memory_is_shown_at_its_largest_with_what_was_declared(several: Record) -> None:
    """Memory is shown for the kernels that declare it, once for each op."""
    found = {
        row.case.op: (row.kernel, row.workspace_bytes, row.declared_workspace_bytes)
        for row in workspaces(several)
    }
    assert found == {
        "attention_forward": ("flash", 2**20, 256),
        "attention_backward": ("flash", 140, 256),
    }
    assert "1.0 MiB" in terminal(several)
    assert "1.0 MiB" in markdown_of(several)
    figures = {
        0: "0 B",
        1023: "1,023 B",
        1024: "1.0 KiB",
        3 * 2**29: "1.5 GiB",
        2**50: "1,048,576.0 GiB",
    }
    assert {number: memory(number) for number in figures} == figures


def test_pass_of_which_nothing_is_promised_is_told(tmp_path: Path) -> None:
    """An infinite bound is no pass to be proud of; one element that is judged is enough."""
    for unjudged, told in ((35, True), (34, False)):
        row = example_row()
        output = row.outputs[0].model_copy(update={"elements": 35, "unjudged": unjudged})
        line = headline(record_of(tmp_path, [row.model_copy(update={"outputs": (output,)})]))
        assert any("nothing is promised" in note for note in line.notes) == told
        assert line.verdict == "PASSED"


def test_markdown_and_junit_tell_kernels_of_one_name_apart(several: Record) -> None:
    """In Markdown the op stands beside the name, in JUnit in the suite's."""
    markdown = markdown_of(several)
    assert "| attention_forward | flash |" in markdown
    assert "| attention_backward | flash |" in markdown
    suites = [each.get("name") for each in ET.fromstring(render_junit(several))]
    assert suites.count("attention_forward.flash") == suites.count("attention_backward.flash") == 1
    for section in re.findall(r"(?:^\|.*\n)+", markdown, re.MULTILINE):
        assert len({line.count("|") for line in section.splitlines()}) == 1
