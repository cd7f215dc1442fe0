"""A run for each GPU of a host, each a process that sees that GPU alone, by its UUID.

One after the other by default: GPUs of one host share power and air, and the host's cores.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from suites.throughput.in_turn import without

_LIST = (
    "import torch\n"
    "for number in range(torch.cuda.device_count()):\n"
    "    print('GPU-' + str(torch.cuda.get_device_properties(number).uuid).removeprefix('GPU-'))"
)
_OWN = {"--gpus": True, "--gpus-together": False}
_PATIENCE_S = 60.0  # of a run that was interrupted, to close its record


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
    command = [sys.executable, "-m", "pytest", *arguments]
    together = config.getoption("--gpus-together")
    running: list[subprocess.Popen[bytes]] = []
    statuses: list[int] = []
    with _interrupted_first(running):
        for uuid in chosen:
            print(f"bench: {uuid}", file=sys.stderr, flush=True)
            variables = os.environ | {"CUDA_VISIBLE_DEVICES": uuid}
            running.append(
                subprocess.Popen(command, cwd=config.invocation_params.dir, env=variables)
            )
            if not together:
                statuses.append(running[-1].wait())
        if together:
            statuses += [each.wait() for each in running]
    return next((each for each in statuses if each), 0)


@contextmanager
def _interrupted_first(running: list[subprocess.Popen[bytes]]) -> Iterator[None]:
    """On Ctrl-C let the runs close their records, then end them."""
    try:
        yield
    except KeyboardInterrupt:
        for each in running:
            if each.poll() is None:
                each.send_signal(signal.SIGINT)
        for each in running:
            with suppress(subprocess.TimeoutExpired):
                each.wait(_PATIENCE_S)
            each.kill()
        raise
