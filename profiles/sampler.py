"""Samples a GPU through NVML, as a process of its own, until its standard input closes.

    python -m kernel_workbench.profiles.sampler --uuid GPU-... --period-ms 20 --out FILE

A process apart, so that neither the lock of the measured program's Python nor its garbage
collector makes gaps. It says "ready" on standard output once it has its GPU, or can't have it; why
it can't stands in the file. After a field's failure the others are read on; one that isn't
supported isn't asked for again. With --alternate-s it samples every other so many seconds, so that
what it costs the GPU can be seen within one run of a kernel.
"""

from __future__ import annotations

import argparse
import os
import select
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from kernel_workbench.profiles.nvml import Meter, NvmlGpu, open_gpu
from kernel_workbench.profiles.replay import Fault, Replay
from kernel_workbench.profiles.traces import (
    ENERGY,
    FATAL,
    FIELDS,
    Missing,
    Sample,
    TraceError,
    TraceWriter,
    load,
)

_FAST = tuple(name for name in FIELDS if name != ENERGY)
_FLUSH_EVERY_S = 0.5
# What doesn't change while a driver is loaded.
_NEVER = frozenset({"not supported", "no permission", "mig", "vgpu"})


def _host_ns() -> int:
    return time.monotonic_ns()


@dataclass(slots=True)
class Steps:
    """The clock of a replay: it stands still, but for the steps that the sampler makes.

    A replayed trace then has no gaps, however late a busy host comes to its rounds.
    """

    at_ns: int = field(default_factory=_host_ns)

    def __call__(self) -> int:
        """Nanoseconds of CLOCK_MONOTONIC: of the round that is due."""
        return self.at_ns


@dataclass(slots=True)
class Sampler:
    """Reads a meter at fixed times and writes what it says; remembers what it needn't ask."""

    meter: Meter
    writer: TraceWriter
    clock_ns: Callable[[], int] = _host_ns
    gone: bool = False
    _given_up: set[str] = field(default_factory=set)
    _failed: set[str] = field(default_factory=set)

    def sample(self) -> None:
        """One round of reads; once the GPU is gone, nothing is read or written any more."""
        at_ns = self.clock_ns()
        values = self._read(_FAST, at_ns)
        energy_at_ns = self.clock_ns()
        values |= self._read((ENERGY,), energy_at_ns)
        done_ns = self.clock_ns()
        if not self.gone:
            row = tuple(values[name] for name in FIELDS)
            self.writer.sample(Sample(at_ns, energy_at_ns, done_ns, row))

    def _read(self, names: Sequence[str], at_ns: int) -> dict[str, int | None]:
        values: dict[str, int | None] = dict.fromkeys(names)
        asked = [name for name in names if name not in self._given_up]
        if self.gone or not asked:
            return values
        for name, value in self.meter.read(asked).items():
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


def run(sampler: Sampler, period_s: float, seconds: float | None, alternate_s: float) -> None:
    """Sample every `period_s` until standard input closes, or for so many seconds."""
    clock = sampler.clock_ns
    began = 1e-9 * clock()
    flushed, following = began, began
    while True:
        now = 1e-9 * clock()
        if alternate_s <= 0 or int((now - began) / alternate_s) % 2 == 0:
            sampler.sample()
        now = 1e-9 * clock()
        if sampler.gone or now - flushed > _FLUSH_EVERY_S:
            sampler.writer.flush()
            flushed = now
        if seconds is not None and now - began >= seconds:
            return
        # A round that came late leaves out those it missed: the times stay a grid.
        following += period_s * max(1, int((now - following) / period_s) + 1)
        ended = _waited(following - time.monotonic(), listens=seconds is None)
        if isinstance(clock, Steps):
            ended = ended and time.monotonic() < following
            clock.at_ns = round(1e9 * following)
        if ended:
            return


def _waited(wait_s: float, *, listens: bool) -> bool:
    """Wait; whether standard input has closed meanwhile."""
    if not listens:
        time.sleep(max(0.0, wait_s))
        return False
    ready, _, _ = select.select([sys.stdin], [], [], max(0.0, wait_s))
    return bool(ready) and not os.read(sys.stdin.fileno(), 4096)


def _meter(options: argparse.Namespace, steps: Steps) -> Meter | Missing:
    if options.replay is None:
        return open_gpu(options.uuid, options.pci)
    meter = Replay(load(options.replay), tuple(options.fault), steps)
    for fault in meter.faults:
        if fault.code in {"no library", "no driver", "gpu not found"} and fault.name is None:
            return Missing(fault.code, "a fault that was put into a replayed trace")
    return meter


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 0 also where the GPU can't be read, which the file then says."""
    options = _parser().parse_args(arguments)
    steps = Steps()
    try:
        meter = _meter(options, steps)
        writer = TraceWriter(options.out, options.uuid, options.period_ms)
    except (TraceError, OSError) as error:
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
            if options.seconds is None:
                sys.stdin.read()
        else:
            clock = steps if isinstance(meter, Replay) else _host_ns
            sampler = Sampler(meter, writer, clock)
            run(sampler, options.period_ms / 1e3, options.seconds, options.alternate_s)
    except KeyboardInterrupt:
        pass  # what was sampled is kept
    finally:
        writer.close()
        if isinstance(meter, NvmlGpu):
            with suppress(OSError):
                meter.close()
    return 0


def _fault(text: str) -> Fault:
    try:
        return Fault.of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m kernel_workbench.profiles.sampler", description=__doc__
    )
    parser.add_argument("--uuid", required=True, help="of the GPU")
    parser.add_argument("--pci", help="its PCI address, where NVML may not know the UUID")
    parser.add_argument("--period-ms", type=float, default=20.0)
    parser.add_argument("--out", type=Path, required=True, help="the trace; .gz is compressed")
    parser.add_argument("--seconds", type=float, help="else until standard input closes")
    parser.add_argument("--alternate-s", type=float, default=0.0, help="sample and rest in turn")
    parser.add_argument("--replay", type=Path, help="a trace to read in place of a GPU")
    parser.add_argument("--fault", type=_fault, action="append", default=[], help="of a replay")
    return parser


if __name__ == "__main__":
    sys.exit(main())
