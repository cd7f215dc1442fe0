"""One call of a candidate in this process, with what is special about it set up around it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

from kernels.registry import Kernel
from oracles.op import Case
from suites.accuracy.allocations import SENTINEL
from suites.accuracy.busy import keep_busy
from suites.accuracy.candidate import PLAIN, Call, How, call_candidate
from suites.accuracy.invariance import told
from suites.accuracy.originals import Given

Fill = Literal["nan", "sentinel"]

_VALUES = {"nan": math.nan, "sentinel": SENTINEL}


def call_here(kernel: Kernel, case: Case, given: Given, fill: Fill, how: How = PLAIN) -> Call:
    """Call the kernel on inputs that were made for this call; fill: what its fresh memory holds."""
    if how.busy and given.device.type == "cuda":
        keep_busy(given.device)
    if how.multiprocessors is None:
        return call_candidate(kernel, case, given, fill=_VALUES[fill], how=how)
    with told(how.multiprocessors) as answer:
        call = call_candidate(kernel, case, given, fill=_VALUES[fill], how=how)
    return replace(call, asked=answer.asked)
