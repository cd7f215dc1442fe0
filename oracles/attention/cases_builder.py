"""Making one case of attention, and the layouts that cases choose among."""

from __future__ import annotations

import torch

from oracles.attention.allowed import DELTA_SIZES, implied
from oracles.attention.geometry import BACKWARD, DELTA, FORWARD, GRADIENTS
from oracles.op import CONTIGUOUS, Case, Layout, TensorLayout, Tier

OPS = (FORWARD, DELTA, BACKWARD, GRADIENTS)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_TURNS = {FORWARD: 0, BACKWARD: 1, GRADIENTS: 2, DELTA: 2}
Window = tuple[int | None, int | None]

OPERANDS = ("q", "k", "v", "do", "out")


def turn(op: str, index: int) -> tuple[torch.dtype, ...]:
    """One dtype: the next at each index; forward, backward and gradients have different ones."""
    return (DTYPES[(index + _TURNS[op]) % len(DTYPES)],)


def attention_case(
    op: str,
    sizes: tuple[int, ...],
    dtype: torch.dtype,
    tier: Tier,
    *,
    options: str = "",
    window: Window | None = None,
    layout: Layout = CONTIGUOUS,
    distribution: str = "normal",
    seed: int = 0,
    why: str = "",
) -> Case:
    """A case of any attention op; sizes are (b, h_q, h_kv, s_q, s_kv, d, d_v).

    options are separated by spaces; "window", "gqa" and "unequal_d" follow from the rest.
    """
    b, h_q, h_kv, s_q, s_kv, d, d_v = sizes
    named = {"b": b, "h_q": h_q, "h_kv": h_kv, "s_q": s_q, "s_kv": s_kv, "d": d, "d_v": d_v}
    if op == DELTA:
        named = {name: named[name] for name in DELTA_SIZES}
    if window is not None:
        for name, limit in zip(("window_left", "window_right"), window, strict=True):
            if limit is not None:
                named[name] = limit
    return Case(
        op=op,
        sizes=tuple(named.items()),
        dtype=dtype,
        weight_dtype=dtype,
        layout=layout,
        distribution=distribution,
        options=implied(named).union(options.split()),
        seed=seed,
        tier=tier,
        why=why,
    )


def _each(name: str, tensors: tuple[str, ...], layout: TensorLayout) -> Layout:
    return Layout(name, tuple((each, layout) for each in tensors))


def _tensors(name: str, **layouts: TensorLayout) -> Layout:
    return Layout(name, tuple(layouts.items()))


OFFSETS = tuple(
    _each(f"offset{k}", (*OPERANDS, "bias"), TensorLayout(offset=k)) for k in range(1, 8)
) + tuple(
    _tensors(f"{name}_offset{k}", **{name: TensorLayout(offset=k)})
    for name in (*OPERANDS, "bias")
    for k in range(1, 8)
)

_TRANSPOSED = TensorLayout(order="bhds")  # the sequence runs along memory's fast axis
_HEADS_FIRST = TensorLayout(order="bhsd")
_KEYS = ("k", "v")

STRIDES = (
    _each("bhsd", OPERANDS, _HEADS_FIRST),
    _each("sbhd", OPERANDS, TensorLayout(order="sbhd")),
    _each("qkv_interleaved", ("q", "k", "v"), TensorLayout(interleaved=3)),
    _each("kv_interleaved", _KEYS, TensorLayout(interleaved=2)),
    *(_each(f"rowpad{k}", OPERANDS, TensorLayout(row_padding=k)) for k in (1, 3, 8, 16)),
    _tensors("q_rowpad3", q=TensorLayout(row_padding=3)),
    _tensors("k_rowpad5", k=TensorLayout(row_padding=5)),
    _tensors("v_rowpad1", v=TensorLayout(row_padding=1)),
    _tensors("do_rowpad24", do=TensorLayout(row_padding=24), out=TensorLayout(row_padding=8)),
    _tensors("out_rowpad3", out=TensorLayout(row_padding=3)),
    _each("colstride2", OPERANDS, TensorLayout(column_stride=2)),
    *(
        _tensors(f"{name}_colstride{k}", **{name: TensorLayout(column_stride=k)})
        for name, k in (("q", 2), ("k", 2), ("v", 2), ("do", 3), ("out", 2))
    ),
    *(_tensors(f"{name}_transposed", **{name: _TRANSPOSED}) for name in ("q", "k", "v", "do")),
    *(_tensors(f"{name}_bhsd", **{name: _HEADS_FIRST}) for name in OPERANDS),
    _tensors("k_sliced", k=TensorLayout(offset=8, row_padding=56)),
    _each("kv_expanded_heads", _KEYS, TensorLayout(expanded="h")),
    _each("kv_expanded_batch", _KEYS, TensorLayout(expanded="b")),
    _each("kv_expanded_keys", _KEYS, TensorLayout(expanded="s")),
    _tensors("do_expanded_rows", do=TensorLayout(expanded="s")),
    _tensors("do_expanded_all", do=TensorLayout(expanded="bshd")),
)

BIAS_STRIDES = (
    *(_tensors(f"bias_rowpad{k}", bias=TensorLayout(row_padding=k)) for k in (1, 3, 4, 8)),
    _tensors("bias_colstride2", bias=TensorLayout(column_stride=2)),
    _tensors("bias_transposed", bias=TensorLayout(order="bhkq")),
    _tensors("bias_expanded_batch", bias=TensorLayout(expanded="b")),
    _tensors("bias_expanded_heads", bias=TensorLayout(expanded="h")),
    _tensors("bias_expanded_queries", bias=TensorLayout(expanded="q")),
)

# The third entry of the slowest axis starts past element 2^31, over memory that isn't touched
# between the entries.
_FAR_STRIDE = 2**30 + 8


def _far(order: str) -> TensorLayout:
    return TensorLayout(order=order, row_stride=_FAR_STRIDE)


FAR_QUERIES = (
    *(_tensors(f"{name}_far", **{name: _far("sbhd")}) for name in ("q", "do", "out")),
    _tensors("bias_far", bias=_far("qbhk")),
)
FAR_KEYS = tuple(_tensors(f"{name}_far", **{name: _far("sbhd")}) for name in _KEYS)
FAR_HEADS = tuple(_tensors(f"{name}_heads_far", **{name: _far("hbsd")}) for name in OPERANDS)
FAR_BATCHES = tuple(_tensors(f"{name}_batches_far", **{name: _far("bshd")}) for name in OPERANDS)


def moves(layout: Layout, tensors: tuple[str, ...]) -> bool:
    """Whether every tensor that names the layout, as do in do_offset1, is among `tensors`.

    A layout of many tensors at once has any of them.
    """
    named = [name for name, _ in layout.tensors]
    alone = [name for name in named if layout.name.startswith(f"{name}_")]
    return all(name in tensors for name in alone) and any(name in tensors for name in named)
