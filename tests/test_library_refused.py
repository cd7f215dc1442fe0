"""PyTorch's operations that compute an op are refused to kernels of their own, and to no others."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch

from kernels.registry import Kernel, Origin, all_kernels
from suites.accuracy.watching import libraries_refused, seen

_CPU = torch.device("cpu")


def _kernel(*, wraps: str | None = None, origin: Origin = "ours") -> Kernel:
    ours = next(each for each in all_kernels() if each.origin == "ours")
    return replace(ours, origin=origin, wraps=wraps)


def _normalise() -> torch.Tensor:
    return torch.nn.functional.layer_norm(torch.ones(3, 8), (8,))


def test_library_is_refused_in_every_thread_and_noted() -> None:
    """Where a dispatch mode doesn't look, too."""
    raised: list[str] = []

    def call() -> None:
        try:
            _normalise()
        except RuntimeError as error:
            raised.append(str(error))

    with seen() as noted, libraries_refused(_kernel(), _CPU):
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
    assert raised == ["aten::layer_norm is a library's: it isn't to be called here"]
    assert noted.library == {"aten.layer_norm"}


@pytest.mark.parametrize(("origin", "wraps"), [("baseline", None), ("user", "PyTorch")])
def test_kernel_that_is_a_librarys_keeps_it(origin: Origin, wraps: str | None) -> None:
    """A peer, or one that says so."""
    with seen() as noted, libraries_refused(_kernel(origin=origin, wraps=wraps), _CPU):
        assert _normalise().shape == (3, 8)
    assert not noted.library


def test_library_is_back_afterwards() -> None:
    """With its autograd: the judge's process computes on."""
    q = torch.ones(1, 1, 2, 8)
    with libraries_refused(_kernel(), _CPU), pytest.raises(RuntimeError, match="is a library's"):
        torch.nn.functional.scaled_dot_product_attention(q, q, q)
    x = torch.ones(3, 8, requires_grad=True)
    torch.nn.functional.layer_norm(x, (8,)).sum().backward()
    assert x.grad is not None


def test_operation_that_python_code_has_replaced_is_refused_too() -> None:
    """As torch replaces some on a GPU; afterwards it is that code's again."""
    x, weight = torch.ones(3, 8), torch.ones(8)
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("rms_norm", lambda x, *_: 2 * x, "CompositeImplicitAutograd")
        with (
            libraries_refused(_kernel(), _CPU),
            pytest.raises(RuntimeError, match="is a library's"),
        ):
            torch.nn.functional.rms_norm(x, (8,), weight)
        assert torch.equal(torch.nn.functional.rms_norm(x, (8,), weight), 2 * x)
    assert torch.allclose(torch.nn.functional.rms_norm(x, (8,), weight), x)


def test_other_operations_are_left_alone() -> None:
    """A kernel in plain PyTorch is no library."""
    x = torch.randn(4, 8)
    with libraries_refused(_kernel(), _CPU):
        assert torch.equal(x.softmax(-1), x.softmax(-1))
        assert (x @ x.mT).shape == (4, 4)
