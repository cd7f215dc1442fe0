"""A pytest plugin: `suites/profile` without a GPU, with invented loops and a replayed trace.

WORKBENCH_REPLAYED names the trace and the faults to put into it, separated by `;`.
"""

from __future__ import annotations

import os

from kernel_workbench.suites.profile import suite
from kernel_workbench.suites.profile.loop_request import Card

_TRACE, *_FAULTS = os.environ["WORKBENCH_REPLAYED"].split(";")


def _card(*_: object) -> Card:
    replayed = ("--replay", _TRACE, *(f"--fault={each}" for each in _FAULTS))
    return Card("GPU-00000000-synthetic", None, 90, 2**20, replayed)


vars(suite).update(_card=_card, LOOP="tests.builders.loop_on_cpu")
