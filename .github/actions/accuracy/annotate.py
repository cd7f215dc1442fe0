# ruff: noqa: INP001  (a script, run by its path)
"""Annotate a file of kernels with what `accuracy --json` says; the verdict goes to stdout.

python annotate.py KERNELS REPORT

GitHub reads annotations from either stream, and outputs of a step from the file that stdout is sent
to.
"""

import contextlib
import json
import sys


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def main() -> None:
    """Print an annotation for each failure that counts, or for what kept the run from a verdict."""
    kernels, path = sys.argv[1:]
    report = None
    with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as file:  # noqa: PTH123
        report = json.load(file)
    needed = {"failures", "error", "verdict"}
    if (
        not isinstance(report, dict) or not needed <= report.keys()
    ):  # the command was killed before it could print
        error = "the run ended and printed no report; the log of the job has the reason"
        report = {"failures": [], "error": error, "verdict": "suite failed"}
    texts = [
        f"{failure['kernel']}: {failure['case']}: {failure['sentence']}"
        for failure in report["failures"]
        if failure["gates"]
    ]
    if report["error"]:
        texts.insert(0, report["error"])
    for text in texts:
        sys.stderr.write(f"::error file={_escaped(kernels)}::{_escaped(text)}\n")
    for name in report.get("accepted_that_pass", ()):
        text = f"{name}: an accepted failure that passes now; take it out of the file"
        sys.stderr.write(f"::notice file={_escaped(kernels)}::{_escaped(text)}\n")
    sys.stdout.write(f"verdict={report['verdict']}\n")


if __name__ == "__main__":
    main()
