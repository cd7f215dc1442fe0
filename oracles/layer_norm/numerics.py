"""The words for arithmetic that only kernels of layer norm's backward have."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from kernel_workbench.oracles.op import Numerics

CASTS = MappingProxyType(
    {
        "gradient": "dy is cast to the weight's type before anything else",
        "dnormalised": "weight dy is cast to x's type",
        "normalised": "x^ is cast to x's type before its product with dy; dx has it in fp32",
        "products": "dy x^ is cast to x's type before it is summed",
        "partials": "partial sums of dweight and dbias are cast to x's type, and then added",
        "dx": "dx is cast to x's type before a residual is added",
        "sums": "dweight and dbias are cast to x's type before the earlier ones are added",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNormNumerics(Numerics):
    """`Numerics`, and what only layer norm has.

    distributed_normalisation x * rstd - mean * rstd in place of (x - mean) * rstd, which
                              costs u * rstd * (|x| + |mean|) for each element
    half_accumulators         so many partial sums of dweight and dbias are kept in x's type: a row
                              is added, and the sum cast, one row after the other; 0: none
    """

    distributed_normalisation: bool = False
    half_accumulators: int = 0

    def __post_init__(self) -> None:
        """Raises ValueError for arithmetic that no bound would hold."""
        Numerics.__post_init__(self)
        if not self.half_accumulators >= 0:
            raise ValueError(f"half_accumulators must be 0 or more, got {self.half_accumulators}")

    @property
    def casts_early(self) -> bool:
        """Say whether the kernel casts more than its outputs."""
        return bool(self.casts.split()) or self.half_accumulators > 0
