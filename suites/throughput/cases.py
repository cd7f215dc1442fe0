"""What the throughput suite times: for each op large shapes that peers are known at, and others.

The large ones are those of the figures in docs/gallery/h200_*_peers.jsonl: attention of 16,384
tokens a batch and 2,048 columns over all heads, layer norm from a million short rows to rows of
65,536. The others are what models and users have besides: few rows, odd sizes, rows that begin off
a boundary. On a CPU the large ones would take hours; it has a list of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from oracles import ATTENTION_BACKWARD, ATTENTION_FORWARD, ATTENTION_GRADIENTS, LAYER_NORM_BACKWARD
from oracles.attention.cases_builder import attention_case
from oracles.op import CONTIGUOUS, Case, Layout, TensorLayout

_HALF, _FULL_DTYPES = torch.bfloat16, (torch.bfloat16, torch.float32)

# Rows and columns, widest traffic last within each kind.
_LAYER_NORM = (
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
_TOKENS, _COLUMNS = 16384, 2048
_LENGTHS, _HEADS = (1024, 4096, 16384), (64, 128, 256)
_GRADIENTS_LENGTH, _GRADIENTS = 4096, ((64, "causal"), (128, ""))
_OFF = Layout("offset1", tuple((name, TensorLayout(offset=1)) for name in ("dy", "x", "weight")))

# (m, n), layout, dtype, why
_LAYER_NORM_OTHERS = (
    ((1, 4096), CONTIGUOUS, _HALF, "one token: launches are all of it"),
    ((32, 1024), CONTIGUOUS, _HALF, "a small batch of decoding"),
    ((2048, 768), CONTIGUOUS, _HALF, "a small model, all of it in the L2 cache"),
    ((4096, 4096), _OFF, _HALF, "rows that begin off a boundary of 16 bytes"),
    ((8191, 1023), CONTIGUOUS, _HALF, "odd rows and columns"),
    ((3001, 8193), CONTIGUOUS, torch.float32, "past a power of two by one"),
)
# (b, h_q, h_kv, s_q, s_kv, d, d_v), options, why
_ATTENTION_OTHERS = (
    ((1, 32, 8, 1, 8192, 128, 128), "", "one query: decoding"),
    ((2, 8, 8, 197, 197, 64, 64), "", "a vision transformer's tokens, odd"),
    ((4, 12, 12, 512, 512, 64, 64), "causal", "short sequences of a small model"),
    ((1, 32, 8, 4096, 4096, 128, 128), "causal", "grouped heads"),
    ((1, 8, 8, 4097, 4095, 80, 80), "", "odd lengths, a head that is no power of two"),
)
# Of the forward alone: few queries, as above.
_FEW_QUERIES = (
    ((1, 32, 8, 4, 65536, 128, 128), "", "four queries, a long context"),
    ((1, 32, 1, 16, 8192, 128, 128), "", "sixteen queries, one key head"),
    ((1, 16, 16, 64, 1024, 64, 64), "", "few queries, few keys"),
)

_CPU_LAYER_NORM = ((64, 256), (512, 1024), (333, 777), (2048, 768))
_CPU_ATTENTION = (
    ((1, 2, 2, 128, 128, 64, 64), "causal"),
    ((1, 2, 2, 197, 197, 64, 64), ""),
    ((1, 4, 2, 256, 256, 64, 64), "causal"),
)


def _layer_norm(
    sizes: tuple[int, int], dtype: torch.dtype, layout: Layout = CONTIGUOUS, why: str = ""
) -> Case:
    m, n = sizes
    return Case(
        op=LAYER_NORM_BACKWARD.name,
        sizes=(("m", m), ("n", n)),
        dtype=dtype,
        weight_dtype=dtype,
        layout=layout,
        tier="full",
        why=why,
    )


def _attention_at_length(op: str, d: int, s: int, options: str) -> Case:
    heads = _COLUMNS // d
    sizes = (_TOKENS // s, heads, heads, s, s, d, d)
    return attention_case(op, sizes, _HALF, "full", options=options)


def anchors(op: str) -> Iterator[Case]:
    """The shapes that peers' figures are known at."""
    if op == LAYER_NORM_BACKWARD.name:
        for dtype in _FULL_DTYPES:
            for sizes in _LAYER_NORM:
                yield _layer_norm(sizes, dtype)
    elif op in (ATTENTION_FORWARD.name, ATTENTION_BACKWARD.name):
        for d in _HEADS:
            for options in ("", "causal"):
                for s in _LENGTHS:
                    yield _attention_at_length(op, d, s, options)
    elif op == ATTENTION_GRADIENTS.name:
        # What autograd's peers do in one call, forward and backward; at one length.
        for d, options in _GRADIENTS:
            yield _attention_at_length(op, d, _GRADIENTS_LENGTH, options)


def _others(op: str) -> Iterator[Case]:
    if op == LAYER_NORM_BACKWARD.name:
        for shape, layout, dtype, why in _LAYER_NORM_OTHERS:
            yield _layer_norm(shape, dtype, layout, why)
    elif op in (ATTENTION_FORWARD.name, ATTENTION_BACKWARD.name):
        few = _FEW_QUERIES if op == ATTENTION_FORWARD.name else ()
        for sizes, options, why in (*_ATTENTION_OTHERS, *few):
            yield attention_case(op, sizes, _HALF, "full", options=options, why=why)


def _on_cpu(op: str) -> Iterator[Case]:
    if op == LAYER_NORM_BACKWARD.name:
        for shape in _CPU_LAYER_NORM:
            yield _layer_norm(shape, torch.float32)
    elif op in (ATTENTION_FORWARD.name, ATTENTION_BACKWARD.name):
        for sizes, options in _CPU_ATTENTION:
            yield attention_case(op, sizes, torch.float32, "full", options=options)


def bench_cases(op: str, device: str, *, quick: bool = False) -> tuple[Case, ...]:
    """What is timed of an op on a device, "cuda" or "cpu"; quick: one in four of it, spread."""
    cases = (*anchors(op), *_others(op)) if device == "cuda" else tuple(_on_cpu(op))
    return cases[::4] if quick else cases
