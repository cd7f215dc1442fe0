"""Sample a GPU through NVML, in a process of its own, until its standard input closes.

    python -m kernel_workbench.profiles.sampler --uuid GPU-... --period-ms 20 --out FILE

The process is separate so that neither the measured program's interpreter lock nor its garbage
collector makes gaps. It prints "ready" once it has opened the GPU or failed to; the file then holds
the reason. After one field fails, the other fields are still read; an unsupported field isn't read
again. With --alternate-s the process samples and rests in turn, that many seconds at a time, so
that one run of a kernel shows what sampling costs the GPU.
"""

from __future__ import annotations

import argparse
import os
import select
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kernel_workbench.profiles.nvml import Meter, open_gpu
from kernel_workbench.profiles.traces import (
    ENERGY,
    FATAL,
    FIELDS,
    Missing,
    TraceSample,
    TraceWriter,
)

_FAST = tuple(name for name in FIELDS if name != ENERGY)
_FLUSH_EVERY_S = 0.5
# Reasons that don't change while a driver is loaded.
_NEVER = frozenset({"not supported", "no permission", "mig", "vgpu"})


@dataclass(slots=True)
class Sampler:
    """Reads a meter and writes its values; skips fields that can't be read."""

    meter: Meter
    writer: TraceWriter
    gone: bool = False
    _given_up: set[str] = field(default_factory=set)
    _failed: set[str] = field(default_factory=set)

    def sample(self) -> None:
        """Read and write one round; do nothing once the GPU is lost."""
        at_ns = time.monotonic_ns()
        values = self._read(_FAST, at_ns)
        energy_at_ns = time.monotonic_ns()
        values |= self._read((ENERGY,), energy_at_ns)
        done_ns = time.monotonic_ns()
        if not self.gone:
            row = tuple(values[name] for name in FIELDS)
            self.writer.sample(TraceSample(at_ns, energy_at_ns, done_ns, row))

    def _read(self, names: Sequence[str], at_ns: int) -> dict[str, int | None]:
        values: dict[str, int | None] = dict.fromkeys(names)
        wanted = [name for name in names if name not in self._given_up]
        if self.gone or not wanted:
            return values
        for name, value in self.meter.read(wanted).items():
            if not isinstance(value, Missing):
                values[name] = value
                continue
            if name not in self._failed or value.code in FATAL:
                self._failed.add(name)
                self.writer.missing(name, value, at_ns)
            if value.code in _NEVER:
                self._given_up.add(name)
            self.gone = self.gone or value.code in FATAL
        return values


def run(sampler: Sampler, period_s: float, alternate_s: float) -> None:
    """Sample every `period_s` until standard input closes."""
    began = 1e-9 * time.monotonic_ns()
    flushed, following = began, began
    while True:
        now = 1e-9 * time.monotonic_ns()
        if alternate_s <= 0 or int((now - began) / alternate_s) % 2 == 0:
            sampler.sample()
        now = 1e-9 * time.monotonic_ns()
        if sampler.gone or now - flushed > _FLUSH_EVERY_S:
            sampler.writer.flush()
            flushed = now
        # A late round skips the rounds that it missed: the times stay on a grid.
        following += period_s * max(1, int((now - following) / period_s) + 1)
        if _waited_until(following):
            return


def _waited_until(at_s: float) -> bool:
    """Wait; return True if standard input has closed meanwhile."""
    ready, _, _ = select.select([sys.stdin], [], [], max(0.0, at_s - time.monotonic()))
    return bool(ready) and not os.read(sys.stdin.fileno(), 4096)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Returns 0 also if the GPU can't be read: the file has the reason."""
    options = _parser().parse_args(arguments)
    meter = open_gpu(options.uuid, options.pci)
    try:
        writer = TraceWriter(options.out, options.uuid, options.period_ms)
    except OSError as error:
        sys.stderr.write(f"sampler: {error}\n")
        return 2
    if isinstance(meter, Missing):
        for name in FIELDS:
            writer.missing(name, meter, time.monotonic_ns())
    writer.flush()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    try:
        if isinstance(meter, Missing):
            sys.stdin.read()
        else:
            run(Sampler(meter, writer), options.period_ms / 1e3, options.alternate_s)
    except KeyboardInterrupt:
        pass  # the samples are kept
    finally:
        writer.close()
        if not isinstance(meter, Missing):
            meter.close()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m kernel_workbench.profiles.sampler", description=__doc__
    )
    parser.add_argument("--uuid", required=True, help="UUID of the GPU")
    parser.add_argument("--pci", help="PCI address of the GPU, where NVML may not know the UUID")
    parser.add_argument("--period-ms", type=float, default=20.0)
    parser.add_argument("--out", type=Path, required=True, help="the trace; .gz is compressed")
    parser.add_argument("--alternate-s", type=float, default=0.0, help="sample and rest in turn")
    return parser


if __name__ == "__main__":
    sys.exit(main())
