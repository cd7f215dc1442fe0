"""Rows written to a cache by slot: no slot comes twice, and a slot of -1 is padding.

vLLM #43869 and #43810 (2026-05): padding is taken for an index from the end, and overwrites the
last slot. Without `distinct` two programs would write one slot in an order that nobody knows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from kernel_workbench import ROWS, Domain, Sizes, kernel, op

SLOTS = Sizes(
    "slots",
    {"many": (256, 512), "few": (16,)},
    lambda n: "few" if n < 100 else "many",
    large=(2048,),
)
WIDTH = Sizes("width", {"several": (64, 24, 17)}, lambda _: "several", large=(64,))


@op(
    sizes={"m": ROWS, "n": SLOTS, "d": WIDTH},
    labels={"slot": "n"},
    ignored={"slot": -1},
    distinct={"slot": "m"},
)
def cache_write(
    cache: Float[Tensor, "n d"], new: Float[Tensor, "m d"], slot: Int[Tensor, "m"]
) -> Float[Tensor, "n d"]:
    """The cache afterwards."""
    room = torch.cat((cache, cache[:1]))  # one slot more, for padding
    return room.index_put((torch.where(slot < 0, cache.shape[0], slot),), new)[:-1]


@triton.jit
def _write(cache, new, slot, d, BLOCK: tl.constexpr, PADS: tl.constexpr):
    row, cols = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    to = tl.load(slot + row)
    if PADS or to >= 0:
        values = tl.load(new + row * d + cols, cols < d, other=0.0)
        tl.store(cache + to * d + cols, values, cols < d)


def _register(name, *, pads):
    served = Domain(dtypes=(torch.float32, torch.bfloat16), strides="contiguous")

    @kernel(cache_write, served, name=name)
    def write(cache, new, slot):
        written, (m, d) = cache.clone(), new.shape
        if m:
            _write[(m,)](written, new, slot, d, triton.next_power_of_2(d), pads)
        return written


_register("right", pads=False)
_register("writes_padding", pads=True)
