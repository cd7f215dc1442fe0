"""Print the time and the target of reports of 5,000 rows: `python -m studies.speed`.

Figures are processor seconds, which grow on a busy machine for the same work. So this is a study to
run after a change of reports, and no test.
"""

from __future__ import annotations

import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.builders.large_records import SUITES, five_alike, large, watched

_REPORT_S, _COMPARISON_S = 3.0, 5.0  # on an idle core of a laptop


def _used() -> float:
    """Return the processor seconds of this process's children so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _commands(folder: Path) -> Iterator[tuple[str, float, list[str | Path]]]:
    """Yield each command's description, target in seconds, module and arguments."""
    for suite in SUITES:
        path = large(suite, folder / f"{suite}.jsonl")
        page = folder / "page.html"
        yield (
            f"report and page of {suite}",
            _REPORT_S,
            ["kernel_workbench.reports", path, "--html", page],
        )
    outputs = ("--markdown", folder / "report.md", "--junit", folder / "report.xml")
    path = folder / "accuracy.jsonl"
    yield "Markdown and JUnit of accuracy", _REPORT_S, ["kernel_workbench.reports", path, *outputs]
    yield (
        "comparison of five",
        _COMPARISON_S,
        ["kernel_workbench.reports.comparison", *five_alike(folder)],
    )


def main() -> None:
    """Print a line for each command when it ends."""
    with tempfile.TemporaryDirectory(prefix="kernel-workbench-") as folder:
        for what, target_s, (module, *arguments) in _commands(Path(folder)):
            before_s = _used()
            done, peak_mib = watched(str(module), *arguments)
            taken_s = _used() - before_s
            status = f", status {done.returncode}" if done.returncode else ""
            print(f"{what:32}{taken_s:6.1f} s of {target_s:.0f} s{peak_mib:7.0f} MiB{status}")


if __name__ == "__main__":
    main()
