"""Changes of signs under which attention's outputs change signs, and nothing else.

For each batch and key head (its query heads have the same signs):

    s on columns of q and k        q.k stays; dq and dk get s
    t on columns of v, do and out  P and do.v stay; out and dv get t
    g on do as a whole             delta, dP, dS and so dq, dk, dv, dbias and dsink get g

Delta, whose elements meet nothing but each other: t on any element of out and do, g on any row of
do and its delta. An axis of stride 0 has one sign. lse stays.
"""

from __future__ import annotations

from torch import Tensor

from kernel_workbench.oracles.attention.geometry import AXES, DELTA, shapes
from kernel_workbench.oracles.op import Case, Flips
from kernel_workbench.oracles.signs import Signs, expanded

_DRAWS = 64


def flips(case: Case, seed: int) -> Flips:
    """The signs of a case of any attention op."""
    draw = Signs("signs", seed)
    return _of_delta(case, draw) if case.op == DELTA else _of_attention(case, draw)


def _of_delta(case: Case, draw: Signs) -> Flips:
    sizes = dict(zip("bshd", shapes(case)["do"], strict=True))

    def of(axes: str, *names: str) -> Tensor:
        fixed = expanded(case, *names)
        return draw(*(sizes[axis] if axis in axes and axis not in fixed else 1 for axis in "bshd"))

    columns, rows, whole = of("bhd", "out", "do"), of("bsh", "out", "do"), of("bsh", "do")
    both = columns, rows
    return Flips(
        {"out": both, "do": (*both, whole)}, {"delta": (whole.squeeze(3).transpose(1, 2),)}
    )


def _of_attention(case: Case, draw: Signs) -> Flips:
    tensors = shapes(case)
    b, h_kv = tensors["k"][0], tensors["k"][2]
    group = case.size("h_q") // h_kv

    def of(width: int, *names: str, summed: str = "") -> Tensor:
        """[b, 1, h_kv, width], an axis being 1 where one sign has to do for all of it."""
        fixed = expanded(case, *(name for name in names if name in tensors)) + summed
        sizes = zip("bshd", (b, 1, h_kv, width), strict=True)
        return draw(*(1 if axis in fixed else size for axis, size in sizes))

    def of_queries(signs: Tensor) -> Tensor:
        return signs if signs.shape[2] == 1 else signs.repeat_interleave(group, 2)

    scored, valued = of(case.size("d"), "q", "k"), of(case.size("d_v"), "v", "do", "out")
    if "do" in tensors:
        # One sign for all columns would undo what a gradient gets from do's.
        scored, valued = (signs & (signs.shape[3] > 1) for signs in (scored, valued))
    over = "b" if case.options & {"bias_over_batch", "sink"} else ""
    over += "h" if "bias_over_heads" in case.options else ""
    whole = of(1, "do", summed=over)
    for _ in range(_DRAWS):  # the two signs of a gradient must not undo one another everywhere
        if all(signs.numel() == 0 or bool((signs ^ whole).any()) for signs in (scored, valued)):
            break
        whole = of(1, "do", summed=over)
    rows, values = of_queries(whole), of_queries(valued)
    heads = rows.squeeze(3).transpose(1, 2)[..., None]  # [b, h_q, 1, 1]
    inputs: dict[str, tuple[Tensor, ...]]
    inputs = {"q": (of_queries(scored),), "k": (scored,), "v": (valued,)}
    inputs |= {"out": (values,), "do": (values, rows)}
    return Flips(
        {name: factors for name, factors in inputs.items() if name in AXES and name in tensors},
        {
            "out": (values,),
            "dq": (of_queries(scored), rows),
            "dk": (scored, whole),
            "dv": (valued, whole),
            "dbias": (heads,),
            "dsink": (heads[0, :, 0, 0],) if b else (),
        },
    )
