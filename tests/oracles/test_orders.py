"""Other orders of addition: sums by lanes, chains from the largest addend on, what they allow."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # as everywhere
from torch import Tensor

from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.cases.names import case_named
from kernel_workbench.oracles.op import Numerics, required
from kernel_workbench.oracles.orders import (
    COARSE,
    FUSED,
    LANES,
    LATE,
    MOVED,
    subtracted,
    summed_in,
)
from kernel_workbench.oracles.reference.cases import case_of
from kernel_workbench.suites.accuracy.verdict import Verdict, judge
from kernel_workbench.suites.sandbox.call import Call

CPU = torch.device("cpu")
SOFTMAX = OPS["softmax_forward"]
REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: x.sum(-1),
    "sum of all": torch.sum,
    "sum of columns, kept": lambda x: x.t().sum(0, keepdim=True),
    "mean": lambda x: x.mean(-1),
    "var": lambda x: x.var(-1),
    "std": lambda x: x.std(-1, correction=0),
    "norm": lambda x: x.norm(dim=-1),
    "softmax": lambda x: x.softmax(-1),
    "log softmax": lambda x: x.log_softmax(-1),
    "log sum exp": lambda x: x.logsumexp(-1),
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "RMS norm": lambda x: F.rms_norm(x, x.shape[-1:]),
    "group norm": lambda x: F.group_norm(x[None], 3),
}


def _in_turn(x: Tensor) -> Tensor:
    total = torch.zeros_like(x[:, 0])
    for each in x.unbind(1):
        total = total + each
    return total


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("lanes", LANES)
def test_reduction_in_lanes_is_near_the_truth_and_another_than_torchs(
    name: str, lanes: int
) -> None:
    """The shape is torch's, and so is the value but for roundings."""
    x = torch.rand(6, 1025, generator=torch.Generator().manual_seed(0)) + 0.5
    plain, exact = REDUCTIONS[name](x), REDUCTIONS[name](x.double())
    with summed_in(lanes):
        other = REDUCTIONS[name](x)
    assert other.shape == plain.shape
    assert bool(torch.allclose(other.double(), exact, rtol=1e-3, atol=1e-6))
    if lanes == 1:
        assert not torch.equal(other, plain)


def test_one_lane_adds_up_in_turn() -> None:
    """Bit for bit as a loop does."""
    x = torch.randn(33, 257, generator=torch.Generator().manual_seed(0))
    with summed_in(1):
        other = x.sum(1)
    assert torch.equal(other, _in_turn(x))


def test_chain_of_additions_begins_with_the_largest() -> None:
    """Through views and in place; two addends have one order."""
    draw = torch.Generator().manual_seed(0)
    a, b, c, d = (torch.randn(64, 33, generator=draw) for _ in range(4))
    whole = torch.stack([a, -b, c, -d]).sort(0, descending=True).values
    expected = ((whole[0] + whole[1]) + whole[2]) + whole[3]
    with summed_in(1):
        assert torch.equal(a - b, torch.sub(a, b))
        assert torch.equal((a - b) + (c - d), expected)
        turned = (a - b).t().reshape(33, 64).t() + c
        turned -= d
    assert torch.equal(turned, expected)


def test_addend_that_is_broadcast_is_moved_with_its_sum() -> None:
    """A row that is added to each row of a matrix has no view of the sum's shape."""
    draw = torch.Generator().manual_seed(0)
    a, b, c = torch.randn(64, 33, generator=draw), *torch.randn(2, 33, generator=draw)
    whole = torch.stack([a, b.expand(64, 33), c.expand(64, 33)]).sort(0, descending=True).values
    with summed_in(1):
        moved = (a + b).view(8, 8, 33) + c
    assert torch.equal(moved.view(64, 33), (whole[0] + whole[1]) + whole[2])


def test_addend_that_is_written_to_is_no_addend_any_more() -> None:
    """The chain is that of the values at the time of the addition."""
    a, b, c = (torch.full((3,), each) for each in (1.0, 2.0, 4.0))
    with summed_in(1):
        made = a + b
        a.mul_(100)
        assert (made + c).tolist() == [7.0] * 3


def test_product_is_not_rounded_where_a_sum_takes_it() -> None:
    """a b - c rounds once, through views, too; a product that is read elsewhere is rounded."""
    draw = torch.Generator().manual_seed(0)
    a, b, c = (torch.randn(64, 33, generator=draw) for _ in range(3))
    exact = a.double() * b.double()
    with summed_in(FUSED):
        product = a * b
        left = product - c
        right = c - 2 * product.t().contiguous().t()
        rest = product - product.clone()
        total = (a * b).sum()
        a.zero_()
        after = product + c
    assert torch.equal(left, (exact - c.double()).float())
    assert torch.equal(right, c - 2 * product)  # 2 (a b) is another product, of a rounded one
    assert torch.equal(after, (exact + c.double()).float())
    assert torch.equal(rest, (exact - product.double()).float())
    assert bool(rest.any())
    assert abs(float(total) - float(exact.sum())) < 1e-4


def test_rounding_that_a_fused_product_leaves_is_allowed() -> None:
    """In rows of one element g - mean g is 0, and by a fused multiply-add the rounding of g."""
    op = OPS["layer_norm_backward"]
    sizes, dtypes = {"m": 264, "n": 1}, (torch.float16, torch.float32)
    case = case_of(op.name, sizes, dtypes, "ci")
    inputs, numerics = op.inputs(case, CPU), Numerics()
    truth = op.oracle(case, inputs)
    dy, weight = (required(inputs, name) for name in ("dy", "weight"))
    rstd = required(inputs, "rstd").double().view(-1, 1)
    g = dy.double() * weight.double()
    dx = ((g - g.float().double()) * rstd).half()
    assert bool(dx.any())
    assert op.emulate is not None
    emulation = op.emulate(case, inputs, numerics)
    sums = {name: required(emulation, name) for name in ("dweight", "dbias")}
    bounds = op.bound(case, inputs, truth, numerics)
    call = Call({"dx": dx, **sums}, 0.0)

    def fused() -> list[dict[str, Tensor | None]]:
        assert op.emulate is not None
        with summed_in(FUSED):
            return [op.emulate(case, inputs, numerics)]

    judged = partial(judge, call, call, truth, bounds, numerics, emulation=emulation)
    assert judged().rule == "emulation"
    assert judged(other_orders=fused).rule is None


def test_late_maximum_is_smaller_by_less_than_a_power_of_two() -> None:
    """It differs from row to row; in every other order it is the maximum."""
    maxima = torch.linspace(-3, 3, 64)[:, None]
    assert subtracted(maxima) is maxima
    with summed_in(FUSED):
        assert subtracted(maxima) is maxima
    with summed_in(LATE):
        late = subtracted(maxima)
    less = maxima - late
    assert late.shape == maxima.shape
    assert 0 <= float(less.min()) < 0.05
    assert 0.64 < float(less.max()) <= math.log(2)
    assert len(less.unique()) == len(maxima)


def test_exponential_may_be_off_as_a_gpus_fast_one() -> None:
    """By up to 2^-22, by its argument; exp(0), and those of infinities, are exact."""
    x = torch.linspace(-20, 5, 1001)
    with summed_in(COARSE):
        coarse, again = x.exp(), x.clone().exp_()
        special = torch.tensor([0.0, -math.inf, math.inf, math.nan]).exp()
    assert torch.equal(coarse, again)
    off = (coarse.double() / x.double().exp() - 1).abs()
    assert 2.0**-22.2 < float(off.max()) <= 2.0**-22 + 2.0**-23
    assert special[:3].tolist() == [1.0, 0.0, math.inf]
    assert bool(special[3].isnan())
    with summed_in(FUSED):
        assert torch.equal(x.exp(), torch.exp(x))


def test_factor_may_stand_on_the_other_side_of_a_cast() -> None:
    """A kernel that scales dq after the cast of dS: where queries have one number, it may differ.

    Scaled twice as much, dq is wrong all the same.
    """
    text = "b6-h_q8-h_kv1-s_q128-s_kv16-d32-d_v64-window_right3-bfloat16-contiguous-one_hot"
    op, numerics = OPS["attention_gradients"], Numerics()
    case = case_named(op, f"{op.name}-{text}-causal-gqa-sink-unequal_d-window-seed1")
    assert case is not None
    inputs = op.inputs(case, CPU)
    truth = op.oracle(case, inputs)
    bounds, emulation = op.bound(case, inputs, truth, numerics), op.emulate(case, inputs, numerics)

    def moved() -> list[dict[str, Tensor | None]]:
        with summed_in(MOVED):
            return [op.emulate(case, inputs, numerics)]

    outputs = {name: output for name, output in moved()[0].items() if output is not None}
    judged = partial(judge, truth=truth, bounds=bounds, numerics=numerics, emulation=emulation)
    call = Call(outputs, 0.0)
    assert judged(call, call).rule == "emulation"
    assert judged(call, call, other_orders=moved).rule is None
    wrong = Call(outputs | {"dq": (outputs["dq"].double() * (1 + 2.0**-7)).to(case.dtype)}, 0.0)
    assert judged(wrong, wrong, other_orders=moved).rule is not None


def _judged(softmax: Callable[[Tensor], Tensor], *, others: bool) -> Verdict:
    case = case_of(SOFTMAX.name, {"m": 33, "n": 2056}, (torch.float32,) * 2, "ci", "negative_zero")
    inputs, numerics = SOFTMAX.inputs(case, CPU), Numerics()
    truth = SOFTMAX.oracle(case, inputs)
    call = Call({"y": softmax(required(inputs, "x"))}, 0.0)
    assert SOFTMAX.emulate is not None
    emulate = partial(SOFTMAX.emulate, case, inputs, numerics)

    def orders() -> list[dict[str, Tensor | None]]:
        made = []
        for lanes in LANES:
            with summed_in(lanes):
                made.append(emulate())
        return made

    bounds = SOFTMAX.bound(case, inputs, truth, numerics)
    more = orders if others else tuple
    return judge(*(call, call, truth, bounds, numerics), emulation=emulate(), other_orders=more)


def _softmax_in_turn(x: Tensor) -> Tensor:
    e = (x - x.amax(1, keepdim=True)).exp()
    return e / _in_turn(e)[:, None]


def test_sum_in_turn_is_allowed_and_an_error_of_every_number_is_not() -> None:
    """A row of which every other number is the same is off to one side in a loop over it."""
    assert _judged(_softmax_in_turn, others=False).rule == "emulation"
    assert _judged(_softmax_in_turn, others=True).rule is None
    wrong = _judged(lambda x: _softmax_in_turn(x) * (1 + 2.0**-15), others=True)
    assert wrong.rule == "emulation"
