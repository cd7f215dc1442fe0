"""A pytest plugin: `suites/profile` without a GPU, with invented loops and a replayed trace.

WORKBENCH_REPLAYED names the trace and the faults to put into it, separated by `;`.
"""

from __future__ import annotations

import os
from functools import partial

from kernel_workbench.suites.profile import suite
from kernel_workbench.suites.profile.loop_request import Card
from kernel_workbench.suites.profile.sampler_process import Sampling
from tests.builders.replayed_sampler import replayed

_TRACE, *_FAULTS = os.environ["WORKBENCH_REPLAYED"].split(";")


def _card(*_: object) -> Card:
    return Card("GPU-00000000-synthetic", None, 90, 2**20)


vars(suite).update(
    _card=_card,
    LOOP="tests.builders.loop_on_cpu",
    Sampling=partial(Sampling, sampler=replayed(_TRACE, *_FAULTS)),
)
