"""`bench --gpus`: a run for each GPU of a host, in a process that sees only that GPU.

The runs are sequential by default: GPUs of one host share power, air and the host's cores.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kernel_workbench.suites.bench.processes import Process, pytest_arguments, run_in_turn
from kernel_workbench.suites.run.commands import without
from kernel_workbench.suites.run.option_table import BenchOptions

_LIST = (
    "import torch\n"
    "for number in range(torch.cuda.device_count()):\n"
    "    print('GPU-' + str(torch.cuda.get_device_properties(number).uuid).removeprefix('GPU-'))"
)
_OWN = {"--gpus": True, "--gpus-together": False}


def run_on_gpus(config: pytest.Config, options: BenchOptions, asked: str) -> int:
    """Run pytest again for each GPU.

    Args:
        config: pytest's configuration.
        options: the options.
        asked: the value of --gpus.

    Returns:
        The exit status of the process that ended worst.
    """
    arguments = without(pytest_arguments(config), _OWN)
    folder = Path(config.invocation_params.dir)
    processes = [
        # A UUID names one GPU in whatever order CUDA counts.
        Process(uuid, arguments, folder, {"CUDA_VISIBLE_DEVICES": uuid})
        for uuid in wanted_gpus(asked, visible_gpus())
    ]
    groups = [processes] if options.gpus_together else [[process] for process in processes]
    status, problem = run_in_turn(groups, stop_at_failure=config.option.maxfail == 1)
    if problem is not None:
        print(problem, file=sys.stderr)
    return status


def visible_gpus() -> tuple[str, ...]:
    """Return UUIDs in CUDA's order, from another process: this process must not take GPU memory."""
    done = subprocess.run(
        [sys.executable, "-c", _LIST], capture_output=True, text=True, check=False
    )
    return tuple(done.stdout.split())


def wanted_gpus(text: str, visible: tuple[str, ...]) -> tuple[str, ...]:
    """Return the UUIDs that the value of --gpus names. Raises UsageError, in one sentence."""
    if not visible:
        raise pytest.UsageError(f"--gpus {text}: torch sees no GPU here")
    if text == "all":
        return visible
    chosen = []
    for part in text.split(","):
        name = part.strip()
        if name.isdecimal() and int(name) < len(visible):
            chosen.append(visible[int(name)])
        elif name in visible:
            chosen.append(name)
        else:
            raise pytest.UsageError(
                f"--gpus {text}: there is no GPU {name or 'without a number'}; there are "
                f"0 to {len(visible) - 1}, or all"
            )
    return tuple(dict.fromkeys(chosen))
