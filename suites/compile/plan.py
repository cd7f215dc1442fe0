"""What a run compiles: the launches of the chosen calls, each kind of launch once a generation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from profiles.peaks import LIMITS
from reports.record import CompileRow
from suites.compile.rows import Call, Noted, Planned, numbered
from suites.compile.selection import Standing, alignment_bytes
from suites.compile.workers import Take, Workers
from suites.run.descriptions import case_info


@dataclass(slots=True)
class Plan:
    """Launches to compile, rows of calls whose launches aren't known, and kernels without any."""

    launches: list[Planned] = field(default_factory=list)
    failures: list[CompileRow] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)


def plan(
    chosen: Sequence[Standing], sms: Sequence[int], workers: Workers, *, everything: bool = False
) -> Plan:
    """Take down the launches of every chosen call on every generation.

    What an earlier call launches isn't planned again for a later one; it is told beside the earlier
    one's. A later one that has nothing of its own is tried with its other case. A kernel whose
    plain calls are put together of other kernels' launches is none of its own, options and all,
    unless everything is asked for.
    """
    answers = _taken([(each, sm, each.cases[sm]) for each in chosen for sm in each.cases], workers)
    composed = set() if everything else _composed(chosen, answers)
    chosen = [each for each in chosen if not (_options(each) and _kernel(each) in composed)]
    made = Plan()
    seen: dict[tuple[int, str], int] = {}  # where in `launches` a kind of launch is
    again = [
        (each, sm, each.otherwise)
        for each in chosen
        if each.otherwise is not None and _all_known(each, chosen, answers)
        for sm in each.cases
        if each.kernel.domain.reject(each.otherwise, sm) is None
    ]
    answers |= _taken(again, workers)
    tried = {(id(each), sm) for each, sm, _ in again}
    launching: set[str] = set()
    for each in chosen:
        for sm in sms:
            if sm not in each.cases:
                continue
            case = each.cases[sm]
            if (id(each), sm) in tried and each.otherwise is not None:
                case = each.otherwise
            answer = answers[sm, Call(each.kernel.op.name, each.kernel.name, case)]
            if isinstance(answer, str):
                made.failures.append(_failure(each, sm, answer))
                continue
            names = numbered([one.function for one in answer])
            launching.update([each.kernel.name] if answer else [])
            for function, noted in zip(names, answer, strict=True):
                where = seen.setdefault((sm, noted.key), len(made.launches))
                if where == len(made.launches):
                    made.launches.append(
                        Planned(each.kernel, each.label, case, sm, function, noted)
                    )
                else:
                    other = f"{each.kernel.op.name} {each.kernel.name} {each.label}"
                    made.launches[where] = made.launches[where].shared_with(other)
    failed = {row.kernel for row in made.failures}
    made.silent += [
        name
        for name in dict.fromkeys(each.kernel.name for each in chosen)
        if name not in launching and name not in failed
    ]
    return made


_Answer = tuple[Noted, ...] | str
_Answers = dict[tuple[int, Call], _Answer]


def _taken(wanted: Sequence[tuple[Standing, int, object]], workers: Workers) -> _Answers:
    tasks: dict[int, list[Take]] = {}
    for each, sm, case in wanted:
        call = Call(each.kernel.op.name, each.kernel.name, case)  # type: ignore[arg-type]
        tasks.setdefault(sm, []).append(Take(call))
    answers: _Answers = {}
    for sm, task, answer in workers.run(tasks):
        assert isinstance(task, Take) and isinstance(answer, tuple | str)
        answers[sm, task.call] = answer
    return answers


def _kernel(each: Standing) -> tuple[str, str]:
    return each.kernel.op.name, each.kernel.name


def _options(each: Standing) -> bool:
    return any(case.options for case in each.cases.values())


def _composed(chosen: Sequence[Standing], answers: _Answers) -> set[tuple[str, str]]:
    """The kernels whose plain calls launch nothing that no other kernel does."""
    plain: dict[tuple[str, str], set[tuple[int, str]]] = {}
    for each in chosen:
        keys = {(sm, noted.key) for sm in each.cases for noted in _launches(answers, each, sm)}
        if keys and not _options(each):
            plain.setdefault(_kernel(each), set()).update(keys)
    earlier: set[tuple[int, str]] = set()
    composed = set()
    for kernel, keys in plain.items():
        if keys <= earlier:
            composed.add(kernel)
        earlier |= keys
    return composed


def _all_known(each: Standing, chosen: Sequence[Standing], answers: _Answers) -> bool:
    """Whether other calls launch all that this one does."""
    others = {
        (sm, noted.key)
        for other in chosen
        if other is not each
        for sm, case in other.cases.items()
        for noted in _launches(answers, other, sm)
    }
    own = {(sm, noted.key) for sm in each.cases for noted in _launches(answers, each, sm)}
    return own <= others


def _launches(answers: _Answers, each: Standing, sm: int) -> tuple[Noted, ...]:
    found = answers[sm, Call(each.kernel.op.name, each.kernel.name, each.cases[sm])]
    return () if isinstance(found, str) else found


def _failure(each: Standing, sm: int, reason: str) -> CompileRow:
    """The row of a call whose launches couldn't be taken down."""
    case = each.cases[sm]
    return CompileRow(
        op=each.kernel.op.name,
        kernel=each.kernel.name,
        label=each.label,
        function="its launches",
        sm=sm,
        case=case_info(case),
        alignment_bytes=alignment_bytes(case),
        status="failed",
        reason=reason,
        shared_limit_bytes=LIMITS[sm].shared_block_bytes,
        most_warps=LIMITS[sm].warps,
        compile_s=0.0,
        tools={},
    )
