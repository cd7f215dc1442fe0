"""PyTorch's operations that compute an op are refused to kernels of their own, and to no others."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernel_workbench.kernels.registry import Kernel, Origin, all_kernels
from kernel_workbench.oracles import LAYER_NORM_BACKWARD
from kernel_workbench.suites.accuracy.run import Run
from kernel_workbench.suites.sandbox.judge_side.workers import Workers
from kernel_workbench.suites.sandbox.worker_side.watch import libraries_refused, seen

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


_X, _ONE, _NO, _ALL = torch.randn(4, 8), torch.ones(4), (None, None), [True] * 3
_NORMS: dict[str, tuple[object, ...]] = {
    "native_batch_norm_backward": (_X[None], _X[None], _ONE, *_NO, _ONE, _ONE, True, 0.0, _ALL),
    "native_group_norm_backward": (_X, _X, _ONE[:, None], _ONE[:, None], None, 4, 8, 1, 1, _ALL),
    "instance_norm": (_X[None], *_NO, *_NO, True, 0.0, 0.0, False),
}


@pytest.mark.parametrize("name", _NORMS)
def test_norms_that_can_be_made_of_one_another_are_refused(name: str) -> None:
    """A row is a channel of a batch of one, or the only group of its columns."""
    norm = getattr(torch.ops.aten, name)
    with (
        seen() as noted,
        libraries_refused(_kernel(), _CPU),
        pytest.raises(RuntimeError, match="is a library's"),
    ):
        norm(*_NORMS[name])
    assert noted.library == {f"aten.{name}"}


def test_operator_of_a_higher_order_is_refused_and_comes_back() -> None:
    """flex attention's, which has no entry in the dispatcher's table; others are left alone."""
    from torch.nn.attention.flex_attention import _create_empty_block_mask  # noqa: PLC0415

    q = torch.randn(1, 1, 4, 8)

    def attend() -> torch.Tensor:
        mask = _create_empty_block_mask(q, q).as_tuple()
        out, *_ = torch.ops.higher_order.flex_attention(q, q, q, lambda s, *_: s, mask, 1.0, {})
        assert isinstance(out, torch.Tensor)
        return out

    with seen() as noted, libraries_refused(_kernel(), _CPU):
        with pytest.raises(RuntimeError, match="is a library's"):
            attend()
        chosen = torch.ops.higher_order.cond(bool(q.numel()), torch.abs, torch.neg, (q,))
        assert torch.equal(chosen, q.abs())
    assert noted.library == {"higher_order.flex_attention"}
    assert attend().shape == q.shape


_CALLS_C = """
import ctypes

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel

_TORCH = ctypes.CDLL(torch.__path__[0] + "/lib/libtorch_cpu.so")
{import_time}


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"){wraps})
def calls_c(dy, x, weight, mean, rstd):
    ctypes.CDLL(None).strlen(b"layer_norm")
    assert not hasattr(ctypes.CDLL(None), "my_own_flash_attention_kernel")
    {in_call}
    x_hat = (x - mean[:, None]) * rstd[:, None]
    g = dy * weight
    c1, c2 = g.mean(1, keepdim=True), (g * x_hat).mean(1, keepdim=True)
    return (g - c1 - x_hat * c2) * rstd[:, None], (dy * x_hat).sum(0), dy.sum(0)
"""
_SYMBOL = "_TORCH.aoti_torch_cpu__fused_rms_norm"


@pytest.mark.parametrize(
    ("import_time", "in_call", "wraps", "rule"),
    [
        ("", "_TORCH.aoti_torch_cpu_mm_out", "", None),
        (_SYMBOL, "", "", "library call"),
        ("", _SYMBOL, "", "library call"),
        (_SYMBOL, _SYMBOL, ", wraps='PyTorch'", None),
    ],
    ids=["others", "looked up at import", "looked up in a call", "wraps"],
)
def test_symbols_of_a_library_are_heard_of(
    import_time: str, in_call: str, wraps: str, rule: str | None, tmp_path: Path
) -> None:
    """Looked up by ctypes at any time; other symbols, and functions of one's own, are free."""
    file = tmp_path / "calls_c.py"
    file.write_text(_CALLS_C.format(import_time=import_time, in_call=in_call, wraps=wraps))
    workers = Workers(_CPU, 90, files=(file,))
    try:
        run = Run(_CPU, 90, workers=workers)
        case = next(
            each
            for each in LAYER_NORM_BACKWARD.cases()
            if each.id() == "layer_norm_backward-m37-n64-float32-contiguous"
        )
        row = run.try_pair(workers.kernels()[0], case)
    finally:
        workers.close()
    assert row.rule == rule, row.reason
    assert rule is None or "aoti_torch_cpu__fused_rms_norm" in (row.reason or "")
