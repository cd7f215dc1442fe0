"""What a judge frees is there for its next tensor, without new pages."""

from __future__ import annotations

import platform

import pytest

from tests.builders.commands import run_python

# Tensors of 30 MiB, of 7,680 pages each; the heap grows for a few rounds before all have a place.
_PROGRAM = """
import resource
import torch
from suites.accuracy.pages import keep_freed_pages

keep_freed_pages()
for _ in range(8):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    x = torch.ones(30 * 2**18)
    y = 2 * x
    z = x + y
    del x, y, z
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc alone is asked")
def test_later_tensors_have_earlier_ones_pages() -> None:
    """They fault next to none in."""
    ended = run_python("-c", _PROGRAM)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) < 100
