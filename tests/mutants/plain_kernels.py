"""A file for --kernels: the wrong kernels in plain torch, and the sound ones they are made from."""

from __future__ import annotations

from kernel_workbench.kernels import (
    ATTENTION_BACKWARD,
    ATTENTION_DELTA,
    ATTENTION_FORWARD,
    ATTENTION_GRADIENTS,
    LAYER_NORM_BACKWARD,
    Domain,
    kernel,
)
from tests.builders import wrong_attentions, wrong_layer_norms
from tests.builders.by_hand import DTYPES
from tests.builders.plain_attention import Attention

_SOUND = Attention()

kernel(LAYER_NORM_BACKWARD, Domain(dtypes=DTYPES, weight_dtypes=DTYPES), name="plain_ln_sound")(
    wrong_layer_norms.closed_form
)
for _name, _layer_norm in wrong_layer_norms.WRONG.items():
    kernel(
        LAYER_NORM_BACKWARD, Domain(dtypes=DTYPES, weight_dtypes=DTYPES), name=f"plain_ln_{_name}"
    )(_layer_norm.function)
for _op, _function in (
    (ATTENTION_FORWARD, _SOUND.forward),
    (ATTENTION_DELTA, _SOUND.delta),
    (ATTENTION_BACKWARD, _SOUND.backward),
    (ATTENTION_GRADIENTS, _SOUND.gradients),
):
    kernel(_op, Domain(dtypes=DTYPES, features=frozenset(_op.options)), name="plain_sound")(
        _function
    )
for _name, _attention in wrong_attentions.WRONG.items():
    kernel(
        _attention.op,
        Domain(dtypes=DTYPES, features=frozenset(_attention.op.options)),
        name=f"plain_{_name}",
    )(_attention.function)
