"""Which cases of layer-norm backward there can be: what a user's own is held to."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from oracles.layer_norm.probes import INTEGERS
from oracles.layer_norm.values import COARSE
from oracles.op import Allowed, Case

_OF_A_WEIGHT = ("no_bias", "zero_centred", "accumulate")


def _implied(_: Mapping[str, int]) -> frozenset[str]:
    return frozenset()


def _objection(case: Case) -> str | None:
    """Why there can be no such case; None where there can."""
    if case.size("n") < 1:
        return "n must be 1 or more: a row has elements"
    if "no_weight" in case.options:
        idle = [each for each in _OF_A_WEIGHT if each in case.options]
        if idle:
            return f"no_weight leaves {' and '.join(idle)} nothing to act on; leave one side out"
    if case.distribution in {INTEGERS, COARSE}:
        return (
            f"distribution {case.distribution} is for the op's own cases, whose sizes suit it; "
            "name another one"
        )
    if case.distribution == "near_overflow" and case.dtype != torch.float16:
        return "near_overflow is about float16's range; give dtype float16, or another distribution"
    batches, m = case.layout.batches, case.size("m")
    if batches is not None and m % batches:
        return f"layout {case.layout.name} splits the rows in {batches}, and m is {m}"
    return None


ALLOWED = Allowed(sizes=("m", "n"), option_sizes=(), implied=_implied, objection=_objection)
