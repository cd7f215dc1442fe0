"""The cases of layer norm that are timed and profiled.

The large ones are those of the figures in docs/gallery/h200_*_peers.jsonl, from a million short
rows to rows of 65,536. The others are what models and users have besides: few rows, odd sizes, rows
that begin off a boundary.
"""

from __future__ import annotations

import torch

from kernel_workbench.oracles.layer_norm.cases import layer_norm_case
from kernel_workbench.oracles.op import CONTIGUOUS, Case, Layout, TensorLayout, Workloads

_HALF, _SINGLE = torch.bfloat16, torch.float32
_OFF = Layout("offset1", tuple((name, TensorLayout(offset=1)) for name in ("dy", "x", "weight")))

# Rows and columns, widest traffic last within each kind.
_ANCHORS = (
    (16384, 1024),
    (4096, 4096),
    (16384, 4096),
    (8192, 8192),
    (4096, 16384),
    (2048, 65536),
    (262144, 256),
    (1048576, 64),
    (128, 65536),
    (16384, 4095),
    (16384, 5120),
)


def _case(
    m: int, n: int, why: str = "", *, dtype: torch.dtype = _HALF, layout: Layout = CONTIGUOUS
) -> Case:
    return layer_norm_case(m, n, (dtype, dtype), "full", layout=layout, why=why)


WORKLOADS = Workloads(
    anchors=tuple(_case(*sizes, dtype=dtype) for dtype in (_HALF, _SINGLE) for sizes in _ANCHORS),
    further=(
        _case(1, 4096, "one token: launches are all of it"),
        _case(32, 1024, "a small batch of decoding"),
        _case(2048, 768, "a small model, all of it in the L2 cache"),
        _case(4096, 4096, "rows that begin off a boundary of 16 bytes", layout=_OFF),
        _case(8191, 1023, "odd rows and columns"),
        _case(3001, 8193, "past a power of two by one", dtype=_SINGLE),
    ),
    on_cpu=tuple(
        _case(*sizes, dtype=_SINGLE) for sizes in ((64, 256), (512, 1024), (333, 777), (2048, 768))
    ),
    profiled=(_case(8192, 8192),),
)
