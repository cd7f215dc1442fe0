"""The optional arguments of the attention ops, which are declared here and nowhere else.

A kernel is given those that a case has, by keyword. Kernels, peers, operators of torch.library and
the oracle read them as `Options`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Self

from torch import Tensor

Corner = Literal["top_left", "bottom_right"]
Window = tuple[int | None, int | None]


class Options(NamedTuple):
    """The optional arguments of an attention op, with what they are where they aren't given.

    A tuple: a frozen dataclass with as many fields takes 2 us longer to make.
    """

    causal: bool = False
    window: Window | None = None
    corner: Corner = "top_left"
    bias: Tensor | None = None
    alibi_slopes: Tensor | None = None
    softcap: float | None = None
    sink: Tensor | None = None
    dropout_p: float = 0.0
    dropout_seed: int = 0
    cu_seqlens_q: Tensor | None = None
    cu_seqlens_k: Tensor | None = None
    max_seqlen_q: int | None = None
    max_seqlen_k: int | None = None
    scale: float | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Return the options among keyword arguments. Raises TypeError for one that isn't any."""
        return cls(**given)
