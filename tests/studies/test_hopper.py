"""Kernels on trial for Hopper: right on a CPU, however late asynchronous work is done."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kernels import registry
from oracles.attention.cases import attention_case
from tests.builders.by_hand import run_on

_STUDIES = Path(__file__).parents[2] / "studies"
_SIZES = (1, 4, 2, 300, 333, 64, 64)


@pytest.mark.parametrize(
    ("op", "file", "name", "options"),
    [
        ("attention_forward", "hopper_forward", "hopper_next", ""),
        ("attention_forward", "hopper_forward", "hopper_next", "window sink"),
        ("attention_forward", "hopper_forward", "hopper_next_in_turn", "causal"),
        ("attention_backward", "hopper_backward", "hopper_backward", ""),
        ("attention_backward", "hopper_backward", "hopper_backward", "causal"),
    ],
)
def test_kernel_on_trial_is_right(
    op: str, file: str, name: str, options: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the accuracy suite's verdict."""
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    loaded = registry.load_file(_STUDIES / f"{file}.py")
    kernel = next(each for each in loaded if each.name == name)
    case = attention_case(op, _SIZES, torch.bfloat16, "ci", options=options)
    row = run_on(torch.device("cpu")).try_pair(kernel, case)
    assert row.status == "passed", row.reason
