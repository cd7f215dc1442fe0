"""The rules of other projects, as the detection table applies them."""

from __future__ import annotations

import math

import pytest
import torch

from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.op import Case
from tests.mutants.low_precision import low_precision
from tests.mutants.mutant import ci_cases
from tests.mutants.named_cases import (
    BIAS_SOFTCAP,
    DEAD_ROWS,
    DENSE,
    DROPOUT,
    GQA,
    SINK,
    VARLEN,
    WEIGHED,
    fp32,
)
from tests.mutants.rivals import RIVALS, Comparison, Rival

_CPU = torch.device("cpu")
_CASES = [
    *(
        f"{op}-{fp32(case)}"
        for op in ("attention_forward", "attention_gradients", "attention_backward")
        for case in (DENSE, GQA, DEAD_ROWS, SINK, DROPOUT, VARLEN)
    ),
    f"attention_backward-{fp32(BIAS_SOFTCAP)}",
    "attention_delta-b2-h_q2-s_q65-d_v64-float32-contiguous",
    *(
        f"layer_norm_backward-{fp32(WEIGHED)}{options}"
        for options in ("-no_weight", "-accumulate", "-rms_norm", "-residual", "-zero_centred")
    ),
]


def _comparison(case: Case, off: float = 0.0) -> Comparison:
    """The truth, `off` besides, beside the truth and what PyTorch makes of it."""
    inputs = OPS[case.op].inputs(case, _CPU)
    truth = {
        name: each for name, each in OPS[case.op].oracle(case, inputs).items() if each is not None
    }
    forms = OPS[case.op].forms(case)
    got = {name: (each + off).to(forms[name].dtype) for name, each in truth.items()}
    return Comparison(case, got, truth, low_precision(case.op, inputs))


def _case(name: str) -> Case:
    return next(ci_cases(op)[name] for op in OPS if name in ci_cases(op))


@pytest.mark.parametrize("name", _CASES)
def test_plain_pytorch_in_fp32_is_near_the_truth(name: str) -> None:
    """The plain PyTorch to which a kernel's error is compared computes the op, with each option."""
    case = _case(name)
    inputs = OPS[case.op].inputs(case, _CPU)
    seen = _comparison(case)
    low = low_precision(case.op, inputs)
    named = {each: low[each] for each in seen.truth}
    tolerant = next(each for each in RIVALS if each.name == "xformers")
    assert tolerant.passes(Comparison(case, named, seen.truth, low))


@pytest.mark.parametrize("rival", RIVALS, ids=lambda each: each.name)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_rival_passes_the_truth_and_fails_what_is_far_from_it(rival: Rival, dtype: str) -> None:
    """The truth rounded once passes; 10 beside it, or NaN, doesn't."""
    case = ci_cases("attention_forward")[f"attention_forward-{DENSE.format(dtype)}"]
    assert rival.passes(_comparison(case))
    assert not rival.passes(_comparison(case, 10.0))
    assert not rival.passes(_comparison(case, math.nan))
