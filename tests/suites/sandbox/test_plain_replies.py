"""A reply of a user's own process: outputs, or the reason why there are none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernel_workbench.oracles import LAYER_NORM_BACKWARD
from kernel_workbench.suites.sandbox.judge_side.plain_calls import UsersProcess
from tests.builders.by_hand import kernel_of
from tests.builders.wrong_layer_norms import closed_form

_CPU = torch.device("cpu")
_CASE = next(case for case in LAYER_NORM_BACKWARD.cases() if case.layout.name == "contiguous")


@pytest.mark.parametrize(
    ("reply", "rule"),
    [
        ({}, "wrong outputs"),
        ({"outputs": []}, "wrong outputs"),
        ({"raised": "ValueError: no", "outputs": []}, "raised"),
        ({"ended": 1}, "process ended"),
    ],
)
def test_reply_without_the_outputs_breaks_a_rule(reply: dict[str, Any], rule: str) -> None:
    """A kernel that answers for its process can't pass by sending nothing."""
    process: Any = SimpleNamespace(ended=False, ask=lambda _: None, answer=lambda *_: reply)
    script = UsersProcess(_CPU, _process=process, _is_ready=True)
    inputs = LAYER_NORM_BACKWARD.inputs(_CASE, _CPU)
    call = script.call(kernel_of(closed_form), _CASE, inputs, 1.0, 2**30)
    assert (call.rule, call.outputs) == (rule, {})
