"""`torch.compile` for peers that are PyTorch's own generated code."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any

import torch
from torch.utils import _python_dispatch

MOST = 2**31 - 1  # elements that 32 bits can index


@lru_cache(maxsize=1)
def compiled(function: Callable[..., Any], *_specialised_to: object) -> Callable[..., Any]:
    """Compile a function, and drop earlier compiled ones, before dynamo counts them."""
    torch.compiler.reset()
    return torch.compile(function, dynamic=False, fullgraph=True)


def reject_elements(elements: int, least: int) -> str | None:
    """Return the refusal of a number of elements that isn't compiled for, or None.

    Compiling for few elements takes longer than they are worth.
    """
    if least <= elements <= MOST:
        return None
    return f"is compiled for {least:,} to {MOST:,} elements alone, got {elements:,}"


def unwatched() -> AbstractContextManager[object]:
    """Return a context without dispatch modes: under a mode torch.compile doesn't compile."""
    return _python_dispatch._disable_current_modes()  # noqa: SLF001  (has no public name)
