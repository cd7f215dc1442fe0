"""The command line of a fleet: words that it takes, or refuses before it looks for a cluster."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from kernel_workbench.profiles.environment import CHECKOUT, git_state
from kernel_workbench.suites.fleet import checkout
from kernel_workbench.suites.fleet.__main__ import _order, main
from kernel_workbench.suites.fleet.engine import FleetError
from tests import ROOT


def _refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line that is said of a command line, which ends with 2."""
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--on", "SHARED", "--", "bench", "--gpus", "all"), "--gpus: a fleet doesn't serve it"),
        (("--on", "SHARED", "--", "bench", "--ncu"), "--ncu: a fleet doesn't serve it"),
        (("--on", "SHARED", "--", "bench", "--no-such"), "--no-such: there is no such option"),
        (("--on", "SHARED", "--", "compile"), "compile: there is no such suite"),
        (("--on", "SHARED"), "no suite is named; after a second -- comes one of accuracy"),
        (("--", "bench"), "--on names each type of accelerator once"),
    ],
)
def test_mistake_is_told_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    """And no folder is made for records."""
    status: object
    try:
        status = main(("--results", str(tmp_path), *words))
    except SystemExit as end:
        status = end.code
    assert status == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(said)
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert not list(tmp_path.iterdir())


def test_ray_client_is_refused_with_what_works(capsys: pytest.CaptureFixture[str]) -> None:
    """Rows can't be streamed over it."""
    said = _refused(capsys, "--address", "ray://head:10001", "--on", "H200", "--", "bench")
    assert "ray job submit" in said


def test_machine_without_a_cluster_is_told_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what starts one."""

    def refuse(_: str) -> None:
        raise ConnectionError("Could not find any running Ray instance. Please specify one.")

    monkeypatch.setattr(
        "kernel_workbench.suites.fleet.ray_engine.canonicalize_bootstrap_address", refuse
    )
    said = _refused(capsys, "--on", "H200", "--", "bench")
    assert said.startswith("--address auto: there is no Ray cluster (Could not find any running")
    assert "ray start --head" in said


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("127.0.0.1:{port}", "Connection refused"),
        ("no-such-host.invalid:6379", "[Errno "),
        ("head", "Invalid address format: head"),
        ("local", "this names no cluster"),
    ],
)
def test_address_at_which_nobody_listens_is_told_at_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, address: str, why: str
) -> None:
    """Before Ray tries to reach it, which takes minutes."""
    monkeypatch.setattr("ray.init", None)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        given = address.format(port=free.getsockname()[1])
        said = _refused(capsys, "--address", given, "--on", "H200", "--", "bench")
    assert said.startswith(f"--address {given}: there is no Ray cluster (")
    assert why in said


def test_other_version_of_ray_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one sentence, of Ray's several lines."""

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.9.0\n")

    monkeypatch.setattr("ray.init", refuse)
    monkeypatch.setattr("kernel_workbench.suites.fleet.ray_engine._reach", lambda _: None)
    said = _refused(capsys, "--on", "H200", "--", "bench")
    assert "this Python isn't the cluster's" in said
    assert "Ray: 2.9.0" in said


@pytest.mark.parametrize(("engine", "module"), [("ray", "ray"), ("slurm", "submitit")])
def test_engine_that_is_not_installed_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, engine: str, module: str
) -> None:
    """With the group of dependencies that has it."""
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(
        sys.modules, f"kernel_workbench.suites.fleet.{engine}_engine", raising=False
    )
    said = _refused(capsys, "--engine", engine, "--on", "H200", "--", "bench")
    assert f"this Python has no {module}; install the dependency group fleet" in said


def test_checkout_that_ray_does_not_ship_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its size is told, before anything is packed."""
    monkeypatch.setattr(checkout, "MOST_MIB", 0)
    said = _refused(capsys, "--on", "H200", "--", "bench")
    assert "MiB beside .git, .nox, .venv, results, and Ray ships 0 MiB" in said


def test_size_leaves_out_what_is_not_shipped(tmp_path: Path) -> None:
    """Records and environments of any size are no matter; nested files count."""
    for folder in ("results", ".nox", "kernels/own"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "file").write_bytes(bytes(2**20))
    assert checkout.size_mib(tmp_path) == 1.0


def test_files_are_named_from_the_checkouts_root(tmp_path: Path) -> None:
    """On a node the checkout lies elsewhere; a file outside of it isn't there."""
    file = ROOT / "tests" / "candidates" / "crashing_kernels.py"
    arguments = (f"--kernels={file}", "--kernels", str(file), "--cache", "cold")
    near = str(file.relative_to(ROOT))
    wanted = (f"--kernels={near}", "--kernels", near, "--cache", "cold")
    assert _order(["bench", *arguments]).arguments == wanted
    other = tmp_path / "mine.py"
    other.touch()
    with pytest.raises(FleetError, match="copy it into the checkout"):
        _order(["bench", "--kernels", str(other)])
    with pytest.raises(FleetError, match=r"mine\.py: there is no such file"):
        _order(["bench", "--kernels=mine.py"])


def test_copy_without_git_is_told_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the variable that the driver hands over."""
    monkeypatch.setenv(CHECKOUT, "abc edited")
    assert git_state() == ("abc", True)
    monkeypatch.setenv(CHECKOUT, "abc clean")
    assert git_state() == ("abc", False)
    assert checkout.variables() == {CHECKOUT: "abc clean"}


def test_packages_are_those_that_a_suite_needs() -> None:
    """The packages are the dependencies and those of the extra `bench`, by name."""
    assert {"torch", "pydantic", "pytest"} <= set(checkout.packages())
    assert "ray" not in checkout.packages()
