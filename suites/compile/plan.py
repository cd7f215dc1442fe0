"""Plan what a run compiles: the distinct launches of the chosen calls, for each generation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kernel_workbench.kernels.registry import Kernel
from kernel_workbench.oracles.op import Case
from kernel_workbench.suites.compile.cases import Standing
from kernel_workbench.suites.compile.workers import CompileWorkers, NamedCall, Noted, Take
from kernel_workbench.suites.run.progress import Progress


@dataclass(frozen=True, slots=True)
class Planned:
    """One launch to compile, with its kernel's call and its generation.

    function   the function's name, numbered if the call launches it several times
    also       other calls that make the same launch
    """

    kernel: Kernel
    label: str
    case: Case
    sm: int
    function: str
    noted: Noted
    also: tuple[str, ...] = ()

    @property
    def call(self) -> NamedCall:
        """The call, by names."""
        return NamedCall(self.kernel.op.name, self.kernel.name, self.case)


@dataclass(frozen=True, slots=True)
class Plan:
    """Launches to compile, failed calls, and the op and name of `silent` kernels without launches.

    `failures` has an empty launch for each failed call, and the reason.
    """

    launches: tuple[Planned, ...]
    failures: tuple[tuple[Planned, str], ...]
    silent: tuple[str, ...]


def plan(chosen: Sequence[Standing], workers: CompileWorkers, *, everything: bool = False) -> Plan:
    """Capture the launches of every chosen call on every generation.

    A launch is planned once, for the first call that makes it; later calls are listed in `also`. A
    call without launches of its own is tried with its other case. If all plain calls of a kernel
    make only other kernels' launches, its calls with options aren't planned, except with
    `everything`.
    """
    answers = _captured(chosen, workers, {})
    composed = set() if everything else _composed(chosen, answers)
    own = [entry for entry in chosen if not (_options(entry) and _kernel(entry) in composed)]
    tried = [
        _on(entry.otherwise, entry)
        if entry.otherwise is not None and _all_known(entry, own, answers)
        else entry
        for entry in own
    ]
    answers = _captured(tried, workers, answers)
    launches: dict[tuple[int, str], Planned] = {}
    failures = []
    answered = set()  # the ops and names of kernels with an answer
    for entry in tried:
        for sm, case in entry.cases.items():
            answer = answers[sm, _call(entry, sm)]
            if answer:
                answered.add(_kernel(entry))
            if isinstance(answer, str):
                nothing = Noted("", "", {}, None)
                failed = Planned(entry.kernel, entry.label, case, sm, "its launches", nothing)
                failures.append((failed, answer))
                continue
            names = numbered([one.function for one in answer])
            for function, noted in zip(names, answer, strict=True):
                launch = Planned(entry.kernel, entry.label, case, sm, function, noted)
                if (earlier := launches.get((sm, noted.key))) is not None:
                    also = [*earlier.also, " ".join([*_kernel(entry), entry.label])]
                    launch = replace(earlier, also=tuple(dict.fromkeys(also)))
                launches[sm, noted.key] = launch
    tried_kernels = dict.fromkeys(map(_kernel, tried))
    silent = tuple(" ".join(key) for key in tried_kernels if key not in answered)
    return Plan(tuple(launches.values()), tuple(failures), silent)


_Answer = tuple[Noted, ...] | str
_Answers = dict[tuple[int, NamedCall], _Answer]


def _captured(chosen: Sequence[Standing], workers: CompileWorkers, before: _Answers) -> _Answers:
    """Return the answers from before, and new answers for the calls that they lack."""
    tasks: dict[int, dict[NamedCall, Take]] = {}
    for entry in chosen:
        for sm in entry.cases:
            call = _call(entry, sm)
            if (sm, call) not in before:
                tasks.setdefault(sm, {})[call] = Take(call)
    answers = dict(before)
    waiting = {sm: list(calls.values()) for sm, calls in tasks.items()}
    with Progress("compile, calls") as progress:
        progress.begin(sum(map(len, waiting.values())))
        for sm, task, answer in workers.run(waiting, progress.wait):
            assert isinstance(task, Take) and isinstance(answer, tuple | str)
            answers[sm, task.call] = answer
            progress.advance(task.name)
    return answers


def _call(entry: Standing, sm: int) -> NamedCall:
    return NamedCall(*_kernel(entry), entry.cases[sm])


def _on(other: Case, entry: Standing) -> Standing:
    """Return the entry with another case on each sm where the kernel serves that case."""
    served = [sm for sm in entry.cases if entry.kernel.domain.reject(other, sm) is None]
    return replace(entry, cases=entry.cases | dict.fromkeys(served, other))


def _kernel(entry: Standing) -> tuple[str, str]:
    return entry.kernel.op.name, entry.kernel.name


def _options(entry: Standing) -> bool:
    return any(case.options for case in entry.cases.values())


def _composed(chosen: Sequence[Standing], answers: _Answers) -> set[tuple[str, str]]:
    """Return the kernels whose plain calls make only launches of earlier kernels."""
    plain: dict[tuple[str, str], set[tuple[int, str]]] = {}
    for entry in chosen:
        keys = _keys(entry, answers)
        if keys and not _options(entry):
            plain.setdefault(_kernel(entry), set()).update(keys)
    earlier: set[tuple[int, str]] = set()
    composed = set()
    for kernel, keys in plain.items():
        if keys <= earlier:
            composed.add(kernel)
        earlier |= keys
    return composed


def _all_known(entry: Standing, chosen: Sequence[Standing], answers: _Answers) -> bool:
    """Return True if other calls make all launches of this one."""
    elsewhere = (_keys(other, answers) for other in chosen if other is not entry)
    return _keys(entry, answers).issubset(set().union(*elsewhere))


def _keys(entry: Standing, answers: _Answers) -> set[tuple[int, str]]:
    """Return the sm and the key of each launch of an entry's calls."""
    pairs = [(sm, answers[sm, _call(entry, sm)]) for sm in entry.cases]
    return {
        (sm, noted.key) for sm, answer in pairs if not isinstance(answer, str) for noted in answer
    }


def numbered(functions: Sequence[str]) -> list[str]:
    """Return the names, numbered where one repeats.

    >>> numbered(["key_gradients", "delta", "key_gradients"])
    ['key_gradients', 'delta', 'key_gradients 2']
    """
    seen: dict[str, int] = {}
    named = []
    for function in functions:
        seen[function] = seen.get(function, 0) + 1
        named.append(function if seen[function] == 1 else f"{function} {seen[function]}")
    return named
