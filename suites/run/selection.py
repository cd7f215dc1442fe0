"""Which kernels and cases a command line means; what doesn't exist is refused in one sentence."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from kernel_workbench.kernels import Kernel, KernelError, all_kernels
from kernel_workbench.kernels.declarations import hint
from kernel_workbench.kernels.registry import (
    all_absent,
    home_of,
    load_definition,
    load_ops,
    resolved,
)
from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.cases.names import case_named, objection
from kernel_workbench.oracles.op import Case, Numerics, dtype_name
from kernel_workbench.reports.arguments import quoted
from kernel_workbench.reports.record import AbsentKernel
from kernel_workbench.suites.run.option_table import CaseOptions, CommonOptions, JudgedOptions
from kernel_workbench.suites.run.user_cases import DTYPES, user_cases

_MOST_ROWS = 500_000  # that one run plans; a run of all kernels on every case has a fifth of them
_SEED = re.compile(r"-seed(-?\d{1,10})$")


@contextmanager
def refusing(*kinds: type[Exception]) -> Iterator[None]:
    """Errors of these kinds, whose message is a sentence for the user, become UsageError."""
    try:
        yield
    except kinds as error:
        raise pytest.UsageError(str(error)) from error


def _known(option: str, wanted: Sequence[str], known: Iterable[str]) -> None:
    names = sorted(known)
    for each in wanted:
        if each not in names:
            raise pytest.UsageError(
                f"{option} {each}: there is no such {option[2:]}; {hint(each, names)}"
            )


def kernel_files(options: CommonOptions) -> tuple[Path, ...]:
    """The files of --definition, --problem, --ops and --kernels, in this order, each once."""
    named = {
        "--definition": options.definition,
        "--problem": options.problem,
        "--ops": options.ops,
        "--kernels": options.kernels,
    }
    for each in (*options.problem, *options.ops, *options.kernels):
        if Path(each).suffix == ".json":
            raise pytest.UsageError(
                f"{each}: not a Python file; a definition in JSON comes by --definition"
            )
    with refusing(KernelError):
        return tuple(
            dict.fromkeys(
                resolved(Path(file), option) for option, files in named.items() for file in files
            )
        )


def known_ops(options: CommonOptions) -> None:
    """Import what --problem and --ops name, and read --definition; each once. Raises UsageError."""
    if options.workloads and not options.definition:
        raise pytest.UsageError(
            "--workloads: it holds cases of --definition, which isn't there; add --definition=FILE"
        )
    for option, files in (("--definition", options.definition), ("--problem", options.problem)):
        if files and not options.kernels:
            raise pytest.UsageError(
                f"{option}: it has no kernel; give a file that registers one, as --kernels=FILE"
            )
    homes = {home_of(op) for op in OPS}
    with refusing(KernelError):
        for each in options.definition:
            if resolved(Path(each), "--definition") not in homes:
                load_definition(Path(each), [Path(file) for file in options.workloads])
        for option, files in (("--problem", options.problem), ("--ops", options.ops)):
            for each in files:
                if resolved(Path(each), option) not in homes:
                    load_ops(Path(each), option)


def selected_kernels(
    options: CommonOptions, load: Callable[[], tuple[Kernel, ...]], *, baselines: bool = True
) -> tuple[Kernel, ...]:
    """The kernels to run: all, those of --kernels' files, those named by --kernel, of --op.

    load: what registers the files' kernels, wherever they are imported. Two ops may have kernels of
    one name; it means both, unless --op or --case says which.
    baselines: whether they are among all; else they are run by name alone.
    """
    ops, names = options.op, options.kernel
    with refusing(KernelError):
        from_files = load() if options.kernels or options.ops else ()
        own = {(kernel.op.name, kernel.name): kernel for kernel in all_kernels()}
    _known("--op", ops, OPS)
    registered = (own | {(file.op.name, file.name): file for file in from_files}).values()
    known = {each.name for each in registered}
    for each in all_absent():
        if each.name in names and each.name not in known:
            raise pytest.UsageError(f"--kernel {each.name}: {each.reason}")
    _known("--kernel", names, known)

    def wanted(each: Kernel) -> bool:
        if names:
            return each.name in names
        return each in from_files if from_files else baselines or each.origin != "baseline"

    chosen = [each for each in registered if wanted(each) and (not ops or each.op.name in ops)]
    if not chosen:
        raise pytest.UsageError("--op and --kernel together leave no kernel to run")
    return tuple(chosen)


def absent_kernels(options: CommonOptions, ops: Collection[str]) -> tuple[AbsentKernel, ...]:
    """The peers of `ops` that a run of all kernels would have tried, had they been installed."""
    if options.kernel or options.kernels:
        return ()
    return tuple(
        AbsentKernel(op=each.op.name, name=each.name, reason=each.reason)
        for each in all_absent()
        if each.op.name in ops
    )


def check_dtypes(options: JudgedOptions) -> None:
    """Raise UsageError where --dtype names none."""
    _known("--dtype", options.dtype, DTYPES)


def selected_cases(
    options: CaseOptions,
    device: torch.device,
    kernels: Sequence[Kernel],
    listed_for: Callable[[str], Iterable[Case]] | None = None,
    *,
    tier: str = "full",
) -> tuple[Case, ...]:
    """Return the cases of the kernels' ops that --dtype, --case and --seed select, op by op.

    listed_for: returns a suite's own cases of an op; by default the op's. The cases of --cases'
    files, where there are any, take the place of either. tier: as --tier says it.
    Raises UsageError.
    """
    if tier not in ("ci", "full"):
        raise pytest.UsageError(f"--tier {tier}: there is no such tier; use ci or full")
    check_dtypes(options)
    theirs = user_cases(options, device)
    known = {
        case.id(): case
        for op in dict.fromkeys(kernel.op.name for kernel in kernels)
        for case in _listed(op, theirs, listed_for)
    }
    wanted, seeds = options.case, options.seed
    listed = (
        [_case(fromkey, known, kernels) for fromkey in dict.fromkeys(wanted)]
        if wanted
        else [case for case in known.values() if tier == "full" or case.tier == "ci"]
    )
    of_op = Counter(kernel.op.name for kernel in kernels)
    rows = len(seeds) * sum(of_op[case.op] for case in listed)
    if rows > _MOST_ROWS:
        raise pytest.UsageError(
            f"these options ask for {rows:,} rows, and a run has at most {_MOST_ROWS:,}; give "
            "fewer seeds, or fewer kernels"
        )
    chosen = tuple(
        replace(case, seed=case.seed + seed)
        for case in listed
        for seed in seeds
        if not options.dtype or dtype_name(case.dtype) in options.dtype
    )
    if not chosen:
        named = "--case and --dtype" if theirs is None else "--cases and the other options"
        raise pytest.UsageError(f"{named} together leave no case to run")
    return chosen


def _listed(
    op: str,
    theirs: Iterable[Case] | None,
    listed_for: Callable[[str], Iterable[Case]] | None,
) -> Iterable[Case]:
    """The cases to choose from: a user's, a suite's, or the op's."""
    if theirs is not None:
        return [case for case in theirs if case.op == op]
    return OPS[op].cases() if listed_for is None else listed_for(op)


def _case(name: str, known: dict[str, Case], kernels: Sequence[Kernel]) -> Case:
    """The case called `name`: of any tier, with any seed, or any other that its op allows."""
    if name in known:
        return known[name]
    seed = _SEED.search(name)
    if seed is not None and (base := _unseeded(name, known.values())) is not None:
        return replace(base, seed=int(seed.group(1)))
    own = sorted({kernel.op.name for kernel in kernels})
    for op in OPS:
        drawn = case_named(OPS[op], name)
        if op in own and drawn is not None:
            wrong = objection(OPS[op], drawn)
            if wrong is not None:
                raise pytest.UsageError(f"--case {quoted(name)}: {wrong}")
            return drawn
        if op not in own and (drawn is not None or _unseeded(name, OPS[op].cases()) is not None):
            raise pytest.UsageError(
                f"--case {quoted(name)}: it is a case of {op}, and the kernels that are asked for "
                f"are of {', '.join(own)}"
            )
    close = difflib.get_close_matches(name, known, n=1)
    meant = f"; did you mean {close[0]}?" if close else ""
    raise pytest.UsageError(f"--case {quoted(name)}: there is no such case{meant}")


def _unseeded(name: str, known: Iterable[Case]) -> Case | None:
    stem = _SEED.sub("", name)
    for case in known:
        if _SEED.sub("", case.id()) == stem:
            return case
    return None


def listed_as_served(
    listed: Sequence[Case],
    kernels: Iterable[Kernel],
    refusal: Callable[[Kernel, Case], str | None],
    dtypes: Collection[str],
) -> tuple[Case, ...]:
    """A suite's own cases of one op, in dtypes that a user's kernels serve.

    A user's kernel that serves none of them brings their shapes in the first dtypes that it serves;
    where each does, these stand alone. dtypes: those of --dtype, or none for all.
    """
    theirs = [each for each in kernels if each.origin == "user"]
    brought: list[Case] = []
    stay = not theirs
    for kernel in theirs:
        if any(refusal(kernel, case) is None for case in listed):
            stay = True
            continue
        others = _in_served_dtypes(listed, partial(refusal, kernel), dtypes)
        brought += others
        stay = stay or not others
    return tuple({case.id(): case for case in (*(listed if stay else ()), *brought)}.values())


def _in_served_dtypes(
    listed: Sequence[Case], refusal: Callable[[Case], str | None], named: Collection[str]
) -> list[Case]:
    """The cases in the first dtype, and weights' dtype, in which one is served; or none."""
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        if named and dtype_name(dtype) not in named:
            continue
        for weight in (dtype, torch.float32):
            made = [replace(case, dtype=dtype, weight_dtype=weight) for case in listed]
            if any(
                objection(OPS[case.op], case) is None and refusal(case) is None for case in made
            ):
                return made
    return []


def alike_together(kernels: Iterable[Kernel]) -> list[Kernel]:
    """The kernels, those that have the same bounds in a row: of a large case one set is kept."""
    groups: dict[Numerics, list[Kernel]] = {}
    for kernel in kernels:
        groups.setdefault(kernel.numerics.of_bounds, []).append(kernel)
    return [each for alike in groups.values() for each in alike]


def of_ops_of_ours(kernels: Sequence[Kernel]) -> list[Kernel]:
    """Those of ops that not peers alone compute: what is measured where nobody names one."""
    ops = {kernel.op.name for kernel in kernels if kernel.origin != "baseline"}
    return [kernel for kernel in kernels if kernel.op.name in ops]
