"""The meanings of codes in a profile's rows: why a window isn't valid, or what it lacks."""

from __future__ import annotations

import re

MEANINGS = {
    "averaged power": "the driver has no instant power, so power is a mean over the last second",
    "clock drifts": "the SM clock had a slope over the window: no steady state",
    "clocks disagree": "the loop's own events and the host's clock tell of two different times",
    "counter off": "energy by the counter and by sampled power are further apart than they may be",
    "energy by samples": "there is no energy counter, so energy is the integral of sampled power",
    "error": "the driver failed for a reason of its own",
    "gap": "nothing was sampled for so long that sampled power can't be summed",
    "gpu lost": "the GPU fell off the bus or had to be reset",
    "gpu not found": "NVML knows no GPU of this UUID",
    "mig": "the board's power is shared by its MIG instances, so it is no one's own",
    "no data": "the driver had no value at the time",
    "no driver": "NVIDIA's driver isn't loaded, or isn't of NVML's version",
    "no graph": "it can't be captured in a CUDA graph, so the GPU may have waited for the host",
    "no library": "NVML isn't installed",
    "no permission": "this user may not read it",
    "no sampler": "the sampler's process ended before its time",
    "no samples": "nothing was sampled in the window",
    "not supported": "this GPU or its driver doesn't tell it",
    "power drifts": "power had a slope over the window: no steady state",
    "sampler slows": "a call takes over 0.5 % longer while it is sampled",
    "slowed by heat": "over 1 % of the window in a thermal or a power-brake slowdown",
    "temperature drifts": "the temperature had a slope over the window: no steady state",
    "vgpu": "the host doesn't tell a vGPU what its board draws",
}
_LEFT_OUT = re.compile(r"\d+ of \d+ left out")


def meaning(code: str) -> str:
    """Return the meaning of a code; empty for an unknown code."""
    if _LEFT_OUT.fullmatch(code):
        return "trials without a steady state, which the row's figures don't count"
    return MEANINGS.get(code, "")
