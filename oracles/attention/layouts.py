"""The layouts of attention's tensors that cases choose among."""

from __future__ import annotations

from kernel_workbench.oracles.cases.layouts import FAR_STRIDE, alike, apart, offsets
from kernel_workbench.oracles.op import Layout, TensorLayout

OPERANDS = ("q", "k", "v", "do", "out")
OFFSETS = offsets((*OPERANDS, "bias"), (*OPERANDS, "bias"))

_TRANSPOSED = TensorLayout(order="bhds")  # the sequence runs along memory's fast axis
_HEADS_FIRST = TensorLayout(order="bhsd")
_KEYS = ("k", "v")

STRIDES = (
    alike("bhsd", OPERANDS, _HEADS_FIRST),
    alike("sbhd", OPERANDS, TensorLayout(order="sbhd")),
    alike("qkv_interleaved", ("q", "k", "v"), TensorLayout(interleaved=3)),
    alike("kv_interleaved", _KEYS, TensorLayout(interleaved=2)),
    *(alike(f"rowpad{k}", OPERANDS, TensorLayout(row_padding=k)) for k in (1, 3, 8, 16)),
    apart("q_rowpad3", q=TensorLayout(row_padding=3)),
    apart("k_rowpad5", k=TensorLayout(row_padding=5)),
    apart("v_rowpad1", v=TensorLayout(row_padding=1)),
    apart("do_rowpad24", do=TensorLayout(row_padding=24), out=TensorLayout(row_padding=8)),
    apart("out_rowpad3", out=TensorLayout(row_padding=3)),
    alike("colstride2", OPERANDS, TensorLayout(column_stride=2)),
    *(
        apart(f"{name}_colstride{k}", **{name: TensorLayout(column_stride=k)})
        for name, k in (("q", 2), ("k", 2), ("v", 2), ("do", 3), ("out", 2))
    ),
    *(apart(f"{name}_transposed", **{name: _TRANSPOSED}) for name in ("q", "k", "v", "do")),
    *(apart(f"{name}_bhsd", **{name: _HEADS_FIRST}) for name in OPERANDS),
    apart("k_sliced", k=TensorLayout(offset=8, row_padding=56)),
    alike("kv_expanded_heads", _KEYS, TensorLayout(expanded="h")),
    alike("kv_expanded_batch", _KEYS, TensorLayout(expanded="b")),
    alike("kv_expanded_keys", _KEYS, TensorLayout(expanded="s")),
    apart("do_expanded_rows", do=TensorLayout(expanded="s")),
    apart("do_expanded_all", do=TensorLayout(expanded="bshd")),
)

BIAS_STRIDES = (
    *(apart(f"bias_rowpad{k}", bias=TensorLayout(row_padding=k)) for k in (1, 3, 4, 8)),
    apart("bias_colstride2", bias=TensorLayout(column_stride=2)),
    apart("bias_transposed", bias=TensorLayout(order="bhkq")),
    apart("bias_expanded_batch", bias=TensorLayout(expanded="b")),
    apart("bias_expanded_heads", bias=TensorLayout(expanded="h")),
    apart("bias_expanded_queries", bias=TensorLayout(expanded="q")),
)


def _far(order: str) -> TensorLayout:
    return TensorLayout(order=order, row_stride=FAR_STRIDE)


FAR_QUERIES = (
    *(apart(f"{name}_far", **{name: _far("sbhd")}) for name in ("q", "do", "out")),
    apart("bias_far", bias=_far("qbhk")),
)
FAR_KEYS = tuple(apart(f"{name}_far", **{name: _far("sbhd")}) for name in _KEYS)
FAR_HEADS = tuple(apart(f"{name}_heads_far", **{name: _far("hbsd")}) for name in OPERANDS)
FAR_BATCHES = tuple(apart(f"{name}_batches_far", **{name: _far("bshd")}) for name in OPERANDS)


def moves(layout: Layout, tensors: tuple[str, ...]) -> bool:
    """Return True if a layout moves some of `tensors`, and names no tensor beside them.

    The layout do_offset1 names do; a layout of many tensors at once names none.
    """
    named = [name for name, _ in layout.tensors]
    alone = [name for name in named if layout.name.startswith(f"{name}_")]
    return all(name in tensors for name in alone) and any(name in tensors for name in named)
