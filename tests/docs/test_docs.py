"""The checkout does what README and docs/ show: commands, files, options and links.

Each command is run, from a user's folder, on a case or two; those that need a GPU, a network or
minutes are listed with the reason, and their options are held to what the session takes.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from kernel_workbench.kernels import registry
from kernel_workbench.kernels.registry import all_kernels, load_file
from kernel_workbench.reports.record import Row, RunEnd, RunHeader
from kernel_workbench.reports.record.row_field import fields_of, unit_of
from kernel_workbench.suites.run.options import check
from studies import any_op
from tests import ROOT
from tests.builders.commands import Running
from tests.docs import option_reference, record_reference, speed_picture

pytestmark = pytest.mark.long_run

_HOW_TO = ROOT / "docs" / "how-to"
_PAGES = (ROOT / "README.md", ROOT / "docs" / "first-hour.md", *sorted(_HOW_TO.glob("*.md")))
_COMMAND = re.compile(
    r"^ +(?:- )?(?:run: )?((?:PIP_\S+ )?(?:python3|\S*\bnox|\S+/python) -.*?)(?: \\)?$"
    r"|^\|.*\| `(nox .*)` \|$",
    re.MULTILINE,
)
_INLINE = re.compile(r"`(nox -s \w+ --\s[^`]+)`")
_SMALL = "--device cpu --case layer_norm_backward-m3-n229-bfloat16-contiguous --results=out"
_DELTA = "--device cpu --case attention_delta-b1-h_q1-s_q0-d_v64-float32-contiguous --results=out"
_FLASH = (
    "--device cpu --case attention_forward-b1-h_q1-h_kv1-s_q3-s_kv2-d64-d_v64-float16-contiguous"
)
_WIDE = "layer_norm_backward-m2-n65536-bfloat16-contiguous"
_OF_CI = "nox -f kernel-workbench/noxfile.py -s"
_GALLERY = "docs/gallery/published-{}.jsonl"

# Commands that run, with options that keep each short or name its input from an earlier step.
_RUN = {
    "nox -s accuracy -- --device cpu --kernels=mine.py": _SMALL,
    "nox -s accuracy -- --kernel flash": f"{_FLASH} --results=out",
    "nox -s accuracy -- --device cpu --op attention_delta --dtype float32": _DELTA,
    "nox -f ../kernel-workbench/noxfile.py -s accuracy -- --kernels=mine.py": _SMALL,
    f"{_OF_CI} accuracy -- --kernels=kernels/mine.py --results=results": _SMALL,
    "nox -s accuracy -- --cases=shapes.jsonl --kernel row_persistent": "--device cpu --results=out",
    "nox -s report -- --details": "--results=results",
    "nox -s report -- --html page.html": "--results=results",
    "nox -s report -- --roofline roofline.svg --baseline flash": "bench-h200.jsonl.gz",
    f"{_OF_CI} report -- --results=results --html page.html --junit junit.xml": "",
    "nox -s compare -- docs/gallery/shapes-h200.jsonl.gz docs/gallery/shapes-h100.jsonl.gz": "",
    "nox -s compare -- docs/gallery/shapes-h200.jsonl.gz docs/gallery/shapes-h100.jsonl.gz "
    + " ".join(map(_GALLERY.format, ("a100", "b200"))): "",
    "nox -s compare -- A.jsonl B.jsonl": "",
    "nox -s history -- docs/gallery": "",
}
_FAILS = f"nox -s accuracy -- --device cpu --kernels=mine.py --case {_WIDE}"  # by the fixture
_NETWORK = "it installs packages"
_GPU = "it needs a GPU"
_CLUSTER = "it needs a cluster; tests/suites/fleet has small ones"
_MINUTES = "it takes minutes; tests/suites/search runs shorter ones"
_NOT_RUN = {
    "python3 -m venv .venv && .venv/bin/pip install -q nox && .venv/bin/nox -s accuracy": _NETWORK,
    "python3 -m venv .venv && .venv/bin/pip install -q nox": _NETWORK,
    "PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu .venv/bin/nox -s accuracy -- "
    "--op attention_delta": _NETWORK,
    ".venv/bin/nox -s tests": "this is one of them",
    "nox --no-venv --no-install -s accuracy -- --op attention_delta": "all run so here",
    "nox -f ../kernel-workbench/noxfile.py --no-venv -s accuracy -- --kernels=mine.py": "likewise",
    "nox -s accuracy -- --definition rmsnorm_h64.json --workloads rmsnorm_h64.jsonl "
    "--kernels=mine.py": "tests/suites/accuracy/test_own_ops.py does",
    "nox -s accuracy -- --device cpu --problem level1/23_Softmax.py "
    "--kernels=mine.py": "tests/suites/accuracy/test_any_ops.py has a problem of its own",
    "nox -s versions -- --triton 3.6,3.7.1,3.8,3.9 --kernels=mine.py --sm 90": _NETWORK,
    "nox -s search -- --kernels=mine.py": _MINUTES,
    "nox -s search -- --kernels=mine.py --resume=FOUND.jsonl": _MINUTES,
    "nox -s accuracy -- --kernels=mine.py --cases=FOUND.jsonl": "tests/suites/search does",
    "nox -s bench -- --kernels=mine.py": _GPU,
    "nox -s bench -- --kernels=mine.py --quick": _GPU,
    "nox -s bench -- --kernel flash": _GPU,
    "nox -s bench -- --kernel flash --ncu": _GPU,
    "nox -s bench -- --against main": _GPU,
    "nox -s bench -- --kernels=new.py --against old.py": _GPU,
    "nox -s bench -- --cases=docs/gallery/published-cases.jsonl": _GPU,
    "nox -s profile -- --kernels=mine.py": _GPU,
    "nox -s profile -- --kernel flash": _GPU,
    'nox -s sanitize -- --kernel flash -k "s_q129 and float16"': _GPU,
    ".nox/environment/bin/python -m studies.timing_agreement": _GPU,
    ".nox/environment/bin/python -m studies.power_check": _GPU,
    "nox -s fleet -- --on H200 --on A100 -- bench": _CLUSTER,
    "nox -s fleet -- --on H200 --on A100 -- bench --kernels=mine.py": _CLUSTER,
    "nox -s fleet -- --engine slurm --on h200 --on a100 -- bench --kernels=mine.py": _CLUSTER,
    "nox -s fleet -- --on H200 --on A100 --resume=results/fleet-... -- bench "
    "--kernels=mine.py": _CLUSTER,
    "nox -s accuracy -- --kernel flash --every-configuration": "minutes; "
    "tests/suites/accuracy/test_every_configuration.py runs some",
    "nox -s compile -- --check-driver": _GPU,
    "nox -s compile -- --kernel flash": "minutes; test_compile.py runs some",
    "nox -s compile -- --kernels=mine.py --sm 80 --sm 90": "minutes, likewise",
    "nox -s compile -- --kernels=mine.py --cases=calls.jsonl --sm 90": "minutes, likewise",
}


def _shown() -> set[str]:
    """Read the commands of all pages that stand on a line of their own, or in a table's cell.

    A command that goes on behind a backslash is read as far as that.
    """
    found = (_COMMAND.findall(page.read_text(encoding="utf-8")) for page in _PAGES)
    return {line or cell for each in found for line, cell in each}


def _block(page: Path, language: str, holds: str = "") -> str:
    """The page's first fenced block of that language that holds those words."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    return next(str(each) for each in blocks if holds in each)


def _ran(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the command as a shell in `folder` would, with this Python's nox and packages."""
    nox = [sys.executable, "-m", "nox", "--no-venv"]
    if " -f " not in command:
        nox += ["-f", str(ROOT / "noxfile.py")]
    typed = re.sub("^nox(?: --no-venv)? ", "", command)
    for_a_shell = ["/bin/sh", "-c", f"{shlex.join(nox)} {typed}"]
    words = for_a_shell if ">" in typed else [*nox, *shlex.split(typed)]
    variables = os.environ | {"GITHUB_STEP_SUMMARY": str(folder / "summary.md")}
    return Running(*words, folder=folder, variables=variables).ended()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder, the workbench in it and beside it, with what the pages tell to put there.

    results/ has the record of README's wrong kernel.
    """
    beside = tmp_path_factory.mktemp("user")
    folder = beside / "repository"
    (folder / "kernels").mkdir(parents=True)
    for each in (beside, folder):
        (each / "kernel-workbench").symlink_to(ROOT)
    (folder / "docs").symlink_to(ROOT / "docs")
    (folder / "bench-h200.jsonl.gz").symlink_to(ROOT / "docs" / "gallery" / "bench-h200.jsonl.gz")
    for name, model in (("A", "a100"), ("B", "h100")):
        (folder / f"{name}.jsonl").symlink_to(ROOT / _GALLERY.format(model))
    (folder / "shapes.jsonl").write_text(_block(_HOW_TO / "own-shapes.md", "json"))
    right = _block(ROOT / "README.md", "python")
    (folder / "mine.py").write_text(
        right.replace("rstd[:, None])).s", "rstd[:, None]).to(x.dtype)).s")
    )
    done = _ran(f"{_FAILS} --results=results", folder)
    assert done.returncode == 1, done.stdout + done.stderr
    for words in ("3.06e+03 times the bound 1.21e-06", "dweight[12952]: got 0.00390625"):
        assert words in " ".join(done.stdout.split())
    for file in ("mine.py", "kernels/mine.py"):
        (folder / file).write_text(right)
    return folder


def test_commands_shown_are_run_or_listed() -> None:
    """Every command of the pages is one that is run here, or has its reason; and none is stale."""
    assert _shown() == {*_RUN, *_NOT_RUN, _FAILS}


@pytest.mark.parametrize("command", _RUN)
def test_command_shown_does_what_it_says(folder: Path, command: str) -> None:
    """It ends with 0, in a folder of a user's."""
    done = _ran(f"{command} {_RUN[command]}", folder)
    assert done.returncode == 0, done.stdout + done.stderr


def _options_of(command: str) -> tuple[str, list[str]]:
    words = shlex.split(" ".join(command.split()))
    return words[words.index("-s") + 1], words[words.index("--") + 1 :]


@pytest.mark.parametrize("command", [each for each in _NOT_RUN if each.startswith("nox ")])
def test_options_of_commands_that_are_not_run_exist(command: str) -> None:
    """The session takes them."""
    session, options = _options_of(command)
    if session == "fleet":
        place = options.index("--")
        option_reference.parsers()[session].read(options[:place])
        session, *options = options[place + 1 :]
    if session in option_reference.SUITES:
        check(session, options)
    else:
        option_reference.parsers()[session].read(options)


def test_options_of_commands_within_sentences_exist() -> None:
    """The session has each option that a sentence of a page writes after its name."""
    pages = [*_PAGES, *ROOT.glob("docs/*/*.md"), ROOT / "CONTRIBUTING.md"]
    told = [each for page in pages for each in _INLINE.findall(page.read_text(encoding="utf-8"))]
    known = {
        name: {*parser._option_string_actions}
        for name, parser in option_reference.parsers().items()
    }
    of = [_options_of(each) for each in told]
    named = [
        (name, word.partition("=")[0])
        for name, words in of
        for word in words
        if name in known and word != "--"  # a fleet's suite stands after a second one
    ]
    assert len(named) > 5
    assert [
        each for each in named if each[1].startswith("--") and each[1] not in known[each[0]]
    ] == []


def test_annotations_tell_each_failure(folder: Path) -> None:
    """The workflow's script prints a line for GitHub of the one row that failed."""
    workflow = _block(_HOW_TO / "own-repository.md", "yaml")
    script = re.search(r"<<'PYTHON'\n(.*?)\n *PYTHON\n", workflow, re.DOTALL)
    assert script is not None
    (record,) = (folder / "results").glob("*.jsonl")
    made = _ran(f"nox -s report -- {record} --junit junit.xml", folder)
    assert made.returncode == 0, made.stderr
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script[1])],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    (line,) = done.stdout.splitlines()
    assert line.startswith(f"::error file=kernels/mine.py::{_WIDE}: ")
    assert "dweight[12952]" in line


def test_annotation_tells_why_a_file_cant_be_imported(tmp_path: Path) -> None:
    """The run leaves no record, so that the report isn't written and there is no junit.xml."""
    (tmp_path / "mine.py").write_text("def mine(\n")
    kernels, results = f"--kernels={tmp_path / 'mine.py'}", f"--results={tmp_path / 'results'}"
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "kernel_workbench/suites/accuracy",
            "--device=cpu",
            kernels,
            results,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode != 0
    assert not list(tmp_path.glob("results/*.jsonl"))
    (tmp_path / "accuracy.txt").write_text(f"nox > Running session accuracy\n{ran.stderr}nox > end")
    workflow = _block(_HOW_TO / "own-repository.md", "yaml")
    script = re.search(r"<<'PYTHON'\n(.*?)\n *PYTHON\n", workflow, re.DOTALL)
    assert script is not None
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script[1])],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    (line,) = done.stdout.splitlines()
    assert line.startswith("::error file=kernels/mine.py::ERROR: --kernels ")
    assert "SyntaxError" in line


def test_example_of_an_attention_kernel_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference's file registers one kernel."""
    all_kernels()
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    page = ROOT / "docs" / "reference" / "kernels.md"
    (tmp_path / "plain.py").write_text(_block(page, "python", "ATTENTION_FORWARD"))
    assert [each.name for each in load_file(tmp_path / "plain.py")] == ["plain"]


def test_page_of_options_is_what_sessions_take() -> None:
    """`python -m tests.docs.option_reference --write` has been run on it since."""
    page = (ROOT / "docs" / "reference" / "options.md").read_text(encoding="utf-8")
    assert page == option_reference.text()


def test_page_of_any_op_lists_what_is_read() -> None:
    """`python -m studies.any_op --write docs/reference/any-op.md` has been run on it since."""
    page = (ROOT / "docs" / "reference" / "any-op.md").read_text(encoding="utf-8")
    assert any_op.operations_text() in page


@pytest.mark.parametrize(
    ("name", "made"),
    [
        (record_reference.PAGE, record_reference.text),
        (record_reference.TABLE, record_reference.table_text),
        (record_reference.SCHEMA, record_reference.schema_text),
    ],
)
def test_page_of_a_records_fields_is_what_the_classes_declare(
    name: str, made: Callable[[], str]
) -> None:
    """`python -m tests.docs.record_reference --write docs/reference` has been run since."""
    assert (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8") == made()


def test_picture_of_speed_shows_what_the_tables_say() -> None:
    """`python -m tests.docs.speed_picture --write docs/pictures/speed.svg` has been run since."""
    assert speed_picture.PICTURE.read_text(encoding="utf-8") == speed_picture.svg()


def test_page_of_a_records_fields_has_every_kind_of_line() -> None:
    """A row that a reader knows is documented."""
    rows = set(get_args(Row))
    assert set(record_reference.LINES) == rows | {RunHeader, RunEnd}


def test_every_field_of_a_record_has_a_meaning_and_every_figure_a_unit() -> None:
    """A field that someone adds says what it is."""
    models = {
        part for line in record_reference.LINES for part in (line, *record_reference.parts_of(line))
    }
    lacking = [
        f"{model.__name__}.{name}"
        for model in models
        for name, field in fields_of(model).items()
        if (name != "kind" and not field.description)
        # An option of a kernel's arithmetic may be a number, and has no unit.
        or (
            "float" in str(field.annotation)
            and "bool" not in str(field.annotation)
            and not unit_of(name, field)
        )
    ]
    assert lacking == []


def test_links_of_pages_lead_somewhere() -> None:
    """Each link to a file of the checkout, and each heading that one names, is there."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/*/*.md")]
    lost = []
    for page in pages:
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            path, _, heading = link.partition("#")
            file = page.parent / path if path else page
            if "://" in link or (file.exists() and not heading):
                continue
            words = heading.replace("-", " ")
            if not file.is_file() or f"# {words}\n" not in file.read_text().lower():
                lost.append(f"{page.relative_to(ROOT)}: {link}")
    assert lost == []


def test_index_of_the_gallery_links_every_file() -> None:
    """A record, a file of cases or a picture that someone adds stands in docs/gallery/README.md."""
    folder = ROOT / "docs" / "gallery"
    index = (folder / "README.md").read_text(encoding="utf-8")
    files = {path.name for path in folder.iterdir()} - {"README.md"}
    assert {
        name for name in files if f"({name})" not in index and f"`{name}`" not in index
    } == set()


def test_names_of_measured_constants_are_in_the_code() -> None:
    """Each name and file that the first column of docs/measured.md gives is in the checkout."""
    page = (ROOT / "docs" / "measured.md").read_text(encoding="utf-8")
    first = " ".join(re.findall(r"^\|([^|]*)", page, re.MULTILINE))
    rooms = ("kernels", "reports", "suites", "oracles", "profiles", "tests", "studies")
    files = [path for room in rooms for path in (ROOT / room).rglob("*.py")]
    code = "\n".join(path.read_text(encoding="utf-8") for path in files)
    names = re.findall(r"`(\w+)", first)
    assert len(names) > 20
    assert [name for name in names if not re.search(rf"\b{name}\b", code)] == []
    paths = re.findall(r"\b(?:\w+/)*\w+\.py\b", first)
    known = [path.relative_to(ROOT).as_posix() for path in files]
    assert len(paths) > 10
    assert [name for name in paths if not any(path.endswith(name) for path in known)] == []


def test_readme_has_at_most_700_words() -> None:
    """Prose and code: the rest stands in docs/."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 700
