"""Feature sets of well-known libraries, as domains: cases are generated within each.

A defect that needs two features together shows on a case that has both, and that the kernel serves.
A case with all features is refused by every kernel of these libraries. So the tiers have cases in
which pairs of features meet within one library's set (studies/coverings.py, decision 0034).

Sources: flash-attention 2.8, `flash_attn_func` and `flash_attn_varlen_func`; PyTorch 2.13,
`scaled_dot_product_attention` (a mask or is_causal, one of them); openai/gpt-oss, `attention.py`
(heads of 64, a sink, a causal window); Hugging Face transformers, `LlamaRMSNorm`, `GemmaRMSNorm`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernel_workbench.kernels.domain import Domain
from kernel_workbench.oracles import (
    ATTENTION_BACKWARD,
    ATTENTION_FORWARD,
    ATTENTION_GRADIENTS,
    LAYER_NORM_BACKWARD,
)
from kernel_workbench.oracles.op import Case, Op

_HALVES = (torch.float16, torch.bfloat16)
_DTYPES = (torch.float32, *_HALVES)
_BIASES = {"bias", "bias_over_batch", "bias_over_heads", "bias_over_queries"}


@dataclass(frozen=True, slots=True)
class FeatureSet:
    """The cases that a library's kernels of some ops serve."""

    library: str
    ops: tuple[Op, ...]
    domain: Domain


def _bottom_right(case: Case) -> str | None:
    """Refuse masks from the top left corner: flash-attention's begin in the bottom right one."""
    masked = case.options & {"causal", "window"} and case.size("s_q") != case.size("s_kv")
    top_left = masked and "bottom_right" not in case.options
    return "masks from the bottom right corner" if top_left else None


def _one_mask(case: Case) -> str | None:
    both = "causal" in case.options and "bias" in case.options
    return "takes a causal mask or a bias" if both else None


_ATTENTION = (ATTENTION_FORWARD, ATTENTION_BACKWARD, ATTENTION_GRADIENTS)
_NORM = (LAYER_NORM_BACKWARD,)

FEATURE_SETS = (
    FeatureSet(
        "flash-attention",
        _ATTENTION,
        Domain(
            dtypes=_HALVES,
            alignment=16,
            sizes={"d": (8, 256)},
            relations=("d_v == d",),
            features=frozenset(
                {"causal", "bottom_right", "window", "alibi", "softcap"}
                | {"gqa", "varlen", "scale", "dropout"}
            ),
            also=_bottom_right,
        ),
    ),
    FeatureSet(
        "scaled_dot_product_attention",
        _ATTENTION,
        Domain(
            dtypes=_DTYPES,
            features=frozenset({"causal", "scale", "gqa", "unequal_d"} | _BIASES),
            also=_one_mask,
        ),
    ),
    FeatureSet(
        "gpt-oss",
        _ATTENTION,
        Domain(
            dtypes=(torch.bfloat16,),
            sizes={"d": (64, 64)},
            relations=("d_v == d",),
            features=frozenset({"causal", "bottom_right", "window", "sink", "gqa", "scale"}),
            also=_bottom_right,
        ),
    ),
    FeatureSet(
        "LlamaRMSNorm",
        _NORM,
        Domain(
            dtypes=_DTYPES,
            strides="rows",
            features=frozenset({"rms_norm", "no_bias", "residual"}),
        ),
    ),
    FeatureSet(
        "GemmaRMSNorm",
        _NORM,
        Domain(
            dtypes=_DTYPES,
            strides="rows",
            features=frozenset({"rms_norm", "no_bias", "zero_centred"}),
        ),
    ),
)


def feature_sets(op: Op) -> tuple[FeatureSet, ...]:
    """Return the feature sets of an op."""
    return tuple(feature_set for feature_set in FEATURE_SETS if op in feature_set.ops)
