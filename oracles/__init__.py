"""Truth: what each op computes, in float64, and how far a correct kernel may be from it."""

from oracles.attention import (
    ATTENTION_BACKWARD,
    ATTENTION_DELTA,
    ATTENTION_FORWARD,
    ATTENTION_GRADIENTS,
)
from oracles.layer_norm import LAYER_NORM_BACKWARD
from oracles.op import Bound, Case, Layout, Numerics, Op, OutputForm, TensorLayout
from oracles.rms_norm import RMS_NORM_BACKWARD, RMS_NORM_FORWARD

OPS: dict[str, Op] = {
    op.name: op
    for op in (
        LAYER_NORM_BACKWARD,
        ATTENTION_FORWARD,
        ATTENTION_DELTA,
        ATTENTION_BACKWARD,
        ATTENTION_GRADIENTS,
        RMS_NORM_FORWARD,
        RMS_NORM_BACKWARD,
    )
}

__all__ = [
    "ATTENTION_BACKWARD",
    "ATTENTION_DELTA",
    "ATTENTION_FORWARD",
    "ATTENTION_GRADIENTS",
    "LAYER_NORM_BACKWARD",
    "OPS",
    "RMS_NORM_BACKWARD",
    "RMS_NORM_FORWARD",
    "Bound",
    "Case",
    "Layout",
    "Numerics",
    "Op",
    "OutputForm",
    "TensorLayout",
]
