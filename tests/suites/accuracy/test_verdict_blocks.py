"""Rule 3 of the verdict on hand-made errors: which blocks there are, and what each may hold.

Bounds are 1, so that z is an error; the emulation is off by what a test says, or by nothing.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kernel_workbench.oracles.op import Bound, Numerics, Outputs
from kernel_workbench.suites.accuracy.blocks import Tiles
from kernel_workbench.suites.accuracy.verdict import Verdict, judge
from kernel_workbench.suites.sandbox.call import Call

SHAPE = (2, 40, 2, 64)  # 160 rows of 64


def _judge(
    errors: Tensor,
    emulated: Tensor | None,
    bound: Tensor | None = None,
    powerless: Tensor | None = None,
) -> Verdict:
    """The verdict on an output `dk` of which 0 is right everywhere."""
    limit = torch.ones_like(errors, dtype=torch.float64) if bound is None else bound
    call = Call({"dk": errors}, 0.0)
    other: Outputs = {} if emulated is None else {"dk": emulated}
    truth: Outputs = {"dk": torch.zeros_like(errors, dtype=torch.float64)}
    limits = {"dk": Bound(limit, None, powerless)}
    return judge(call, call, truth, limits, Numerics(), emulation=other)


def _ratio(verdict: Verdict) -> float | None:
    (only,) = verdict.outputs
    return only.worst_emulation


def _one(value: float, shape: tuple[int, ...] = SHAPE, others: float = 0.0) -> Tensor:
    """An output with one error, in the middle; others: what all other elements are off by."""
    made = torch.full(shape, others)
    made.view(-1)[made.numel() // 2] = value
    return made


@pytest.mark.parametrize(
    ("rows", "columns"),
    [(16, 64), (1024, 1), (257, 1), (33, 40), (37, 64), (2, 128), (5, 1025), (300, 7), (40, 500)],
)
def test_blocks_hold_every_element_once_and_enough_of_them(rows: int, columns: int) -> None:
    """About 1024 elements, of 16 rows where there are as many, and never of one alone."""
    tiles = Tiles.of(rows, columns, rows * columns)
    assert tiles is not None
    at = tiles.numbers(torch.device("cpu")).view(rows, columns)
    sizes = at.flatten().bincount()
    assert len(sizes) == tiles.down * tiles.across
    assert min(256, rows * columns) <= int(sizes.min())
    assert int(sizes.max()) < 4 * 1024
    assert int(sizes.min()) >= min(1024, rows * columns)
    for block in range(len(sizes)):
        down, across = tiles.rows_of(block), tiles.columns_of(block)
        assert len(down) >= min(rows, 16)
        inside = at[down.start : down.stop, across.start : across.stop]
        assert bool((inside == block).all())
        assert inside.numel() == int(sizes[block])


@pytest.mark.parametrize("shape", [(255,), (3, 85), (1, 1, 1, 4096), (4096, 0), (0, 64)])
def test_outputs_too_small_for_a_block_arent_compared(shape: tuple[int, ...]) -> None:
    """The worst of 255 elements says little; and all errors of one row may be one draw."""
    verdict = _judge(torch.full(shape, 0.9), torch.zeros(shape))
    assert (verdict.rule, _ratio(verdict)) == (None, None)


def test_every_element_of_a_vector_is_a_row_of_its_own() -> None:
    """A weight's gradient is compared, whatever its length from 256 on."""
    assert _judge(torch.full((256,), 0.9), torch.zeros(256)).rule == "emulation"


_FINE = 2.0**-20  # an error that counts as one, and for nothing in what is allowed


def test_one_element_may_be_off_by_the_floor_and_no_more() -> None:
    """An eighth of the bound where the emulation is all but exact: few, so a small mean."""
    emulated = _one(_FINE, others=_FINE)
    assert _judge(_one(0.125), emulated).rule is None
    verdict = _judge(_one(0.1875), emulated)
    assert verdict.rule == "emulation"
    assert _ratio(verdict) == pytest.approx(1.5, rel=1e-4)


def test_one_element_may_be_off_by_half_where_roundings_are_rare() -> None:
    """A sum of three terms that are nearly always exact: which element rounds is its order's."""
    emulated = torch.zeros(SHAPE)
    emulated[1, 0, 0, :15] = _FINE
    assert _judge(_one(0.5), emulated).rule is None
    verdict = _judge(_one(0.75), emulated)
    assert verdict.rule == "emulation"
    assert _ratio(verdict) == pytest.approx(1.5, rel=1e-4)
    assert "2 x 9.54e-07 + 0.5 = 0.5 is allowed" in str(verdict.reason)
    emulated[1, 0, 0, 15] = _FINE
    assert _judge(_one(0.5), emulated).rule == "emulation"


def test_one_element_may_be_off_twice_what_the_emulation_is() -> None:
    """The largest error of the block, wherever in it the emulation has its own."""
    emulated = _one(_FINE, others=_FINE)
    emulated.view(-1)[emulated.numel() // 2 + 100] = 0.25
    assert _judge(_one(0.625), emulated).rule is None
    verdict = _judge(_one(0.75), emulated)
    assert verdict.rule == "emulation"
    assert _ratio(verdict) == 1.2


def test_one_element_of_many_may_be_off_by_more() -> None:
    """By as much as the largest of so many errors is larger than that of 16 blocks."""
    shape = (1024, 512)  # 512 blocks of 1,024
    growth = math.sqrt(math.log(512 * 1024) / math.log(16 * 1024))
    emulated = torch.full(shape, 0.25)
    assert _judge(_one(0.625 * growth - 1e-3, shape, others=0.25), emulated).rule is None
    verdict = _judge(_one(0.625 * growth + 1e-3, shape, others=0.25), emulated)
    assert verdict.rule == "emulation"
    assert verdict.reason is not None
    assert f"{growth:.3g} x (2 x 0.25 + 0.125) = {0.625 * growth:.3g} is allowed" in verdict.reason


def test_all_elements_may_be_off_by_the_smaller_floor_and_no_more() -> None:
    """A sixteenth of the bound on every element is no outlier, and no rounding."""
    assert _judge(torch.full(SHAPE, 0.0625), torch.zeros(SHAPE)).rule is None
    verdict = _judge(torch.full(SHAPE, 0.09375), torch.zeros(SHAPE))
    assert verdict.rule == "emulation"
    assert _ratio(verdict) == 1.5
    assert _judge(torch.full(SHAPE, 0.25), torch.full(SHAPE, 0.125)).rule is None
    assert _judge(torch.full(SHAPE, 0.375), torch.full(SHAPE, 0.125)).rule == "emulation"


def test_a_block_that_is_wrong_is_told_with_its_place_and_its_worst_element() -> None:
    """A tile is off where the rest isn't: which of the rules, by how much, got, expected, bound."""
    errors, emulated = torch.zeros(64, 256), torch.zeros(64, 256)
    errors[32:48, 64:128] = 0.25
    errors[40, 100], emulated[40, 100] = -0.5, 0.125
    verdict = _judge(errors, emulated)
    assert verdict.reason == (
        "in the block dk[32, 64] to dk[47, 127] the root mean square error / bound of 1,024 "
        "elements is 0.25, where an emulation of the kernel has 0.00391 and 1.5 x 0.00391 + "
        "0.0625 = 0.0684 is allowed; dk[40, 100]: got -0.5, expected 0, an emulation has 0.125, "
        "the bound is 1"
    )


def test_a_block_past_a_chunk_is_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are cut in each chunk of rows; a place is counted from the output's start."""
    monkeypatch.setattr("kernel_workbench.suites.accuracy.elements._CHUNK_ELEMENTS", 40 * 64)
    errors = torch.zeros(120, 64)
    errors[100, 10] = 0.75
    verdict = _judge(errors, torch.zeros(120, 64))
    assert verdict.reason is not None
    assert verdict.reason.startswith("in the block dk[100, 0] to dk[119, 63] the largest error")
    assert "; dk[100, 10]: got 0.75, expected 0" in verdict.reason


@pytest.mark.parametrize("what", ["unjudged", "powerless", "emulated", "exact"])
def test_elements_that_cant_be_compared_dont_count(what: str) -> None:
    """Nothing promised, no power, no number to compare with, or exact by its bound."""
    errors, emulated = _one(0.9), _one(0.0)
    bound, powerless = torch.ones(SHAPE).double(), None
    place = errors.numel() // 2
    if what == "unjudged":
        bound.view(-1)[place] = math.inf
    if what == "powerless":
        powerless = errors > 0
    if what == "emulated":
        emulated.view(-1)[place] = math.nan
    if what == "exact":
        bound, errors = torch.zeros(SHAPE).double(), torch.zeros(SHAPE)
    verdict = _judge(errors, emulated, bound, powerless)
    assert (verdict.rule, _ratio(verdict)) == (None, 0.0)


def test_a_block_with_few_elements_that_count_isnt_compared() -> None:
    """Rows that attend to nothing are exact: 255 others in a block are too few."""
    bound = torch.zeros(16, 64).double()
    bound.view(-1)[:255] = 1
    errors = torch.where(bound > 0, 0.9, 0.0).float()
    assert _judge(errors, torch.zeros(16, 64), bound).rule is None
    bound.view(-1)[255], errors.view(-1)[255] = 1, 0.9
    assert _judge(errors, torch.zeros(16, 64), bound).rule == "emulation"


def test_the_likelier_bound_is_what_errors_are_taken_over() -> None:
    """Where there is a probabilistic one it is the scale of the comparison."""
    errors = torch.full(SHAPE, 0.25)
    call, wide = Call({"dk": errors}, 0.0), torch.full(SHAPE, 8.0).double()
    truth: Outputs = {"dk": torch.zeros(SHAPE).double()}
    other: Outputs = {"dk": torch.zeros(SHAPE)}
    for likely, rule in ((None, None), (torch.ones(SHAPE).double(), "emulation")):
        limits = {"dk": Bound(wide, likely)}
        assert judge(call, call, truth, limits, Numerics(), emulation=other).rule == rule


def test_bounds_are_asked_first_and_an_output_without_emulation_isnt_compared() -> None:
    """A rule that holds always is told before one that compares two draws."""
    assert _judge(_one(1.5), _one(0.0)).rule == "deterministic bound"
    verdict = _judge(torch.full(SHAPE, 0.9), None)
    assert (verdict.rule, _ratio(verdict)) == (None, None)
