"""Other orders of addition: sums by lanes, chains from the largest addend on, what they allow."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # as everywhere
from torch import Tensor

from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.op import Numerics, required
from kernel_workbench.oracles.orders import LANES, summed_in
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


def test_addend_that_is_written_to_is_no_addend_any_more() -> None:
    """The chain is that of the values at the time of the addition."""
    a, b, c = (torch.full((3,), each) for each in (1.0, 2.0, 4.0))
    with summed_in(1):
        made = a + b
        a.mul_(100)
        assert (made + c).tolist() == [7.0] * 3


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
