"""Facts of a run that every view shows: machine, commit, duration, kernels of parts of ops."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, TypeVar

from kernel_workbench.reports.commands import program_of
from kernel_workbench.reports.document.model import ReportPart
from kernel_workbench.reports.phrases import count, duration

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from kernel_workbench.reports.document.model import Figure, Table, Tone
    from kernel_workbench.reports.record import Environment, Record, RunHeader

Item = TypeVar("Item")
Key = TypeVar("Key")
_NUMBER = re.compile(
    r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?!\w)"
)  # whole words: not the 16 of float16


def record_part(
    record: Record,
    suite: str,
    verdict: tuple[str, Tone, str],
    *,
    found: str,
    notes: Iterable[str],
    facts: Sequence[tuple[str, str]],
    items: Iterable[Table | Figure],
    needed: Collection[str] = ("device",),
) -> ReportPart:
    """Return the record's part of a document.

    Args:
        verdict: with its tone, and the sentence that follows it.
        found: what the last line says beside the verdict: `361 timed, 46 refused`.
        needed: labels of the facts that are always shown.
    """
    word, tone, sentence = verdict
    return ReportPart(
        title=f"{suite}: {record.path.name}",
        verdict=word,
        tone=tone,
        sentence=sentence,
        notes=tuple(notes),
        facts=tuple(fact for fact in facts if fact[0] in needed),
        items=tuple(items),
        environment=tuple(fact for fact in facts if fact[0] not in needed),
        record=str(record.path),
        closing=f"{found}; {_look_closer(record)}",
    )


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Return the items by their key; keys and items keep their order."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def total_duration(record: Record) -> str:
    """Return how long the run took; of one without an end, how long its rows did."""
    if record.end is not None:
        return duration(record.end.duration_s)
    return f"{duration(sum(row.duration_s for row in record.rows))} of whole rows"


def environment_lines(record: Record) -> tuple[tuple[str, str], ...]:
    """Return the command and the machine of a run, as (label, text), without missing figures."""
    header, machine = record.header, record.header.environment
    if machine.device == "cpu":
        sm = machine.simulated_sm
        as_if = "" if sm is None else f"; kernels serve the cases that they serve on sm {sm}"
        but_for = f" but for {', '.join(machine.unchecked)}" if machine.unchecked else ""
        checked = {True: f" (strict{but_for})", False: " (not strict)", None: ""}[machine.strict]
        device = f"no GPU: Triton interpreter{checked}{as_if}"
    else:
        memory = None if machine.memory_bytes is None else f"{machine.memory_bytes / 2**30:.0f} GiB"
        parts = (
            machine.device_name,
            machine.sm and f"sm {machine.sm}",
            machine.multiprocessors and f"{machine.multiprocessors} multiprocessors",
            memory,
            machine.driver and f"driver {machine.driver}",
            machine.cuda and f"CUDA {machine.cuda}",
        )
        device = ", ".join(part for part in parts if part)
    versions = {} if "python" in machine.missing else {"Python": machine.python}
    versions |= machine.packages
    host = f"{machine.hostname}, {machine.cpu}, {count(machine.cpu_count, 'core')}"
    # A package may be of kernels of several ops.
    absent = dict.fromkeys(f"{kernel.name}, {kernel.reason}" for kernel in header.absent)
    lines = (
        ("command", header.command),
        ("device", device),
        ("host", "" if "hostname" in machine.missing else host),
        ("system", "" if "platform" in machine.missing else machine.platform),
        ("software", ", ".join(f"{name} {version}" for name, version in versions.items())),
        ("commit", commit_text(machine)),
        ("absent", "; ".join(absent)),
        ("started", f"{header.started_at}, protocol {header.protocol}"),
        ("record", str(record.path)),
    )
    return tuple((label, text) for label, text in lines if text)


def _look_closer(record: Record) -> str:
    """Return the end of a terminal's last line: the command that shows all of the run."""
    path = shlex.quote(str(record.path))
    program = program_of(record.header.command, record.header.suite)
    return f"to look closer: {program.prefix('report')} --details {path}"


def commit_text(machine: Environment) -> str:
    """Return `0123456789ab`, and whether more was changed since; empty where it isn't known."""
    changed = " and changes that are not committed" if machine.git_dirty else ""
    return f"{machine.git_commit[:12]}{changed}" if machine.git_commit else ""


def baselines_of(header: RunHeader) -> set[tuple[str, str]]:
    """Return the kernels, by op and name, that are compared with ours and with a user's."""
    return {(kernel.op, kernel.name) for kernel in header.kernels if kernel.origin == "baseline"}


def own_of(header: RunHeader) -> set[tuple[str, str]]:
    """Return the kernels, by op and name, that the header lists as ours or the user's.

    A report sets them apart. A kernel that the header doesn't list may be anyone's.
    """
    return {(kernel.op, kernel.name) for kernel in header.kernels if kernel.origin != "baseline"}


def parts_of(header: RunHeader) -> dict[tuple[str, str], str]:
    """By op and kernel what it computes, `dx alone`, of kernels that don't compute all of it."""
    return {
        (kernel.op, kernel.name): f"{_joined(kernel.returns)} alone"
        for kernel in header.kernels
        if kernel.left_out
    }


def name_of(kernel: str, part: str | None) -> str:
    """Return `mine`, or `mine (dx alone)` where it computes a part of its op."""
    return kernel if part is None else f"{kernel} ({part})"


def part_notes(header: RunHeader, ran: Collection[tuple[str, str]]) -> list[str]:
    """Return a sentence for each kernel, by op and name, that computes a part of its op."""
    return [
        f"{kernel.name} computes {_joined(kernel.returns)} alone; "
        f"{_joined(kernel.left_out)} {'is' if len(kernel.left_out) == 1 else 'are'}n't judged"
        for kernel in header.kernels
        if kernel.left_out and (kernel.op, kernel.name) in ran
    ]


def _joined(names: tuple[str, ...]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def reason_key(reason: str) -> tuple[str, ...]:
    """Return alike of reasons that differ in numbers alone."""
    return tuple(_NUMBER.split(reason))


def joint_reason(reasons: Sequence[str]) -> str:
    """Reasons that differ in numbers alone as one, with N for the numbers that differ."""
    columns = list(zip(*map(_NUMBER.findall, reasons), strict=True))
    numbers = iter(column[0] if len(set(column)) == 1 else "N" for column in columns)
    return _NUMBER.sub(lambda _: next(numbers), reasons[0])
