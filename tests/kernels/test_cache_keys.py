"""Keys of compiled kernels don't depend on what a process called before."""

from __future__ import annotations

from pathlib import Path

import pytest
import triton

from tests.builders.compiled_python import printed_by

_PROGRAM = """
from kernel_workbench.kernels import cache_keys
if {settled}:
    cache_keys.settle()
    cache_keys.settle()
from kernel_workbench.kernels.attention.hopper_backward_kernel import gradients_kernel
from kernel_workbench.kernels.attention.hopper_kernel import hopper_kernel
functions = [gradients_kernel, hopper_kernel]
for function in functions[::{step}]:
    function.cache_key
print(*(function.cache_key for function in functions))
"""
_MENDED = tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 9)


def _keys(cache: Path, *, step: int, settled: bool) -> str:
    return printed_by(_PROGRAM.format(settled=settled, step=step), cache)


def test_keys_are_the_same_in_any_order(tmp_path: Path) -> None:
    """Two kernels that call the same functions, in both orders."""
    first = _keys(tmp_path, step=1, settled=True)
    assert len(set(first.split())) == 2
    assert first == _keys(tmp_path, step=-1, settled=True)


@pytest.mark.skipif(_MENDED, reason="Triton computes them so from 3.9 on")
def test_triton_alone_has_another_key_in_another_order(tmp_path: Path) -> None:
    """The first test would fail without the module."""
    keys = {_keys(tmp_path, step=step, settled=False) for step in (1, -1)}
    assert len(keys) == 2


_FOLDERS = """
import os
del os.environ["TRITON_CACHE_DIR"]
from kernel_workbench.kernels import cache_keys
if {settled}:
    cache_keys.settle()
from torch._inductor.runtime.cache_dir_utils import triton_cache_dir
from triton import knobs
print(triton_cache_dir(0) == knobs.cache.dir)
"""


@pytest.mark.parametrize("settled", [True, False])
def test_pytorchs_compiler_leaves_the_folder(tmp_path: Path, *, settled: bool) -> None:
    """It stores its first kernel, and all later ones of the process, in Triton's folder."""
    assert printed_by(_FOLDERS.format(settled=settled), tmp_path).strip() == str(settled)
