"""A worker that waits uses the operations of a first call ahead."""

from __future__ import annotations

from contextlib import AbstractContextManager

import pytest
import torch

from kernel_workbench.suites.sandbox.worker_side import rehearsal
from kernel_workbench.suites.sandbox.worker_side.handed_tensors import HandedTensors
from kernel_workbench.suites.sandbox.worker_side.red_zones import Guards
from kernel_workbench.suites.sandbox.worker_side.sign_scrambler import scrambled


def test_rehearsal_leaves_no_trace(device: torch.device) -> None:
    """Random states and the bytes of red zones are what they were before."""
    state, guarded = torch.get_rng_state(), Guards.every
    rehearsal.rehearse(device)
    assert torch.equal(torch.get_rng_state(), state)
    assert Guards.every == guarded


def test_rehearsal_uses_each_dtype(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """An argument of each dtype is scrambled, with its output."""
    seen = []

    def noted(tensors: list[torch.Tensor], handed: HandedTensors) -> AbstractContextManager[None]:
        seen.append([tensor.dtype for tensor in tensors])
        return scrambled(tensors, handed)

    monkeypatch.setattr(rehearsal, "scrambled", noted)
    rehearsal.rehearse(device)
    assert seen == [[dtype] * 2 for dtype in (torch.float32, torch.float16, torch.bfloat16)]


def test_error_of_a_rehearsal_is_left_to_the_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA's error isn't raised while no kernel is asked for."""

    def lost(*_: object) -> None:
        raise RuntimeError("CUDA error: device lost")

    monkeypatch.setattr(rehearsal, "lay_out", lost)
    rehearsal.rehearse(torch.device("cpu"))
