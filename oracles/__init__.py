"""Truth: what each op computes, in float64, and how far a correct kernel may be from it."""

from kernel_workbench.bare_names import check_name
from kernel_workbench.oracles.attention import (
    ATTENTION_BACKWARD,
    ATTENTION_DELTA,
    ATTENTION_FORWARD,
    ATTENTION_GRADIENTS,
)
from kernel_workbench.oracles.cross_entropy import (
    CROSS_ENTROPY_BACKWARD,
    CROSS_ENTROPY_FORWARD,
    SMOOTHED_CROSS_ENTROPY_BACKWARD,
    SMOOTHED_CROSS_ENTROPY_FORWARD,
)
from kernel_workbench.oracles.gated_units import (
    GEGLU_BACKWARD,
    GEGLU_FORWARD,
    SWIGLU_BACKWARD,
    SWIGLU_FORWARD,
)
from kernel_workbench.oracles.layer_norm import LAYER_NORM_BACKWARD, LayerNormNumerics
from kernel_workbench.oracles.layer_norm_forward import LAYER_NORM_FORWARD
from kernel_workbench.oracles.matrix_product import MATMUL_FORWARD
from kernel_workbench.oracles.op import Bound, Case, Layout, Numerics, Op, OutputForm, TensorLayout
from kernel_workbench.oracles.quantisation import QUANTISE_BLOCKS, QUANTISE_ROWS
from kernel_workbench.oracles.rms_norm import (
    ADD_RMS_NORM_BACKWARD,
    ADD_RMS_NORM_FORWARD,
    RMS_NORM_BACKWARD,
    RMS_NORM_FORWARD,
)
from kernel_workbench.oracles.rope import ROPE_BACKWARD, ROPE_FORWARD
from kernel_workbench.oracles.softmax import SOFTMAX_BACKWARD, SOFTMAX_FORWARD

check_name(__name__)

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
        ADD_RMS_NORM_FORWARD,
        ADD_RMS_NORM_BACKWARD,
        LAYER_NORM_FORWARD,
        SOFTMAX_FORWARD,
        SOFTMAX_BACKWARD,
        CROSS_ENTROPY_FORWARD,
        CROSS_ENTROPY_BACKWARD,
        SMOOTHED_CROSS_ENTROPY_FORWARD,
        SMOOTHED_CROSS_ENTROPY_BACKWARD,
        SWIGLU_FORWARD,
        SWIGLU_BACKWARD,
        GEGLU_FORWARD,
        GEGLU_BACKWARD,
        ROPE_FORWARD,
        ROPE_BACKWARD,
        MATMUL_FORWARD,
        QUANTISE_ROWS,
        QUANTISE_BLOCKS,
    )
}

__all__ = [
    "ADD_RMS_NORM_BACKWARD",
    "ADD_RMS_NORM_FORWARD",
    "ATTENTION_BACKWARD",
    "ATTENTION_DELTA",
    "ATTENTION_FORWARD",
    "ATTENTION_GRADIENTS",
    "CROSS_ENTROPY_BACKWARD",
    "CROSS_ENTROPY_FORWARD",
    "GEGLU_BACKWARD",
    "GEGLU_FORWARD",
    "LAYER_NORM_BACKWARD",
    "LAYER_NORM_FORWARD",
    "MATMUL_FORWARD",
    "OPS",
    "QUANTISE_BLOCKS",
    "QUANTISE_ROWS",
    "RMS_NORM_BACKWARD",
    "RMS_NORM_FORWARD",
    "ROPE_BACKWARD",
    "ROPE_FORWARD",
    "SMOOTHED_CROSS_ENTROPY_BACKWARD",
    "SMOOTHED_CROSS_ENTROPY_FORWARD",
    "SOFTMAX_BACKWARD",
    "SOFTMAX_FORWARD",
    "SWIGLU_BACKWARD",
    "SWIGLU_FORWARD",
    "Bound",
    "Case",
    "LayerNormNumerics",
    "Layout",
    "Numerics",
    "Op",
    "OutputForm",
    "TensorLayout",
]
