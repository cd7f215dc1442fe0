"""Commands that run a row again: the options that decide its result, as its suite takes them.

Every option of a suite that makes rows is of one of three kinds, which the tests list. An option
that decides a result is repeated; one that selects rows is replaced by the row's own --kernel and
--case; another changes what is shown or kept, or how a run is spread over processes.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from kernel_workbench.kernels.registry import Kernel, home_of
from kernel_workbench.oracles.op import Case
from kernel_workbench.reports.commands import this_program
from kernel_workbench.suites.run.commands import path_in_command
from kernel_workbench.suites.run.option_table import OPTIONS, CallingOptions

# In the order in which a command has them; files first.
FILES = ("--definition", "--workloads", "--problem", "--ops", "--cases")
DECIDE = (
    *FILES,
    *("--device", "--sm", "--no-strict", "--in-process", "--time-limit", "--memory-limit"),
    *("--tier", "--every-configuration", "--cache", "--row-time", "--window", "--trials"),
    "--signs",
)
_CPU_ALONE = {"--sm", "--no-strict"}  # on a GPU they mean nothing
_WORKERS_ALONE = {"--time-limit", "--memory-limit"}  # a process that is the judge's has no limit


def deciding_options(options: CallingOptions, suite: str, device: torch.device) -> tuple[str, ...]:
    """Return the options, quoted for a shell, that decide the results of a run.

    suite: the one whose command repeats a row, which is accuracy for a search. An option is left
    out where the suite does the same without it.
    """
    words = []
    of_suite = {option.names[0]: option for option in OPTIONS if suite in option.suites}
    for name in DECIDE:
        if name not in of_suite or (name in _CPU_ALONE and device.type != "cpu"):
            continue
        if name in _WORKERS_ALONE and getattr(options, "in_process", False):
            continue
        settings = of_suite[name].settings
        value = device.type if name == "--device" else getattr(options, settings["dest"], None)
        if settings.get("action") == "store_true":
            words += [name] * bool(value)
        elif name in FILES:
            files = dict.fromkeys(Path(file).expanduser().resolve() for file in value or ())
            words += [f"{name}={shlex.quote(path_in_command(file))}" for file in files]
        elif value is not None and value != settings.get("default"):
            if name == "--memory-limit" and isinstance(value, int):
                value /= 2**30
            text = repr(value).removesuffix(".0") if isinstance(value, float) else str(value)
            words.append(f"{name} {shlex.quote(text)}")
    return tuple(words)


def command_of(
    suite: str, kernel: Kernel, case: Case, deciding: Iterable[str], more: Sequence[str] = ()
) -> str:
    """Return the command that runs a pair alone.

    deciding: as `deciding_options` returns them. more: options of this row, quoted for a shell.
    """
    # Words about the row itself replace those of the run.
    own = {word.partition(" ")[0] for word in more}
    if kernel.configuration is not None:
        own.add("--every-configuration")
    words = [word for word in deciding if word.partition(" ")[0] not in own]
    if kernel.origin == "user":
        home = home_of(kernel.op.name)
        named = any(word.startswith(("--ops", "--definition", "--problem")) for word in words)
        files = [home] if home is not None and not named else []
        paths = map(path_in_command, dict.fromkeys((*files, Path(kernel.path))))
        words += [f"--kernels={shlex.quote(path)}" for path in paths]
    words += [f"--kernel {shlex.quote(kernel.name)}", f"--case {shlex.quote(case.id())}", *more]
    if kernel.configuration is not None:
        words.append(f"--configuration {shlex.quote(kernel.configuration)}")
    return " ".join([this_program().prefix(suite), *words])
