"""The cases of attention that are timed and profiled.

The large ones are those of the figures in docs/gallery/h200_*_peers.jsonl: 16,384 tokens a batch
and 2,048 columns over all heads. The others are what models and users have besides: few queries,
odd lengths and heads, grouped heads.
"""

from __future__ import annotations

import torch

from kernel_workbench.oracles.attention.cases import attention_case
from kernel_workbench.oracles.attention.geometry import BACKWARD, FORWARD, GRADIENTS
from kernel_workbench.oracles.op import Case, Workloads

_TOKENS, _COLUMNS = 16384, 2048
_LENGTHS, _HEADS = (1024, 4096, 16384), (64, 128, 256)

# (b, h_q, h_kv, s_q, s_kv, d, d_v), options, why
_OTHERS = (
    ((1, 32, 8, 1, 8192, 128, 128), "", "one query: decoding"),
    ((2, 8, 8, 197, 197, 64, 64), "", "a vision transformer's tokens, odd"),
    ((4, 12, 12, 512, 512, 64, 64), "causal", "short sequences of a small model"),
    ((1, 32, 8, 4096, 4096, 128, 128), "causal", "grouped heads"),
    ((1, 8, 8, 4097, 4095, 80, 80), "", "odd lengths, a head that is no power of two"),
)
# For the forward alone: few queries, as above.
_FEW_QUERIES = (
    ((1, 32, 8, 4, 65536, 128, 128), "", "four queries, a long context"),
    ((1, 32, 1, 16, 8192, 128, 128), "", "sixteen queries, one key head"),
    ((1, 16, 16, 64, 1024, 64, 64), "", "few queries, few keys"),
)
_ON_CPU = (
    ((1, 2, 2, 128, 128, 64, 64), "causal"),
    ((1, 2, 2, 197, 197, 64, 64), ""),
    ((1, 4, 2, 256, 256, 64, 64), "causal"),
)
_PROFILED = (4, 16, 16, 4096, 4096, 128, 128)


def _case(op: str, sizes: tuple[int, ...], options: str = "", why: str = "") -> Case:
    return attention_case(op, sizes, torch.bfloat16, "full", options=options, why=why)


def _anchor(op: str, d: int, s: int, options: str) -> Case:
    heads = _COLUMNS // d
    return _case(op, (_TOKENS // s, heads, heads, s, s, d, d), options)


def _workloads(op: str) -> Workloads:
    further = (*_OTHERS, *_FEW_QUERIES) if op == FORWARD else _OTHERS
    return Workloads(
        anchors=tuple(
            _anchor(op, d, s, options)
            for d in _HEADS
            for options in ("", "causal")
            for s in _LENGTHS
        ),
        further=tuple(_case(op, *other) for other in further),
        on_cpu=tuple(
            attention_case(op, sizes, torch.float32, "full", options=options)
            for sizes, options in _ON_CPU
        ),
        profiled=(_case(op, _PROFILED),),
    )


WORKLOADS = {
    FORWARD: _workloads(FORWARD),
    BACKWARD: _workloads(BACKWARD),
    # Autograd's peers do forward and backward in one call; timed at one length.
    GRADIENTS: Workloads(
        anchors=(_anchor(GRADIENTS, 64, 4096, "causal"), _anchor(GRADIENTS, 128, 4096, ""))
    ),
}
