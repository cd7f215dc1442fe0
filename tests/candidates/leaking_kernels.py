"""Kernels that are right and leave their process changed, in ways that one process can't undo."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel
from tests.builders.wrong_layer_norms import closed_form

Outputs = tuple[Tensor, Tensor, Tensor]
SERVES = Domain(dtypes=(torch.float32,))
_sound: Callable[..., Outputs] = closed_form
_entered: list[torch.inference_mode] = []

torch.backends.cuda.matmul.allow_tf32 = True
os.environ["HEAD_OF_FILE"] = "set"


@kernel(LAYER_NORM_BACKWARD, SERVES)
def enters_inference_mode(**arguments: Tensor) -> Outputs:
    """Nobody but who holds the guard can end it."""
    outputs = _sound(**arguments)
    _enter_inference_mode()
    return outputs


@kernel(LAYER_NORM_BACKWARD, SERVES)
def replaces_clone_when_inputs_go(**arguments: Tensor) -> Outputs:
    """Its inputs live until those of the next call are there."""
    weakref.finalize(arguments["dy"], setattr, Tensor, "clone", Tensor.contiguous)
    return _sound(**arguments)


@kernel(LAYER_NORM_BACKWARD, SERVES)
def seeds_when_inputs_go(**arguments: Tensor) -> Outputs:
    """Its inputs live until those of the next call are there."""
    weakref.finalize(arguments["dy"], torch.manual_seed, 0)
    return _sound(**arguments)


def _enter_inference_mode() -> None:
    _entered.append(torch.inference_mode())
    _entered[-1].__enter__()


@kernel(LAYER_NORM_BACKWARD, SERVES)
def enters_inference_mode_when_inputs_go(**arguments: Tensor) -> Outputs:
    """Its inputs live until the next call's inputs exist."""
    weakref.finalize(arguments["dy"], _enter_inference_mode)
    return _sound(**arguments)


@triton.jit
def _locked_kernel(x, semaphore, m, n, LIMIT: tl.constexpr):
    tl.store(semaphore, 1)
    if m > LIMIT:
        tl.store(x + m * n, tl.load(x + m * n))
    tl.store(semaphore, 0)


_semaphore = torch.zeros(1, dtype=torch.int32)


@kernel(LAYER_NORM_BACKWARD, SERVES)
def reads_past_the_end_of_many_rows(**arguments: Tensor) -> Outputs:
    """Its semaphore is free between launches, unless one is cut off."""
    assert _semaphore.item() == 0
    _locked_kernel[(1,)](arguments["x"], _semaphore, *arguments["x"].shape, LIMIT=3)
    return _sound(**arguments)


def _variant(*_: object) -> str:
    torch.manual_seed(0)
    return "seeded"


@kernel(LAYER_NORM_BACKWARD, SERVES, variant=_variant)
def seeds_when_asked(**arguments: Tensor) -> Outputs:
    """Its variant is no part of it."""
    return _sound(**arguments)


@kernel(LAYER_NORM_BACKWARD, SERVES)
def needs_its_head(**arguments: Tensor) -> Outputs:
    """The settings at the head of the file hold when the kernel is called."""
    assert torch.backends.cuda.matmul.allow_tf32
    assert os.environ["HEAD_OF_FILE"] == "set"
    return _sound(**arguments)
