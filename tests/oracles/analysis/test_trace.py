"""Tests of what a reference's run changes in its process."""

from __future__ import annotations

import threading

import torch

from kernel_workbench.oracles.analysis.trace import made_in

_LONG_S = 0.2  # for another thread to get in, if it can


def test_two_threads_leave_the_default_dtype_as_it_was() -> None:
    """Where one could get in while another one is there, it would put back what that one set."""
    both, left = threading.Event(), threading.Event()

    def other() -> None:
        with made_in(torch.float64):
            both.set()
            left.wait()

    before = torch.get_default_dtype()
    thread = threading.Thread(target=other)
    with made_in(torch.float64):
        thread.start()
        both.wait(_LONG_S)
    left.set()
    thread.join()
    after = torch.get_default_dtype()
    torch.set_default_dtype(before)
    assert after == before


def test_one_may_be_within_another() -> None:
    """Each puts back what it found."""
    with made_in(torch.float64):
        with made_in(torch.float32):
            assert torch.get_default_dtype() == torch.float32
        assert torch.get_default_dtype() == torch.float64
