"""What a run compiles: the launches of the chosen calls, each kind of launch once a generation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kernel_workbench.kernels.registry import Kernel
from kernel_workbench.oracles.op import Case
from kernel_workbench.suites.compile.cases import Standing
from kernel_workbench.suites.compile.workers import Call, Noted, Take, Workers
from kernel_workbench.suites.run.progress import Progress


@dataclass(frozen=True, slots=True)
class Planned:
    """One launch to be compiled: of which kernel's call, on which generation.

    function   numbered where the call launches several of it
    also       other calls that launch the same
    """

    kernel: Kernel
    label: str
    case: Case
    sm: int
    function: str
    noted: Noted
    also: tuple[str, ...] = ()

    @property
    def call(self) -> Call:
        """The call, by names."""
        return Call(self.kernel.op.name, self.kernel.name, self.case)

    def shared_with(self, other: str) -> Planned:
        """The same, launched by another call too."""
        return self if other in self.also else replace(self, also=(*self.also, other))


@dataclass(frozen=True, slots=True)
class Plan:
    """Launches to compile, calls whose launches can't be had, and kernels without any.

    failures: of each call what it stands for, the sm, and why.
    """

    launches: tuple[Planned, ...]
    failures: tuple[tuple[Standing, int, str], ...]
    silent: tuple[str, ...]


def plan(chosen: Sequence[Standing], workers: Workers, *, everything: bool = False) -> Plan:
    """Take down the launches of every chosen call on every generation.

    What an earlier call launches isn't planned again for a later one; it is told beside the earlier
    one's. A later one that has nothing of its own is tried with its other case. A kernel whose
    plain calls are put together of other kernels' launches is none of its own, options and all,
    unless everything is asked for.
    """
    answers = _taken(chosen, workers, {})
    composed = set() if everything else _composed(chosen, answers)
    own = [each for each in chosen if not (_options(each) and _kernel(each) in composed)]
    tried = [
        _on(each.otherwise, each)
        if each.otherwise is not None and _all_known(each, own, answers)
        else each
        for each in own
    ]
    answers = _taken(tried, workers, answers)
    launches: dict[tuple[int, str], Planned] = {}
    failures = []
    told = set()  # kernels of which anything is known
    for each in tried:
        for sm, case in each.cases.items():
            answer = answers[sm, _call(each, sm)]
            if answer:
                told.add(each.kernel.name)
            if isinstance(answer, str):
                failures.append((each, sm, answer))
                continue
            names = numbered([one.function for one in answer])
            for function, noted in zip(names, answer, strict=True):
                earlier = launches.get((sm, noted.key))
                launches[sm, noted.key] = (
                    Planned(each.kernel, each.label, case, sm, function, noted)
                    if earlier is None
                    else earlier.shared_with(" ".join([*_kernel(each), each.label]))
                )
    tried_kernels = dict.fromkeys(each.kernel.name for each in tried)
    silent = tuple(each for each in tried_kernels if each not in told)
    return Plan(tuple(launches.values()), tuple(failures), silent)


_Answer = tuple[Noted, ...] | str
_Answers = dict[tuple[int, Call], _Answer]


def _taken(chosen: Sequence[Standing], workers: Workers, known: _Answers) -> _Answers:
    """What is known already, and what is launched by those calls that it lacks."""
    tasks: dict[int, dict[Call, Take]] = {}
    for each in chosen:
        for sm in each.cases:
            call = _call(each, sm)
            if (sm, call) not in known:
                tasks.setdefault(sm, {})[call] = Take(call)
    answers = dict(known)
    waiting = {sm: list(each.values()) for sm, each in tasks.items()}
    with Progress("compile, calls") as progress:
        progress.begin(sum(map(len, waiting.values())))
        for sm, task, answer in workers.run(waiting, progress.wait):
            assert isinstance(task, Take) and isinstance(answer, tuple | str)
            answers[sm, task.call] = answer
            progress.advance(task.name)
    return answers


def _call(each: Standing, sm: int) -> Call:
    return Call(*_kernel(each), each.cases[sm])


def _on(other: Case, each: Standing) -> Standing:
    """With another case, where the kernel serves that."""
    served = [sm for sm in each.cases if each.kernel.domain.reject(other, sm) is None]
    return replace(each, cases=each.cases | dict.fromkeys(served, other))


def _kernel(each: Standing) -> tuple[str, str]:
    return each.kernel.op.name, each.kernel.name


def _options(each: Standing) -> bool:
    return any(case.options for case in each.cases.values())


def _composed(chosen: Sequence[Standing], answers: _Answers) -> set[tuple[str, str]]:
    """The kernels whose plain calls launch nothing that no other kernel does."""
    plain: dict[tuple[str, str], set[tuple[int, str]]] = {}
    for each in chosen:
        keys = _keys(each, answers)
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
    others = (_keys(other, answers) for other in chosen if other is not each)
    return _keys(each, answers).issubset(set().union(*others))


def _keys(each: Standing, answers: _Answers) -> set[tuple[int, str]]:
    """By sm and key what its calls launch."""
    found = [(sm, answers[sm, _call(each, sm)]) for sm in each.cases]
    return {
        (sm, noted.key) for sm, answer in found if not isinstance(answer, str) for noted in answer
    }


def numbered(functions: Sequence[str]) -> list[str]:
    """Names with a number where one comes again: `key_gradients`, `key_gradients 2`."""
    seen: dict[str, int] = {}
    named = []
    for each in functions:
        seen[each] = seen.get(each, 0) + 1
        named.append(each if seen[each] == 1 else f"{each} {seen[each]}")
    return named
