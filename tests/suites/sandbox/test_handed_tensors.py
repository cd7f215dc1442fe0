"""The tensor that a launch copied is found among those that it was handed."""

from __future__ import annotations

import torch
from torch import Tensor

from kernel_workbench.suites.sandbox.worker_side.handed_tensors import HandedTensors
from kernel_workbench.suites.sandbox.worker_side.sign_scrambler import scrambled


def _copied(z: Tensor, y: Tensor, handed: HandedTensors) -> None:
    """Do what a launch that copies does, its numbers scrambled meanwhile."""
    with scrambled([z, y], handed, 1):
        y.copy_(z)


def _handed(*outputs: Tensor) -> HandedTensors:
    return HandedTensors.of((each.numel(), each.nbytes) for each in outputs)


def _home(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _source(handed: HandedTensors, y: Tensor, *inputs: Tensor) -> Tensor | None:
    return handed.stand_ins({"y": y.clone()}, {"y": _home(y)}, inputs).get("y")


def test_source_has_the_signs_that_the_copy_lost() -> None:
    """The copy is scrambled, and what it was copied from isn't."""
    x, z, y = torch.randn(8, 16), torch.randn(8, 16), torch.empty(8, 16, dtype=torch.float16)
    handed = _handed(y)
    _copied(z, y, handed)
    found = _source(handed, y, x)
    assert found is not None
    assert torch.equal(found, z.half())
    assert not torch.equal(found, y)


def test_source_is_found_however_it_lies() -> None:
    """With its axes in another order, or in parts that a launch copies one by one."""
    z, y = torch.randn(16, 8), torch.empty(8, 16)
    handed = _handed(y)
    with scrambled([z, y], handed, 1):
        y.copy_(z.t())
    found = _source(handed, y)
    assert found is not None
    assert torch.equal(found, z.t())
    parts = _handed(y)
    rows = torch.randn(8, 16)
    for row in range(8):
        _copied(rows[row].clone(), y[row], parts)
    found = _source(parts, y)
    assert found is not None
    assert torch.equal(found, rows)


def test_input_is_no_source() -> None:
    """Nor are its numbers in another order: nothing was computed."""
    x, y = torch.randn(8, 16), torch.empty(8, 16)
    handed = _handed(y)
    _copied(x.clone().flip(0), y, handed)
    assert _source(handed, y, x) is None


def test_output_that_launches_only_read_has_no_source() -> None:
    """PyTorch computed it, and it is returned as it is; the launch computes another output."""
    z, y = torch.randn(8, 16), torch.full((8, 16), torch.nan)
    handed = _handed(y, z)
    _copied(z, y, handed)
    assert _source(handed, z) is None


def test_copies_take_a_few_times_what_outputs_do() -> None:
    """A kernel may launch a thousand times."""
    z, y = torch.randn(8, 16), torch.empty(8, 16)
    handed = _handed(y)
    for _ in range(100):
        _copied(z, y, handed)
    taken = sum(each.nbytes for kept in handed.copies.values() for _, each in kept)
    assert taken <= 4 * y.nbytes
