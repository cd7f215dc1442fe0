"""Registration of peers whose packages needn't be installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernel_workbench.kernels.registry import Domain, absent, kernel
from kernel_workbench.oracles.op import Numerics, Op


def peer(
    op: Op,
    function: Callable[..., Any],
    domain: Domain,
    *,
    name: str,
    priority: int,
    installed: bool,
    package: str,
    numerics: Numerics | None = None,
) -> None:
    """Register a peer, or declare it absent with the command that installs it.

    package: the last words of `pip install ...`.
    """
    if installed:
        kernel(op, domain, numerics=numerics, priority=priority, name=name)(function)
    else:
        absent(op, name, f"not installed: pip install {package}")
