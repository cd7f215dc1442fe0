"""Defects in attention that rule 3 sees and the bounds don't: fp32, and undeclared casts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.attention.cases import attention_case
from kernel_workbench.oracles.attention.geometry import BACKWARD, FORWARD, GRADIENTS
from studies.smallest_error import JudgedCase as Judged
from studies.smallest_error import Planted
from tests.builders.attention_trials import Trial
from tests.builders.emulated_attention import Way
from tests.builders.emulated_verdicts import verdict_on_way
from tests.builders.plain_attention import Attention, Part

SINGLE, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16
SHAPE = (2, 2, 2, 70, 90, 64, 64)


@pytest.mark.parametrize(
    ("op", "thing", "option", "power", "distribution"),
    [
        (FORWARD, "slopes", "alibi", 13, "normal"),
        (FORWARD, "dropout scale", "dropout", 17, "normal"),
        (FORWARD, "scale", "", 17, "normal"),
        (BACKWARD, "bias", "bias", 18, "normal"),
        (BACKWARD, "softcap", "softcap", 10, "normal"),
        (BACKWARD, "last key", "", 16, "normal"),
        (GRADIENTS, "sink", "sink", 11, "normal"),
        (GRADIENTS, "delta", "", 16, "positive"),
        (GRADIENTS, "scale", "", 16, "normal"),
    ],
)
def test_small_errors_in_fp32_are_seen_by_the_emulation_alone(
    op: str, thing: str, option: str, power: int, distribution: str
) -> None:
    """A number off by 2^-k passes both bounds, which are many times what errors come to."""
    case = attention_case(op, SHAPE, SINGLE, "ci", options=option, distribution=distribution)
    trial, planted = Judged.of(OPS[op], case), Planted(op, thing, option)
    off = planted.function(1 + 2.0**-power)
    assert trial.rule(off, emulation=False) is None
    assert trial.rule(off, emulation=True) == "emulation"
    assert trial.rule(planted.function(1.0), emulation=True) is None


@pytest.mark.parametrize("dtype", [FP16, BF16])
@pytest.mark.parametrize("planted", ["factors rounded", "delta in the half"])
def test_casts_that_nobody_declared_are_seen(dtype: torch.dtype, planted: str) -> None:
    """P and dP - D cast before their product, D kept in the half: the kernel declares neither."""
    trial = Trial.of(BACKWARD, SHAPE, dtype, "bias over batch and heads", "positive")
    assert verdict_on_way(trial, Way(planted=planted)).rule is not None
    assert verdict_on_way(trial, Way()).rule is None


class _RoundedSums(Attention):
    """dk and dv summed over tiles of 16 queries, rounded to the half after each."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def _summed(self, one: Tensor, other: Tensor) -> Tensor:
        total = one.new_zeros(*one.shape[:2], one.shape[3], other.shape[3])
        for start in range(0, one.shape[2], 16):
            rows = slice(start, start + 16)
            total = (total + one[:, :, rows].mT @ other[:, :, rows]).to(self.dtype).float()
        return total

    def dk(self, part: Part, dx: Tensor) -> Tensor:
        """Rounded tile by tile."""
        return part.scale * self._summed(dx, part.q)

    def dv(self, weights: Tensor, do: Tensor) -> Tensor:
        """Rounded tile by tile."""
        return self._summed(weights, do)


@pytest.mark.parametrize("dtype", [FP16, BF16])
def test_sums_rounded_to_the_half_at_each_tile_are_seen(dtype: torch.dtype) -> None:
    """Casts of P and dS are allowed as much on normal values: the emulation alone sees the sums."""
    case = attention_case(BACKWARD, (2, 2, 2, 130, 40, 64, 64), dtype, "ci")
    trial = Judged.of(OPS[BACKWARD], case)
    rounded, sound = _RoundedSums(dtype).backward, Attention().backward
    assert trial.rule(rounded, emulation=False) is None
    assert trial.rule(rounded, emulation=True) == "emulation"
    assert trial.rule(sound, emulation=True) is None
