"""The installed package: its wheel in an environment of its own, away from the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from kernel_workbench.bare_names import ROOMS
from tests import ROOT
from tests.builders import plugin_project

pytestmark = pytest.mark.long_run

_RIGHT = "* rstd[:, None])).sum(0)"
_WRONG = "* rstd[:, None]).to(x.dtype)).sum(0)"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel of the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    command = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    _python(Path(sys.executable), *command, "--wheel-dir", str(folder), str(ROOT), folder=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel beside the packages that it needs, and return the folder of programs."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    site = _python(
        python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", folder=folder
    )
    needed = sysconfig.get_path("purelib")
    (Path(site.strip()) / "needed.pth").write_text(f"{needed}\n")
    command = ["-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps"]
    _python(Path(sys.executable), *command, "--no-index", str(wheel), folder=folder)
    return folder / "bin"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Make a user's folder: README's kernel, a wrong copy, and names that the workbench has."""
    text = (ROOT / "README.md").read_text()
    kernel = text.split("```python\n")[1].split("```")[0]
    assert kernel.count(_RIGHT) == 1
    (tmp_path / "mine.py").write_text(kernel)
    (tmp_path / "wrong.py").write_text(kernel.replace(_RIGHT, _WRONG))
    (tmp_path / "profile.py").write_text("raise RuntimeError('a file of the user')\n")
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "__init__.py").write_text("")
    return tmp_path


def _variables() -> dict[str, str]:
    names = ("PYTHONPATH", "PYTHONSAFEPATH", "PYTEST_ADDOPTS")
    return {name: value for name, value in os.environ.items() if name not in names}


def _python(python: Path, *arguments: str, folder: Path) -> str:
    done = subprocess.run(
        [python, *arguments],
        cwd=folder,
        env=_variables(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _run(program: Path, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, *arguments],
        cwd=folder,
        env=_variables(),
        capture_output=True,
        text=True,
        check=False,
    )


def test_wheel_holds_the_files_of_all_rooms(wheel: Path) -> None:
    """Each file of the rooms is in the wheel, data files included."""
    rooms = [ROOT / room for room in ROOMS]
    listed = [
        str(path.relative_to(ROOT))
        for room in rooms
        for path in room.rglob("*")
        if path.is_file() and not {"__pycache__", ".pytest_cache"} & {*path.parts}
    ]
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {f"kernel_workbench/{path}" for path in listed} <= names
    assert not any(name.startswith(("tests/", "kernel_workbench/tests/")) for name in names)


def test_installed_command_judges_a_kernel_right_and_wrong(installed: Path, project: Path) -> None:
    """The record lies in the user's folder, and the command that shows a failure works there."""
    command = installed / "kernel-workbench"
    options = ("--device", "cpu", "-k", "n3-bfloat16-contiguous")
    right = _run(command, "accuracy", "--kernels=mine.py", *options, folder=project)
    assert right.returncode == 0, right.stdout + right.stderr
    assert " PASSED " in right.stdout
    wrong = _run(command, "accuracy", "--kernels=wrong.py", *options, folder=project)
    assert wrong.returncode == 1, wrong.stdout + wrong.stderr
    assert f"{command} accuracy --device cpu --kernels=wrong.py " in wrong.stdout
    records = sorted((project / "results").glob("accuracy-*.jsonl"))
    assert len(records) == 2
    shown = _run(command, "report", str(records[0]), folder=project)
    assert shown.returncode == 0, shown.stderr
    assert "mine" in shown.stdout


def test_installed_command_compares_records_of_the_gallery(installed: Path, project: Path) -> None:
    """Two records from elsewhere are compared with nothing of the checkout at hand."""
    gallery = ROOT / "docs" / "gallery"
    records = [str(gallery / f"bench-{board}.jsonl.gz") for board in ("h100", "h200")]
    compared = _run(installed / "kernel-workbench", "compare", *records, folder=project)
    assert compared.returncode == 0, compared.stderr
    assert "H200" in compared.stdout


def test_installed_command_names_its_version(installed: Path, project: Path) -> None:
    """The version is that of the package's metadata."""
    told = _run(installed / "kernel-workbench", "--version", folder=project)
    assert told.stdout.startswith("kernel-workbench 0.")


def test_installed_report_needs_neither_torch_nor_triton(installed: Path, project: Path) -> None:
    """A machine that only reads records may lack both."""
    record = ROOT / "docs" / "gallery" / "bench-h200.jsonl.gz"
    program = (
        "import runpy, sys\n"
        "sys.modules['torch'] = sys.modules['triton'] = None\n"
        "sys.argv = ['kernel-workbench', 'report', sys.argv[1]]\n"
        "runpy.run_module('kernel_workbench', run_name='__main__')\n"
    )
    shown = _run(installed / "python", "-P", "-c", program, str(record), folder=project)
    assert shown.returncode == 0, shown.stderr
    refused = _run(
        installed / "python",
        "-P",
        "-c",
        program.replace("'report', sys.argv[1]", "'accuracy'"),
        folder=project,
    )
    assert refused.returncode == 3
    assert refused.stderr.startswith("accuracy needs torch, triton; install them: pip install ")


@pytest.mark.parametrize("options", [(), ("-n2",)])
def test_installed_plugin_judges_a_project(
    installed: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """pytest finds the plugin by its entry point; so do the processes of pytest-xdist."""
    (tmp_path / "test_mine.py").write_text(plugin_project.PROJECT)
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--strict-markers", "--tb=short"]
    plugin_project.check(_run(installed / "python", *words, *options, folder=tmp_path))


def test_script_of_the_page_reads_an_installed_command(installed: Path, project: Path) -> None:
    """The ten lines of docs/how-to/python.md print the failures, and end with the run's status."""
    page = (ROOT / "docs" / "how-to" / "python.md").read_text(encoding="utf-8")
    script = next(block for block in page.split("```python\n") if block.startswith("# failures.py"))
    script = script.split("```")[0]
    assert len(script.splitlines()) <= 10
    (project / "failures.py").write_text(script)
    case = "layer_norm_backward-m3-n229-bfloat16-contiguous"
    command = f"{installed}/kernel-workbench accuracy wrong.py --device cpu --case {case} --json"
    pipe = f"{command} 2>errors.txt | {installed}/python failures.py"
    shown = _run(Path("/bin/sh"), "-c", pipe, folder=project)
    assert (shown.returncode, shown.stderr) == (1, ""), (project / "errors.txt").read_text()
    assert shown.stdout.startswith(f"mine {case} ")
