"""The verdict on an emulated attention kernel: bounds, and rule 3 if the op emulates."""

from __future__ import annotations

from kernel_workbench.suites.accuracy.verdict import Verdict, judge
from kernel_workbench.suites.sandbox.call import Call
from tests.builders.attention_trials import Trial
from tests.builders.emulated_attention import Way


def verdict_on_way(trial: Trial, way: Way) -> Verdict:
    """Judge a kernel that computes in this way, and declares it."""
    numerics = way.numerics
    call = Call({name: each.contiguous() for name, each in trial.outputs(way).items()}, 0.0)
    bounds, emulation = trial.kept_bounds(numerics), trial.emulation(numerics)
    return judge(call, call, trial.truth, bounds, numerics, emulation=emulation)
