"""The pytest plugin in a project of a user's: six tests, two of them wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernel_workbench import pytest_plugin
from kernel_workbench.oracles import SOFTMAX_FORWARD
from tests import ROOT
from tests.builders import plugin_project

pytestmark = pytest.mark.long_run


def _pytest(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in a user's folder with the plugin, as its entry point loads it."""
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    variables.pop("PYTEST_ADDOPTS", None)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "kernel_workbench.pytest_plugin"]
    return subprocess.run(
        [*command, "-p", "no:cacheprovider", "--strict-markers", "--tb=short", *options],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("options", [(), ("-n2",)])
def test_marked_tests_are_spread_and_judged(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Right ones pass, wrong ones fail in a report's words; so in several processes, too."""
    (tmp_path / "test_mine.py").write_text(plugin_project.PROJECT)
    done = _pytest(tmp_path, *options)
    plugin_project.check(done)


@pytest.mark.parametrize(
    ("arguments", "keywords", "sentence"),
    [
        ((SOFTMAX_FORWARD,), {"device": "tpu"}, "device is 'tpu'; write 'cpu' or 'cuda'"),
        ((SOFTMAX_FORWARD,), {"tier": "big"}, "tier is 'big'; write 'ci' or 'full'"),
        ((SOFTMAX_FORWARD, 3), {}, "3 is no domain; write Domain(dtypes=(...), ...)"),
        (("softmax",), {}, "'softmax' is no op; import one, as SOFTMAX_FORWARD"),
        ((SOFTMAX_FORWARD,), {"color": 1}, "the marker got an unexpected keyword argument 'color'"),
    ],
)
def test_a_marker_that_says_nothing_sensible_is_refused(
    arguments: tuple[object, ...], keywords: dict[str, object], sentence: str
) -> None:
    """One sentence with the test's name."""
    with pytest.raises(pytest.UsageError) as raised:
        pytest_plugin._plan_of(arguments, keywords, "test_a.py::test_b")
    assert str(raised.value) == f"test_a.py::test_b: @pytest.mark.kernel: {sentence}"


@pytest.mark.parametrize(
    ("marker", "argument", "sentence"),
    [
        ("SOFTMAX_FORWARD", "", "it takes no argument of softmax_forward; name some of x, inputs"),
        (
            "SOFTMAX_FORWARD, Domain(dtypes=(torch.float32,), sizes={'n': (7, 7)})",
            "x",
            "the domain holds no case of softmax_forward on this machine; widen it",
        ),
    ],
)
def test_a_test_without_cases_is_refused(
    tmp_path: Path, marker: str, argument: str, sentence: str
) -> None:
    """A test that would be called never mustn't look like one that passed."""
    (tmp_path / "test_mine.py").write_text(
        "import pytest, torch\nfrom kernel_workbench import SOFTMAX_FORWARD, Domain\n"
        f"@pytest.mark.kernel({marker})\ndef test_mine({argument}):\n    pass\n"
    )
    done = _pytest(tmp_path)
    assert done.returncode != 0
    assert f"test_mine.py::test_mine: {sentence}" in done.stdout + done.stderr


def test_plugin_loads_nothing_until_a_test_has_the_marker(tmp_path: Path) -> None:
    """A run without such a test imports neither torch nor any room of the workbench."""
    (tmp_path / "test_mine.py").write_text(
        "import sys\ndef test_plain():\n"
        "    assert 'torch' not in sys.modules\n"
        "    rooms = ('kernels', 'oracles', 'reports', 'suites', 'testing', 'api')\n"
        "    assert not [name for name in rooms if 'kernel_workbench.' + name in sys.modules]\n"
    )
    done = _pytest(tmp_path)
    assert done.returncode == 0, done.stdout
    assert "kernel-workbench" not in done.stdout


def test_folders_of_a_project_may_have_the_names_of_rooms(tmp_path: Path) -> None:
    """A project's own `kernels` and `reports` are found, as folders without an __init__.py, too."""
    for name in ("kernels", "reports"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.py").write_text("VALUE = 3\n")
    (tmp_path / "kernels" / "__init__.py").touch()
    (tmp_path / "test_mine.py").write_text(
        "import sys\n"
        "sys.path = [path for path in sys.path if path != " + repr(str(ROOT)) + "]\n"
        "import kernels.mine, reports.mine\n"
        "def test_plain():\n    assert kernels.mine.VALUE == reports.mine.VALUE == 3\n"
    )
    done = _pytest(tmp_path)
    assert done.returncode == 0, done.stdout
