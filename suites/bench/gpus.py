"""A run for each GPU of a host, each a process that sees that GPU alone, by its UUID.

One after the other by default: GPUs of one host share power and air, and the host's cores.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from suites.bench.process_turns import without
from suites.bench.processes import Run, run_together

_LIST = (
    "import torch\n"
    "for number in range(torch.cuda.device_count()):\n"
    "    print('GPU-' + str(torch.cuda.get_device_properties(number).uuid).removeprefix('GPU-'))"
)
_OWN = {"--gpus": True, "--gpus-together": False}


def visible_gpus() -> tuple[str, ...]:
    """UUIDs in CUDA's order, asked in another process: this one is to take no GPU's memory."""
    done = subprocess.run(
        [sys.executable, "-c", _LIST], capture_output=True, text=True, check=False
    )
    return tuple(done.stdout.split())


def wanted_gpus(text: str, visible: tuple[str, ...]) -> tuple[str, ...]:
    """What --gpus means. Raises UsageError, in one sentence."""
    if not visible:
        raise pytest.UsageError(f"--gpus {text}: torch sees no GPU here")
    if text == "all":
        return visible
    chosen = []
    for each in text.split(","):
        name = each.strip()
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


def run_each(config: pytest.Config, text: str) -> int:
    """Run pytest again for each GPU; the first exit status that isn't 0, else 0."""
    chosen = wanted_gpus(text, visible_gpus())
    arguments = without(list(map(str, config.invocation_params.args)), _OWN)
    runs = [
        Run(arguments, Path(config.invocation_params.dir), {"CUDA_VISIBLE_DEVICES": each})
        for each in chosen
    ]
    try:
        status = _run([runs] if config.getoption("--gpus-together") else [[each] for each in runs])
    except KeyboardInterrupt:
        status = int(pytest.ExitCode.INTERRUPTED)
    if status == pytest.ExitCode.INTERRUPTED:
        print("bench: interrupted", file=sys.stderr)
    return status


def _run(groups: Sequence[Sequence[Run]]) -> int:
    """Run each group when the one before it has ended."""
    worst = 0
    for runs in groups:
        for each in runs:
            print(f"bench: {each.variables['CUDA_VISIBLE_DEVICES']}", file=sys.stderr, flush=True)
        statuses, interrupted = run_together(runs)
        if interrupted:
            return int(pytest.ExitCode.INTERRUPTED)
        worst = next(filter(None, (worst, *statuses)), 0)
    return worst
