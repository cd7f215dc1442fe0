"""The meanings of codes in a profile's rows: why a window isn't valid, or what it lacks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernel_workbench.reports.record import ProfileRow

MEANINGS = {
    "averaged power": "the driver has no instant power, so power is a mean over the last second",
    "clock drifts": "the SM clock had a slope over the window: no steady state",
    "clocks disagree": "the loop's own events and the host's clock tell of two different times",
    "counter off": "energy by the counter and by sampled power are further apart than they may be",
    "energy by samples": "there is no energy counter, so energy is the integral of sampled power",
    "no graph": "it can't be captured in a CUDA graph, so the GPU may have waited for the host",
    "power drifts": "power had a slope over the window: no steady state",
    "sampler slows": "a call takes over 0.5 % longer while it is sampled",
    "slowed by heat": "over 1 % of the window in a thermal or a power-brake slowdown",
    "temperature drifts": "the temperature had a slope over the window: no steady state",
}
_LEFT_OUT = re.compile(r"\d+ of \d+ left out")


def meaning(code: str, row: ProfileRow) -> str:
    """Return the meaning of a row's code; empty for an unknown code.

    A code by which the row lacks a figure is explained by the figure's reason.
    """
    if _LEFT_OUT.fullmatch(code):
        return "trials without a steady state, which the row's figures don't count"
    lacking = (row.missing, *(window.missing for window in row.windows))
    reasons = (reason for missing in lacking for reason in missing.values())
    of_code = (reason for reason in reasons if reason.startswith(f"{code}: "))
    return MEANINGS.get(code) or next(of_code, "").removeprefix(f"{code}: ")
