"""Attention's backward on trial for heads of 256: right on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kernels import registry
from oracles.attention.cases import attention_case
from tests.builders.gluon_kernels import row_of

_STUDY = Path(__file__).parents[2] / "studies" / "hopper_backward.py"


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize(
    ("name", "options"), [("hopper_ordered_256", "causal"), ("hopper_atomic_256", "")]
)
def test_kernel_on_trial_is_right(
    name: str, options: str, *, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the accuracy suite's verdict."""
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    registry.load_file(_STUDY)
    sizes = (1, 4, 2, 150, 170, 256, 256)
    case = attention_case("attention_backward", sizes, torch.bfloat16, "ci", options=options)
    row = row_of(name, case, monkeypatch, late=late)
    assert row.status == "passed", row.reason
