"""A matrix product, c = a b, of matrices in any order of their axes in memory."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from kernel_workbench.oracles.cases.sizes import Sizes
from kernel_workbench.oracles.reference import op


def _level(size: int) -> str:
    return "a multiple of 16" if size % 16 == 0 else "odd" if size > 1 else "one"


EXTENT = Sizes(
    "extent",
    {"a multiple of 16": (64, 16, 128), "odd": (33, 77, 129), "one": (1,)},
    _level,
    large=(128, 1000, 4096, 129),
    timed=(4096, 8192, 1024, 2048),
    once=(259,),
)
DEPTH = Sizes(
    "extent",
    {"a multiple of 16": (64, 528, 16), "odd": (33, 1027, 77), "one": (1,)},
    _level,
    large=EXTENT.large,
    timed=EXTENT.timed,
    once=(3001,),
)


@op(sizes={"m": EXTENT, "n": EXTENT, "k": DEPTH}, outputs=("c",))
def matmul(a: Float[Tensor, "m k"], b: Float[Tensor, "k n"]) -> Float[Tensor, "m n"]:
    """Sums over k, in any order."""
    return a @ b


MATMUL_FORWARD = matmul
