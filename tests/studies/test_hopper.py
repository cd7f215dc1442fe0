"""Kernels on trial for Hopper: right on a CPU, however late asynchronous work is done."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernels import registry
from oracles.attention.cases import attention_case
from tests.builders.by_hand import run_on
from tests.builders.gluon_machine import OnMachine

_STUDIES = Path(__file__).parents[2] / "studies"
_SIZES = (1, 4, 2, 300, 333, 64, 64)


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize(
    ("op", "file", "function", "name", "options"),
    [
        ("attention_forward", "hopper_forward", "hopper_kernel", "hopper_next", ""),
        ("attention_forward", "hopper_forward", "hopper_kernel", "hopper_next", "window sink"),
        ("attention_forward", "hopper_forward", "hopper_kernel", "hopper_next_in_turn", "causal"),
        ("attention_backward", "hopper_backward", "_gradients", "hopper_backward", ""),
        ("attention_backward", "hopper_backward", "_gradients", "hopper_backward", "causal"),
    ],
)
def test_kernel_on_trial_is_right(
    op: str,
    file: str,
    function: str,
    name: str,
    options: str,
    late: bool,  # noqa: FBT001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the accuracy suite's verdict; what it allocates aside, which here is shared memory too."""
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    kernels = {each.name: each for each in registry.load_file(_STUDIES / f"{file}.py")}
    known = kernels[name]
    names = known.function.__globals__
    monkeypatch.setitem(names, function, OnMachine(names[function], late=late))
    monkeypatch.setitem(names, "real_multiprocessors", lambda _: 3)
    kernel = replace(known, domain=replace(known.domain, interpretable=True), workspace=None)
    case = attention_case(op, _SIZES, torch.bfloat16, "ci", options=options)
    row = run_on(torch.device("cpu")).try_pair(kernel, case)
    assert row.status == "passed", row.reason
