"""Attention with one thing wrong exceeds its deterministic bound; sound beside it, it doesn't."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
import torch

from kernel_workbench.oracles.attention.geometry import BACKWARD, FORWARD, GRADIENTS
from kernel_workbench.oracles.op import Numerics
from tests.builders.attention_trials import Trial
from tests.builders.emulated_attention import Way

SINGLE, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16
HALVES = (FP16, BF16)
EVERY = (SINGLE, *HALVES)
SHAPE = (1, 4, 2, 21, 40, 24, 9)


@dataclass(frozen=True)
class Defect:
    """Where a defect shows: a feature, a distribution, ops and dtypes, and the sound way beside."""

    planted: str
    feature: str = "none"
    distribution: str = "normal"
    ops: tuple[str, ...] = (FORWARD, BACKWARD, GRADIENTS)
    dtypes: tuple[torch.dtype, ...] = EVERY
    way: Way = field(default_factory=lambda: Way(key_tile=16))


BOTH_BACKWARDS = (BACKWARD, GRADIENTS)
ITS_OWN_FORWARD = (FORWARD, GRADIENTS)
DEFECTS = (
    Defect("last key dropped", distribution="uniform"),
    Defect("scale left out"),
    Defect("other corner", "causal"),
    Defect("mask one key too wide", "causal", "uniform"),
    Defect("heads interleaved, not grouped"),
    Defect("slopes added, not taken off", "alibi"),
    Defect("scale of dropout left out", "dropout"),
    Defect("accumulator not rescaled", ops=ITS_OWN_FORWARD),
    Defect("sink left out", "sink", ops=ITS_OWN_FORWARD),
    Defect("lse in base 2", ops=ITS_OWN_FORWARD, way=Way(base2=True)),
    # In fp32 nothing is cast; the weights' own exponents have the room of fp32 in bf16.
    Defect("P cast before the maximum is taken off", "none", "times3", (FORWARD,), (FP16,)),
    # End to end the halves' bounds are wide through D, which a rounded out shifts likewise.
    Defect("delta in the half", "none", "positive", (BACKWARD,), HALVES),
    Defect("delta left out", ops=BOTH_BACKWARDS),
    Defect("other mask in the backward", "dropout", ops=BOTH_BACKWARDS),
    Defect("softcap's derivative left out", "softcap", "times3", ops=BOTH_BACKWARDS),
    Defect("scale twice in dk", ops=BOTH_BACKWARDS),
    Defect("scale in dbias", "bias", ops=BOTH_BACKWARDS),
    Defect("sign of dsink", "sink", ops=BOTH_BACKWARDS),
    # Undeclared casts: a kernel that rounds the factors of dS, or dS before it is summed.
    Defect("factors rounded", "bias", "positive", (BACKWARD,), HALVES),
)


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda each: each.planted.replace(" ", "_"))
def test_planted_defect_exceeds_the_bound(defect: Defect) -> None:
    """In every op and dtype that it is listed with, where sound arithmetic doesn't."""
    for dtype in defect.dtypes:
        for op in defect.ops:
            trial = Trial.of(op, SHAPE, dtype, defect.feature, defect.distribution)
            assert max(trial.worst(defect.way)) <= 1, (op, dtype)
            wrong = replace(defect.way, planted=defect.planted)
            assert trial.worst(wrong)[0] > 1, (op, dtype)


@pytest.mark.parametrize("dtype", HALVES)
def test_a_bias_gradient_summed_in_the_half_must_be_declared(dtype: torch.dtype) -> None:
    """dS cast before it is summed over batch and heads: within its own bound, and no other."""
    feature = "bias over batch and heads"
    trial = Trial.of(BACKWARD, (4, 8, 8, 20, 30, 16, 16), dtype, feature, "positive")
    way = Way(half_bias_gradient=True)
    outputs = {"dbias": trial.outputs(way)["dbias"]}
    declared, plain = trial.bounds(way.numerics), trial.bounds(Numerics(gradual_underflow=True))
    assert trial.ratios(outputs, declared)["dbias"][0] <= 1
    assert trial.ratios(outputs, plain)["dbias"][0] > 1


@pytest.mark.parametrize("dtype", HALVES)
def test_partials_in_the_half_widen_the_bound_of_dk_and_dv_alone(dtype: torch.dtype) -> None:
    """Each head's dk and dv cast before their sum: the bound grows by the sum of their sizes.

    Undeclared they can't be told from the casts of P and dS, which are as large.
    """
    trial = Trial.of(BACKWARD, (1, 8, 1, 33, 20, 16, 16), dtype, "causal", "positive")
    way = Way(half_partials=True)
    declared, plain = trial.bounds(way.numerics), trial.bounds(Numerics(gradual_underflow=True))
    assert max(each for each, _ in trial.ratios(trial.outputs(way), declared).values()) <= 1
    for name in ("dk", "dv"):
        assert (declared[name].deterministic > plain[name].deterministic).all()
    same = declared["dq"].deterministic, plain["dq"].deterministic
    torch.testing.assert_close(*same, rtol=1e-9, atol=0)


def test_delta_off_by_a_little_needs_both_tests_of_a_backward() -> None:
    """D off by 2^-9 is out of bounds in bf16 as an op of its own, and not end to end."""
    for op, seen in ((BACKWARD, True), (GRADIENTS, False)):
        trial = Trial.of(op, (1, 1, 1, 37, 70, 32, 32), BF16, "none", "positive")
        way = Way(planted="delta off by 2^-9")
        assert (trial.worst(way)[0] > 1) == seen
