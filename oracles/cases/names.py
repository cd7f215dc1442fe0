"""Cases by what people type: an id, a layout's name.

An id says all of its case but why it is there. A layout's name may join several with "+", as in
`q_offset3+k_rowpad5`: each places the tensors that it is of, and none places one a second way.
"""

from __future__ import annotations

import re
from dataclasses import fields

import torch

from kernel_workbench.oracles.op import CONTIGUOUS, Case, Layout, Op, TensorLayout, dtype_name

_SIZE = re.compile(r"(.*?)(\d{1,10})")
_SEED = re.compile(r"seed(-?\d{1,10})")
_DTYPES = {dtype_name(dtype): dtype for dtype in (torch.float32, torch.float16, torch.bfloat16)}
_PLAIN = TensorLayout()


def layout_named(op: Op, name: str) -> Layout | None:
    """Return the layout of this name, or of several joined by "+"; None where there is none."""
    if name == CONTIGUOUS.name:
        return CONTIGUOUS
    parts = [op.allowed.layouts.get(part_name) for part_name in name.split("+")]
    present = [part for part in parts if part is not None]
    return joined(present) if len(present) == len(parts) else None


def joined(layouts: list[Layout]) -> Layout | None:
    """Return the layout that joins these; None where two of them place a tensor differently."""
    if len(layouts) == 1:
        return layouts[0]
    placed: dict[str, TensorLayout] = {}
    for layout in layouts:
        for name, tensor_layout in layout.tensors:
            both = _both(placed.get(name, _PLAIN), tensor_layout)
            if both is None:
                return None
            placed[name] = both
    batches = {layout.batches for layout in layouts}
    if len(batches) > 1:
        return None
    name = "+".join(dict.fromkeys(layout.name for layout in layouts))
    return Layout(name, tuple(placed.items()), batches.pop())


def _both(one: TensorLayout, other: TensorLayout) -> TensorLayout | None:
    """Return the layout with the settings of both; None where they differ."""
    settings: dict[str, object] = {}
    for field in fields(TensorLayout):
        plain, mine, theirs = (getattr(of, field.name) for of in (_PLAIN, one, other))
        if plain not in (mine, theirs) and mine != theirs:
            return None
        settings[field.name] = theirs if mine == plain else mine
    return TensorLayout(**settings)  # type: ignore[arg-type]


def case_named(op: Op, name: str) -> Case | None:
    """Return the case of this id, of any that the op allows; None where it is no such id."""
    allowed = op.allowed
    words = name.split("-")
    if words.pop(0) != op.name:
        return None
    sizes: dict[str, int] = {}
    while words and (size := _SIZE.fullmatch(words[0])) and words[0] not in op.options:
        if size[1] not in (*allowed.sizes, *allowed.option_sizes) or size[1] in sizes:
            break
        sizes[size[1]] = int(size[2])
        words.pop(0)
    if len(words) < 2 or not set(allowed.sizes) <= set(sizes):
        return None
    kind, _, weight = words.pop(0).partition("_")
    dtype = _DTYPES.get(kind)
    weight_dtype = _DTYPES.get(weight.removesuffix("weight")) if weight else dtype
    layout = layout_named(op, words.pop(0))

    if words[-2:-1] == ["seed"]:  # a negative one
        words[-2:] = ["-".join(words[-2:])]
    seed = _SEED.fullmatch(words[-1]) if words else None
    if seed:
        words.pop()
    distribution = words.pop(0) if words and words[0] in allowed.distributions else "normal"
    if dtype is None or weight_dtype is None or layout is None or not set(words) <= set(op.options):
        return None
    case = Case(
        op=op.name,
        sizes=tuple(
            (size_name, sizes[size_name])
            for size_name in (*allowed.sizes, *allowed.option_sizes)
            if size_name in sizes
        ),
        dtype=dtype,
        weight_dtype=weight_dtype,
        layout=layout,
        distribution=distribution,
        options=frozenset(words) | allowed.implied(sizes),
        seed=int(seed[1]) if seed else 0,
    )
    return case if case.id() == name else None


def objection(op: Op, case: Case) -> str | None:
    """Return why the op has no such case, in one sentence; None where it has."""
    return op.allowed.objection(case) or misplaced(op, case)


def misplaced(op: Op, case: Case) -> str | None:
    """Return why the layout can't be this case's: it places a tensor that the case hasn't."""
    if not case.layout.tensors:
        return None
    present = op.geometry(case)
    for part in case.layout.name.split("+"):
        placed = [name for name, _ in op.allowed.layouts.get(part, case.layout).tensors]
        alone = [name for name in placed if part.startswith(f"{name}_")]
        lacking = [name for name in alone or placed if name not in present]
        if placed and lacking and (alone or len(lacking) == len(placed)):
            return f"layout {part} places {lacking[0]}, and the case has none"
    return None
