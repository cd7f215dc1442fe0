"""A record of the suite `accuracy` as JUnit XML: a test suite for each kernel, a case for each row.

A failed row that doesn't gate is a skipped case with the failure in its message, because a CI that
reads JUnit turns red at any failure. A run that fails as a whole (a cut
record, nothing ran) has an error of its own, so that it doesn't look passed.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from kernel_workbench.reports.phrases import shown
from kernel_workbench.reports.views.accuracy import configured_case, failing_output, headline
from kernel_workbench.reports.views.run import environment_lines, grouped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernel_workbench.reports.record import AccuracyRow, Record

_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # XML 1.0, 2.2


def render_junit(record: Record) -> bytes:
    """Render the record as a UTF-8 JUnit document."""
    root = Element("testsuites", name="accuracy")
    groups = grouped(record.rows, lambda row: (row.case.op, row.kernel))
    for (op, kernel), rows in groups.items():
        suite = _suite(root, f"{op}.{kernel}", record)
        for row in rows:
            _case(suite, row)
        _count(suite, sum(_seconds(row.duration_s) for row in rows))
    line = headline(record)
    gating_failures = any(row.status == "failed" and row.gates for row in record.rows)
    if line.verdict == "INCOMPLETE" or (line.verdict == "FAILED" and not gating_failures):
        suite = _suite(root, "record", record)
        case = SubElement(suite, "testcase", classname="record", name="verdict", time="0")
        message = "; ".join((f"{line.verdict}: {line.sentence}", *line.notes))
        SubElement(case, "error", message=_legal(message), type=line.verdict.lower())
        _count(suite, 0.0)
    for name in ("tests", "failures", "errors", "skipped"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in root)))
    root.set("time", f"{sum(_seconds(row.duration_s) for row in record.rows):.6f}")
    indent(root)
    document: bytes = tostring(root, encoding="utf-8", xml_declaration=True)
    return document


def _suite(root: Element, name: str, record: Record) -> Element:
    header = record.header
    suite = SubElement(
        root,
        "testsuite",
        name=_legal(name),
        timestamp=_legal(header.started_at),
        hostname=_legal(header.environment.hostname),
    )
    properties = SubElement(suite, "properties")
    for label, text in environment_lines(record):
        SubElement(properties, "property", name=label, value=_legal(text))
    return suite


def _case(suite: Element, row: AccuracyRow) -> None:
    case = SubElement(
        suite,
        "testcase",
        classname=_legal(row.kernel),
        name=_legal(configured_case(row)),
        time=f"{_seconds(row.duration_s):.6f}",
    )
    if row.status == "refused":
        SubElement(case, "skipped", message=_legal(row.reason or "refused"), type="refused")
        return
    if row.status == "no power":
        message = "bounds so wide that a wrong kernel is within them: neither passed nor failed"
        SubElement(case, "skipped", message=message, type="no power")
        return
    if row.status == "passed":
        return
    rule = row.rule or "no rule given"
    message = _legal(f"{rule}: {row.reason}" if row.reason else rule)
    if row.gates:
        result = SubElement(case, "failure", message=message, type=rule)
    else:
        text = f"failed, which doesn't fail the run: {message}"
        result = SubElement(case, "skipped", message=text, type="not gating")
    result.text = _legal("\n".join(_details(row)))


def _details(row: AccuracyRow) -> Sequence[str]:
    output = failing_output(row)
    texts = [] if output is None else [output]
    texts += [*(f"printed: {line}" for line in row.printed), f"reproduce: {row.reproduce}"]
    return [shown(text) for text in texts]


def _count(suite: Element, seconds: float) -> None:
    cases = suite.findall("testcase")
    suite.set("tests", str(len(cases)))
    for plural, name in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(plural, str(sum(case.find(name) is not None for case in cases)))
    suite.set("time", f"{seconds:.6f}")


def _seconds(value: float) -> float:
    """Return a time as JUnit's readers take it: they know no NaN and no infinity."""
    return value if math.isfinite(value) and value >= 0 else 0.0


def _legal(text: str) -> str:
    """Return `text` with control characters spelled out, and without any that XML can't hold."""
    lines = "\n".join(shown(line) for line in text.split("\n"))
    return _ILLEGAL.sub("", lines)
