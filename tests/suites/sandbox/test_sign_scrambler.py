"""A scrambled launch reads numbers of other signs, and leaves nothing changed but what it wrote."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from kernel_workbench.suites.sandbox.worker_side.sign_scrambler import scrambled

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn)


def _numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.rand(shape) + 1).to(dtype)


def _bits(tensor: Tensor) -> list[int]:
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).tolist()


@pytest.mark.parametrize("dtype", _DTYPES, ids=str)
def test_launch_reads_other_signs_of_the_same_numbers(dtype: torch.dtype) -> None:
    """About half of them, and afterwards all is as it was."""
    numbers = _numbers(50, 40, dtype=dtype)
    before, kept = numbers.to(torch.float64, copy=True), _bits(numbers)
    with scrambled([numbers]):
        read = numbers.to(torch.float64, copy=True)
    assert torch.equal(read.abs(), before)
    assert 0.4 < float((read < 0).double().mean()) < 0.6
    assert _bits(numbers) == kept


_VIEWS: dict[str, Callable[[Tensor], list[object]]] = {
    "strided": lambda base: [base[:, ::3]],
    "expanded": lambda base: [base[:1].expand(30, 40)],
    "one element": lambda base: [base[:1, :1].expand(30, 40)],
    "overlapping": lambda base: [base[:20], base[10:], base],
    "the same twice": lambda base: [base, base],
    "of a descriptor": lambda base: [SimpleNamespace(base=base)],
    "in a tuple": lambda base: [(base, 3), "word", None],
}


@pytest.mark.parametrize("name", _VIEWS)
def test_arguments_are_as_they_were(name: str) -> None:
    """However they lie; and something was changed meanwhile."""
    base = _numbers(30, 40)
    kept = _bits(base)
    for _ in range(20):  # of a single element's sign nothing may come
        with scrambled(_VIEWS[name](base)):
            changed = _bits(base) != kept
        assert _bits(base) == kept
        if changed:
            return
    raise AssertionError("nothing was ever changed")


def test_what_the_launch_wrote_stays() -> None:
    """In memory that two arguments see, too; beside it all is put back."""
    base = _numbers(30, 40)
    before = base.clone()
    with scrambled([base, base[5:20]]):
        base[10:15] = 7.0
    before[10:15] = 7.0
    assert torch.equal(base, before)


def test_zeros_integers_and_fresh_memory_stay_what_they_are() -> None:
    """A flag is raised, a counter counts, and what was never written still shows it."""
    zeros, counts = torch.zeros(100), torch.arange(100, dtype=torch.int32)
    fresh = torch.full((100,), float("nan"))
    with scrambled([zeros, counts, fresh]):
        assert not zeros.signbit().any()
        assert torch.equal(counts, torch.arange(100, dtype=torch.int32))
        assert fresh.isnan().all()
        counts += 1
        zeros[3] = 1.0
    assert torch.equal(counts, torch.arange(1, 101, dtype=torch.int32))
    assert torch.equal(zeros.nonzero(), torch.tensor([[3]]))


def test_signs_differ_from_launch_to_launch() -> None:
    """Nobody can undo what isn't the same twice."""
    numbers = _numbers(1000)
    with scrambled([numbers]):
        first = numbers.clone()
    with scrambled([numbers]):
        assert not torch.equal(numbers, first)
