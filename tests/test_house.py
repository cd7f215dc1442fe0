"""The house rules that no linter knows: what the checkout may hold, and what it may name."""

from __future__ import annotations

import ast
import io
import os
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import dependency_groups
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import kernel_workbench
from kernel_workbench import bare_names, oracles
from kernel_workbench.oracles.op import Op
from tests import ROOT
from tests.builders import python_server

ROOMS = ("oracles", "kernels", "profiles", "reports", "studies", "suites", "tests")
# Hidden folders hold environments and caches, but for these two.
CONTINUOUS_INTEGRATION = (".github", ".ci")
PYTORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
# pip's options and variables that name a host of packages, and the hosts' usual addresses.
PACKAGE_HOST = re.compile(
    r"--(?:extra-)?index-url|--find-links|PIP_(?:EXTRA_)?INDEX_URL|PIP_FIND_LINKS"
    r"|https?://[^\s\"'`)]*(?:pypi|/simple\b|/whl\b)[^\s\"'`)]*"
)


def _modules() -> list[Path]:
    rooms = [file for room in ROOMS for file in (ROOT / room).rglob("*.py")]
    return sorted([*ROOT.glob("*.py"), *rooms])


def _texts() -> list[tuple[Path, str]]:
    """Every text file that the repository keeps, by its path from the root."""
    found = []
    for file in sorted(ROOT.rglob("*")):
        path = file.relative_to(ROOT)
        top = path.parts[0]
        ours = len(path.parts) == 1 or not top.startswith(".") or top in CONTINUOUS_INTEGRATION
        if not ours or top == "results" or "__pycache__" in path.parts or not file.is_file():
            continue
        try:
            found.append((path, file.read_text(encoding="utf-8")))
        except UnicodeDecodeError:
            continue
    return found


def _requirements() -> list[str]:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    return [each for group in groups.values() for each in group if isinstance(each, str)]


@pytest.mark.parametrize("room", bare_names.ROOMS)
def test_bare_name_of_a_room_is_refused(room: str) -> None:
    """The sentence says the name that the room has, before and after the package is imported."""
    for first in ("", "import kernel_workbench; "):
        command = [sys.executable, "-c", f"{first}import {room}"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert f"`kernel_workbench.{room}`" in done.stderr
        assert "`from kernel_workbench import ...`" in done.stderr


def test_package_of_another_with_a_rooms_name_is_imported(tmp_path: Path) -> None:
    """Hugging Face's `kernels`, say, beside ours, in the checkout's root."""
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "__init__.py").write_text("def get_kernel(name):\n    return name\n")
    program = (
        "from kernel_workbench import Domain, kernel; from kernels import get_kernel; "
        "import kernel_workbench.kernels; print(get_kernel('theirs'), kernel.__module__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["theirs", "kernel_workbench.kernels.registry"]


def test_package_gives_what_it_lists() -> None:
    """Each public name can be imported, and is of the room that has it."""
    names = dir(kernel_workbench)
    assert {"Domain", "kernel", "op", "ROWS", "LAYER_NORM_BACKWARD", "layer_norm"} <= set(names)
    assert [name for name in names if not hasattr(kernel_workbench, name)] == []
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        kernel_workbench.nothing  # noqa: B018


# Readings of a clock, by the names under which a module is asked for them.
_CLOCKS = re.compile(
    r"\b(?:(?:perf_counter|process_time|thread_time|monotonic)(?:_ns)?|getrusage)\([\w.]*\)"
    r"|\btime\.(?:time|time_ns)\(\)|\btimeit\b"
)


def _compared_clocks(text: str) -> list[int]:
    """Lines that compare a clock's reading, or what the same function has made of one."""
    found: set[int] = set()
    tree, functions = ast.parse(text), (ast.FunctionDef, ast.AsyncFunctionDef)
    outside = ast.Module([each for each in tree.body if not isinstance(each, functions)], [])
    for scope in [outside, *(node for node in ast.walk(tree) if isinstance(node, functions))]:
        made: set[str] = set()

        def reads(node: ast.AST, made: set[str] = made) -> bool:
            names = (each.id for each in ast.walk(node) if isinstance(each, ast.Name))
            return _CLOCKS.search(ast.unparse(node)) is not None or not made.isdisjoint(names)

        assigned = (
            node
            for node in ast.walk(scope)
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and node.value
        )
        for node in sorted(assigned, key=lambda each: each.lineno):
            if node.value is not None and reads(node.value):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                made |= {each.id for each in targets if isinstance(each, ast.Name)}
        compared = (node for node in ast.walk(scope) if isinstance(node, ast.Compare))
        found |= {node.lineno for node in compared if reads(node)}
    return sorted(found)


def test_every_study_is_in_the_index() -> None:
    """Whoever looks for a study finds it, and nothing else, in the docstring of the folder."""
    text = (ROOT / "studies" / "__init__.py").read_text(encoding="utf-8")
    named = re.findall(r"^    (\w+)  +\S", text, re.MULTILINE)
    files = {each.stem for each in (ROOT / "studies").glob("*.py")} - {"__init__"}
    assert sorted(files) == named


def test_no_test_asserts_how_long_something_took() -> None:
    """A busy machine takes longer, in seconds and in a processor's: a script shows those.

    Waiting until a deadline is asserting a time too: `tests.builders.commands.wait_for` counts its
    waits.
    """
    found = {
        file.name: lines
        for file in (ROOT / "tests").rglob("test_*.py")
        if (lines := _compared_clocks(file.read_text(encoding="utf-8")))
    }
    assert found == {}


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("assert time.monotonic() - began < 5", [1]),
        ("def test():\n    end = perf_counter()\n    took = end - 3\n    assert took < 3", [4]),
        ("used = resource.getrusage(resource.RUSAGE_SELF)\nassert used.ru_utime < 8", [2]),
        ("while perf_counter_ns() < deadline:\n    pass", [1]),
        ("began = time.monotonic()\nassert row.seconds == 3.0", []),
    ],
)
def test_compared_clocks_are_found(text: str, lines: list[int]) -> None:
    """Directly, by a name, by a name made of a name; a clock that is only read is none."""
    assert _compared_clocks(text) == lines


def test_top_level_names_shadow_no_standard_module() -> None:
    """`python -m` puts the root first on sys.path, so its names come before the library's."""
    names = {file.stem for file in ROOT.glob("*.py")}
    names |= {folder.name for folder in ROOT.iterdir() if folder.is_dir()}
    assert not names & sys.stdlib_module_names


# Words of an op that mean something else in every room; all others belong to the op's package.
_ORDINARY = frozenset(
    {
        *("bias", "mean", "out", "scale", "weight", "window"),
        "target",  # a GPU that is compiled for
        "device_independent",  # a property that any kernel may have, by its name in `Numerics`
        "do",  # what a worker is asked to do
        "codes",  # a word for each thing that is odd about a row of bench
        *("sin", "cos"),  # functions of Triton's
    }
)
# Each with the reason why it names an op; studies may, which are of what somebody has measured.
_NAMES_AN_OP: dict[str, str] = {
    "suites/sandbox/worker_side/watch.py": "PyTorch's functions, which candidates may not call",
}


_OURS = [value for name in oracles.__all__ if isinstance(value := getattr(oracles, name), Op)]


def _words_of_ops() -> frozenset[str]:
    """Names of arguments, outputs, options and sizes, of two letters and more."""
    words: set[str] = set()
    for op in _OURS:  # other tests of this process may have added users' ops to OPS
        words |= {*op.arguments, *op.outputs, *op.options}
        words |= {name for case in op.cases() for name, _ in case.sizes}
        words |= {name for case in op.cases() for name in op.geometry(case)}
    return frozenset(each for each in words - _ORDINARY if len(each) > 1)


def _named_ops(file: Path, words: frozenset[str]) -> list[str]:
    """Imports of an op, and strings that hold an op's name or are a word of one; no docstring."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    constants = {name for name in oracles.__all__ if isinstance(getattr(oracles, name), Op)}
    prose = {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}
    names = {op.name for op in _OURS}
    packages = {name.split("_")[0] for name in names}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
            ("kernel_workbench.oracles", "kernel_workbench.kernels")
        ):
            inner = ".".join(str(node.module).split(".")[2:])
            found += [inner] if inner.startswith(tuple(packages)) else []
            found += [each.name for each in node.names if each.name in constants]
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose
        ):
            named = node.value in words or any(name in node.value for name in names)
            found += [node.value] if named else []
    return found


def test_ops_are_named_in_their_own_rooms_alone() -> None:
    """Elsewhere an `Op` is asked: a sixth op is a package in `oracles`, and no other edit."""
    words = _words_of_ops()
    named = {
        str(file.relative_to(ROOT)): found
        for room in ("suites", "profiles", "reports")
        for file in sorted((ROOT / room).rglob("*.py"))
        if (found := _named_ops(file, words))
    }
    assert {file: found for file, found in named.items() if file not in _NAMES_AN_OP} == {}
    assert set(_NAMES_AN_OP) <= set(named), "an exception that nothing needs"


_FIRST_WORDS = r"(?:Of|What|Whether|Those)\b"
_BEFORE_ITS_SUBJECT = re.compile(rf"(?:^|(?<=[.!?] )){_FIRST_WORDS}")
_MAY_HAVE_SUCH = re.compile(rf"(?:#|\"{{3}}|[.!?]|\n)\s*{_FIRST_WORDS}")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _prose(code: str) -> Iterator[str]:
    """Yield the comments, of which whole lines that follow one another are one, and docstrings."""
    block: list[str] = []
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.COMMENT:
            (row, _), is_line = token.start, token.line.lstrip().startswith("#")
            if not (is_line and row == last + 1):
                yield " ".join(block)
                block = []
            block.append(token.string.lstrip("# "))
            last = row if is_line else 0
    yield " ".join(block)
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, _DOCUMENTED):
            for paragraph in (ast.get_docstring(node) or "").split("\n\n"):
                yield " ".join(paragraph.split())


def _before_their_subject(code: str) -> list[str]:
    """Return the beginnings of sentences that don't begin with their subject or verb."""
    if _MAY_HAVE_SUCH.search(code) is None:  # most files are split into tokens for nothing
        return []
    return [
        text[match.start() :][:60]
        for text in _prose(code)
        for match in _BEFORE_ITS_SUBJECT.finditer(text)
    ]


def test_sentences_begin_with_their_subject() -> None:
    """A reader shouldn't have to hold half a sentence before its subject comes."""
    sentences = {
        str(file.relative_to(ROOT)): some
        for file in (*_modules(), *(ROOT / "kernel_workbench").rglob("*.py"))
        if (some := _before_their_subject(file.read_text(encoding="utf-8")))
    }
    assert sentences == {}


@pytest.mark.parametrize(
    "code",
    [
        "# Of two numbers the larger.\nx = 1",
        "x = 1  # a number\n# What it is.",
        '"""A number.\n\nWhether it is large.\n"""',
        'def f() -> None:\n    """A sum. Those of a row."""',
        "# A sum.\n# Those of a\n# row.",
    ],
)
def test_sentences_before_their_subject_are_seen(code: str) -> None:
    """Comments and docstrings are read, beginning and middle."""
    assert len(_before_their_subject(code)) == 1


def test_nox_sessions_have_docstrings() -> None:
    """`nox --list` says what every session does."""
    functions = [
        node
        for node in ast.parse((ROOT / "noxfile.py").read_text()).body
        if isinstance(node, ast.FunctionDef)
        and any("nox.session" in ast.unparse(each) for each in node.decorator_list)
    ]
    assert functions
    assert [each.name for each in functions if not ast.get_docstring(each)] == []


@pytest.mark.parametrize("name", ["torch", "triton"])
def test_compiler_is_pinned_as_the_readme_says(name: str) -> None:
    """Records are compared across machines, so the compiler's version is a decision, and told."""
    pins = [each for each in _requirements() if re.match(rf"{name}\b", each)]
    assert len(pins) == 1
    pinned = re.match(rf"{name}==([0-9.]+)", pins[0])
    assert pinned is not None
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.search(rf"{name}\W+{re.escape(pinned[1])}\b", readme, re.IGNORECASE)


def _installed_by(group: str) -> set[str]:
    """Give the distributions that a group of pyproject.toml installs, and what these need."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    waiting, found = list(dependency_groups.resolve(groups, group)), set[str]()
    while waiting:
        wanted = Requirement(waiting.pop())
        name = canonicalize_name(wanted.name)
        if name in found or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        try:
            waiting += metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
    return found


def _imported(file: Path) -> set[str]:
    """Give the top-level names that a module imports, wherever in it."""
    nodes = list(ast.walk(ast.parse(file.read_text())))
    plain = [each.name for node in nodes if isinstance(node, ast.Import) for each in node.names]
    froms = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in (*plain, *froms)}


def test_tests_import_what_their_group_installs() -> None:
    """`nox -s tests` runs where no other session has installed anything."""
    installed = _installed_by("test")
    names = set.union(*(_imported(file) for file in (ROOT / "tests").rglob("*.py")))
    names |= {each.partition(".")[0] for each in python_server._LOADED}
    homes = metadata.packages_distributions()
    missing = {
        name: homes[name]
        for name in names & homes.keys()
        if not {canonicalize_name(home) for home in homes[name]} & installed
    }
    assert missing == {}


def test_hook_runs_the_pinned_ruff() -> None:
    """A commit hook and `nox -s lint` agree on what is wrong."""
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    revisions = re.findall(r"rev: v([0-9.]+)", hooks)
    assert [f"ruff=={each}" for each in revisions] == [
        each for each in _requirements() if each.startswith("ruff")
    ]


def test_package_hosts_are_named_nowhere() -> None:
    """Where packages come from is the user's pip's affair, but for PyTorch's CPU index.

    Two pages and the workflow may name that one, as an opt-in for a machine with no GPU.
    """
    pages = {Path("docs/first-hour.md"), Path("docs/how-to/own-repository.md")}
    told = {*pages, Path("tests/docs/test_docs.py"), Path(".github/workflows/ci.yml")}
    named = {
        (str(path), match)
        for path, text in _texts()
        if path != Path("tests/test_house.py")
        for match in PACKAGE_HOST.findall(text)
        if not (path in told and match in {"PIP_EXTRA_INDEX_URL", PYTORCH_CPU_INDEX})
    }
    assert named == set()
