"""Shrinking: what is left breaks the rule, and no change to it can be kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.cases.names import case_named
from kernel_workbench.oracles.op import Case
from kernel_workbench.suites.search.shrinking import changes, shrink

_LAYER_NORM = "layer_norm_backward"
_ATTENTION = "attention_forward"
_DRAWN = {
    _LAYER_NORM: "layer_norm_backward-m132-n3001-bfloat16_float32weight-dy_rowpad3+x_offset3-"
    "mean100-accumulate-no_bias-residual-zero_centred-seed77",
    _ATTENTION: "attention_forward-b6-h_q12-h_kv3-s_q150-s_kv37-d40-d_v59-window_left17-float16-"
    "q_offset3+v_transposed-v_plus8-alibi-bias-bias_over_batch-bottom_right-causal-dropout-gqa-"
    "scale-sink-softcap-unequal_d-window-seed5",
}


def _case(op: str) -> Case:
    case = case_named(OPS[op], _DRAWN[op])
    assert case is not None
    return case


def _always(_: int) -> bool:
    return True


_RULES: list[tuple[str, Callable[[Case], bool], dict[str, int], set[str]]] = [
    (_LAYER_NORM, lambda _: True, {"m": 1, "n": 1}, set()),
    (
        _LAYER_NORM,
        lambda case: "accumulate" in case.options and case.size("n") >= 129,
        {"m": 1, "n": 129},
        {"accumulate"},
    ),
    (
        _LAYER_NORM,
        lambda case: case.layout.of("x").offset > 0 and case.distribution == "mean100",
        {"m": 1, "n": 1},
        {"layout x_offset3", "values mean100"},
    ),
    (
        _LAYER_NORM,
        lambda case: case.dtype == torch.bfloat16 and case.size("m") > 64,
        {"m": 65, "n": 1},
        {"bfloat16"},
    ),
    (
        _ATTENTION,
        lambda case: {"causal", "softcap"} <= case.options and case.size("s_q") > case.size("s_kv"),
        {"b": 1, "h_q": 1, "h_kv": 1, "s_q": 2, "s_kv": 1, "d": 1, "d_v": 1},
        {"causal", "softcap"},
    ),
    (
        _ATTENTION,
        lambda case: "bias_over_batch" in case.options and case.size("b") > 4,
        {"b": 5, "h_q": 1, "h_kv": 1, "s_q": 1, "s_kv": 1, "d": 1, "d_v": 1},
        {"bias", "bias_over_batch"},
    ),
]


@pytest.mark.parametrize(("op", "breaks", "sizes", "needs"), _RULES)
def test_shrunk_case_has_what_the_rule_takes_and_no_more(
    op: str, breaks: Callable[[Case], bool], sizes: dict[str, int], needs: set[str]
) -> None:
    """Sizes are as small as the rule lets them be; all else is plain."""
    shrunk = shrink(OPS[op], _case(op), breaks, _always)
    assert shrunk.whole
    assert breaks(shrunk.case)
    assert not any(breaks(change.case) for change in changes(OPS[op], shrunk.case))
    assert dict(shrunk.case.sizes) == sizes
    assert {each for each in shrunk.needs if " of " not in each} == needs
    assert shrunk.case.seed == 0


def test_shrinking_that_is_cut_off_says_so() -> None:
    """The case that is left may shrink further."""
    shrunk = shrink(OPS[_ATTENTION], _case(_ATTENTION), lambda _: True, lambda tried: tried < 3)
    assert not shrunk.whole
    assert shrunk.tried == 3


def test_large_case_is_made_smaller_first() -> None:
    """Anything else that could be left out is tried on a case that takes a fraction of the time."""
    op = OPS[_LAYER_NORM]
    large = replace(_case(_LAYER_NORM), sizes=(("m", 2048), ("n", 3001)))
    sizes = [op.bytes(each.case) for each in changes(op, large)]
    assert sizes == sorted(sizes)
    assert sizes[0] < op.bytes(large) / 1000


def test_no_case_is_tried_twice() -> None:
    """A kernel's answer is kept."""
    seen: list[str] = []

    def breaks(case: Case) -> bool:
        seen.append(case.id())
        return "causal" in case.options

    shrunk = shrink(OPS[_ATTENTION], _case(_ATTENTION), breaks, _always)
    assert len(seen) == len(set(seen)) == shrunk.tried


@pytest.mark.parametrize("op", list(_DRAWN))
def test_each_change_is_a_case_that_the_op_allows(op: str) -> None:
    """And one whose id can be typed."""
    found = list(changes(OPS[op], _case(op)))
    assert len(found) > 20
    assert all(case_named(OPS[op], change.case.id()) == change.case for change in found)
