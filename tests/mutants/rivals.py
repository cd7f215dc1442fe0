"""How other projects' tests compare, so that it can be seen what they would have noticed.

Each is applied to outputs as it stands in its source, with the float64 truth for a reference,
rounded to fp32 or to the output's dtype as there; NaN is equal to NaN where the truth has one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kernel_workbench.oracles import LAYER_NORM_BACKWARD
from kernel_workbench.oracles.op import Case


@dataclass(frozen=True, slots=True)
class Comparison:
    """One kernel's outputs on a case, the truth in float64, and what PyTorch makes of it."""

    case: Case
    got: Mapping[str, Tensor]
    truth: Mapping[str, Tensor]
    low: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Rival:
    """A rule: whether it passes, how it reads, and where it stands."""

    name: str
    passes: Callable[[Comparison], bool]
    rule: str
    source: str


def _assert_close(seen: Comparison) -> bool:
    for name, got in seen.got.items():
        expected = seen.truth[name].to(got.dtype)
        try:
            torch.testing.assert_close(got, expected, equal_nan=True)
        except AssertionError:
            return False
    return True


# flash-attention's test of its layer norms: what it allows beside twice PyTorch's error.
_LAYER_NORM_ATOL = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}


def _twice_pytorch(seen: Comparison) -> bool:
    case = seen.case
    softcap = "softcap" in case.options
    for name, got in seen.got.items():
        if name == "lse" or not got.numel():  # which its tests leave out
            continue
        expected = seen.truth[name].to(got.dtype)
        low = seen.low[name].to(got.dtype)
        error, allowed = (got - expected).abs().max(), (low - expected).abs().max()
        if case.op == LAYER_NORM_BACKWARD.name:
            factor, slack = 2.0, _LAYER_NORM_ATOL[case.dtype]
        else:
            factor = 3.0 if softcap else 2.0
            slack = 2 * float((expected + 0.3 - 0.3 - expected).abs().max())
            slack += 3e-4 if softcap and name != "out" else 0.0
        if not error.double() <= factor * allowed.double() + slack:
            return False
    return True


# xformers' tolerances, of operators that name none of their own, as its cutlass one.
_FORWARD = {
    torch.float32: (3e-4, 2e-5),
    torch.float16: (4e-3, 4e-4),
    torch.bfloat16: (2e-2, 5e-3),
}
_BACKWARD = {
    torch.float32: (9e-4, 1e-4),
    torch.float16: (0.2, 2e-2),
    torch.bfloat16: (0.9, 0.1),
}
_LSE = 2e-4, 1e-5


def _tolerances(seen: Comparison) -> bool:
    by_dtype = _FORWARD if seen.case.op.endswith("_forward") else _BACKWARD
    for name, got in seen.got.items():
        atol, rtol = _LSE if name == "lse" else by_dtype[seen.case.dtype]
        wide, expected = got.float(), seen.truth[name].float()
        if not torch.allclose(wide, expected, rtol=rtol, atol=atol, equal_nan=True):
            return False
    return True


RIVALS = (
    Rival(
        "assert_close",
        _assert_close,
        "`torch.testing.assert_close` with its defaults, against the truth rounded to the dtype",
        "PyTorch, torch/testing/_comparison.py: rtol 1.3e-6, 1e-3, 1.6e-2 and atol 1e-5 in "
        "float32, float16, bfloat16",
    ),
    Rival(
        "2x PyTorch",
        _twice_pytorch,
        "the largest error is at most twice (softcap: three times) that of PyTorch in the case's "
        "own dtype, plus twice the rounding of 0.3, or of layer norm 1e-4, 1e-2, 5e-2",
        "flash-attention, hopper/test_flash_attn.py (commit e7f8a55) and "
        "tests/ops/triton/test_layer_norm.py (01d6dd1); lse isn't compared there, nor here",
    ),
    Rival(
        "xformers",
        _tolerances,
        "`allclose` with an atol and rtol for each dtype: forward 3e-4, 4e-3, 2e-2 and 2e-5, 4e-4, "
        "5e-3; backward 9e-4, 0.2, 0.9 and 1e-4, 2e-2, 0.1; lse 2e-4 and 1e-5",
        "xformers, ERROR_ATOL and ERROR_RTOL of xformers/ops/fmha/common.py (commit a9e2e7b), as "
        "tests/test_mem_eff_attention.py (687ac40) uses them; other ops are given attention's",
    ),
)
