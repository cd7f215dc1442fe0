"""Select the kernels and cases of a command line; unknown names get one sentence."""

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

_MOST_ROWS = 500_000  # rows of one run; a run of all kernels on every case has a fifth of them
_SEED = re.compile(r"-seed(-?\d{1,10})$")


@contextmanager
def refusing(*kinds: type[Exception]) -> Iterator[None]:
    """Raise errors of these kinds, whose messages are sentences for the user, as UsageError."""
    try:
        yield
    except kinds as error:
        raise pytest.UsageError(str(error)) from error


def _check_names(option: str, wanted: Sequence[str], names: Iterable[str]) -> None:
    """Raise UsageError for a wanted name that doesn't exist."""
    existing = sorted(names)
    for name in wanted:
        if name not in existing:
            raise pytest.UsageError(
                f"{option} {name}: there is no such {option[2:]}; {hint(name, existing)}"
            )


def kernel_files(options: CommonOptions) -> tuple[Path, ...]:
    """Return the files of --definition, --problem, --ops and --kernels, in this order, each once.

    Raises:
        pytest.UsageError: a file doesn't exist, or has the wrong kind.
    """
    named = {
        "--definition": options.definition,
        "--problem": options.problem,
        "--ops": options.ops,
        "--kernels": options.kernels,
    }
    for file in (*options.problem, *options.ops, *options.kernels):
        if Path(file).suffix == ".json":
            raise pytest.UsageError(
                f"{file}: it isn't a Python file; give a JSON definition with --definition"
            )
    with refusing(KernelError):
        return tuple(
            dict.fromkeys(
                resolved(Path(file), option) for option, files in named.items() for file in files
            )
        )


def known_ops(options: CommonOptions) -> None:
    """Import the files of --problem and --ops, and read those of --definition, each once.

    Raises:
        pytest.UsageError: a file can't be read, or the options lack one that it needs.
    """
    if options.workloads and not options.definition:
        raise pytest.UsageError(
            "--workloads: its cases belong to a definition; add --definition=FILE"
        )
    for option, files in (("--definition", options.definition), ("--problem", options.problem)):
        if files and not options.kernels:
            raise pytest.UsageError(
                f"{option}: it has no kernel; add a file that registers one with --kernels=FILE"
            )
    homes = {home_of(op) for op in OPS}
    with refusing(KernelError):
        for definition in options.definition:
            if resolved(Path(definition), "--definition") not in homes:
                load_definition(Path(definition), [Path(file) for file in options.workloads])
        for option, files in (("--problem", options.problem), ("--ops", options.ops)):
            for file in files:
                if resolved(Path(file), option) not in homes:
                    load_ops(Path(file), option)


def selected_kernels(
    options: CommonOptions, load: Callable[[], tuple[Kernel, ...]], *, baselines: bool = True
) -> tuple[Kernel, ...]:
    """Return the kernels to run: those of --kernels, --kernel and --op, or all.

    Two ops may have kernels of one name: the name then means both, unless --op or --case names the
    op.

    Args:
        options: the options.
        load: registers the files' kernels, in the process that imports them, and returns them.
        baselines: baselines belong to "all"; else they run only if --kernel names them.

    Raises:
        pytest.UsageError: a name doesn't exist, or the options leave no kernel.
    """
    ops, names = options.op, options.kernel
    with refusing(KernelError):
        from_files = load() if options.kernels or options.ops else ()
        own = {(kernel.op.name, kernel.name): kernel for kernel in all_kernels()}
    _check_names("--op", ops, OPS)
    registered = (own | {(file.op.name, file.name): file for file in from_files}).values()
    registered_names = {kernel.name for kernel in registered}
    for absent in all_absent():
        if absent.name in names and absent.name not in registered_names:
            raise pytest.UsageError(f"--kernel {absent.name}: {absent.reason}")
    _check_names("--kernel", names, registered_names)

    def is_wanted(kernel: Kernel) -> bool:
        if ops and kernel.op.name not in ops:
            return False
        if names:
            return kernel.name in names
        return kernel in from_files if from_files else baselines or kernel.origin != "baseline"

    chosen = tuple(filter(is_wanted, registered))
    if not chosen:
        raise pytest.UsageError("--op and --kernel together leave no kernel to run")
    return chosen


def absent_kernels(options: CommonOptions, ops: Collection[str]) -> tuple[AbsentKernel, ...]:
    """Return the peers of `ops` that a run of all kernels leaves out: they aren't installed."""
    if options.kernel or options.kernels:
        return ()
    return tuple(
        AbsentKernel(op=absent.op.name, name=absent.name, reason=absent.reason)
        for absent in all_absent()
        if absent.op.name in ops
    )


def check_dtypes(options: JudgedOptions) -> None:
    """Raise UsageError if --dtype names a dtype that doesn't exist."""
    _check_names("--dtype", options.dtype, DTYPES)


def selected_cases(
    options: CaseOptions,
    device: torch.device,
    kernels: Sequence[Kernel],
    listed_for: Callable[[str], Iterable[Case]] | None = None,
    *,
    tier: str = "full",
) -> tuple[Case, ...]:
    """Return the cases of the kernels' ops that --dtype, --case and --seed select, op by op.

    Args:
        options: the options.
        device: the device of the run, whose memory the cases of --cases must fit.
        kernels: the kernels of the run.
        listed_for: returns a suite's own cases of an op; None means the op's cases. Cases of
            --cases replace both.
        tier: "ci" or "full".

    Raises:
        pytest.UsageError: a case or tier doesn't exist, or too many or no cases are left.
    """
    if tier not in ("ci", "full"):
        raise pytest.UsageError(f"--tier {tier}: there is no such tier; use ci or full")
    check_dtypes(options)
    theirs = user_cases(options, device)
    by_id = {
        case.id(): case
        for op in dict.fromkeys(kernel.op.name for kernel in kernels)
        for case in _listed(op, theirs, listed_for)
    }
    wanted, seeds = options.case, options.seed
    listed = (
        [_case(name, by_id, kernels) for name in dict.fromkeys(wanted)]
        if wanted
        else [case for case in by_id.values() if tier == "full" or case.tier == "ci"]
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
    """Return the cases to choose from: a user's, a suite's, or the op's."""
    if theirs is not None:
        return [case for case in theirs if case.op == op]
    return OPS[op].cases() if listed_for is None else listed_for(op)


def _case(name: str, listed: dict[str, Case], kernels: Sequence[Kernel]) -> Case:
    """Return the case called `name`: a listed case with any seed, or another that its op allows."""
    if name in listed:
        return listed[name]
    seed = _SEED.search(name)
    if seed is not None and (base := _unseeded(name, listed.values())) is not None:
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
                f"--case {quoted(name)}: it is a case of {op}, and the selected kernels are of "
                f"{', '.join(own)}"
            )
    close = difflib.get_close_matches(name, listed, n=1)
    meant = f"; did you mean {close[0]}?" if close else ""
    raise pytest.UsageError(f"--case {quoted(name)}: there is no such case{meant}")


def _unseeded(name: str, listed: Iterable[Case]) -> Case | None:
    """Return the first listed case with this name apart from its seed; None if there is none."""
    stem = _SEED.sub("", name)
    for case in listed:
        if _SEED.sub("", case.id()) == stem:
            return case
    return None


def listed_as_served(
    listed: Sequence[Case],
    kernels: Iterable[Kernel],
    refusal: Callable[[Kernel, Case], str | None],
    dtypes: Collection[str],
) -> tuple[Case, ...]:
    """Return a suite's own cases of one op, in dtypes that a user's kernels serve.

    A user's kernel that serves none of the cases adds their shapes in the first dtypes that it
    serves. If each user's kernel does so, the listed cases themselves are left out.

    Args:
        listed: the suite's cases.
        kernels: the kernels of the run.
        refusal: returns why a kernel doesn't serve a case, or None.
        dtypes: the names of --dtype; empty means all.
    """
    theirs = [kernel for kernel in kernels if kernel.origin == "user"]
    brought: list[Case] = []
    stay = not theirs
    for kernel in theirs:
        if any(refusal(kernel, case) is None for case in listed):
            stay = True
            continue
        served = _in_served_dtypes(listed, partial(refusal, kernel), dtypes)
        brought += served
        stay = stay or not served
    return tuple({case.id(): case for case in (*(listed if stay else ()), *brought)}.values())


def _in_served_dtypes(
    listed: Sequence[Case], refusal: Callable[[Case], str | None], named: Collection[str]
) -> list[Case]:
    """Return all cases in the first dtypes in which one of them is served; empty if none is.

    Args:
        listed: the cases.
        refusal: returns why the kernel doesn't serve a case, or None.
        named: the dtypes of --dtype; empty means all.
    """
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        if named and dtype_name(dtype) not in named:
            continue
        for weight in (dtype, torch.float32):
            cases = [replace(case, dtype=dtype, weight_dtype=weight) for case in listed]
            if any(
                objection(OPS[case.op], case) is None and refusal(case) is None for case in cases
            ):
                return cases
    return []


def alike_together(kernels: Iterable[Kernel]) -> list[Kernel]:
    """Return the kernels, grouped by their bounds: a large case keeps one set of bounds."""
    groups: dict[Numerics, list[Kernel]] = {}
    for kernel in kernels:
        groups.setdefault(kernel.numerics.of_bounds, []).append(kernel)
    return [kernel for alike in groups.values() for kernel in alike]


def of_ops_of_ours(kernels: Sequence[Kernel]) -> list[Kernel]:
    """Return the kernels of ops that have a kernel other than baselines."""
    ops = {kernel.op.name for kernel in kernels if kernel.origin != "baseline"}
    return [kernel for kernel in kernels if kernel.op.name in ops]
