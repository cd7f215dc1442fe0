"""Values that follow from an attention case alone: lengths, key ranges, forms, places, counts."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.attention.cases import attention_case
from kernel_workbench.oracles.attention.geometry import (
    AXES,
    BACKWARD,
    DELTA,
    FORWARD,
    GRADIENTS,
    key_ranges,
    lengths,
)
from kernel_workbench.oracles.op import Case

CPU = torch.device("cpu")
BY_NAME = (FORWARD, DELTA, BACKWARD, GRADIENTS)
B, H, D = 2, 3, 64


def _tensors(case: Case) -> dict[str, Tensor]:
    made = OPS[case.op].inputs(case, CPU)
    return {name: value for name, value in made.items() if isinstance(value, Tensor)}


@pytest.mark.parametrize("b", range(9))
@pytest.mark.parametrize(("s_q", "s_kv"), [(41, 70), (70, 41), (33, 33), (2, 1), (0, 3)])
def test_varlen_lengths_hold_every_kind_of_sequence(b: int, s_q: int, s_kv: int) -> None:
    """From five sequences: an empty one, no queries, no keys, length 1, the largest; in order."""
    sizes = (b, H, H, s_q, s_kv, D, D)
    case = attention_case(FORWARD, sizes, torch.bfloat16, "ci", options="varlen")
    each = lengths(case)
    assert len(each) == b
    assert all(0 <= q <= s_q and 0 <= k <= s_kv for q, k in each)
    made = OPS[FORWARD].inputs(case, CPU)
    for name, place, longest in (("q", 0, s_q), ("k", 1, s_kv)):
        ends, tensor = made[f"cu_seqlens_{name}"], made[name]
        assert isinstance(ends, Tensor) and isinstance(tensor, Tensor)
        assert ends.dtype == torch.int32
        assert ends.diff().tolist() == [pair[place] for pair in each]
        assert tensor.shape[:2] == (1, int(ends[-1]))
        assert made[f"max_seqlen_{name}"] == longest
    if b:
        assert (s_q, s_kv) in each
    if s_q == s_kv:
        assert all(q == k for q, k in each)
    if b >= 5 and s_q > 1:
        assert (0, 0) in each
        assert any(q == 1 for q, _ in each)
        if s_q != s_kv:
            assert any(q == 0 and k > 0 for q, k in each)
            assert any(q > 0 and k == 0 for q, k in each)


MASKS = {
    "": ("", None),
    "causal": ("causal", None),
    "causal bottom right": ("causal bottom_right", None),
    "window": ("", (5, 3)),
    "window bottom right": ("bottom_right", (5, 0)),
    "left": ("", (2, None)),
    "causal left bottom right": ("causal bottom_right", (2, None)),
}


@pytest.mark.parametrize(("s_q", "s_kv"), [(9, 9), (4, 13), (13, 4), (0, 3), (3, 0)])
@pytest.mark.parametrize("mask", MASKS)
def test_key_ranges_are_what_the_masks_say(mask: str, s_q: int, s_kv: int) -> None:
    """Pair by pair, by the contract's inequalities; `pairs` behind flops counts the same."""
    options, window = MASKS[mask]
    sizes = (B, H, H, s_q, s_kv, D, D)
    case = attention_case(FORWARD, sizes, torch.float16, "ci", options=options, window=window)
    first, last = key_ranges(case, s_q, s_kv)
    shift = s_kv - s_q if "bottom_right" in options else 0
    left, right = window or (None, None)
    attended = 0
    for i in range(s_q):
        for j in range(s_kv):
            allowed = (
                ("causal" not in options or j <= i + shift)
                and (left is None or i + shift - left <= j)
                and (right is None or j <= i + shift + right)
            )
            assert allowed == bool(first[i] <= j <= last[i]), (i, j)
            attended += allowed
    assert OPS[FORWARD].flops(case) == B * H * attended * (2 * D + 2 * D)


def test_flops_count_the_products_of_each_pass() -> None:
    """Two products forward, five backward, and both for the gradients; one sum in delta."""
    sizes = (2, 4, 2, 10, 20, 16, 24)
    pairs = 2 * 4 * 10 * 20
    expected = {
        FORWARD: 2 * pairs * (16 + 24),
        BACKWARD: 2 * pairs * (16 + 24 + 24 + 16 + 16),
        GRADIENTS: 2 * pairs * (16 + 24 + 16 + 24 + 24 + 16 + 16),
        DELTA: 2 * 2 * 4 * 10 * 24,
    }
    for op, number in expected.items():
        assert OPS[op].flops(attention_case(op, sizes, torch.float16, "ci")) == number


def _quick(op: str) -> list[Case]:
    return [case for case in OPS[op].cases() if case.tier == "ci"]


@pytest.mark.parametrize("op", BY_NAME)
def test_geometry_forms_and_bytes_are_those_of_the_inputs(op: str) -> None:
    """Every case of ci can be made and lies where `geometry` says; outputs are as their inputs."""
    for case in _quick(op):
        tensors, placed, forms = _tensors(case), OPS[op].geometry(case), OPS[op].forms(case)
        assert set(placed) == set(tensors) & set(AXES), case.id()
        for name, where in placed.items():
            tensor = tensors[name]
            assert tensor.shape == where.shape, case.id()
            assert tensor.stride() == where.strides, case.id()
            assert tensor.dtype == where.dtype == case.dtype, case.id()
            if tensor.numel():
                assert tensor.data_ptr() % 256 == where.offset * tensor.element_size(), case.id()
        for name in ("q", "k", "v", "bias", "sink"):
            if f"d{name}" in forms:
                assert forms[f"d{name}"].shape == tensors[name].shape, case.id()
                assert forms[f"d{name}"].dtype == tensors[name].dtype, case.id()
        read = sum(each.numel() * each.element_size() for each in tensors.values())
        written = sum(math.prod(each.shape) * each.dtype.itemsize for each in forms.values())
        assert OPS[op].bytes(case) == read + written, case.id()


def test_forms_of_forward_and_delta_follow_from_q_and_v() -> None:
    """out has v's head size; lse and delta are [b, h_q, s_q] in fp32, packed for varlen."""
    sizes = (6, 4, 2, 10, 20, 16, 24)
    dense = attention_case(FORWARD, sizes, torch.float16, "ci")
    forms = OPS[FORWARD].forms(dense)
    assert (forms["out"].shape, forms["out"].dtype) == ((6, 10, 4, 24), torch.float16)
    assert (forms["lse"].shape, forms["lse"].dtype) == ((6, 4, 10), torch.float32)
    varlen = attention_case(FORWARD, sizes, torch.float16, "ci", options="varlen")
    total = sum(q for q, _ in lengths(varlen))
    forms = OPS[FORWARD].forms(varlen)
    assert forms["out"].shape == (1, total, 4, 24)
    assert forms["lse"].shape == (1, 4, total)
    forms = OPS[DELTA].forms(attention_case(DELTA, sizes, torch.float16, "ci"))
    assert (forms["delta"].shape, forms["delta"].dtype) == ((6, 4, 10), torch.float32)
