"""LAYER_NORM_BACKWARD: the gradients of y = x^ * weight + bias, x^ = (x - mean) * rstd.

Arguments dy, x [..., n]; weight [n]; mean, rstd [...] in fp32, given: what the forward stored.
Outputs dx like x; dweight, dbias [n] in the weight's dtype (dgamma and dbeta in some papers).
"""

from __future__ import annotations

from kernel_workbench.oracles.cases import with_coverings
from kernel_workbench.oracles.layer_norm.arguments import (
    NAME,
    OPTIONS,
    case_from,
    flops,
    forms,
    geometry,
    least_bytes,
)
from kernel_workbench.oracles.layer_norm.cases import ALLOWED, cases
from kernel_workbench.oracles.layer_norm.numerics import CASTS, LayerNormNumerics
from kernel_workbench.oracles.layer_norm.reference import bound, emulate, truth
from kernel_workbench.oracles.layer_norm.relations import relations
from kernel_workbench.oracles.layer_norm.signs import flips
from kernel_workbench.oracles.layer_norm.values import inputs
from kernel_workbench.oracles.layer_norm.workloads import WORKLOADS
from kernel_workbench.oracles.op import Op

__all__ = ["LAYER_NORM_BACKWARD", "LayerNormNumerics"]

LAYER_NORM_BACKWARD: Op = Op(
    name=NAME,
    arguments=("dy", "x", "weight", "mean", "rstd"),
    outputs=("dx", "dweight", "dbias"),
    options=OPTIONS,
    inputs=inputs,
    oracle=truth,
    bound=bound,
    forms=forms,
    geometry=geometry,
    flops=flops,
    bytes=least_bytes,
    cases=with_coverings(cases, lambda: LAYER_NORM_BACKWARD),
    updates=("dweight", "dbias"),
    emulate=emulate,
    relations=relations,
    numerics=LayerNormNumerics,
    casts=CASTS,
    signs=flips,
    linear="dy",
    allowed=ALLOWED,
    workloads=WORKLOADS,
    widths=("n",),
    statistics=frozenset({"mean", "rstd"}),
    nonzero=frozenset({"rstd"}),
    case_from=case_from,
)
