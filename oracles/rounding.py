"""Unit roundoffs, gamma_n, and underflow: the shared pieces of the bounds.

Each floating-point operation returns x (1 + d) + e with |d| <= u, |e| <= eta. n of them in a row
give a factor 1 + t with |t| <= n u / (1 - n u) (Higham, Accuracy and Stability, lemma 3.1); the
n u here leaves out the second-order term, which the bounds carry elsewhere. Where roundings are
to nearest and vary, t is below lambda sqrt(n) u for all of k results with probability 1 - delta,
lambda = sqrt(2 ln(2 k / delta)) (Higham & Mary 2019, thm 2.4; Ipsen & Zhou, arXiv 1906.10465).
It stands in for sums only: casts round coherently on flat data and are always added in full.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

_FAILURE_PROBABILITY = 1e-6

# Half the distance from 1 to the next number, and half the spacing of subnormals.
UNIT_ROUNDOFF = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
HALF_SUBNORMAL_SPACING = {
    torch.float32: 2.0**-150,
    torch.float16: 2.0**-25,
    torch.bfloat16: 2.0**-134,
}
NEAREST = 2.0**-24  # unit roundoff of fp32 sums that round to nearest
TF32 = 2.0**-10, 2.0**-136  # what truncation to 10 bits takes off an operand; of a subnormal one
_TF32_KEPT = -(2**13)  # all but the last 13 bits of an fp32 number
# The approximate functions of a GPU (PTX ISA: ex2.approx and lg2.approx within 2^-22).
EPS_EXP = 2.0**-21  # relative
EPS_LOG = 2.0**-22  # relative, absolute below 1
EPS_TANH = 2.0**-21  # absolute: an exponential, an addition, a division and a subtraction
# fp32 arithmetic that flushes subnormals loses up to the smallest normal number in each operation.
FLUSHED = 2.0**-126
GRADUAL = 2.0**-149


@dataclass(frozen=True, slots=True)
class Gamma:
    """Relative error of n accumulated roundings: n u, or min(n, lambda sqrt(n)) u.

    compared: None for the deterministic form; else the number of results that must all hold.
    """

    unit_roundoff: float
    compared: int | None = None

    def __call__(self, n: float) -> float:
        """gamma_n: the relative error that n roundings can accumulate."""
        if self.compared is None:
            return n * self.unit_roundoff
        return min(n, self._factor * math.sqrt(n)) * self.unit_roundoff

    def elementwise(self, n: Tensor) -> Tensor:
        """Return gamma_n, float64, for a tensor n of numbers of roundings, in its shape."""
        wide = n.double()
        if self.compared is not None:
            wide = wide.minimum(self._factor * wide.sqrt())
        return wide * self.unit_roundoff

    @property
    def _factor(self) -> float:
        """lambda, for `compared` results."""
        return math.sqrt(2 * math.log(2 * max(self.compared or 1, 1) / _FAILURE_PROBABILITY))


def tf32(x: Tensor) -> Tensor:
    """Return fp32 numbers as a tf32 product reads them: without their last 13 bits.

    Example:
        >>> tf32(torch.tensor([1 + 2.0**-10, 1 + 2.0**-11])) - 1
        tensor([0.0010, 0.0000])
    """
    return (x.contiguous().view(torch.int32) & _TF32_KEPT).view(torch.float32)


@contextmanager
def whole_products() -> Iterator[None]:
    """Compute products and convolutions of whole fp32 operands.

    A container may set TORCH_ALLOW_TF32_CUBLAS_OVERRIDE, and cuDNN's convolutions cut operands if
    nothing is set: an emulation would be off by 2^-10.
    """
    before, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = convolutions
        torch.set_float32_matmul_precision(before)
