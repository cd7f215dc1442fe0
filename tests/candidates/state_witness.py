"""A sound kernel that notices whether its process is as it was when this file was imported."""

from __future__ import annotations

import os
import random
import signal

import torch
from torch import Tensor

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel
from tests.builders.wrong_layer_norms import closed_form


def _state() -> tuple[object, ...]:
    return (
        torch.tensor(0.5).dtype,
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
        torch.get_num_threads(),
        torch.initial_seed(),
        random.getstate(),
        dict(os.environ),
        signal.getsignal(signal.SIGINT),
        signal.getitimer(signal.ITIMER_REAL)[0],
    )


_before = _state()


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,)))
def witness(
    dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Right, in a process that nobody has changed."""
    now = _state()
    changed = [(one, other) for one, other in zip(_before, now, strict=True) if one != other]
    if changed:
        raise RuntimeError(f"the process isn't as it was: {changed}")
    return closed_form(dy, x, weight, mean, rstd)
