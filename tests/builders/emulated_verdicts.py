"""The verdict on an emulated attention kernel: bounds, and rule 3 if the op emulates."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from kernel_workbench.oracles.op import Numerics
from kernel_workbench.suites.accuracy.verdict import Verdict, judge
from kernel_workbench.suites.sandbox.call import Call
from tests.builders.attention_trials import Trial
from tests.builders.emulated_attention import Way


def verdict_on(
    trial: Trial, outputs: Mapping[str, Tensor], numerics: Numerics, *, emulation: bool = True
) -> Verdict:
    """Judge outputs of a kernel with these numerics, with rule 3 or without."""
    other = trial.emulation(numerics) if emulation else None
    call = Call({name: each.contiguous() for name, each in outputs.items()}, 0.0)
    bounds = trial.kept_bounds(numerics)
    return judge(call, call, trial.truth, bounds, numerics, emulation=other)


def verdict_on_way(
    trial: Trial, way: Way, numerics: Numerics | None = None, *, emulation: bool = True
) -> Verdict:
    """Judge a kernel that computes in this way, and declares `numerics` or this way."""
    declared = way.numerics if numerics is None else numerics
    return verdict_on(trial, trial.outputs(way), declared, emulation=emulation)
