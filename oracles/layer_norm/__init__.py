"""LAYER_NORM_BACKWARD: the gradients of y = x^ * weight + bias, x^ = (x - mean) * rstd.

Arguments dy, x [..., n]; weight [n]; mean, rstd [...] in fp32, given: what the forward stored.
Outputs dx like x; dweight, dbias [n] in the weight's dtype (dgamma and dbeta in some papers).
"""

from __future__ import annotations

from oracles.layer_norm import bounds
from oracles.layer_norm.allowed import ALLOWED
from oracles.layer_norm.cases import cases
from oracles.layer_norm.closed_form import (
    OPTIONS,
    flops,
    forms,
    geometry,
    layer_norm_backward,
    least_bytes,
)
from oracles.layer_norm.emulation import emulate
from oracles.layer_norm.probes import probe_bound
from oracles.layer_norm.relations import relations
from oracles.layer_norm.values import inputs
from oracles.op import Bound, Case, Inputs, Numerics, Op, Outputs


def _bound(case: Case, inputs: Inputs, truth: Outputs, numerics: Numerics) -> dict[str, Bound]:
    """The bounds of a case: of most outputs 0 where it is an exact probe, else the general ones."""
    exact = probe_bound(case, inputs, truth, numerics)
    return bounds.bound(case, inputs, truth, numerics) if exact is None else exact


LAYER_NORM_BACKWARD = Op(
    name="layer_norm_backward",
    arguments=("dy", "x", "weight", "mean", "rstd"),
    outputs=("dx", "dweight", "dbias"),
    options=OPTIONS,
    inputs=inputs,
    oracle=layer_norm_backward,
    bound=_bound,
    forms=forms,
    geometry=geometry,
    flops=flops,
    bytes=least_bytes,
    cases=cases,
    updates=("dweight", "dbias"),
    emulate=emulate,
    relations=relations,
    allowed=ALLOWED,
)
