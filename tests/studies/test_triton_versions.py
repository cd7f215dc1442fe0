"""The table of Triton's versions: what it says where one isn't right."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import triton

from studies import triton_versions


def _told(checks: str, *, status: int = 0) -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess([], status, stdout=checks, stderr=f"Traceback\n{checks}")


@pytest.mark.parametrize(
    ("told", "missing", "right"),
    [
        (_told("3.7.1\n\n"), "none", True),
        (_told("3.7.1\ninteger overflow, masked lanes\n"), "integer overflow, masked lanes", False),
        (_told("3.6.0\n\n"), "this is triton 3.6.0", False),
        (_told("InterpreterError: no", status=1), "InterpreterError: no", False),
    ],
    ids=["all", "two missing", "another", "fails"],
)
def test_version_is_right_only_with_every_check_in_force(
    told: subprocess.CompletedProcess[str],
    missing: str,
    right: bool,  # noqa: FBT001 (of a table)
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And only where it is the version that was asked for."""
    monkeypatch.setattr(triton_versions, "_run", lambda *_: told)
    assert triton_versions._checks(None, "3.7.1") == (missing, right)


def test_installed_version_is_taken_as_it_is(tmp_path: Path) -> None:
    """Nothing is installed beside for it."""
    assert triton_versions._installed(triton.__version__, tmp_path) is None
    assert not list(tmp_path.iterdir())


def test_version_that_was_installed_before_is_taken_again(tmp_path: Path) -> None:
    """By what pip leaves at the end of an installation."""
    (tmp_path / "triton-3.1.4" / "triton-3.1.4.dist-info").mkdir(parents=True)
    assert triton_versions._installed("3.1.4", tmp_path) == tmp_path / "triton-3.1.4"
