"""Check on this GPU, with a sustained matmul, that energies of `nox -s profile` can be trusted.

    python -m studies.power_check --save-trace FILE

- Energy by the counter and by the integral of instant power differ by less than 2 %.
- Time under the power cap, by its nanosecond counter and by the reasons polled beside it, differs
  by less than 2 % of the window.
- The sampler slows the matmul by less than 0.5 %.
- The sampled GPU is the computing GPU, also under CUDA_VISIBLE_DEVICES: the PCI addresses are
  equal, and the sampled power rises during the computation.

Exit status: 0 if all checks hold, 1 if one doesn't, 2 if there is no GPU.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from kernel_workbench.profiles import environment
from kernel_workbench.profiles.traces import Missing, Trace, save
from kernel_workbench.reports.arguments import CommandLine, number
from kernel_workbench.reports.record import Window
from kernel_workbench.suites.profile.figures import (
    MOST_DISAGREEMENT,
    MOST_SLOWDOWN,
    Reply,
    mean_power_w,
    slowdown,
    window_of,
)
from kernel_workbench.suites.profile.loop import loop
from kernel_workbench.suites.profile.sampler_process import Sampling
from kernel_workbench.suites.profile.trials import ALTERNATE_S
from kernel_workbench.suites.profile.windows import NS, measure
from kernel_workbench.suites.run.descriptions import pci_bus_id

_SIZE = 8192
_IDLE_S = 3.0
_DROPPED_S = 1.5
_BATCH_S = 0.05
_MOST_TIME_APART = 0.02
_POWER_CAP = "SW power cap"
_LOADED = 1.5  # a matmul draws at least this many times idle power on any board


@dataclass(frozen=True, slots=True)
class Check:
    """One condition: its result and its limit as text, and whether it holds."""

    name: str
    result: str
    limit: str
    holds: bool


def checks(loaded: Window, idle: Window, slower: float | Missing) -> Iterator[Check]:
    """Yield the checks of energy, of time under the power cap, of the sampler and of power."""
    counter, integral = loaded.energy_counter_j, loaded.energy_integral_j
    if counter is None or integral is None:
        why = "; ".join(
            loaded.missing.get(f"energy_{source}_j", "") for source in ("counter", "integral")
        )
        yield Check("energy, counter against integral", why, "both are there", holds=False)
    else:
        apart = counter / integral - 1
        yield Check(
            "energy, counter against integral",
            f"{counter:.1f} J, {integral:.1f} J: {apart:+.2%}",
            f"{MOST_DISAGREEMENT:.1%}",
            abs(apart) < MOST_DISAGREEMENT,
        )
    counted, polled = loaded.reasons_s.get(_POWER_CAP), loaded.reasons_polled.get(_POWER_CAP)
    if counted is None or polled is None:
        why = loaded.missing.get(f"reasons_s.{_POWER_CAP}", "the reasons couldn't be polled")
        yield Check("time under the power cap", why, "both are there", holds=False)
    else:
        polled_s = polled * loaded.duration_s
        apart = (counted - polled_s) / loaded.duration_s
        yield Check(
            "time under the power cap",
            f"{counted:.3f} s counted, {polled_s:.3f} s polled, of {loaded.duration_s:.3f} s",
            f"{_MOST_TIME_APART:.1%} of it",
            abs(apart) < _MOST_TIME_APART,
        )
    if isinstance(slower, Missing):
        yield Check("sampler's slowdown", str(slower), f"{MOST_SLOWDOWN:.1%}", holds=False)
    else:
        yield Check(
            "sampler's slowdown", f"{slower:+.3%}", f"{MOST_SLOWDOWN:.1%}", slower < MOST_SLOWDOWN
        )
    idle_w, loaded_w = mean_power_w(idle), mean_power_w(loaded)
    powers = "none" if idle_w is None or loaded_w is None else f"{idle_w:.0f} W to {loaded_w:.0f} W"
    holds = idle_w is not None and loaded_w is not None and loaded_w > _LOADED * idle_w
    yield Check("power, idle to loaded", powers, f"at least {_LOADED:g} times", holds)


def _same_board(device: torch.device) -> Check:
    properties = torch.cuda.get_device_properties(device)
    address = pci_bus_id(properties)
    card = environment.gpu(str(properties.uuid))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "not set")
    name = f"PCI address (CUDA_VISIBLE_DEVICES {visible})"
    if isinstance(card, Missing):
        return Check(name, str(card), "as torch says", holds=False)
    addresses = f"{card.pci_bus_id} by UUID, {address} by torch"
    return Check(name, addresses, "the same", holds=card.pci_bus_id == address)


def _measured(seconds: float, sampling: Sampling) -> tuple[Window, Trace, Reply, float | Missing]:
    """Return the idle window, the trace of idle and load, the load's reply, and the slowdown."""
    device = torch.device("cuda")
    one, other = (torch.randn(_SIZE, _SIZE, dtype=torch.bfloat16, device=device) for _ in range(2))
    out = torch.empty_like(one)

    def multiply() -> None:
        torch.mm(one, other, out=out)

    loop([multiply], device, 0.5, _BATCH_S)
    time.sleep(_IDLE_S)
    with sampling.during() as sampled:
        begin_s = time.monotonic_ns() * NS
        time.sleep(_IDLE_S)
        end_s = time.monotonic_ns() * NS
        reply = Reply.model_validate(loop([multiply], device, seconds, _BATCH_S).message)
    idle = measure(sampled.trace, begin_s, end_s).window
    with sampling.during(ALTERNATE_S) as alternating:
        rests = Reply.model_validate(loop([multiply], device, 2 * seconds, _BATCH_S).message)
    return idle, sampled.trace, reply, slowdown(alternating.trace, rests)


def _summary(window: Window) -> str:
    codes = f" ({', '.join(window.codes)})" if window.codes else ""
    if window.period_ms is None or window.largest_gap_ms is None:
        return f"{window.validity}{codes}; {window.samples} samples"
    slopes = ", ".join(f"{name} {slope:+.1f}" for name, slope in window.slopes.items())
    period = f"every {window.period_ms:.1f} ms, at most {window.largest_gap_ms:.1f} ms apart"
    return f"{window.validity}{codes}; {window.samples} samples, {period}; a minute: {slopes}"


def main() -> int:
    """Run the checks, print their results, and return the exit status."""
    parser = CommandLine(prog="python -m studies.power_check", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--seconds", type=number(2, 600), default=6.0, help="length of the matmul (default 6)"
    )
    parser.add_argument("--save-trace", type=Path, metavar="FILE", help="keep the samples")
    options = parser.read()
    if not torch.cuda.is_available():
        parser.error("torch sees no CUDA device here; run this on a machine with a GPU")
    properties = torch.cuda.get_device_properties(0)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="kernel-workbench-"))
        sampling = Sampling(str(properties.uuid), Path(folder), pci_bus_id(properties))
        idle, trace, reply, slower = _measured(options.seconds, sampling)
    if options.save_trace is not None:
        save(trace, options.save_trace)
    loaded = window_of(trace, reply, _DROPPED_S)
    console = Console()
    console.print(f"{properties.name}: bf16 matmul of {_SIZE}, {loaded.duration_s:.2f} s of it")
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for title in ("check", "result", "limit", "holds"):
        table.add_column(title, overflow="fold")
    results = [_same_board(torch.device("cuda")), *checks(loaded, idle, slower)]
    for check in results:
        table.add_row(check.name, check.result, check.limit, "yes" if check.holds else "NO")
    console.print(table)
    console.print(f"the window: {_summary(loaded)}", markup=False, highlight=False)
    return int(not all(check.holds for check in results))


if __name__ == "__main__":
    sys.exit(main())
