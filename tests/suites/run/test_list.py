"""`--list`: the kernels and cases that would run, and no run."""

from __future__ import annotations

from pathlib import Path

from tests.builders.commands import ACCURACY, run_python

_SERVED = "layer_norm_backward-m1-n1-float32-contiguous"
_REFUSED = "layer_norm_backward-m2-n8193-float32-contiguous"


def test_list_names_what_would_run_and_begins_no_record(tmp_path: Path) -> None:
    """A pair that the kernel's domain refuses would not run."""
    results = tmp_path / "results"
    asked = ("--kernel=row_persistent", f"--case={_SERVED}", f"--case={_REFUSED}", "--list")
    command = (*ACCURACY, f"--results={results}")
    done = run_python(*command, *asked)
    assert (done.returncode, done.stderr) == (0, "")
    assert "  layer_norm_backward row_persistent 1\n" in done.stdout
    assert f"  {_SERVED} 1\n" in done.stdout
    assert _REFUSED not in done.stdout
    assert not results.exists()


def test_list_of_a_search_names_its_kernels(tmp_path: Path) -> None:
    """There are no cases before they are drawn."""
    results = tmp_path / "results"
    command = (
        "-m",
        "pytest",
        "kernel_workbench/suites/search",
        "--device=cpu",
        "-qq",
        f"--results={results}",
    )
    done = run_python(*command, "--kernel=row_persistent", "--list")
    assert (done.returncode, done.stderr) == (0, "")
    head, kernel = "1 kernel, for each of which cases would be drawn:", "row_persistent"
    assert f"{head}\n  layer_norm_backward {kernel}\n" in done.stdout
    assert not results.exists()
