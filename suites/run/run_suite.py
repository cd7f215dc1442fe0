"""A suite in pytest, as the command runs it: in a process of its own, or in a warm judge's."""

from __future__ import annotations

from collections.abc import Sequence

from kernel_workbench.reports.exit_status import status_of
from kernel_workbench.reports.output import outlast_readers
from kernel_workbench.suites import PACKAGE
from kernel_workbench.suites.run.exit_status import end_at_interrupt, of_pytest
from kernel_workbench.suites.run.json_output import JsonOutput


def with_kernels(words: Sequence[str]) -> list[str]:
    """Return the words with files that stand before the first option as --kernels."""
    first = next((at for at, word in enumerate(words) if word.startswith("-")), len(words))
    return [*(f"--kernels={file}" for file in words[:first]), *words[first:]]


def run_suite(suite: str, words: Sequence[str], plugins: Sequence[object] = ()) -> int:
    """Run a suite with the words that were typed, and return the exit status.

    Args:
        suite: the suite's name.
        words: its options.
        plugins: objects whose functions pytest calls by their names.
    """
    output = JsonOutput.begin(suite) if "--json" in words else None
    end_at_interrupt()
    import pytest  # noqa: PLC0415  (after Ctrl-C has a sentence)

    outlast_readers()
    folder = str(PACKAGE / "suites" / suite)
    status = status_of(lambda: of_pytest(pytest.main([folder, *with_kernels(words)], plugins)))
    return status if output is None else output.end(status)
