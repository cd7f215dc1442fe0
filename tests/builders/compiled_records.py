"""Invented records of compiled code, for tests; no figure was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kernel_workbench.reports.record import (
    CaseInfo,
    CodeMix,
    CompileRow,
    KernelInfo,
    PredictionRow,
    Record,
    read,
)
from tests.builders.compared_records import header, write

SMS = (75, 80, 86, 89, 90, 100, 120)


def case(dtype: str = "bfloat16", d: int = 128) -> CaseInfo:
    """Return a case of attention's forward."""
    return CaseInfo(
        id=f"attention_forward-b1-h_q1-h_kv1-s_q33-s_kv40-d{d}-d_v{d}-{dtype}-contiguous",
        op="attention_forward",
        sizes={"b": 1, "h_q": 1, "h_kv": 1, "s_q": 33, "s_kv": 40, "d": d, "d_v": d},
        dtype=dtype,
        layout="contiguous",
        distribution="normal",
        options=(),
        seed=0,
        tier="ci",
        why="",
    )


def mix(**changes: object) -> CodeMix:
    """Return the mix of code that loads 16 bytes at a time and multiplies matrices."""
    known: dict[str, Any] = {
        "instructions": 1200,
        "loads": {16: 56},
        "stores": {16: 8, 4: 1},
        "atomics": {},
        "local": {},
        "matrix": {"HGMMA.64x64x16.F32.BF16": 16},
        "bulk": {},
        "busy_loop": None,
    }
    return CodeMix(**known | changes)


def row(**changes: object) -> CompileRow:
    """Return a row of a compiled kernel without a problem."""
    known: dict[str, Any] = {
        "op": "attention_forward",
        "kernel": "flash",
        "label": "bfloat16 d128 aligned",
        "function": "forward",
        "sm": 90,
        "case": case(),
        "alignment_bytes": 16,
        "variant": "fwd_bf16_aligned_128x64_d128_rf_sm90",
        "status": "compiled",
        "tile": {"BLOCK_M": 128, "BLOCK_N": 64, "num_stages": 3},
        "fp_fusion": True,
        "warps": 8,
        "registers": 220,
        "stack_bytes": 0,
        "spill_store_bytes": 0,
        "spill_load_bytes": 0,
        "shared_bytes": 131_072,
        "shared_limit_bytes": 232_448,
        "blocks_per_sm": 1,
        "occupancy_warps": 8,
        "most_warps": 64,
        "limited_by": "registers",
        "code_bytes": 33_280,
        "mix": mix(),
        "compile_s": 1.1,
        "tools": {"triton": "3.7.1", "ptxas": "12.8.93"},
    }
    return CompileRow(**known | changes)


def prediction(**changes: object) -> PredictionRow:
    """Return the least time of a case."""
    known: dict[str, Any] = {
        "op": "attention_forward",
        "kernel": "flash",
        "case": case(),
        "gpu": "NVIDIA H200",
        "sm": 90,
        "multiprocessors": 132,
        "power_w": 700,
        "predicted_us": 1111.1,
        "limit": "matrix",
        "flops": 10**12,
        "bytes": 10**9,
        "from_code": True,
    }
    return PredictionRow(**known | changes)


def record_of(
    path: Path,
    rows: list[CompileRow],
    predictions: list[PredictionRow] | None = None,
    status: int = 0,
) -> Record:
    """Write a record of a run on a machine with no GPU, and read it."""
    flash = KernelInfo(
        op="attention_forward",
        name="flash",
        origin="ours",
        priority=20,
        path="kernels/attention/forward.py",
        numerics={},
    )
    machine = {"device": "cpu", "device_name": "Example CPU", "cpu_count": 2}
    head = header("compile", machine, kernels=(flash,))
    return read(write(path, head, [*rows, *(predictions or [])], status))
