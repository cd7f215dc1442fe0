"""The sampler's process: it runs beside a loop, and leaves a trace."""

from __future__ import annotations

import contextlib
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kernel_workbench.profiles.traces import FIELDS, Missing, Trace, TraceError, load
from kernel_workbench.root import start_folder

SAMPLER = "kernel_workbench.profiles.sampler"
_START_S = 30.0
_END_S = 10.0


@dataclass(slots=True)
class Sampled:
    """The trace of a sampler that has ended."""

    trace: Trace


@dataclass(slots=True)
class Sampling:
    """The GPU to sample, and how. `folder` receives the traces.

    sampler  the sampler's module, and further options for it
    """

    uuid: str
    folder: Path
    pci_bus_id: str | None = None
    period_ms: float = 20.0
    sampler: tuple[str, ...] = (SAMPLER,)
    traces: int = 0

    @contextmanager
    def during(self, alternate_s: float = 0.0) -> Iterator[Sampled]:
        """Sample while the block runs; the trace is complete after the block.

        The sampler samples and rests in turn for `alternate_s` each; 0 means that it never rests.
        """
        self.traces += 1
        path = self.folder / f"trace-{self.traces}.jsonl"
        command = [sys.executable, "-m", *self.sampler, "--uuid", self.uuid]
        command += [f"--period-ms={self.period_ms}", f"--alternate-s={alternate_s}"]
        command += [] if self.pci_bus_id is None else ["--pci", self.pci_bus_id]
        process = subprocess.Popen(
            [*command, "--out", str(path)],
            cwd=start_folder(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C goes to the session, which then ends this process
        )
        sampled = Sampled(self._nothing("it was cut off"))
        try:
            ready = _says_ready(process)
            yield sampled
        finally:
            printed = _end(process)
        if not ready or process.returncode != 0:
            sampled.trace = self._nothing(printed or f"it ended with status {process.returncode}")
        else:
            try:
                sampled.trace = load(path)
            except TraceError as error:
                sampled.trace = self._nothing(str(error))

    def _nothing(self, why: str) -> Trace:
        reason = Missing("no sampler", f"the sampler's process left no trace: {why}")
        return Trace(self.uuid, self.period_ms, (), dict.fromkeys(FIELDS, reason))


def _says_ready(process: subprocess.Popen[bytes]) -> bool:
    assert process.stdout is not None
    deadline = time.monotonic() + _START_S
    ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
    return bool(ready) and process.stdout.readline().strip() == b"ready"


def _end(process: subprocess.Popen[bytes]) -> str:
    """Close the process's standard input, which ends it, and return its last line of errors."""
    try:
        _, errors = process.communicate(timeout=_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        _, errors = process.communicate()
    except BrokenPipeError:
        errors = b""
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    lines = errors.decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
