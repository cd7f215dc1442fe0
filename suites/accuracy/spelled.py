"""A case in JSON, whole, and back: what a worker is told of it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from oracles.op import Case, Layout, TensorLayout, dtype_name


def spelled(case: Case) -> dict[str, Any]:
    """The case as JSON has it."""
    return asdict(case) | {
        "dtype": dtype_name(case.dtype),
        "weight_dtype": dtype_name(case.weight_dtype),
        "options": sorted(case.options),
    }


def case_of(spelling: dict[str, Any]) -> Case:
    """The case that was spelled so."""
    layout = spelling["layout"]
    tensors = tuple((name, TensorLayout(**each)) for name, each in layout["tensors"])
    return Case(
        **spelling
        | {
            "sizes": tuple((name, size) for name, size in spelling["sizes"]),
            "dtype": getattr(torch, spelling["dtype"]),
            "weight_dtype": getattr(torch, spelling["weight_dtype"]),
            "layout": Layout(**layout | {"tensors": tensors}),
            "options": frozenset(spelling["options"]),
        }
    )
