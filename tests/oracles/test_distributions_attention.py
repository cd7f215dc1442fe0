"""Tests of what attention's distributions promise of their values, where a case depends on it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.attention.cases import Window, attention_case
from kernel_workbench.oracles.attention.geometry import DELTA, GRADIENTS, key_ranges, lengths
from kernel_workbench.oracles.op import Case

CPU = torch.device("cpu")


def _case(
    sizes: tuple[int, ...],
    distribution: str,
    options: str = "",
    *,
    op: str = GRADIENTS,
    dtype: torch.dtype = torch.float32,
    window: Window | None = None,
) -> Case:
    return attention_case(
        op, sizes, dtype, "ci", options=options, window=window, distribution=distribution
    )


def _tensors(case: Case) -> dict[str, Tensor]:
    made = OPS[case.op].inputs(case, CPU)
    return {name: value for name, value in made.items() if isinstance(value, Tensor)}


@pytest.mark.parametrize(
    ("options", "window", "sizes"),
    [
        ("causal", None, (2, 2, 2, 5, 9, 8, 8)),
        ("", (1, 2), (2, 2, 2, 5, 9, 8, 8)),
        ("causal varlen", None, (6, 2, 2, 5, 9, 8, 8)),
        ("varlen", None, (6, 2, 2, 5, 9, 8, 8)),
    ],
)
def test_nan_masked_hides_from_every_query(
    options: str, window: Window | None, sizes: tuple[int, ...]
) -> None:
    """Just the keys and values that no query of their sequence attends to are NaN."""
    case = _case(sizes, "nan_masked", options, window=window)
    made = _tensors(case)
    each = lengths(case) if "varlen" in options else ((5, 9),)
    hidden = []
    for s_q, s_kv in each:
        first, last = key_ranges(case, s_q, s_kv)
        hidden += [not any(first[i] <= j <= last[i] for i in range(s_q)) for j in range(s_kv)]
    expected = torch.tensor(hidden)
    assert 0 < int(expected.sum()) < len(hidden)
    for name in "kv":
        assert torch.equal(made[name].isnan().all(3).all(2).all(0), expected)
        assert torch.equal(made[name].isnan().any(3).any(2).any(0), expected)
    assert bool(made["q"].isfinite().all())


@pytest.mark.parametrize(
    ("distribution", "name", "number"),
    [
        ("nan_q", "q", math.nan),
        ("nan_k", "k", math.nan),
        ("nan_v", "v", math.nan),
        ("inf_k", "k", math.inf),
        ("nan_do", "do", math.nan),
    ],
)
def test_one_element_alone_is_not_finite(distribution: str, name: str, number: float) -> None:
    """One batch, one head, one row, one column: what else is NaN in an output has leaked."""
    made = _tensors(_case((2, 2, 2, 5, 9, 8, 8), distribution))
    for each, tensor in made.items():
        assert int((~tensor.isfinite()).sum()) == (each == name)
    bad = made[name][~made[name].isfinite()]
    assert str(bad.item()) == str(number)  # which tells NaN from infinity


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_biases_hide_the_keys_that_they_are_named_after(dtype: torch.dtype) -> None:
    """The first 128 keys (but never all), or every third row; the rest is finite and varied."""
    sizes = (2, 2, 2, 5, 131, 8, 8)

    def bias(distribution: str) -> Tensor:
        return _tensors(_case(sizes, distribution, "bias", dtype=dtype))["bias"]

    for name, number in (("bias_inf_first", -math.inf), ("bias_finfo_min", torch.finfo(dtype).min)):
        made = bias(name)
        assert bool((made[..., :128] == number).all())
        assert bool((made[..., 128:].abs() < 10).all())
    made = bias("bias_inf_row").view(-1, 131)
    dead = torch.arange(20) % 3 == 1
    assert torch.equal((made == -math.inf).all(1), dead)
    assert bool(made[~dead].isfinite().all())


def test_bias_first_leaves_the_last_of_few_keys() -> None:
    """With fewer than 129 keys one is left, so that the row isn't dead."""
    made = _tensors(_case((1, 1, 1, 3, 17, 8, 8), "bias_inf_first", "bias"))["bias"]
    assert bool((made[..., :16] == -math.inf).all())
    assert bool(made[..., 16].isfinite().all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_subnormals_are_subnormal_in_the_dtype(dtype: torch.dtype) -> None:
    """v and do (or q and k) lie under the smallest normal number, and are not all zero."""
    for distribution, names in (("subnormals", ("v", "do")), ("qk_subnormals", ("q", "k"))):
        made = _tensors(_case((1, 2, 2, 5, 9, 8, 8), distribution, dtype=dtype))
        for name in names:
            assert bool((made[name].abs() < torch.finfo(dtype).smallest_normal).all())
            assert bool((made[name] != 0).any())


def test_logits_are_as_large_as_their_names_say() -> None:
    """logits1e4 has scores past 1e4, one_hot past 60; near_flat's stay under 0.01."""
    sizes = (1, 2, 2, 40, 40, 64, 64)
    for distribution, least, most in (
        ("logits1e4", 1e4, 1e5),
        ("one_hot", 60, 300),
        ("near_flat", 1e-3, 1e-2),
    ):
        made = _tensors(_case(sizes, distribution))
        scores = torch.einsum("bihd,bjhd->bhij", made["q"], made["k"]) / 8
        assert least < float(scores.abs().max()) < most


def test_near_overflow_brings_some_gradient_past_the_largest_half() -> None:
    """dv passes 65504 somewhere and not everywhere, while dP stays small enough to be cast."""
    (case,) = (
        case
        for case in OPS[GRADIENTS].cases()
        if case.tier == "ci" and case.distribution == "near_overflow"
    )
    made = {name: each.double() for name, each in _tensors(case).items()}
    q, k, v, do = (made[name].transpose(1, 2) for name in ("q", "k", "v", "do"))
    allowed = torch.ones(37, 70, dtype=torch.bool).tril()
    weights = (q @ k.transpose(2, 3) / 8).masked_fill(~allowed, -math.inf).softmax(-1)
    dv, dp = weights.transpose(2, 3) @ do, do @ v.transpose(2, 3)
    assert 0 < int((dv.abs() > 65504).sum()) < dv.numel() / 2
    assert float(dp.abs().max()) < 3e4


def test_delta_has_a_distribution_of_its_out() -> None:
    """nan_out puts its NaN into out, which only delta draws."""
    made = _tensors(_case((1, 2, 2, 5, 9, 8, 8), "nan_out", op=DELTA))
    assert int(made["out"].isnan().sum()) == 1
    assert bool(made["do"].isfinite().all())
