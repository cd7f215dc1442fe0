"""The peers of attention that run on a CPU, judged by the ops' own bounds; and what a mask says."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal
from unittest.mock import Mock

import pytest
import torch

from kernel_workbench.kernels.baselines import attention_flex
from kernel_workbench.kernels.baselines.attention_call import KeyMask, reduced_like
from kernel_workbench.kernels.registry import Kernel, all_kernels
from kernel_workbench.oracles import ATTENTION_FORWARD, OPS
from kernel_workbench.oracles.attention.geometry import BACKWARD, DELTA, FORWARD, GRADIENTS
from kernel_workbench.oracles.attention.options import Window
from kernel_workbench.oracles.op import Case
from tests.builders.by_hand import DTYPES, kernel_of, run_on

SM = 90
CPU = torch.device("cpu")


def _kernel(op: str, name: str) -> Kernel:
    return next(each for each in all_kernels() if (each.op.name, each.name) == (op, name))


def _case(
    options: str, *, op: str = FORWARD, dtype: torch.dtype = torch.float32, **sizes: int
) -> Case:
    """A case of `op`: one batch, four heads, 20 queries, 27 keys, heads of 16 unless said."""
    known = {"b": 1, "h_q": 4, "h_kv": 4, "s_q": 20, "s_kv": 27, "d": 16, "d_v": 16}
    return Case(
        op=op,
        sizes=tuple((known | sizes).items()),
        dtype=dtype,
        weight_dtype=dtype,
        options=frozenset(options.split()),
    )


# Every option of the contract, alone and with others.
_WANTED = (
    _case(""),
    _case("gqa unequal_d scale", h_kv=2, d_v=24),
    _case("causal bottom_right", s_q=27, s_kv=20),
    _case("causal window", window_left=5),
    _case("bottom_right window", window_left=3, window_right=2),
    _case("bias"),
    _case("bias bias_over_batch bias_over_heads bias_over_queries", b=2),
    _case("alibi softcap", b=2),
    _case("sink causal bottom_right", s_q=27, s_kv=20),
    _case("dropout causal", b=2),
    _case("varlen causal", b=6),
    _case("varlen sink dropout alibi bottom_right", b=6, s_q=27, s_kv=20),
    _case("", s_kv=0),
    _case("causal", s_q=0),
    _case("gqa", b=0, h_kv=2),
)


def _as(case: Case, op: str, dtype: torch.dtype) -> Case:
    return Case(
        op=op,
        sizes=case.sizes,
        dtype=dtype,
        weight_dtype=dtype,
        options=case.options,
    )


@pytest.mark.parametrize("op", [FORWARD, BACKWARD, GRADIENTS])
@pytest.mark.parametrize("index", range(len(_WANTED)))
def test_eager_is_within_the_bound_with_every_option(op: str, index: int) -> None:
    """The formula in fp32 passes the verdict, in one dtype after another, and repeats its bits."""
    run, eager = run_on(CPU), _kernel(op, "torch_eager")
    case = _as(_WANTED[index], op, DTYPES[index % len(DTYPES)])
    assert run.refusal(eager, case) is None
    row = run.try_pair(eager, case)
    assert row.status == "passed", (case.id(), row.reason)


def test_eager_serves_every_case_but_those_too_large_or_of_torchs_own_dropout() -> None:
    """Nothing else is refused, of any op and tier."""
    for op in (FORWARD, DELTA, BACKWARD, GRADIENTS):
        eager = _kernel(op, "torch_eager")
        reasons = {
            reason.split(", got")[0]
            for case in eager.op.cases()
            if (reason := eager.domain.reject(case, SM)) is not None
        }
        known = ("doesn't serve torch_dropout", "holds all scores at once", "widens its operands")
        assert all(reason.startswith(known) for reason in reasons), reasons


@pytest.mark.parametrize("name", ["torch_math", "torch_flash_cpu"])
@pytest.mark.parametrize("options", ["", "causal", "gqa scale", "bias alibi"])
def test_sdpa_is_within_the_bound(name: str, options: str) -> None:
    """PyTorch's own backends pass in fp32 where they serve, through autograd."""
    h_kv = 2 if "gqa" in options else 4
    case = _case(options, op=GRADIENTS, h_kv=h_kv)
    kernel, run = _kernel(GRADIENTS, name), run_on(CPU)
    if (name, options) == ("torch_flash_cpu", "bias alibi"):
        assert run.refusal(kernel, case) == "doesn't serve alibi, bias"
        return
    assert run.refusal(kernel, case) is None
    row = run.try_pair(kernel, case)
    assert row.status == "passed", row.reason


@pytest.mark.parametrize("op", [FORWARD, BACKWARD])
@pytest.mark.parametrize("options", ["", "causal", "gqa scale"])
def test_flash_on_a_cpu_is_within_the_bound(op: str, options: str) -> None:
    """Both passes in fp32, on the out and lse that they are given."""
    case = _case(options, op=op, h_kv=2 if "gqa" in options else 4)
    row = run_on(CPU).try_pair(_kernel(op, "torch_flash_cpu"), case)
    assert row.status == "passed", row.reason


@pytest.mark.parametrize("name", ["s_q", "s_kv", "b"])
def test_flash_on_a_cpu_is_never_given_what_ends_the_process(name: str) -> None:
    """Tensors without elements are refused: the operator would divide by zero."""
    empty = {"s_q": _case("", s_q=0), "s_kv": _case("", s_kv=0), "b": _case("", b=0)}[name]
    for op in (FORWARD, BACKWARD, GRADIENTS):
        case = _as(empty, op, torch.float32)
        reason = _kernel(op, "torch_flash_cpu").domain.reject(case, SM, "cpu")
        assert reason == f"serves {name} of 1 or more, got 0"


_MODIFIED = (
    _case("causal bottom_right window", window_left=5),
    _case("window", s_q=27, s_kv=20, window_right=2),
    _case("alibi softcap bottom_right"),
)


@pytest.mark.parametrize("case", _MODIFIED, ids=lambda case: case.id())
def test_flex_asks_for_the_scores_and_masks_of_the_contract(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its functions of a score, run as they are, give the truth; compiling changes the speed."""
    from torch.nn.attention.flex_attention import flex_attention  # noqa: PLC0415  (takes a second)

    monkeypatch.setattr(attention_flex, "_compiled", lambda *_: flex_attention)
    features = attention_flex._DOMAIN.features
    uncompiled = kernel_of(attention_flex.flex_attention, op=ATTENTION_FORWARD, features=features)
    uncompiled = replace(uncompiled, wraps="PyTorch's flex attention")
    row = run_on(CPU).try_pair(uncompiled, case)
    assert row.status == "passed", row.reason


def test_flex_makes_a_mask_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in every call that is timed; another window, corner or length is another mask."""
    from torch.nn.attention import flex_attention as flex  # noqa: PLC0415  (takes a second)

    made = Mock(wraps=flex.create_block_mask)
    monkeypatch.setattr(flex, "create_block_mask", made)
    monkeypatch.setattr(attention_flex, "_compiled", lambda *_: flex.flex_attention)
    attention_flex._block_mask.cache_clear()
    q, k, v = (torch.randn(1, 160, 2, 16) for _ in range(3))
    calls: list[dict[str, object]] = [
        {"causal": True},
        {"causal": True, "window": (8, None)},
        {"window": (8, 4)},
        {},
    ]
    for _ in range(3):
        for call in calls:
            out, _ = attention_flex.flex_attention(q, k, v, **call)
            expected = _kernel(FORWARD, "torch_eager").function(q=q, k=k, v=v, **call)
            assert isinstance(expected, tuple)
            torch.testing.assert_close(out, expected[0])
    assert made.call_count == 3
    for corner in ("top_left", "bottom_right"):
        attention_flex.flex_attention(q, k[:, :140], v[:, :140], causal=True, corner=corner)
    assert made.call_count == 5


def test_flex_compiles_for_a_dozen_cases_at_most() -> None:
    """`full` ends within its minutes, and `ci` never compiles."""
    for op in (FORWARD, GRADIENTS):
        domain = _kernel(op, "flex_attention").domain
        served = [case for case in OPS[op].cases() if domain.reject(case, SM) is None]
        assert 1 <= len(served) <= 12
        assert all(case.tier == "full" for case in served)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, (3, 2), (None, 1), (0, None), (0, 0)])
@pytest.mark.parametrize("corner", ["top_left", "bottom_right"])
@pytest.mark.parametrize("lengths", [(7, 7), (5, 9), (9, 5), (1, 4), (3, 0)])
def test_mask_allows_what_the_contract_does(
    *,
    causal: bool,
    window: Window | None,
    corner: Literal["top_left", "bottom_right"],
    lengths: tuple[int, int],
) -> None:
    """Pair by pair, and row by row, against the contract's inequalities."""
    s_q, s_kv = lengths
    mask = KeyMask(causal=causal, window=window, corner=corner)
    shift = s_kv - s_q if corner == "bottom_right" else 0
    left, right = window or (None, None)
    pairs = mask.pairs(s_q, s_kv, CPU)
    allowed = torch.ones(s_q, s_kv, dtype=torch.bool) if pairs is None else pairs
    for i in range(s_q):
        for j in range(s_kv):
            expected = (
                (not causal or j <= i + shift)
                and (left is None or i + shift - left <= j)
                and (right is None or j <= i + shift + right)
            )
            assert bool(allowed[i, j]) == expected, (i, j)
    dead = mask.rows_without_keys(s_q, s_kv, CPU)
    assert mask.leaves_rows_without_keys(s_q, s_kv) is bool(dead.any())
    assert torch.equal(dead, ~allowed.any(1))


def test_gradient_is_summed_over_what_its_argument_was_broadcast_over() -> None:
    """In fp32, so that halves too many for their own sum come out right."""
    gradient = torch.full((2, 3, 1024, 4), 1.0, dtype=torch.bfloat16)
    argument = torch.empty((1, 3, 1, 4), dtype=torch.bfloat16)
    summed = reduced_like(gradient, argument)
    assert summed.shape == argument.shape
    assert torch.equal(summed, torch.full_like(summed, 2048.0))
    assert reduced_like(gradient, gradient) is gradient


def test_eager_reads_no_key_that_nobody_attends_to() -> None:
    """A NaN there is no part of any sum, not even times zero."""
    torch.manual_seed(3)
    q, k, v = (torch.randn(1, 6, 2, 8) for _ in range(3))
    function = _kernel(FORWARD, "torch_eager").function
    clean = function(q=q[:, :4], k=k, v=v, causal=True)
    k[:, 4:], v[:, 4:] = math.nan, math.nan
    poisoned = function(q=q[:, :4], k=k, v=v, causal=True)
    assert isinstance(clean, tuple)
    assert isinstance(poisoned, tuple)
    assert all(torch.equal(one, other) for one, other in zip(clean, poisoned, strict=True))
