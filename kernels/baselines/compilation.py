"""What `torch.compile` makes of a function: for the peers that are PyTorch's own generated code."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any

import torch
from torch.utils import _python_dispatch

MOST = 2**31 - 1  # elements, what 32 bits index


@lru_cache(maxsize=1)
def compiled(function: Callable[..., Any], *_specialised_to: object) -> Callable[..., Any]:
    """The compiled function; everything compiled before is dropped, before dynamo counts it."""
    torch.compiler.reset()
    return torch.compile(function, dynamic=False, fullgraph=True)


def reject_elements(elements: int, least: int) -> str | None:
    """Why a case of so many isn't compiled for: of few it takes longer than they are worth."""
    if least <= elements <= MOST:
        return None
    return f"is compiled for {least:,} to {MOST:,} elements alone, got {elements:,}"


def unwatched() -> AbstractContextManager[object]:
    """No dispatch mode inside: under one, as the suite's is, torch.compile runs its input as is."""
    return _python_dispatch._disable_current_modes()  # noqa: SLF001  (has no public name)
