"""Traces that tests put faults into: a synthetic one, and traces recorded on real GPUs.

`python -m studies.power_check --save-trace tests/data/traces/NAME.jsonl.gz` recorded some seconds
of an idle GPU and then of a matmul without a pause. The traces here are the part of the matmul.
"""

from __future__ import annotations

from dataclasses import replace

from kernel_workbench.profiles.traces import Trace, load
from kernel_workbench.suites.profile.windows import NS, measure
from tests import ROOT
from tests.builders.synthetic_traces import constant, synthetic

FOLDER = ROOT / "tests" / "data" / "traces"
_LOADED = 0.6  # of the highest power
_SETTLING_NS = 2_000_000_000
_CUT = 5  # samples at the end, when the matmul may have ended


def loaded_part(trace: Trace) -> Trace:
    """Return the samples of a computing GPU, without the time in which it settled."""
    power = trace.column("power_instant_mw")
    highest = max(each for each in power if each is not None)
    busy = [
        sample
        for sample, power_mw in zip(trace.samples, power, strict=True)
        if power_mw is not None and power_mw > _LOADED * highest
    ]
    begin_ns = busy[0].at_ns + _SETTLING_NS
    return replace(trace, samples=tuple(each for each in busy if each.at_ns > begin_ns)[:-_CUT])


def mean_power_w(trace: Trace) -> float:
    """Return the mean power by the energy counter, over the whole trace."""
    figures = measure(trace, trace.samples[0].at_ns * NS, trace.samples[-1].done_ns * NS).window
    assert figures.energy_counter_j is not None
    return figures.energy_counter_j / figures.duration_s


RECORDED = {path.name: loaded_part(load(path)) for path in sorted(FOLDER.glob("*.jsonl.gz"))}
TRACES = {"synthetic": synthetic(constant(600.0), seconds=4.0)} | RECORDED
